//! Drawing from a row whose logits lie elsewhere: on a device, say, from which fetching all of them would cost more
//! than the draw.
//!
//! The distribution is that of [`crate::sampling::row`], token for token. Its passes over the vocabulary (block maxima,
//! block sums of exponentials) are made where the logits are and come here as a [`Summary`]; from it follows which few
//! blocks the draw needs ([`BlockPlan::make`]), and from their logits the token ([`BlockPlan::draw`]). Sums that were
//! rounded elsewhere differ in their last bits from those of the host, so a draw that rounding could decide is not
//! made: the caller fetches the whole row and draws on the host.

use shared::SamplingParams;

use crate::sampling::{
    row::{Draw, RowError, Scratch, draw_kept, token_logprob},
    stats::exp_nonpositive,
    truncate::{Cut, TruncateScratch, logit_of_weight},
};

/// Largest relative error of a block's sum, with room to spare: single precision, a few hundred terms.
const ROUNDING: f64 = 2e-6;

/// What is known of a row without its logits.
#[derive(Debug, Clone, Copy)]
pub struct Summary<'a> {
    /// Logits of a block; the row has as many blocks as there are maxima.
    pub width: usize,
    /// The largest logit of each block.
    pub maxima: &'a [f32],
    /// Sums over each block of exp(l − m), where m is the largest logit of the row.
    pub sums: &'a [f32],
    /// Sums over each block of exp((l − m) / T); not looked at for greedy sampling.
    pub scaled: &'a [f32],
}

impl Summary<'_> {
    fn vocab(&self) -> usize {
        self.width * self.maxima.len()
    }
}

/// How the token follows from the blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Rule {
    /// It does not: the whole row is needed.
    #[default]
    Whole,
    /// The first of the largest logits, all of them in one block.
    Greedy,
    /// The draw falls into the one block, behind this much mass; not if it is closer to a border than `slack`.
    Walk { before: f64, slack: f64 },
    /// The support is among the logits that reach a bound.
    Kept { bound: f32 },
}

/// How the next token of a row is to be drawn. Kept from step to step for its buffer.
#[derive(Debug, Default)]
pub struct BlockPlan {
    rule: Rule,
    blocks: Vec<u32>,
    max: f32,
    /// ln Σ exp(l − max).
    log_total: f64,
    /// Σ exp((l − max) / T).
    total: f64,
}

impl BlockPlan {
    /// Plans a draw with `uniform` in (0, 1) that takes at most `limit` logits.
    ///
    /// # Errors
    /// When the logits are not finite.
    pub fn make(
        &mut self,
        summary: &Summary<'_>,
        params: &SamplingParams,
        uniform: f64,
        limit: usize,
        scratch: &mut Scratch,
    ) -> Result<(), RowError> {
        self.blocks.clear();
        self.max = summary.maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = |sums: &[f32]| sums.iter().map(|&s| f64::from(s)).sum::<f64>();
        let reference = sum(summary.sums);
        self.total = if params.greedy() { reference } else { sum(summary.scaled) };
        if !reference.is_finite() {
            return Err(RowError::NotFinite);
        }
        if !self.total.is_finite() {
            return Err(RowError::overflow(params));
        }
        self.log_total = reference.ln();
        self.rule = if params.penalised() || limit < summary.width {
            Rule::Whole
        } else if params.greedy() {
            self.blocks.extend(summary.maxima.iter().position(|&m| m == self.max).map(|b| b as u32));
            Rule::Greedy
        } else if params.truncated() {
            self.keep(summary, params, limit / summary.width, &mut scratch.truncate)
        } else {
            self.walk(summary, uniform * self.total)
        };
        if self.blocks.is_empty() || self.blocks.len() * summary.width > limit {
            self.want_whole_row();
        }
        Ok(())
    }

    /// Plans a draw from the whole row.
    pub fn want_whole_row(&mut self) {
        self.blocks.clear();
        self.rule = Rule::Whole;
    }

    /// The blocks that the draw needs, ascending; absent when it needs the whole row.
    #[must_use]
    pub fn blocks(&self) -> Option<&[u32]> {
        (self.rule != Rule::Whole).then_some(&self.blocks)
    }

