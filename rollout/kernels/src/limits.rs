//! The most that the kernels can do on this machine. It is measured, so that a step can be compared with it.

use std::{
    hint::black_box,
    io,
    time::{Duration, Instant},
};

use super::{
    buffer::LargeBuffer,
    element::Format,
    linear::{Activation, Input, Linear},
    packed::{Columns, PackedShape, Quantized},
    parallel::{Claims, Machine},
    simd::Isa,
    thread_pool::ThreadPool,
};

/// Products (depth, outputs, rows) at which the kernels are at their best: the right side stays in the second cache
/// level, and the left one is used often.
const PRODUCTS: [(usize, usize, usize); 2] = [(512, 2048, 240), (1024, 2048, 240)];
/// How long each of them is repeated. The fastest time counts: other programs on the machine only make it slower.
const PATIENCE: Duration = Duration::from_millis(80);
/// Words that are read for the bandwidth: more than twice what the caches of most machines hold.
const SWEEP: usize = 64 << 20;
/// Words that a thread reads at a time.
const STRIP: usize = 1 << 18;
/// How often they are read.
const SWEEPS: usize = 4;

/// A packed product to be timed: `depth` inputs to `outputs` outputs, for `rows` rows.
pub struct Product<'a> {
    shape: PackedShape,
    panels: LargeBuffer,
    quantized: Option<Quantized>,
    x: Vec<f32>,
    out: Vec<f32>,
    scratch: Vec<f32>,
    threads: &'a ThreadPool,
}

impl<'a> Product<'a> {
    /// Packs weights in a format.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub fn new(
        (depth, outputs, rows): (usize, usize, usize),
        format: Format,
        threads: &'a ThreadPool,
    ) -> io::Result<Self> {
        let shape = PackedShape { depth, outputs, columns: Columns::Joined, format };
        let some = |n: usize| (0..n).map(|i| (i % 31) as f32 / 16.0 - 1.0).collect::<Vec<f32>>();
        let mut panels = LargeBuffer::new(shape.words())?;
        let quantized = shape.pack(&[some(depth * outputs).as_slice().into()], &mut panels, threads);
        let (x, out) = (some(rows * depth), vec![0.0; rows * outputs]);
        let mut product = Self { shape, panels, quantized, x, out, scratch: Vec::new(), threads };
        // The first call brings memory and threads up.
        product.time();
        Ok(product)
    }

    /// How long one product takes now.
    pub fn time(&mut self) -> Duration {
        let layer = Linear {
            shape: self.shape,
            panels: &self.panels,
            quantized: self.quantized.as_ref(),
            bias: None,
            norm: None,
            activation: Activation::Silu,
            factor: 1.0,
        };
        let begin = Instant::now();
        let machine = Machine { isa: Isa::detect(), threads: self.threads, scratch: &mut self.scratch };
        layer.run(Input { x: &self.x, rows: None, residual: None }, &mut self.out, machine);
        begin.elapsed()
    }
}

/// Upper bounds of this machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Operations per second (two per multiplication and addition) of the packed product at its best.
    pub gemm: f64,
    /// Bytes per second when all threads read memory that is in no cache.
    pub read_bandwidth: f64,
}

impl Limits {
    /// Measures them with that many threads, within a second. Takes 256 MiB meanwhile.
    ///
    /// # Errors
    /// When the system gives no threads or no memory.
    pub fn measure(threads: usize, format: Format) -> io::Result<Self> {
        let workers = ThreadPool::new(threads, Duration::from_millis(1))?;
        let gemm = PRODUCTS.map(|size| gemm(size, format, &workers)).into_iter().collect::<io::Result<Vec<f64>>>()?;
        Ok(Self { gemm: gemm.into_iter().fold(0.0, f64::max), read_bandwidth: read_bandwidth(&workers)? })
    }
}

/// Operations per second of a product.
fn gemm(size: (usize, usize, usize), format: Format, threads: &ThreadPool) -> io::Result<f64> {
    let mut product = Product::new(size, format, threads)?;
    let (begin, mut best) = (Instant::now(), product.time());
    while begin.elapsed() < PATIENCE {
        best = best.min(product.time());
    }
    let (depth, outputs, rows) = size;
    Ok(2.0 * (depth * outputs * rows) as f64 / best.as_secs_f64())
}

fn read_bandwidth(threads: &ThreadPool) -> io::Result<f64> {
    let mut memory = LargeBuffer::new(SWEEP)?;
    // Memory that was never written is one page of zeros, which lies in the cache.
    memory.fill(1.0);
    let mut best = Duration::MAX;
    for _ in 0..SWEEPS {
        let claims = Claims::new(SWEEP / STRIP);
        let begin = Instant::now();
        threads.run(&|| {
            claims.run_all(|strip| {
                black_box(sum(&memory[strip * STRIP..(strip + 1) * STRIP]));
            });
        });
        best = best.min(begin.elapsed());
    }
    Ok((SWEEP * size_of::<f32>()) as f64 / best.as_secs_f64())
}

/// Sums in as many chains as the narrowest registers hold, so that reading is what takes the time.
fn sum(words: &[f32]) -> [f32; 32] {
    let mut sums = [0.0; 32];
    for block in words.as_chunks::<32>().0 {
        for (sum, x) in sums.iter_mut().zip(block) {
            *sum += x;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_are_those_of_a_machine() {
        for format in [Format::Fp32, Format::Int8, Format::Int4, Format::Bf16, Format::Bf16Dot, Format::Bf16x3] {
            let limits = Limits::measure(1, format).unwrap();
            // No core does less than 10^8 or more than 10^14 operations, nor reads less than 10^8 or more than 10^13
            // bytes.
            assert!((1e8..1e14).contains(&limits.gemm), "{limits:?}");
            assert!((1e8..1e13).contains(&limits.read_bandwidth), "{limits:?}");
        }
    }

    #[test]
    fn every_word_of_a_strip_is_read() {
        assert_eq!(sum(&vec![1.0; STRIP]).iter().sum::<f32>(), STRIP as f32);
    }
}
