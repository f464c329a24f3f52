//! The kernels against plain loops in double precision, over shapes that fit nothing.

mod attention;
mod experts;
#[cfg(target_arch = "x86_64")]
mod flash;
mod functions;
mod halves;
mod linear;
mod logits;
mod per_layer;
mod recurrent;
mod width_norm;

use std::time::Duration;

use shared::generation::rng::Stream;

use super::{
    element::{BLOCK, Format},
    linear::{Norm, rms_norm},
    parallel::Machine,
    residual::add_normed,
    simd::{Features, Isa, Simd, Task},
    thread_pool::ThreadPool,
};

const EPSILON: f32 = 1e-5;

fn threads(count: usize) -> ThreadPool {
    ThreadPool::new(count, Duration::ZERO).unwrap()
}

fn normal(stream: &mut Stream, n: usize) -> Vec<f32> {
    let mut uniform = || stream.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
    (0..n).map(|_| uniform() + uniform()).collect()
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(1e-3_f64, |m, x| m.max(x.abs()));
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(g) - e).abs() <= tolerance * scale, "entry {i}: {g} against {e} (scale {scale})");
    }
}

/// A row after its norm, with the bits of the kernels: a number between two bytes, or two halves, is then rounded to
/// the same one.
fn normed(x: &[f32], gamma: &[f32]) -> Vec<f32> {
    struct Normed<'a>(&'a [f32], &'a [f32]);
    impl Task for Normed<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> Vec<f32> {
            let mut out = vec![f32::NAN; self.0.len()];
            // SAFETY: the instruction set is the caller's.
            unsafe { rms_norm::<S>(self.0, Norm { gamma: self.1, epsilon: EPSILON }, &mut out) };
            out
        }
    }
    let out = Isa::detect().run(Normed(x, gamma));
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    let expected: Vec<f64> = x.iter().zip(gamma).map(|(&x, &g)| f64::from(x) * inverse * f64::from(g)).collect();
    assert_close(&out, &expected, 1e-6);
    out
}

/// The weights and inputs that the bytes stand for.
fn rounded(row: &[f32]) -> Vec<f32> {
    let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    row.iter().map(|x| (x * (127.0 / largest)).round_ties_even() * (largest / 127.0)).collect()
}

/// The weights that four bits stand for. Steps are counted as ggml's reference counts them, since a weight that lies
/// between two of them is a step away otherwise.
fn rounded_to_four_bits(row: &[f32]) -> Vec<f32> {
    let of_block = |block: &[f32]| {
        let larger = |largest: f32, &x: &f32| if x.abs() > largest.abs() { x } else { largest };
        let step = block.iter().fold(0.0, larger) / -8.0;
        let kept = half::f16::from_f32(step).to_f32();
        block.iter().map(|x| ((x * step.recip() + 8.5).floor().min(15.0) - 8.0) * kept).collect::<Vec<f32>>()
    };
    row.chunks(BLOCK).flat_map(of_block).collect()
}

/// The other tests compare the sets that are found here bit by bit, so each choice that a mask can lead to is tried.
#[test]
fn a_mask_leads_to_the_widest_set_that_it_allows() {
    let (machine, mut found) = (Features::of_machine(), Vec::new());
    for allowed in Features::ALL.subsets() {
        let has = |feature: Features| machine.and(allowed).contains(feature);
        let expected = match (has(Features::AVX512), has(Features::AVX512_VNNI), has(Features::AMX)) {
            _ if !has(Features::AVX2) => "plain",
            (true, true, true) => "amx-int8",
            (true, true, false) => "avx512-vnni",
            (true, false, _) => "avx512",
            _ if has(Features::AVX_VNNI) => "avx-vnni",
            _ => "avx2",
        };
        let isa = Isa::within(allowed);
        assert_eq!(isa.name(Format::Int8), expected, "{allowed:?} of {machine:?}");
        assert_eq!(isa.name(Format::Int4), if expected == "amx-int8" { "avx512-vnni" } else { expected });
        assert_eq!(isa.is_plain(), expected == "plain");
        assert_eq!(isa.has_byte_products(), expected.ends_with("vnni") || expected == "amx-int8");
        let pairs = expected == "avx512-vnni" && has(Features::AVX512_BF16);
        assert_eq!(isa.has_pair_products(), pairs, "{allowed:?} of {machine:?}");
        assert_eq!(isa.name(Format::Bf16Dot) == "avx512-bf16", pairs);
        found.push(isa);
    }
    assert_eq!(Features::ALL.subsets().count(), 64);
    assert_eq!((found[0], found[63]), (Isa::detect(), Isa::available().pop().unwrap()));
    assert!(
        Isa::available().iter().all(|isa| found.contains(isa))
            && found.iter().all(|isa| Isa::available().contains(isa))
    );
}

#[test]
fn a_normed_result_is_added_to_the_residual_stream() {
    let mut stream = Stream::new(&[11]);
    for (rows, width, factor) in [(1, 5, 1.0), (3, 32, 0.7), (9, 70, 1.0)] {
        let [x, residual] = [(); 2].map(|()| normal(&mut stream, rows * width));
        let gamma = normal(&mut stream, width);
        let norm = Norm { gamma: &gamma, epsilon: EPSILON };
        let run = |isa, count, rows: std::ops::Range<usize>| {
            let part = rows.start * width..rows.end * width;
            let mut out = vec![f32::NAN; part.len()];
            let machine = Machine { isa, threads: &threads(count), scratch: &mut Vec::new() };
            add_normed(norm, factor, &x[part.clone()], &residual[part], &mut out, machine);
            out
        };
        let outs: Vec<_> = Isa::available().into_iter().map(|isa| run(isa, 2, 0..rows)).collect();
        assert!(outs.iter().all(|out| *out == outs[0]), "instruction sets differ");
        assert_eq!(run(Isa::detect(), 1, rows - 1..rows), outs[0][(rows - 1) * width..], "the last row alone");
        let rows = x.chunks(width).zip(residual.chunks(width));
        let expected: Vec<f64> = rows
            .flat_map(|(x, residual)| {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / width as f64;
                let inverse = (mean + f64::from(EPSILON)).sqrt().recip();
                let row = x.iter().zip(&gamma).zip(residual);
                row.map(|((&x, &g), &r)| f64::from(factor) * (f64::from(x) * inverse * f64::from(g) + f64::from(r)))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_close(&outs[0], &expected, 1e-6);
    }
}
