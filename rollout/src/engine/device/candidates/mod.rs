//! Sampling from logits that stay on the device.
//!
//! A row of logits is cut into blocks. One small graph makes the largest logit and the sum of exponentials of every
//! block; [`BlockPlan`] says which blocks the next token needs, another small graph gathers those, and only they come
//! to main memory. Rows whose distribution needs more than that (a repetition penalty, a flat nucleus), or whose draw
//! is so close to a border that rounding could decide it, are fetched whole. Both graphs stand beside the model's and
//! outlive its versions; the published graph stays as it is.
//!
//! The drawn token is the one that the host would draw from the whole row. Maxima are exact, and the host's own code
//! computes the weights within a block; only sums are rounded elsewhere. Log-probs agree to the rounding of a sum.
//!
//! The usual way is to take the top K logits and the log-sum-exp of the row. It would decide less: the mass of the
//! tokens left out may lie before or behind any candidate, so a draw from a flat row would always be open.

mod blocks;

use std::ffi::CStr;

use exporters::onnx::{
    builder::{Dim, GraphBuilder, int},
    proto::{DataType, ModelProto},
};
use ndarray::ArrayViewMut2;
use ort::{memory::AllocationDevice, session::Session, value::TensorElementType};
use prost::Message;
use shared::config::Device;

use self::blocks::{BlockPlan, Summary};
use super::lever::Lever;
use crate::{
    engine::{
        EngineError, Profile,
        binding::{Bindings, TensorMemory},
        sequence::Sequence,
        session::{SessionOptions, load_small},
        storage::{FloatMemory, LogitsBuffer, Storage, logits_buffer},
    },
    sampling::SamplingThreads,
};

/// Blocks are not wider than this, nor than the square root of the vocabulary (but for small ones): what comes back is
/// two figures for each block and then the logits of one.
const WIDEST: usize = 256;
const NARROWEST: usize = 16;
/// Operator set of the small graphs: the last with kernels of `ReduceMax` in every provider of interest.
const OPSET: i64 = 18;

/// A small graph with what it is bound to.
struct SmallGraph {
    session: Session,
    bindings: Bindings,
}

impl SmallGraph {
    fn new(model: &ModelProto, options: SessionOptions) -> Result<Self, EngineError> {
        let failed = || EngineError::runtime("cannot load the graph that summarises logits");
        let session = load_small(&model.encode_to_vec(), options).map_err(failed())?;
        let device = if options.device == Device::Cpu { AllocationDevice::CPU } else { AllocationDevice::CUDA };
        let bindings = Bindings::new(&session, device).map_err(failed())?;
        Ok(Self { session, bindings })
    }

    fn run(&mut self, inputs: &[(&CStr, TensorMemory)], outputs: &[(&CStr, TensorMemory)]) -> Result<(), EngineError> {
        // SAFETY: every memory is borrowed by the caller until this returns, and every name is bound anew before each
        // run.
        unsafe {
            for (name, memory) in inputs {
                self.bindings.bind_input(name, memory).map_err(EngineError::runtime("cannot bind logits"))?;
            }
            for (name, memory) in outputs {
                self.bindings.bind_output(name, memory).map_err(EngineError::runtime("cannot bind logits"))?;
            }
            self.bindings.run(&mut self.session, None)
        }
    }
}

/// Draws the tokens of decode steps whose logits stay where they were computed.
pub(in crate::engine) struct Candidates {
    summarise: SmallGraph,
    gather: SmallGraph,
    /// Logits of a block, and blocks of a row.
    width: usize,
    blocks: usize,
    /// Logits that are fetched for a draw before the whole row is.
    limit: usize,
    /// `[max_num_seqs, blocks]` each: the largest logits, and sums of exponentials at temperature 1 and at the rows'
    /// own.
    maxima: LogitsBuffer,
    sums: LogitsBuffer,
    scaled: LogitsBuffer,
    /// One for each row.
    inverse_temperatures: Vec<f32>,
    plans: Vec<BlockPlan>,
    /// Blocks wanted, counted through all rows, and their logits.
    wanted: Vec<i64>,
    fetched: LogitsBuffer,
    /// Where the blocks of each row begin in `wanted`; one more than rows.
    starts: Vec<usize>,
    /// Tokens drawn from whole rows since that was asked last.
    whole_rows: u64,
}