    /// The block that the cumulative mass passes `target` in.
    fn walk(&mut self, summary: &Summary<'_>, target: f64) -> Rule {
        let (mut before, mut squares, mut found) = (0.0, 0.0, None);
        for (b, sum) in summary.scaled.iter().map(|&s| f64::from(s)).enumerate() {
            squares += sum * sum;
            if found.is_none() {
                if before + sum > target {
                    found = Some(b as u32);
                } else {
                    before += sum;
                }
            }
        }
        self.blocks.extend(found);
        // The errors of the blocks are independent, so they add up as squares.
        Rule::Walk { before, slack: ROUNDING * squares.sqrt() }
    }

    /// The blocks that the support lies in, if they are at most `most`.
    fn keep(
        &mut self,
        summary: &Summary<'_>,
        params: &SamplingParams,
        most: usize,
        scratch: &mut TruncateScratch,
    ) -> Rule {
        let bound = match Cut::of(params, summary.vocab()) {
            Cut { top_k: Some(k), .. } => scratch.kth_largest(summary.maxima, k),
            Cut { top_p: Some(p), .. } => match self.nucleus_bound(summary, params.temperature, p, most) {
                Some(bound) => bound,
                None => return Rule::Whole,
            },
            Cut { min_p: Some(p), .. } => logit_of_weight(p, self.max, params.temperature),
            _ => f32::NEG_INFINITY,
        };
        self.blocks.clear();
        let reach = summary.maxima.iter().enumerate().filter(|&(_, &m)| m >= bound).map(|(b, _)| b as u32);
        self.blocks.extend(reach.take(most + 1));
        Rule::Kept { bound }
    }

    /// A logit that the nucleus does not go below, such that at most `most` blocks reach it.
    ///
    /// Blocks are taken by descending maximum. What lies above the next maximum is then all in the blocks taken; of
    /// each of them that is at least its largest logit, and at least its mass without what its other logits can have
    /// below.
    fn nucleus_bound(&mut self, summary: &Summary<'_>, temperature: f32, p: f64, most: usize) -> Option<f32> {
        let Self { blocks, max, total, .. } = self;
        let maxima = summary.maxima;
        let weight =
            |block: u32| ((f64::from(maxima[block as usize]) - f64::from(*max)) / f64::from(temperature)).exp();
        blocks.extend(0..maxima.len() as u32);
        let descending = |a: &u32, b: &u32| maxima[*b as usize].total_cmp(&maxima[*a as usize]);
        if most + 1 < blocks.len() {
            blocks.select_nth_unstable_by(most, descending);
            blocks.truncate(most + 1);
        }
        blocks.sort_unstable_by(descending);
        for (taken, &next) in blocks.iter().enumerate().skip(1) {
            let below = (summary.width - 1) as f64 * weight(next);
            let above = |&block: &u32| weight(block).max(f64::from(summary.scaled[block as usize]) - below);
            if blocks[..taken].iter().map(above).sum::<f64>() >= p * *total * (1.0 + 2.0 * ROUNDING) {
                return Some(maxima[next as usize]);
            }
        }
        (blocks.len() == maxima.len() && maxima.len() <= most).then_some(f32::NEG_INFINITY)
    }

