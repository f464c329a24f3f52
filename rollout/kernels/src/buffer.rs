//! Large buffers.

use memmap2::MmapMut;

/// Zeroed words on large pages where the system has them: kernels walk through hundreds of megabytes at every step, and
/// small pages would cost a look-up every few cache lines. Untouched parts cost nothing.
pub struct LargeBuffer(MmapMut);

impl LargeBuffer {
    /// A buffer of `len` words.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let map = MmapMut::map_anon((len * size_of::<f32>()).max(1))?;
        // A system without large pages works all the same.
        #[cfg(target_os = "linux")]
        if let Err(error) = map.advise(memmap2::Advice::HugePage) {
            tracing::debug!(%error, "no large pages");
        }
        Ok(Self(map))
    }

    /// As [`LargeBuffer::new`], with every page already provided by the system: the first write to a page takes longer
    /// than many later ones (a gigabyte a second where a machine is virtual).
    ///
    /// # Errors
    /// As [`LargeBuffer::new`].
    pub fn provided(len: usize) -> std::io::Result<Self> {
        const SMALL_PAGE: usize = 4096 / size_of::<f32>();
        let mut buffer = Self::new(len)?;
        buffer.iter_mut().step_by(SMALL_PAGE).for_each(|word| *word = 0.0);
        Ok(buffer)
    }
}

impl std::ops::Deref for LargeBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let bytes = self.0.len() / size_of::<f32>() * size_of::<f32>();
        bytemuck::cast_slice(&self.0[..bytes])
    }
}

impl std::ops::DerefMut for LargeBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        let bytes = self.0.len() / size_of::<f32>() * size_of::<f32>();
        bytemuck::cast_slice_mut(&mut self.0[..bytes])
    }
}