/// Logits of a block for a vocabulary: its largest divisor within bounds, if it has one.
fn block_width(vocab: usize) -> Option<usize> {
    let widest = vocab.isqrt().clamp(2 * NARROWEST, WIDEST);
    (NARROWEST..=widest).rev().find(|&width| vocab.is_multiple_of(width))
}

impl Candidates {
    /// For rows of `vocab` logits of which up to `limit` are fetched; absent for a vocabulary that cannot be cut into
    /// blocks.
    pub fn new(rows: usize, vocab: usize, limit: usize, options: SessionOptions) -> Result<Option<Self>, EngineError> {
        let Some(width) = block_width(vocab) else {
            tracing::warn!(vocab, "the vocabulary cannot be cut into blocks; all logits are fetched");
            return Ok(None);
        };
        let (blocks, device) = (vocab / width, options.device);
        let buffer = |length: usize| logits_buffer(length, device);
        Ok(Some(Self {
            summarise: SmallGraph::new(&summarise_graph(blocks, width), options)?,
            gather: SmallGraph::new(&gather_graph(width), options)?,
            width,
            blocks,
            limit,
            maxima: buffer(rows * blocks)?,
            sums: buffer(rows * blocks)?,
            scaled: buffer(rows * blocks)?,
            inverse_temperatures: Vec::with_capacity(rows),
            plans: (0..rows).map(|_| BlockPlan::default()).collect(),
            wanted: Vec::with_capacity(rows),
            fetched: buffer(rows * limit.min(vocab))?,
            starts: Vec::with_capacity(rows + 1),
            whole_rows: 0,
        }))
    }

    fn vocab(&self) -> usize {
        self.blocks * self.width
    }

    /// Fills maxima and sums; whether there are sums at temperatures other than 1.
    fn summarise(&mut self, logits: &mut Storage, slots: &[Option<Sequence>]) -> Result<bool, EngineError> {
        self.inverse_temperatures.clear();
        self.inverse_temperatures.resize(slots.len(), 1.0);
        self.sum_blocks(logits, slots.len(), false)?;
        let mut own = false;
        for (inverse, sequence) in self.inverse_temperatures.iter_mut().zip(slots) {
            let (params, _) = sequence_of(sequence).next_draw();
            if !params.greedy() && params.temperature != 1.0 {
                *inverse = 1.0 / params.temperature;
                own = true;
            }
        }
        if own {
            self.sum_blocks(logits, slots.len(), true)?;
        }
        Ok(own)
    }

    fn sum_blocks(&mut self, logits: &mut Storage, rows: usize, own_temperatures: bool) -> Result<(), EngineError> {
        let Self { blocks, width, .. } = *self;
        let sums = if own_temperatures { &mut self.scaled } else { &mut self.sums };
        self.summarise.run(
            &[
                (c"logits", logits.floats(rows * blocks * width).tensor(&[rows, blocks, width])),
                (c"inverse_temperature", FloatMemory::new(&mut self.inverse_temperatures).tensor(&[rows, 1, 1])),
            ],
            &[
                (c"maxima", FloatMemory::new(&mut self.maxima[..rows * blocks]).tensor(&[rows, blocks])),
                (c"sums", FloatMemory::new(&mut sums[..rows * blocks]).tensor(&[rows, blocks])),
            ],
        )
    }

    fn plan(&mut self, slots: &mut [Option<Sequence>], own_temperatures: bool, threads: &mut SamplingThreads) {
        let Self { maxima, sums, scaled, plans, blocks, width, limit, .. } = self;
        let (sums, maxima): (&LogitsBuffer, &LogitsBuffer) = (sums, maxima);
        let scaled = if own_temperatures { &*scaled } else { sums };
        let plans = &mut plans[..slots.len()];
        threads.for_each_pair(2 * *blocks, slots, plans, |row, sequence, plan, scratch| {
            let of_row = row * *blocks..(row + 1) * *blocks;
            let summary = Summary {
                width: *width,
                maxima: &maxima[of_row.clone()],
                sums: &sums[of_row.clone()],
                scaled: &scaled[of_row],
            };
            let sequence = sequence.as_mut().expect("decoding runs on slots without holes");
            if sequence.needs_whole_row() {
                // Which tokens may come is known on the host alone, and the likeliest may lie in any block.
                plan.want_whole_row();
                return;
            }
            let (params, uniform) = sequence.next_draw();
            if let Err(error) = plan.make(&summary, params, uniform, *limit, scratch) {
                sequence.set_drawn(Err(error));
            }
        });
    }

