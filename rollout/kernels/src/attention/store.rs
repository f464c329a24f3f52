//! Rotation, and the way of keys and values into the cache.

use super::{
    super::{
        element::{KvFormat, PAIR, QUAD, to_bf16, to_row_of_bytes},
        linear::{Norm, rms_norm},
        pages::{PAGE, PageShape, Piece},
        simd::{Simd, Task},
        spans::Spans,
    },
    Call, MAX_HEAD_DIM, RotaryTables,
};

/// Tokens whose keys and values one task stores: neighbours may share cache lines of a page.
const TOKENS: usize = 8;

/// How many tasks store the tokens of a call.
pub(super) fn tasks(spans: &Spans) -> usize {
    spans.tokens().div_ceil(TOKENS)
}

/// Stores the keys and values of some tokens.
pub(super) struct StoreTask<'a> {
    pub call: &'a Call<'a>,
    pub chunk: usize,
}

impl Task for StoreTask<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tokens = self.chunk * TOKENS..((self.chunk + 1) * TOKENS).min(self.call.spans.tokens());
        for token in tokens {
            for head in 0..self.call.shape.kv_heads {
                // SAFETY: the caller vouches for the instruction set. No other task stores these tokens, and no other
                // sequence of the call has the pages that they go to (`Spans::cut`).
                unsafe { store::<S>(self.call, token, head) };
            }
        }
    }
}

/// Stores the key and the value of one token and head.
///
/// # Safety
/// The instruction set of `S` must be available, and nobody else touches this position of the sequence.
#[inline(always)]
pub(super) unsafe fn store<S: Simd>(call: &Call<'_>, token: usize, head: usize) {
    let PageShape { kv_heads, head_dim, .. } = call.shape;
    let span = &call.spans.all[call.spans.span_of[token]];
    let own = span.own_len + token - span.tokens.start;
    let (page, place) = (call.spans.pages[span.own_pages.start + own / PAGE], own % PAGE);
    let at = |piece| call.pieces(head, piece).of(page);
    let head = call.first_key() + head;
    let (mut key, normed) = ([0.0; MAX_HEAD_DIM], &mut None);
    // SAFETY: the place lies within the page, and the caller vouches that nobody else is there.
    unsafe {
        rotate::<S>(call, token, head, call.attention.k_norm, &mut key);
        let value = normed_value::<S>(call.row(token, head + kv_heads), call.attention.v_norm, normed);
        let key = &key[..head_dim];
        let (keys, values) = (at(Piece::Keys), at(Piece::Values));
        match call.shape.format {
            KvFormat::Fp32 => {
                for (d, &x) in key.iter().enumerate() {
                    *keys.add(d * PAGE + place) = x;
                }
                let to = values.add(place * call.shape.value_width());
                for (d, &x) in value.iter().enumerate() {
                    *to.add(d) = x;
                }
            }
            KvFormat::Bf16 => {
                let to = keys.cast::<u16>().add(place * PAIR);
                for (d, &x) in key.iter().enumerate() {
                    *to.add(d / PAIR * PAGE * PAIR + d % PAIR) = to_bf16(x);
                }
                let to = values.cast::<u16>().add(place / PAIR * call.shape.value_width() * PAIR + place % PAIR);
                for (d, &x) in value.iter().enumerate() {
                    *to.add(d * PAIR) = to_bf16(x);
                }
            }
            KvFormat::Int8 => {
                let mut bytes = [0; MAX_HEAD_DIM];
                *at(Piece::KeyScales).add(place) = to_row_of_bytes(key, &mut bytes);
                let to = keys.cast::<i8>().add(place * QUAD);
                for (d, &x) in bytes[..head_dim].iter().enumerate() {
                    *to.add(d / QUAD * PAGE * QUAD + d % QUAD) = x;
                }
                *at(Piece::ValueScales).add(place) = to_row_of_bytes(value, &mut bytes);
                let to = values.cast::<i8>().add(place / QUAD * call.shape.value_width() * QUAD + place % QUAD);
                for (d, &x) in bytes[..head_dim].iter().enumerate() {
                    *to.add(d * QUAD) = x;
                }
            }
        }
    }
}

/// A value as it is stored. Only a family that norms values needs the memory.
#[inline(always)]
unsafe fn normed_value<'a, S: Simd>(
    x: &'a [f32],
    norm: Option<Norm<'_>>,
    memory: &'a mut Option<[f32; MAX_HEAD_DIM]>,
) -> &'a [f32] {
    let Some(norm) = norm else { return x };
    let out = &mut memory.insert([0.0; MAX_HEAD_DIM])[..x.len()];
    // SAFETY: the instruction set is the caller's.
    unsafe { rms_norm::<S>(x, norm, out) };
    out
}

/// Writes the rotated and scaled query of one token and head.
///
/// # Safety
/// The instruction set of `S` must be available.
#[inline(always)]
pub(super) unsafe fn query<S: Simd>(call: &Call<'_>, token: usize, head: usize, to: &mut [f32]) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { rotate::<S>(call, token, head * call.attention.rows_of_query(), call.attention.q_norm, to) };
    let factor = call.attention.query_factors.map_or(1.0, |factors| factors[call.position(token)]);
    let scale = call.attention.scale * factor;
    for x in to {
        *x *= scale;
    }
}

/// Norm and, where the layer has it, rotation of one row of a token, halves against each other (not interleaved).
#[inline(always)]
unsafe fn rotate<S: Simd>(call: &Call<'_>, token: usize, row: usize, norm: Option<Norm<'_>>, out: &mut [f32]) {
    let x = call.row(token, row);
    let out = &mut out[..x.len()];
    match norm {
        None => out.copy_from_slice(x),
        // SAFETY: the instruction set is the caller's.
        Some(norm) => unsafe { rms_norm::<S>(x, norm, out) },
    }
    let Some(RotaryTables { cos, sin, entries }) = call.attention.rotary else { return };
    let (row, half) = (call.rotary_row(token), entries / 2);
    let table = row * half..(row + 1) * half;
    let (cos, sin) = (&cos[table.clone()], &sin[table]);
    let (low, high) = out[..entries].split_at_mut(half);
    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}
