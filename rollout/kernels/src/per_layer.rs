//! Inputs of each layer's own beside the residual stream, in the families that have them.

use super::{
    linear::{Activation, Norm, rms_norm},
    parallel::{Claims, Machine, Shared},
    simd::{LANES, Simd, Task, gelu, load_up_to, silu, store_up_to},
};

/// Tokens of a task.
const TOKENS: usize = 4;

/// How the inputs of all layers come of a token's projected embedding and its row of a table:
/// `factor * (norm(projected) + table_factor * row)`, with a norm over the part of each layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerInputs<'a> {
    /// Norm of a layer's part; as wide as the input of a layer.
    pub norm: Norm<'a>,
    /// Factor on the table's row.
    pub table_factor: f32,
    /// Factor on the sum.
    pub factor: f32,
}

impl LayerInputs<'_> {
    /// Computes `out`, `[tokens, layers * width]`, of `projected` in the same shape and the row of each token. A token
    /// depends on its own inputs alone, bit for bit.
    ///
    /// # Panics
    /// When sizes do not fit each other.
    pub fn run(&self, projected: &[f32], rows: &[&[f32]], out: &mut [f32], machine: Machine<'_>) {
        let all = rows.first().map_or(0, |row| row.len());
        assert!(rows.iter().all(|row| row.len() == all) && all.is_multiple_of(self.norm.gamma.len()), "whole layers");
        assert_eq!((projected.len(), out.len()), (rows.len() * all, rows.len() * all), "inputs and output");
        let (isa, claims) = (machine.isa, Claims::new(rows.len().div_ceil(TOKENS)));
        let out = Shared::new(out);
        machine.threads.run(&|| {
            claims.run_all(|task| isa.run(SumTask { inputs: *self, projected, rows, out, task }));
        });
    }
}

struct SumTask<'a> {
    inputs: LayerInputs<'a>,
    projected: &'a [f32],
    rows: &'a [&'a [f32]],
    out: Shared<f32>,
    task: usize,
}

impl Task for SumTask<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let LayerInputs { norm, table_factor, factor } = self.inputs;
        let first = self.task * TOKENS;
        for token in first..self.rows.len().min(first + TOKENS) {
            let row = self.rows[token];
            for begin in (0..row.len()).step_by(norm.gamma.len()) {
                let (start, width) = (token * row.len() + begin, norm.gamma.len());
                // SAFETY: the part lies within the output and belongs to this task alone; the caller vouches for the
                // instruction set.
                let out = unsafe {
                    let out = std::slice::from_raw_parts_mut(self.out.at(start), width);
                    rms_norm::<S>(&self.projected[start..start + width], norm, out);
                    out
                };
                for (out, x) in out.iter_mut().zip(&row[begin..]) {
                    *out = (*out + x * table_factor) * factor;
                }
            }
        }
    }
}

/// `out = act(gates) * input`, `[tokens, width]`, with the part of one layer of `inputs`, `[tokens, layers * width]`.
///
/// # Panics
/// When sizes do not fit each other.
pub fn open_input(
    activation: Activation,
    gates: &[f32],
    inputs: &[f32],
    [layer, layers, width]: [usize; 3],
    out: &mut [f32],
    machine: Machine<'_>,
) {
    assert!(layer < layers && gates.len().is_multiple_of(width), "whole tokens of a layer");
    assert_eq!((inputs.len(), out.len()), (gates.len() * layers, gates.len()), "inputs and output");
    let (isa, claims) = (machine.isa, Claims::new((gates.len() / width).div_ceil(TOKENS)));
    let out = Shared::new(out);
    let place = [layer, layers, width];
    machine.threads.run(&|| {
        claims.run_all(|task| isa.run(OpenTask { activation, gates, inputs, place, out, task }));
    });
}

struct OpenTask<'a> {
    activation: Activation,
    gates: &'a [f32],
    inputs: &'a [f32],
    /// Layer, layers, width.
    place: [usize; 3],
    out: Shared<f32>,
    task: usize,
}

impl Task for OpenTask<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let [layer, layers, width] = self.place;
        let first = self.task * TOKENS;
        for token in first..(self.gates.len() / width).min(first + TOKENS) {
            let gates = &self.gates[token * width..][..width];
            let inputs = &self.inputs[(token * layers + layer) * width..][..width];
            for begin in (0..width).step_by(LANES) {
                let count = width - begin;
                // SAFETY: so many numbers lie within gates, inputs and output, whose row belongs to this task alone;
                // the caller vouches for the instruction set.
                unsafe {
                    let gate = load_up_to::<S>(gates[begin..].as_ptr(), count);
                    let active = match self.activation {
                        Activation::Silu => silu::<S>(gate),
                        Activation::GeluTanh => gelu::<S>(gate),
                    };
                    let input = load_up_to::<S>(inputs[begin..].as_ptr(), count);
                    store_up_to::<S>(self.out.at(token * width + begin), count, S::mul(active, input));
                }
            }
        }
    }
}