    /// Fetches the blocks that the plans ask for.
    fn fetch(&mut self, logits: &mut Storage, rows: usize) -> Result<(), EngineError> {
        let Self { wanted, starts, plans, blocks, width, .. } = self;
        wanted.clear();
        starts.clear();
        for (row, plan) in plans[..rows].iter().enumerate() {
            starts.push(wanted.len());
            let of_row = plan.blocks().unwrap_or_default();
            wanted.extend(of_row.iter().map(|&b| (row * *blocks) as i64 + i64::from(b)));
        }
        starts.push(wanted.len());
        if wanted.is_empty() {
            return Ok(());
        }
        let (n, all) = (wanted.len(), rows * *blocks);
        let which = TensorMemory::new(wanted.as_mut_ptr().cast(), &[n], TensorElementType::Int64, false);
        self.gather.run(
            &[(c"blocks", logits.floats(all * *width).tensor(&[all, *width])), (c"wanted", which)],
            &[(c"taken", FloatMemory::new(&mut self.fetched[..n * *width]).tensor(&[n, *width]))],
        )
    }

    fn draw_from_blocks(&self, slots: &mut [Option<Sequence>], threads: &mut SamplingThreads) {
        let (vocab, width) = (self.vocab(), self.width);
        let Self { plans, starts, wanted, fetched, .. } = self;
        let mean = wanted.len() * width / slots.len();
        threads.for_each(mean, slots, |row, sequence, scratch| {
            let sequence = sequence.as_mut().expect("decoding runs on slots without holes");
            let plan = &plans[row];
            if sequence.is_drawn() || plan.blocks().is_none() {
                return;
            }
            let logits = &fetched[starts[row] * width..starts[row + 1] * width];
            let (params, uniform) = sequence.next_draw();
            if let Some(draw) = plan.draw(width, vocab, logits, params, uniform, scratch) {
                sequence.set_drawn(Ok(draw));
            }
        });
    }

    /// Draws what is left from whole rows, neighbours fetched together.
    fn draw_from_rows(
        &mut self,
        logits: &mut Storage,
        slots: &mut [Option<Sequence>],
        whole: &mut [f32],
        threads: &mut SamplingThreads,
    ) -> Result<(), EngineError> {
        let vocab = self.vocab();
        let (mut row, mut count) = (0, 0);
        while row < slots.len() {
            let run = slots[row..].iter().take_while(|s| !sequence_of(s).is_drawn()).count();
            if run > 0 {
                logits.read(row * vocab, &mut whole[row * vocab..(row + run) * vocab])?;
            }
            count += run;
            row += run + 1;
        }
        if count > 0 {
            threads.for_each(vocab, slots, |row, sequence, scratch| {
                let sequence = sequence.as_mut().expect("decoding runs on slots without holes");
                if !sequence.is_drawn() {
                    sequence.draw(&whole[row * vocab..(row + 1) * vocab], scratch);
                }
            });
        }
        self.whole_rows += count as u64;
        Ok(())
    }
}

impl Lever for Candidates {
    fn draws(&self) -> bool {
        true
    }

    fn draw(
        &mut self,
        logits: &mut Storage,
        slots: &mut [Option<Sequence>],
        whole: ArrayViewMut2<'_, f32>,
        threads: &mut SamplingThreads,
    ) -> Result<(), EngineError> {
        let own_temperatures = self.summarise(logits, slots)?;
        self.plan(slots, own_temperatures, threads);
        self.fetch(logits, slots.len())?;
        self.draw_from_blocks(slots, threads);
        self.draw_from_rows(logits, slots, whole.into_slice().expect("arrays of logits are contiguous"), threads)
    }

    fn count(&mut self, profile: &mut Profile) {
        profile.whole_rows += std::mem::take(&mut self.whole_rows);
    }
}

fn sequence_of(slot: &Option<Sequence>) -> &Sequence {
    slot.as_ref().expect("decoding runs on slots without holes")
}

const ROWS: Dim<'_> = Dim::Named("rows");