    /// The token, from the logits of the blocks that were asked for (one after the other); absent when the whole row is
    /// needed after all.
    #[must_use]
    pub fn draw(
        &self,
        width: usize,
        vocab: usize,
        logits: &[f32],
        params: &SamplingParams,
        uniform: f64,
        scratch: &mut Scratch,
    ) -> Option<Draw> {
        assert_eq!(logits.len(), self.blocks.len() * width, "the logits of every block");
        let tokens = self.blocks.iter().flat_map(|&b| b * width as u32..(b + 1) * width as u32);
        let mut candidates = tokens.zip(logits.iter().copied());
        let (token, logit, kept) = match self.rule {
            Rule::Whole => return None,
            Rule::Greedy => {
                let (token, logit) = candidates.find(|&(_, logit)| logit == self.max)?;
                (token, logit, None)
            }
            Rule::Walk { before, slack } => {
                let mut rest = uniform * self.total - before;
                let scale = 1.0 / params.temperature;
                let (token, logit) = candidates.find_map(|(token, logit)| {
                    let weight = f64::from(exp_nonpositive((logit - self.max) * scale));
                    let (into, left) = (rest, weight - rest);
                    rest -= weight;
                    (left > 0.0).then_some((into > slack && left > slack).then_some((token, logit)))
                })??;
                (token, logit, None)
            }
            Rule::Kept { bound } => {
                let reach = candidates.filter(|&(_, logit)| logit >= bound);
                let total = (self.total, 2.0 * ROUNDING);
                let kept = scratch.truncate.keep_of(reach, params, vocab, self.max, total)?;
                let mass = kept.iter().map(|c| c.weight).sum::<f64>();
                let drawn = draw_kept(kept, uniform * mass)?;
                (drawn.token, drawn.logit, Some((kept, mass)))
            }
        };
        let distance = f64::from(logit) - f64::from(self.max);
        let logprob = (distance - self.log_total) as f32;
        Some(Draw { token, logprob: token_logprob(logprob, distance, params.temperature, self.total, kept) })
    }
}

#[cfg(test)]
mod tests {
    use shared::generation::rng::Stream;

    use super::*;
    use crate::sampling::{SeenTokens, sample_row};

    /// Maxima and sums in single precision, one after the other: rounded otherwise than on the host.
    struct Device {
        width: usize,
        maxima: Vec<f32>,
        sums: Vec<f32>,
        scaled: Vec<f32>,
    }

    impl Device {
        fn new(logits: &[f32], width: usize, temperature: f32) -> Self {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sums = |scale: f32| {
                logits.chunks(width).map(|b| b.iter().map(|l| ((l - max) * scale).exp()).sum::<f32>()).collect()
            };
            Self {
                width,
                maxima: logits.chunks(width).map(|b| b.iter().copied().fold(f32::NEG_INFINITY, f32::max)).collect(),
                sums: sums(1.0),
                scaled: sums(1.0 / temperature),
            }
        }

