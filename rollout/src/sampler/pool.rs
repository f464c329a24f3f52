//! Many rows at once, on the threads of the engine.

use rayon::prelude::*;

use super::row::Scratch;

/// Logits below which the threads cost more than they save.
const PARALLEL_FROM: usize = 1 << 19;

/// The threads that sample, with a scratch buffer for each.
pub struct SamplerPool {
    threads: rayon::ThreadPool,
    scratches: Vec<Scratch>,
}

impl SamplerPool {
    /// A pool of `threads` threads.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = threads.max(1);
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("sampler-{i}")).build()?;
        Ok(Self { threads: pool, scratches: (0..threads).map(|_| Scratch::default()).collect() })
    }

    /// Calls `sample(i, item, scratch)` for every item; `vocab` is the length of one row. Each item sees nothing but
    /// itself, so the result does not depend on how they are spread over the threads.
    pub fn for_each<T: Send>(
        &mut self,
        vocab: usize,
        items: &mut [T],
        sample: impl Fn(usize, &mut T, &mut Scratch) + Sync,
    ) {
        if items.len() < 2 || self.scratches.len() < 2 || items.len() * vocab < PARALLEL_FROM {
            let scratch = &mut self.scratches[0];
            items.iter_mut().enumerate().for_each(|(i, item)| sample(i, item, scratch));
            return;
        }
        let share = items.len().div_ceil(self.scratches.len());
        let scratches = &mut self.scratches;
        self.threads.install(|| {
            items.par_chunks_mut(share).zip(scratches.par_iter_mut()).enumerate().for_each(|(c, (chunk, scratch))| {
                for (i, item) in chunk.iter_mut().enumerate() {
                    sample(c * share + i, item, scratch);
                }
            });
        });
    }
}