/// `logits` f32 `[rows, blocks, width]` and `inverse_temperature` f32 `[rows, 1, 1]` to `maxima` and `sums` f32
/// `[rows, blocks]`: of each block the largest logit, and the sum of exp((l − m) / T) with the row's largest logit m.
fn summarise_graph(blocks: usize, width: usize) -> ModelProto {
    let mut graph = GraphBuilder::default();
    let (blocks, width) = (Dim::Fixed(blocks), Dim::Fixed(width));
    let logits = graph.input("logits", DataType::Float, &[ROWS, blocks, width]);
    let inverse = graph.input("inverse_temperature", DataType::Float, &[ROWS, Dim::Fixed(1), Dim::Fixed(1)]);
    graph.output("maxima", DataType::Float, &[ROWS, blocks]);
    graph.output("sums", DataType::Float, &[ROWS, blocks]);
    let last = graph.integers("axis.last", &[2]);
    let middle = graph.integers("axis.blocks", &[1]);
    let maxima = graph.node("ReduceMax", "maxima", &[&logits, &last], &[int("keepdims", 0)]);
    let max = graph.node("ReduceMax", "max", &[&maxima, &middle], &[int("keepdims", 1)]);
    let max = graph.node("Unsqueeze", "max.column", &[&max, &last], &[]);
    let distance = graph.node("Sub", "distance", &[&logits, &max], &[]);
    let scaled = graph.node("Mul", "scaled", &[&distance, &inverse], &[]);
    let weight = graph.node("Exp", "weight", &[&scaled], &[]);
    graph.node("ReduceSum", "sums", &[&weight, &last], &[int("keepdims", 0)]);
    with_opset(graph.finish("summarise logits"))
}

/// `blocks` f32 `[n, width]` and `wanted` i64 `[m]` to `taken` f32 `[m, width]`.
fn gather_graph(width: usize) -> ModelProto {
    let mut graph = GraphBuilder::default();
    let blocks = graph.input("blocks", DataType::Float, &[Dim::Named("blocks"), Dim::Fixed(width)]);
    let wanted = graph.input("wanted", DataType::Int64, &[Dim::Named("wanted")]);
    graph.output("taken", DataType::Float, &[Dim::Named("wanted"), Dim::Fixed(width)]);
    graph.node("Gather", "taken", &[&blocks, &wanted], &[]);
    with_opset(graph.finish("gather logits"))
}

fn with_opset(mut model: ModelProto) -> ModelProto {
    for set in model.opset_import.iter_mut().filter(|set| set.domain.is_empty()) {
        set.version = OPSET;
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::stats::{block_exp_sums, block_maxima};
    use shared::generation::rng::Stream;

    #[test]
    fn blocks_divide_the_vocabulary() {
        for (vocab, width) in
            [(512, Some(32)), (32_000, Some(160)), (49_152, Some(192)), (151_936, Some(128)), (50_021, None)]
        {
            assert_eq!(block_width(vocab), width, "{vocab}");
        }
    }

    #[test]
    fn the_graph_sums_what_the_host_sums() {
        let (rows, vocab) = (3, 4096);
        let options =
            SessionOptions { device: Device::Cpu, threads: 1, spinning: false, hot_swap: false, cuda_graphs: false };
        let mut candidates = Candidates::new(rows, vocab, 1024, options).unwrap().unwrap();
        let mut stream = Stream::new(&[4]);
        let values: Vec<f32> = (0..rows * vocab).map(|_| (stream.next_normal() * 4.0) as f32).collect();
        let mut logits = Storage::new(size_of_val(values.as_slice()), Device::Cpu).unwrap();
        logits.write(bytemuck::cast_slice(&values)).unwrap();
        candidates.inverse_temperatures = vec![1.0, 0.5, 2.0];
        candidates.sum_blocks(&mut logits, rows, true).unwrap();
        let (width, blocks) = (candidates.width, candidates.blocks);
        for (row, &scale) in [1.0, 0.5, 2.0].iter().enumerate() {
            let logits = &values[row * vocab..(row + 1) * vocab];
            let (mut maxima, mut sums) = (Vec::new(), Vec::new());
            let max = block_maxima(logits, &mut maxima);
            let total = block_exp_sums(logits, max, scale, &mut sums);
            let got = &candidates.scaled[row * blocks..(row + 1) * blocks];
            let all: f64 = got.iter().map(|&s| f64::from(s)).sum();
            assert!((all - total).abs() < 1e-6 * total, "{all} against {total}");
            for (b, block) in logits.chunks(width).enumerate() {
                let max_of_block = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert_eq!(candidates.maxima[row * blocks + b], max_of_block);
                let exact: f64 = block.iter().map(|&l| (f64::from(l - max) * f64::from(scale)).exp()).sum();
                assert!((f64::from(got[b]) - exact).abs() < 1e-6 * exact, "{} against {exact}", got[b]);
            }
        }
    }
}
