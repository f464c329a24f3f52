//! Attention in tiles and its derivative against plain loops in double precision, over shapes that fit nothing.

use half::bf16;
use shared::generation::rng::Stream;

use super::{normal, threads};
use crate::flash::{Known, Memory, Places, Shape, Sight, Workshop, backward, forward, is_available};

/// Numbers in bf16 between others: `[texts, places, heads + 1, width + 3]`, of which the last head and the last entries
/// are nobody's.
struct Spread {
    numbers: Vec<u16>,
    steps: [usize; 3],
}

impl Spread {
    fn new(stream: &mut Stream, [texts, places, heads, width]: [usize; 4]) -> Self {
        let steps = [places * (heads + 1) * (width + 3), (heads + 1) * (width + 3), width + 3];
        let numbers = normal(stream, texts * steps[0]).into_iter().map(|x| bf16::from_f32(x).to_bits()).collect();
        Self { numbers, steps }
    }

    fn places(&self) -> Places<u16> {
        Places { first: self.numbers.as_ptr(), steps: self.steps }
    }

    fn row(&self, text: usize, place: usize, head: usize, width: usize) -> Vec<f64> {
        let first = text * self.steps[0] + place * self.steps[1] + head * self.steps[2];
        self.numbers[first..first + width].iter().map(|&x| bf16::from_bits(x).to_f64()).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Everything that a case has, and what comes out.
struct Case {
    shape: Shape,
    sight: Sight,
    inputs: [Spread; 3],
    d_out: Spread,
}

struct Found {
    out: Vec<u16>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

impl Case {
    fn new(stream: &mut Stream, shape: Shape, sight: Sight) -> Self {
        let Shape { texts, queries, keys, heads, kv_heads, width } = shape;
        let of_queries = [texts, queries, heads, width];
        let inputs = [of_queries, [texts, keys, kv_heads, width], [texts, keys, kv_heads, width]];
        let inputs = inputs.map(|size| Spread::new(stream, size));
        Self { shape, sight, inputs, d_out: Spread::new(stream, of_queries) }
    }

    fn sees(&self, query: usize, key: usize) -> bool {
        let last = self.sight.shift.map_or(self.shape.keys, |shift| query + shift);
        key <= last && (self.sight.shift.is_none() || key.saturating_add(self.sight.window) > last)
    }

    fn run(&self, count: usize) -> Found {
        self.run_in(&mut Memory::default(), count)
    }

    fn run_in(&self, memory: &mut Memory, count: usize) -> Found {
        let Shape { texts, queries, keys, heads, kv_heads, width } = self.shape;
        let pool = threads(count);
        let mut workshop = Workshop { threads: &pool, memory };
        let (rows, of_keys) = (texts * queries * heads, texts * keys * kv_heads * width);
        let mut found = Found {
            out: vec![0x7fc0; rows * width],
            lse: vec![f32::NAN; rows],
            gradients: [rows * width, of_keys, of_keys].map(|count| vec![f32::NAN; count]),
        };
        let qkv = self.inputs.each_ref().map(Spread::places);
        let steps = [queries * heads, heads, 1];
        // SAFETY: all numbers are there, and nobody else has them.
        unsafe {
            forward(self.shape, qkv, self.sight, &mut found.out, &mut found.lse, &mut workshop);
            let known = Known {
                qkv,
                out: Places { first: found.out.as_ptr(), steps: steps.map(|step| step * width) },
                lse: Places { first: found.lse.as_ptr(), steps },
                d_out: self.d_out.places(),
            };
            let gradients = found.gradients.each_mut().map(|x| &mut x[..]);
            backward(self.shape, known, self.sight, gradients, &mut workshop);
        }
        found
    }

    /// Results, log-sum-exps and gradients in double precision.
    fn exact(&self) -> ([Vec<f64>; 2], [Vec<f64>; 3]) {
        let Shape { texts, queries, keys, heads, kv_heads, width } = self.shape;
        let (mut out, mut lse) = (Vec::new(), Vec::new());
        let of_keys = texts * keys * kv_heads * width;
        let mut gradients = [texts * queries * heads * width, of_keys, of_keys].map(|count| vec![0.0; count]);
        for (text, query, head) in all([texts, queries, heads]) {
            let kv = head * kv_heads / heads;
            let q = self.inputs[0].row(text, query, head, width);
            let row = |which: usize, key| self.inputs[which].row(text, key, kv, width);
            let seen: Vec<usize> = (0..keys).filter(|&key| self.sees(query, key)).collect();
            let scores: Vec<f64> =
                seen.iter().map(|&key| f64::from(self.sight.scale) * dot(&q, &row(1, key))).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log = largest + scores.iter().map(|s| (s - largest).exp()).sum::<f64>().ln();
            let mut result = vec![0.0; width];
            for (&key, s) in seen.iter().zip(&scores) {
                result.iter_mut().zip(row(2, key)).for_each(|(r, v)| *r += (s - log).exp() * v);
            }
            let d = self.d_out.row(text, query, head, width);
            let constant = dot(&d, &result);
            for (&key, s) in seen.iter().zip(&scores) {
                let p = (s - log).exp();
                let ds = f64::from(self.sight.scale) * p * (dot(&d, &row(2, key)) - constant);
                let (k, first) = (row(1, key), ((text * keys + key) * kv_heads + kv) * width);
                for i in 0..width {
                    gradients[0][((text * queries + query) * heads + head) * width + i] += ds * k[i];
                    gradients[1][first + i] += ds * q[i];
                    gradients[2][first + i] += p * d[i];
                }
            }
            out.append(&mut result);
            lse.push(log);
        }
        ([out, lse], gradients)
    }
}

fn all([texts, places, heads]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..texts * places * heads).map(move |i| (i / heads / places, i / heads % places, i % heads))
}

/// Euclidean distance, by the length of what is right.
fn distance<T: Copy + Into<f64>>(found: &[T], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    squares(&mut found.iter().zip(exact).map(|(&f, e)| f.into() - e)) / squares(&mut exact.iter().copied()).max(1e-9)
}

/// Whether this processor can be asked. Without tiles, tests multiply in plain Rust.
fn is_here() -> bool {
    if !is_available() {
        harness::without_hardware("attention in tiles", "this processor rounds to bf16 by no instruction");
    }
    is_available()
}

fn cases() -> Vec<(Shape, Sight)> {
    let shape = |texts, queries, keys, heads, kv_heads, width| Shape { texts, queries, keys, heads, kv_heads, width };
    let sight = |shift, window, scale| Sight { shift, window, scale };
    let causal = sight(Some(0), usize::MAX, 0.125);
    vec![
        (shape(1, 1, 1, 1, 1, 8), causal),
        (shape(3, 37, 37, 3, 1, 64), causal),
        (shape(2, 64, 64, 4, 2, 40), causal),
        (shape(1, 130, 130, 2, 2, 96), causal),
        (shape(2, 70, 33, 6, 2, 64), sight(None, 1, 0.3)),
        (shape(1, 5, 100, 2, 1, 128), sight(None, 1, 0.1)),
        (shape(1, 40, 75, 2, 1, 64), sight(Some(35), 36, 0.2)),
        (shape(2, 99, 130, 2, 1, 32), sight(Some(31), 5, 0.2)),
        (shape(2, 33, 40, 2, 2, 16), sight(Some(7), 100, 4.0)),
        // More than a chunk of panels, and more than a round of texts.
        (shape(2, 1100, 1100, 1, 1, 16), causal),
        (shape(1, 40, 1500, 2, 1, 8), sight(None, 1, 0.3)),
    ]
}

#[test]
fn results_and_gradients_are_those_of_double_precision() {
    if !is_here() {
        return;
    }
    let mut stream = Stream::new(&[53]);
    for (shape, sight) in cases() {
        let case = Case::new(&mut stream, shape, sight);
        let (found, ([out, lse], gradients)) = (case.run(2), case.exact());
        let result: Vec<f32> = found.out.iter().map(|&x| bf16::from_bits(x).to_f32()).collect();
        let off = [
            distance(&result, &out),
            distance(&found.lse, &lse),
            distance(&found.gradients[0], &gradients[0]),
            distance(&found.gradients[1], &gradients[1]),
            distance(&found.gradients[2], &gradients[2]),
        ];
        // A single key has no gradient but that of its value, which the largest scores leave to few keys.
        let bounds = [4e-3, 1e-6, 1e-2, 1e-2, 1e-2];
        assert!(off.iter().zip(bounds).all(|(off, bound)| *off <= bound), "{shape:?}, {sight:?}: {off:?}");
    }
}

#[test]
fn a_text_has_the_same_bits_in_any_company_and_on_any_number_of_threads() {
    if !is_here() {
        return;
    }
    let mut stream = Stream::new(&[54]);
    for (shape, sight) in cases() {
        let mut case = Case::new(&mut stream, shape, sight);
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let (one, many) = (case.run(1), case.run(3));
        assert_eq!((&one.out, bits(&one.lse)), (&many.out, bits(&many.lse)), "{shape:?}");
        for (a, b) in one.gradients.iter().zip(&many.gradients) {
            assert_eq!(bits(a), bits(b), "{shape:?}");
        }
        // The first text alone: the others come behind it.
        case.shape.texts = 1;
        let alone = case.run(1);
        assert_eq!(alone.out[..], one.out[..alone.out.len()]);
        for (alone, all) in alone.gradients.iter().zip(&one.gradients) {
            assert_eq!(bits(alone), bits(&all[..alone.len()]));
        }
    }
}

/// Keys that no query sees have no share and no gradient, whatever numbers they are.
#[test]
fn hidden_keys_count_for_nothing() {
    if !is_here() {
        return;
    }
    let mut stream = Stream::new(&[55]);
    let shape = Shape { texts: 1, queries: 20, keys: 60, heads: 2, kv_heads: 1, width: 64 };
    let sight = Sight { shift: Some(30), window: 10, scale: 0.2 };
    let mut case = Case::new(&mut stream, shape, sight);
    let before = case.run(2);
    for key in (0..60).filter(|&key| !(21..50).contains(&key)) {
        for input in &mut case.inputs[1..] {
            let first = key * input.steps[1];
            input.numbers[first..first + 64].fill(bf16::from_f32(1e30).to_bits());
        }
    }
    let after = case.run(2);
    assert_eq!((before.out, before.lse), (after.out, after.lse));
    assert_eq!(before.gradients, after.gradients);
    for gradient in &after.gradients[1..] {
        let seen = |place: usize| (21..50).contains(&(place / 64));
        assert!(gradient.iter().enumerate().all(|(i, x)| (*x == 0.0) != seen(i)));
    }
}

/// A number that is none, in a query, a key or a value, shows in results and gradients.
#[test]
fn what_is_no_number_is_not_lost() {
    if !is_here() {
        return;
    }
    let mut stream = Stream::new(&[56]);
    let shape = Shape { texts: 1, queries: 40, keys: 40, heads: 1, kv_heads: 1, width: 32 };
    for input in 0..3 {
        let mut case = Case::new(&mut stream, shape, Sight { shift: Some(0), window: usize::MAX, scale: 0.2 });
        let first = 39 * case.inputs[input].steps[1];
        case.inputs[input].numbers[first] = bf16::NAN.to_bits();
        let found = case.run(2);
        // The last query alone sees the last key, and has the whole of its row.
        let last = &found.out[39 * 32..];
        assert!(last.iter().any(|&x| bf16::from_bits(x).is_nan()), "input {input}");
        assert_eq!(found.lse[39].is_nan(), input < 2, "input {input}");
        // A value that is none times a weight of 0 is none either, in the panel where it lies.
        let others = if input < 2 { 39 } else { 32 };
        assert!(found.out[..others * 32].iter().all(|&x| !bf16::from_bits(x).is_nan()), "input {input}: others");
        assert!(found.gradients[0][39 * 32..].iter().any(|x| x.is_nan()), "input {input}");
    }
}

/// Layouts are several times as large as what they are made of: those of all heads of a long text would be gigabytes.
#[test]
fn more_heads_take_no_more_memory() {
    if !is_here() {
        return;
    }
    let held = |texts, kv_heads| {
        let shape = Shape { texts, queries: 200, keys: 200, heads: 2 * kv_heads, kv_heads, width: 32 };
        let case = Case::new(&mut Stream::new(&[57]), shape, Sight { shift: Some(0), window: usize::MAX, scale: 0.2 });
        let mut memory = Memory::default();
        let _ = case.run_in(&mut memory, 2);
        memory.bytes()
    };
    let one = held(1, 1);
    // Queries, keys and values, and gradients of results of a pair, in up to three layouts each, and rows' numbers.
    let (of_layout, of_rows) = (224 * 64, 2 * 224 * 4);
    assert_eq!(one, (6 * 2 + 5) * of_layout + 2 * of_rows);
    assert_eq!((held(1, 8), held(7, 3)), (one, one));
}
