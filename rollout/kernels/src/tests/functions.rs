//! Functions of sixteen numbers.

use super::super::simd::{Isa, LANES, Simd, Task, capped, exp, gelu, sigmoid, silu, softplus};

/// Which function.
#[derive(Debug, Clone, Copy)]
enum Function {
    Exp,
    Sigmoid,
    Silu,
    Softplus,
    Gelu,
    /// Within 30.
    Capped,
}

struct Of<'a>(Function, &'a [f32; LANES]);

impl Task for Of<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: both arrays are blocks; the caller vouches for the instruction set.
        unsafe {
            let x = S::load(self.1.as_ptr());
            let y = match self.0 {
                Function::Exp => exp::<S>(x),
                Function::Sigmoid => sigmoid::<S>(x),
                Function::Silu => silu::<S>(x),
                Function::Softplus => softplus::<S>(x),
                Function::Gelu => gelu::<S>(x),
                Function::Capped => capped::<S>(x, 30.0),
            };
            S::store(out.as_mut_ptr(), y);
        }
        out
    }
}

/// Over the range in which exponentials are normal numbers, and a little beyond.
fn check(function: Function, tolerance: f64, expected: impl Fn(f64) -> f64) {
    for i in -8700..=8800 {
        let x: [f32; LANES] = std::array::from_fn(|lane| (i as f32 + lane as f32 / 16.0) / 100.0);
        let got: Vec<_> = Isa::available().into_iter().map(|isa| isa.run(Of(function, &x))).collect();
        for (lane, &y) in got[0].iter().enumerate() {
            let expected = expected(f64::from(x[lane]));
            assert!((f64::from(y) / expected - 1.0).abs() < tolerance, "{function:?} of {}: {y}", x[lane]);
        }
        assert!(got.windows(2).all(|pair| pair[0] == pair[1]), "{function:?}: {got:?}");
    }
    for isa in Isa::available() {
        assert!(isa.run(Of(function, &[f32::NAN; LANES])).iter().all(|x| x.is_nan()), "{function:?}, {isa:?}");
    }
}

#[test]
fn exponentials_are_accurate_and_the_same_everywhere() {
    check(Function::Exp, 2.5e-7, |x| x.clamp(-87.0, 88.0).exp());
}

#[test]
fn gates_are_accurate_and_the_same_everywhere() {
    check(Function::Sigmoid, 5e-7, |x| (1.0 + (-x).exp()).recip());
    check(Function::Softplus, 5e-7, |x| x.max(0.0) + (-x.abs()).exp().ln_1p());
    let x = [-87.5, -20.0, -1.0, 0.0, 0.5, 3.0, 30.0, 88.5].map(|x| [x; LANES]);
    for x in x {
        let got = f64::from(Isa::detect().run(Of(Function::Silu, &x))[0]);
        let expected = f64::from(x[0]) / (1.0 + f64::from(-x[0]).exp());
        assert!((got - expected).abs() <= 5e-7 * expected.abs() + 1e-36, "silu of {}: {got}", x[0]);
    }
}

#[test]
fn bounds_and_gates_of_hyperbolic_tangents_are_accurate_and_the_same_everywhere() {
    for i in -4000..=4000 {
        let x = [i as f32 / 50.0; LANES];
        let of = f64::from(x[0]);
        let gelu = of / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (of + 0.044_715 * of.powi(3))).tanh());
        for (function, expected) in [(Function::Gelu, gelu), (Function::Capped, 30.0 * (of / 30.0).tanh())] {
            let got: Vec<_> = Isa::available().into_iter().map(|isa| isa.run(Of(function, &x))[0]).collect();
            assert!((f64::from(got[0]) - expected).abs() < 1e-5, "{function:?} of {of}: {}", got[0]);
            assert!(got.windows(2).all(|pair| pair[0] == pair[1]), "{function:?}: {got:?}");
        }
    }
    for function in [Function::Gelu, Function::Capped] {
        assert!(Isa::detect().run(Of(function, &[f32::NAN; LANES])).iter().all(|x| x.is_nan()), "{function:?}");
    }
}
