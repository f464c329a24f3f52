//! Many rows at once, on the threads of the engine.

use rayon::prelude::*;

use super::row::Scratch;

/// Logits below which the threads cost more than they save.
const PARALLEL_FROM: usize = 1 << 19;

/// The threads that sample, with a scratch buffer for each.
pub struct SamplingThreads {
    threads: rayon::ThreadPool,
    scratches: Vec<Scratch>,
}

impl SamplingThreads {
    /// A pool of `threads` threads.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn new(threads: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let threads = threads.max(1);
        let pool =
            rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("sampling-{i}")).build()?;
        Ok(Self { threads: pool, scratches: (0..threads).map(|_| Scratch::default()).collect() })
    }

    /// Calls `sample(i, item, scratch)` for every item; `vocab` is the length of one row. Each item sees only itself,
    /// so the result does not depend on how items are spread over the threads.
    pub fn for_each<T: Send>(
        &mut self,
        vocab: usize,
        items: &mut [T],
        sample: impl Fn(usize, &mut T, &mut Scratch) + Sync,
    ) {
        let mut nothing = vec![(); items.len()];
        self.for_each_pair(vocab, items, &mut nothing, |i, item, (), scratch| sample(i, item, scratch));
    }

    /// As [`SamplingThreads::for_each`], for the items of two slices side by side.
    pub fn for_each_pair<T: Send, U: Send>(
        &mut self,
        vocab: usize,
        items: &mut [T],
        others: &mut [U],
        sample: impl Fn(usize, &mut T, &mut U, &mut Scratch) + Sync,
    ) {
        assert_eq!(items.len(), others.len(), "pairs");
        if items.len() < 2 || self.scratches.len() < 2 || items.len() * vocab < PARALLEL_FROM {
            let scratch = &mut self.scratches[0];
            items.iter_mut().zip(others).enumerate().for_each(|(i, (item, other))| sample(i, item, other, scratch));
            return;
        }
        let share = items.len().div_ceil(self.scratches.len());
        let chunks = items.par_chunks_mut(share).zip(others.par_chunks_mut(share));
        let scratches = &mut self.scratches;
        self.threads.install(|| {
            chunks.zip(scratches.par_iter_mut()).enumerate().for_each(|(c, ((items, others), scratch))| {
                for (i, (item, other)) in items.iter_mut().zip(others).enumerate() {
                    sample(c * share + i, item, other, scratch);
                }
            });
        });
    }
}
