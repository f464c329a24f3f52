//! Passes over numbers in bf16.

use half::bf16;
use shared::generation::rng::Stream;

use super::{assert_close, normal, threads};
use crate::{
    halves::{BLOCK, RowNorm, Turn, norm, norm_backward, rotate, swiglu, swiglu_backward},
    parallel::Machine,
    simd::Isa,
};

/// Half a unit in the last place of bf16, beside the largest number.
const ROUNDING: f64 = 1.0 / 256.0;

fn halves(stream: &mut Stream, count: usize) -> Vec<u16> {
    normal(stream, count).into_iter().map(|x| bf16::from_f32(x).to_bits()).collect()
}

fn wide(x: &[u16]) -> Vec<f64> {
    x.iter().map(|&x| bf16::from_bits(x).to_f64()).collect()
}

fn floats(x: &[u16]) -> Vec<f32> {
    x.iter().map(|&x| bf16::from_bits(x).to_f32()).collect()
}

/// Runs the same work under every instruction set, with one thread and with three, and returns the result of all.
fn everywhere<T: PartialEq + std::fmt::Debug>(work: impl Fn(Machine<'_>) -> T) -> T {
    let mut found: Vec<T> = Vec::new();
    for isa in Isa::available() {
        for count in [1, 3] {
            let (pool, mut scratch) = (threads(count), Vec::new());
            found.push(work(Machine { isa, threads: &pool, scratch: &mut scratch }));
        }
    }
    assert!(found.iter().all(|one| *one == found[0]), "instruction sets or numbers of threads differ");
    found.swap_remove(0)
}

#[test]
fn a_norm_and_its_gradients_are_those_of_double_precision() {
    let mut stream = Stream::new(&[81]);
    for (rows, width) in [(1, 5), (3, 32), (BLOCK + 1, 70)] {
        let (x, dy) = (halves(&mut stream, rows * width), halves(&mut stream, rows * width));
        let (factors, epsilon) = (normal(&mut stream, width), 1e-5);
        let of = RowNorm { factors: &factors, epsilon };
        let blocks = rows.div_ceil(BLOCK);
        let (out, dx, sums) = everywhere(|machine| {
            let (mut out, mut dx, mut sums) = (vec![0; x.len()], vec![0; x.len()], vec![f32::NAN; blocks * width]);
            let Machine { isa, threads, scratch } = machine;
            norm(of, &x, &mut out, Machine { isa, threads, scratch });
            norm_backward(of, [&x, &dy], &mut dx, &mut sums, Machine { isa, threads, scratch });
            (out, dx, sums.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        });
        let (mut exact, mut exact_dx, mut exact_sums) = (Vec::new(), Vec::new(), vec![0.0; blocks * width]);
        for (row, (x, dy)) in wide(&x).chunks(width).zip(wide(&dy).chunks(width)).enumerate() {
            let squares: f64 = x.iter().map(|x| x * x).sum();
            let scale = (squares / width as f64 + f64::from(epsilon)).sqrt().recip();
            let of_row = || x.iter().zip(dy).zip(&factors).map(|((x, dy), f)| (x * scale, *dy, f64::from(*f)));
            let mean = of_row().map(|(unit, dy, f)| unit * dy * f).sum::<f64>() / width as f64;
            exact.extend(of_row().map(|(unit, _, f)| unit * f));
            exact_dx.extend(of_row().map(|(unit, dy, f)| scale * (dy * f - unit * mean)));
            let sums = &mut exact_sums[row / BLOCK * width..][..width];
            sums.iter_mut().zip(of_row()).for_each(|(sum, (unit, dy, _))| *sum += unit * dy);
        }
        assert_close(&floats(&out), &exact, ROUNDING);
        assert_close(&floats(&dx), &exact_dx, ROUNDING);
        assert_close(&sums.into_iter().map(f32::from_bits).collect::<Vec<_>>(), &exact_sums, 1e-5);
    }
}

#[test]
fn heads_are_turned_where_they_lie_and_nothing_else_is() {
    let mut stream = Stream::new(&[82]);
    for (tokens, heads, width, entries) in [(1, 1, 4, 4), (5, 3, 40, 40), (BLOCK + 3, 2, 48, 20)] {
        // A head more in each token than is turned.
        let before = halves(&mut stream, tokens * (heads + 1) * width);
        let angles = normal(&mut stream, tokens * entries / 2);
        let table = |of: fn(f32) -> f32, sign: f32| -> Vec<f32> {
            let rows = angles.chunks(entries / 2);
            rows.flat_map(|row| row.iter().map(move |&x| sign * of(x)).chain(row.iter().map(move |&x| of(x)))).collect()
        };
        let (cos, sin) = (table(f32::cos, 1.0), table(f32::sin, -1.0));
        let turn = Turn { steps: [(heads + 1) * width, width], heads, cos: &cos, sin: &sin, entries };
        let after = everywhere(|machine| {
            let mut x = before.clone();
            // SAFETY: all heads are in the list, which is this test's.
            unsafe { rotate(turn, x.as_mut_ptr(), machine) };
            x
        });
        let mut exact = wide(&before);
        for (token, head, i) in (0..tokens * heads * entries / 2)
            .map(|i| (i / (entries / 2) / heads, i / (entries / 2) % heads, i % (entries / 2)))
        {
            let low = (token * (heads + 1) + head) * width + i;
            let (x, y) = (exact[low], exact[low + entries / 2]);
            let (sin, cos) = f64::from(angles[token * entries / 2 + i]).sin_cos();
            (exact[low], exact[low + entries / 2]) = (x * cos - y * sin, y * cos + x * sin);
        }
        assert_close(&floats(&after), &exact, ROUNDING);
        let untouched = (0..before.len()).filter(|i| i / width % (heads + 1) == heads || i % width >= entries);
        assert!(untouched.into_iter().all(|i| after[i] == before[i]));
    }
}

#[test]
fn gated_units_and_their_gradients_are_those_of_double_precision() {
    let mut stream = Stream::new(&[83]);
    for (rows, width) in [(1, 3), (2, 16), (BLOCK + 2, 50)] {
        let (gate_up, d) = (halves(&mut stream, 2 * rows * width), halves(&mut stream, rows * width));
        let (out, gradient) = everywhere(|machine| {
            let (mut out, mut gradient) = (vec![0; rows * width], vec![0; 2 * rows * width]);
            let Machine { isa, threads, scratch } = machine;
            swiglu(width, &gate_up, &mut out, Machine { isa, threads, scratch });
            swiglu_backward(width, &gate_up, &d, &mut gradient, Machine { isa, threads, scratch });
            (out, gradient)
        });
        let (mut exact, mut exact_gradient) = (Vec::new(), Vec::new());
        for (row, d) in wide(&gate_up).chunks(2 * width).zip(wide(&d).chunks(width)) {
            let (gate, up) = row.split_at(width);
            let open = |x: f64| 1.0 / (1.0 + (-x).exp());
            let units = || gate.iter().zip(up).zip(d).map(|((g, u), d)| (*g, *u, *d));
            exact.extend(units().map(|(g, u, _)| g * open(g) * u));
            exact_gradient.extend(units().map(|(g, u, d)| d * u * (open(g) + g * open(g) * (1.0 - open(g)))));
            exact_gradient.extend(units().map(|(g, _, d)| d * g * open(g)));
        }
        assert_close(&floats(&out), &exact, ROUNDING);
        assert_close(&floats(&gradient), &exact_gradient, ROUNDING);
    }
}
