//! Where keys and values lie: pages of [`PAGE`] positions, handed out from one pool.
//!
//! A page id stands for the same place in every layer and head. The keys of a page are transposed,
//! `[head_dim][position]`, so that one query is multiplied with sixteen positions at once; the values are
//! `[position][width]`, with the width of a head rounded up to whole blocks. Bytes lie in quads of what is summed over:
//! keys `[head_dim / 4][position][4]`, values `[position / 4][width][4]`. Behind them lie their scales, one for the key
//! and one for the value of each position.

use super::{
    element::KvFormat,
    floats::Floats,
    simd::{LANES, QUAD},
};

/// Positions of a page.
pub const PAGE: usize = LANES;

/// Sizes of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageShape {
    /// Layers of the model.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of pages.
    pub pages: usize,
    /// What keys and values are stored as.
    pub format: KvFormat,
}

impl PageShape {
    /// Width of a head in whole blocks.
    #[must_use]
    pub fn value_width(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Words of four bytes of one page in one layer and head.
    #[must_use]
    pub fn page_len(&self) -> usize {
        match self.format {
            KvFormat::Float => self.key_scales_at(),
            KvFormat::Byte => self.value_scales_at() + PAGE,
        }
    }

    /// First word of the values of a page.
    pub(super) fn values_at(&self) -> usize {
        match self.format {
            KvFormat::Float => PAGE * self.head_dim,
            KvFormat::Byte => PAGE * self.head_dim.div_ceil(QUAD),
        }
    }

    /// First word of the scales of the keys, in a page of bytes.
    pub(super) fn key_scales_at(&self) -> usize {
        self.values_at() + PAGE * self.value_width() * self.format.size() / size_of::<f32>()
    }

    /// First word of the scales of the values, in a page of bytes.
    pub(super) fn value_scales_at(&self) -> usize {
        self.key_scales_at() + PAGE
    }

    /// Bytes of the pool.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers * self.kv_heads * self.pages * self.page_len() * size_of::<f32>()
    }

    /// Pages that hold `positions` positions.
    #[must_use]
    pub fn pages_for(positions: usize) -> usize {
        positions.div_ceil(PAGE)
    }

    /// First word of a page.
    pub(super) fn offset(&self, layer: usize, head: usize, page: u32) -> usize {
        ((layer * self.kv_heads + head) * self.pages + page as usize) * self.page_len()
    }
}

/// The memory of the pages.
pub struct Pages {
    shape: PageShape,
    data: Floats,
}

impl Pages {
    /// A pool of zeros.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn new(shape: PageShape) -> std::io::Result<Self> {
        Ok(Self { shape, data: Floats::new(shape.bytes() / size_of::<f32>())? })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    pub(super) fn data(&mut self) -> &mut [f32] {
        &mut self.data
    }
}

/// Which pages are free.
#[derive(Debug)]
pub struct FreePages(Vec<u32>);

impl FreePages {
    /// All of `pages` pages.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self((0..pages as u32).rev().collect())
    }

    /// Takes the page that was given back last, which is the likeliest to be in a cache.
    pub fn take(&mut self) -> Option<u32> {
        self.0.pop()
    }

    /// Gives pages back.
    pub fn give_back(&mut self, pages: &[u32]) {
        self.0.extend(pages.iter().rev());
    }

    /// How many are free.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
