//! What layers have in place of attention, token by token as the formulas say it.

use ndarray::{Array1, Array2, Axis, Slice};

use crate::{Mixer, Model, VerifyError};

/// What is added to the sum of squares of a query or key before it is divided by its length.
const LENGTH_EPSILON: f32 = 1e-6;

impl Model {
    /// `out(C ⊙ conv(B ⊙ u))`, where `B`, `C` and `u` are thirds of the projected input.
    pub(crate) fn short_conv(&self, name: &str, kernel: usize, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let all = self.linear(&format!("{name}.in_proj"), x)?;
        let width = all.ncols() / 3;
        let third = |which: usize| all.slice_axis(Axis(1), Slice::from(which * width..(which + 1) * width)).to_owned();
        let mixed = self.convolved(&format!("{name}.conv"), kernel, &(third(0) * third(2)))?;
        self.linear(&format!("{name}.out_proj"), &(third(1) * mixed))
    }

    /// Every channel's sum over its own and earlier inputs.
    fn convolved(&self, name: &str, kernel: usize, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let (rows, channels) = x.dim();
        let taps = self.vector(&format!("{name}.weight"), channels * kernel)?;
        let bias = format!("{name}.bias");
        let bias = if self.weights().names().contains(&bias) {
            self.vector(&bias, channels)?
        } else {
            Array1::zeros(channels)
        };
        Ok(Array2::from_shape_fn((rows, channels), |(row, channel)| {
            let inputs = (0..kernel).filter_map(|tap| Some((tap, (row + tap + 1).checked_sub(kernel)?)));
            inputs.map(|(tap, at)| taps[channel * kernel + tap] * x[(at, channel)]).sum::<f32>() + bias[channel]
        }))
    }

    /// The matrix of each value head decays, takes in what the key does not give of the value yet, and gives the
    /// query's result.
    pub(crate) fn delta_rule(&self, name: &str, mixer: Mixer, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let Mixer::DeltaRule { key_heads, value_heads, key_dim, value_dim, kernel } = mixer else {
            unreachable!("a layer with a delta rule")
        };
        let of = |part: &str| self.linear(&format!("{name}.in_proj_{part}"), x);
        let (qkv, gate, step, decay) = (of("qkv")?, of("z")?, of("b")?, of("a")?);
        let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
        if [qkv.ncols(), gate.ncols(), step.ncols(), decay.ncols()]
            != [2 * keys + values, values, value_heads, value_heads]
        {
            return Err(VerifyError::Differs(format!("{name} has projections of other widths than its heads")));
        }
        let mixed = self.convolved(&format!("{name}.conv1d"), kernel, &qkv)?.mapv(silu);
        let bias = self.vector(&format!("{name}.dt_bias"), value_heads)?;
        let factor = self.vector(&format!("{name}.A_log"), value_heads)?.mapv(f32::exp);
        let gamma = self.vector(&format!("{name}.norm.weight"), value_dim)?;
        let mut out = Array2::zeros((x.nrows(), values));
        for head in 0..value_heads {
            let mut state = Array2::<f32>::zeros((key_dim, value_dim));
            let key_head = if self.architecture().tiled { head % key_heads } else { head * key_heads / value_heads };
            for (token, row) in mixed.rows().into_iter().enumerate() {
                let part =
                    |begin: usize, width: usize| row.slice_axis(Axis(0), Slice::from(begin..begin + width)).to_owned();
                let q = unit(part(key_head * key_dim, key_dim)) / (key_dim as f32).sqrt();
                let k = unit(part(keys + key_head * key_dim, key_dim));
                let v = part(2 * keys + head * value_dim, value_dim);
                state *= (-factor[head] * softplus(decay[(token, head)] + bias[head])).exp();
                let missing = (v - state.t().dot(&k)) * sigmoid(step[(token, head)]);
                for (entry, mut of_key) in k.iter().zip(state.rows_mut()) {
                    of_key.scaled_add(*entry, &missing);
                }
                let read = state.t().dot(&q);
                let mean = read.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / value_dim as f64;
                let scale = (mean + self.architecture().epsilon).sqrt().recip() as f32;
                for (entry, value) in read.iter().enumerate() {
                    let column = head * value_dim + entry;
                    out[(token, column)] = value * scale * gamma[entry] * silu(gate[(token, column)]);
                }
            }
        }
        self.linear(&format!("{name}.out_proj"), &out)
    }
}

impl Model {
    /// The matrix of each head decays, takes in the token with `B`, and gives what `C` finds there. The results of a
    /// group are gated, and then normed together.
    pub(crate) fn mamba(&self, name: &str, mixer: Mixer, x: &Array2<f32>) -> Result<Array2<f32>, VerifyError> {
        let Mixer::Mamba { heads, head_dim, groups, state_dim, kernel } = mixer else {
            unreachable!("a layer of Mamba-2")
        };
        let all = self.linear(&format!("{name}.in_proj"), x)?;
        let (inner, of_groups) = (heads * head_dim, groups * state_dim);
        let channels = inner + 2 * of_groups;
        if groups == 0 || !heads.is_multiple_of(groups) || all.ncols() != inner + channels + heads {
            return Err(VerifyError::Differs(format!("{name} has a projection of another width than its heads")));
        }
        let columns =
            |begin: usize, width: usize| all.slice_axis(Axis(1), Slice::from(begin..begin + width)).to_owned();
        let (gate, steps) = (columns(0, inner), columns(inner + channels, heads));
        let mixed = self.convolved(&format!("{name}.conv1d"), kernel, &columns(inner, channels))?.mapv(silu);
        let bias = self.vector(&format!("{name}.dt_bias"), heads)?;
        let factor = self.vector(&format!("{name}.A_log"), heads)?.mapv(f32::exp);
        let skip = self.vector(&format!("{name}.D"), heads)?;
        let gamma = self.vector(&format!("{name}.norm.weight"), inner)?;
        let mut out = Array2::zeros((x.nrows(), inner));
        for head in 0..heads {
            let mut state = Array2::<f32>::zeros((state_dim, head_dim));
            let of_group = head * groups / heads * state_dim;
            for (token, row) in mixed.rows().into_iter().enumerate() {
                let part =
                    |begin: usize, width: usize| row.slice_axis(Axis(0), Slice::from(begin..begin + width)).to_owned();
                let x = part(head * head_dim, head_dim);
                let write = part(inner + of_group, state_dim);
                let read = part(inner + of_groups + of_group, state_dim);
                let step = softplus(steps[(token, head)] + bias[head]);
                state *= (-factor[head] * step).exp();
                let written = &x * step;
                for (entry, mut of_write) in write.iter().zip(state.rows_mut()) {
                    of_write.scaled_add(*entry, &written);
                }
                let result = state.t().dot(&read) + &x * skip[head];
                for (entry, value) in result.iter().enumerate() {
                    let column = head * head_dim + entry;
                    out[(token, column)] = value * silu(gate[(token, column)]);
                }
            }
        }
        for mut row in out.rows_mut() {
            for mut group in row.axis_chunks_iter_mut(Axis(0), inner / groups) {
                let mean = group.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / group.len() as f64;
                group *= (mean + self.architecture().epsilon).sqrt().recip() as f32;
            }
            row *= &gamma;
        }
        self.linear(&format!("{name}.out_proj"), &out)
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn unit(x: Array1<f32>) -> Array1<f32> {
    let square: f32 = x.iter().map(|x| x * x).sum();
    x / (square + LENGTH_EPSILON).sqrt()
}