        fn summary(&self) -> Summary<'_> {
            Summary { width: self.width, maxima: &self.maxima, sums: &self.sums, scaled: &self.scaled }
        }
    }

    /// A draw from blocks, `None` for one that needs the whole row.
    fn draw(logits: &[f32], device: &Device, params: &SamplingParams, uniform: f64, limit: usize) -> Option<Draw> {
        let mut scratch = Scratch::default();
        let mut plan = BlockPlan::default();
        plan.make(&device.summary(), params, uniform, limit, &mut scratch).unwrap();
        let blocks = plan.blocks()?;
        assert!(blocks.len() * device.width <= limit && blocks.is_sorted());
        let fetched: Vec<f32> =
            blocks.iter().flat_map(|&b| logits.chunks(device.width).nth(b as usize).unwrap()).copied().collect();
        plan.draw(device.width, logits.len(), &fetched, params, uniform, &mut scratch)
    }

    fn distributions() -> Vec<SamplingParams> {
        let base = SamplingParams::default();
        let mut all = vec![base.clone(), SamplingParams { temperature: 0.0, ..base.clone() }];
        for temperature in [0.6, 1.0, 1.4] {
            for (top_k, top_p, min_p) in [
                (0, 1.0, None),
                (1, 1.0, None),
                (30, 1.0, None),
                (0, 0.3, None),
                (0, 0.9, None),
                (0, 1.0, Some(0.1)),
                (0, 0.9, Some(0.02)),
                (20, 0.8, Some(0.05)),
            ] {
                all.push(SamplingParams { temperature, top_k, top_p, min_p, ..base.clone() });
            }
        }
        all
    }

    /// Rows of 4,096 logits: peaked, flat, and rounded so that many are equal.
    fn rows() -> [Vec<f32>; 3] {
        let mut stream = Stream::new(&[21]);
        let peaked: Vec<f32> = (0..4096).map(|_| (stream.next_normal() * 3.0) as f32).collect();
        let flat = (0..4096).map(|_| (stream.next_normal() * 0.02) as f32).collect();
        let rounded = peaked.iter().map(|l| l.round()).collect();
        [peaked, flat, rounded]
    }

    #[test]
    fn a_draw_from_blocks_is_the_draw_from_the_row() {
        let mut decided = 0;
        for (r, logits) in rows().iter().enumerate() {
            for (p, params) in distributions().iter().enumerate() {
                let device = Device::new(logits, 64, if params.greedy() { 1.0 } else { params.temperature });
                let mut stream = Stream::new(&[r as u64, p as u64]);
                for _ in 0..200 {
                    let uniform = stream.next_f64();
                    let Some(got) = draw(logits, &device, params, uniform, 4096) else { continue };
                    decided += 1;
                    let expected =
                        sample_row(logits, params, &SeenTokens::default(), uniform, &mut Scratch::default()).unwrap();
                    assert_eq!(got.token, expected.token, "row {r}, {params:?}, {uniform}");
                    let (a, b) = (got.logprob, expected.logprob);
                    assert_eq!(a.kept_count, b.kept_count);
                    for (a, b) in [
                        (a.logprob, b.logprob),
                        (a.logprob_at_temperature, b.logprob_at_temperature),
                        (a.log_kept_mass, b.log_kept_mass),
                    ] {
                        assert!((a - b).abs() < 4e-6, "row {r}, {params:?}: {a} against {b}");
                    }
                }
            }
        }
        assert!(decided > 3 * 26 * 195, "only {decided} draws were decided");
    }

    #[test]
    fn few_blocks_are_enough_where_the_distribution_is_peaked() {
        let [peaked, flat, _] = rows();
        let needed = |logits: &[f32], params: &SamplingParams| {
            let mut plan = BlockPlan::default();
            let device = Device::new(logits, 64, params.temperature);
            plan.make(&device.summary(), params, 0.37, 1024, &mut Scratch::default()).unwrap();
            plan.blocks().map(<[u32]>::len)
        };
        let full = SamplingParams::default();
        assert_eq!((needed(&peaked, &full), needed(&flat, &full)), (Some(1), Some(1)));
        let nucleus = SamplingParams { temperature: 0.5, top_p: 0.5, ..full.clone() };
        assert!(needed(&peaked, &nucleus).is_some_and(|n| n <= 8), "{:?}", needed(&peaked, &nucleus));
        assert_eq!(needed(&flat, &nucleus), None);
        let top_k = SamplingParams { top_k: 10, ..full.clone() };
        assert_eq!((needed(&peaked, &top_k), needed(&flat, &top_k)), (Some(10), Some(10)));
        assert_eq!(needed(&peaked, &SamplingParams { top_k: 17, ..full.clone() }), None, "more than the limit");
        assert_eq!(needed(&peaked, &SamplingParams { repetition_penalty: 1.1, ..full }), None);
    }

    #[test]
    fn a_draw_that_rounding_could_decide_is_left_to_the_whole_row() {
        let logits = vec![0.0_f32; 256];
        let device = Device::new(&logits, 32, 1.0);
        let params = SamplingParams::default();
        let at = |uniform| draw(&logits, &device, &params, uniform, 256).map(|d| d.token);
        for border in [1, 32, 100, 224] {
            let uniform = f64::from(border) / 256.0;
            assert_eq!(at(uniform - 1e-9), None);
            assert_eq!(at(uniform + 1e-9), None);
            assert_eq!((at(uniform - 1e-3), at(uniform + 1e-3)), (Some(border - 1), Some(border)));
        }
        // Half of the mass is the first half of the tokens, or one more.
        let nucleus = SamplingParams { top_p: 0.5, ..params };
        assert_eq!(draw(&logits, &device, &nucleus, 0.3, 256), None);
        let clear = SamplingParams { top_p: 0.501, ..nucleus };
        assert_eq!(draw(&logits, &device, &clear, 0.001, 256).map(|d| d.token), Some(127));
    }

    #[test]
    fn damaged_logits_are_an_error() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.0_f32; 128];
            logits[77] = bad;
            let device = Device::new(&logits, 32, 1.0);
            let mut plan = BlockPlan::default();
            let made = plan.make(&device.summary(), &SamplingParams::default(), 0.5, 128, &mut Scratch::default());
            assert_eq!(made, Err(RowError::NotFinite));
        }
    }
}
