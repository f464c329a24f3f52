//! Functions of sixteen numbers.

use super::super::simd::{Isa, LANES, Simd, Task, exp, sigmoid, silu, softplus};

/// Which function.
#[derive(Debug, Clone, Copy)]
enum Function {
    Exp,
    Sigmoid,
    Silu,
    Softplus,
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
