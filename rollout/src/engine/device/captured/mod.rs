//! Decode steps as captured CUDA graphs: the launches of a step are recorded once and replayed as one.
//!
//! A recording holds addresses and shapes, so such steps run over memory that never moves and in batches of a few
//! sizes, padded with rows that nobody wants. ONNX Runtime records at the first run under an id of its own for each
//! size, and from then on neither looks at inputs nor runs an operator: what changes from step to step must be on the
//! device, and `total_sequence_length`, which the attention reads on the host, is the length of the cache's slots once
//! and for all. A recording belongs to the thread that made it, and breaks off when another one allocates memory of the
//! device: none begins while weights are loaded beside the step loop, and such steps run as others do.
//!
//! Steps of a size without a recording run as they do without graphs, so the last bits of log-probs depend on when a
//! version arrives. The step loop frees old weights itself: another thread that frees them would break a recording off.
//! The first replay of a size is compared with a run of the graph, and a difference ends the program.
//!
//! Attention stays GroupQueryAttention. ONNX Runtime's PagedAttention would hold prompts once on the device, but it has
//! not been tried.

use std::thread::{self, ThreadId};

use ort::session::RunOptions;
use shared::config::Device;

use super::lever::{DecodeStep, Lever};
use crate::engine::{
    EngineError, Profile,
    stock::{
        batch::{Batch, Inputs},
        graph::run_options,
    },
    storage::Storage,
};

/// What the logits of a replay may be off, as a share of the largest: launches are the same, sums may come in another
/// order. A wrong row or length is off by far more.
const TOLERANCE: f32 = 0.02;

/// Steps of one size.
struct Size {
    rows: usize,
    /// Names the recording.
    graph: RunOptions,
    /// The thread on which the session in use has recorded it.
    recorded: Option<ThreadId>,
    /// Whether a replay of that was compared with a run.
    checked: bool,
}

impl Size {
    fn is_recorded(&self) -> bool {
        self.recorded == Some(thread::current().id())
    }
}

/// Decode steps of an engine in fixed sizes over fixed memory.
pub(in crate::engine) struct CapturedSteps {
    sizes: Vec<Size>,
    inputs: FixedInputs,
    vocab: usize,
    /// Steps that ran here since that was asked last.
    steps: u64,
}

impl CapturedSteps {
    /// For up to `max_num_seqs` rows over slots of `positions` positions.
    pub fn new(max_num_seqs: usize, positions: usize, vocab: usize, device: Device) -> Result<Self, EngineError> {
        let size = |(index, rows): (usize, usize)| {
            let graph =
                run_options(Some(index as u32 + 1)).map_err(EngineError::runtime("cannot name a CUDA graph"))?;
            Ok(Size { rows, graph, recorded: None, checked: false })
        };
        Ok(Self {
            sizes: sizes(max_num_seqs).into_iter().enumerate().map(size).collect::<Result<_, EngineError>>()?,
            inputs: FixedInputs::new(max_num_seqs, positions, device)?,
            vocab,
            steps: 0,
        })
    }
}

impl Lever for CapturedSteps {
    /// A step runs here if its size is recorded already, or may be recorded now. A replay that gives other logits than
    /// a run is an error.
    fn run(&mut self, step: &mut DecodeStep<'_>, logits: &mut Storage) -> Result<bool, EngineError> {
        let DecodeStep { session, batch, slots, is_loading } = step;
        let Self { sizes, inputs, vocab, steps } = self;
        let index = sizes.partition_point(|size| size.rows < batch.rows);
        let size = &mut sizes[index];
        if *is_loading && !size.is_recorded() {
            return Ok(false);
        }
        let wanted = batch.rows * *vocab;
        batch.pad(size.rows);
        inputs.set(batch)?;
        let inputs = inputs.inputs(size.rows);
        let computed = size.rows * *vocab;
        session.run(&inputs, slots, 0, logits.floats(computed), Some(&size.graph))?;
        // The first run under an id records and computes; the second is the first that only replays, on other inputs.
        if !size.is_recorded() {
            (size.recorded, size.checked) = (Some(thread::current().id()), false);
        } else if !size.checked {
            let read = |logits: &mut Storage| -> Result<Vec<f32>, EngineError> {
                let mut values = vec![0.0; wanted];
                logits.read(0, &mut values)?;
                Ok(values)
            };
            let replayed = read(logits)?;
            // A run on the same inputs writes the same keys and values to the same places once more.
            session.run(&inputs, slots, 0, logits.floats(computed), None)?;
            require_equal(&replayed, &read(logits)?, size.rows)?;
            size.checked = true;
        }
        *steps += 1;
        Ok(true)
    }

    /// What was recorded is gone. Old weights that another thread freed would break off what this one records next.
    fn weights_changed(&mut self) -> bool {
        for size in &mut self.sizes {
            (size.recorded, size.checked) = (None, false);
        }
        true
    }

    fn count(&mut self, profile: &mut Profile) {
        profile.graph_steps += std::mem::take(&mut self.steps);
    }
}

/// Whether the logits themselves are finite is found out where tokens are drawn, which names the sequence.
fn require_equal(replayed: &[f32], computed: &[f32], rows: usize) -> Result<(), EngineError> {
    let finite = computed.iter().filter(|x| x.is_finite());
    let largest = finite.fold(1.0f32, |most, x| most.max(x.abs()));
    if replayed.iter().zip(computed).all(|(a, b)| !b.is_finite() || (a - b).abs() <= TOLERANCE * largest) {
        return Ok(());
    }
    Err(EngineError::Runtime {
        doing: format!("the CUDA graph of {rows} rows is not usable"),
        message: "its replay gives other logits than the graph itself; run without --cuda-graphs, and a training run \
                  without its option for them"
            .into(),
    })
}

/// Rows of the steps that are recorded: few, since each is recorded anew for every version of the weights, and close
/// enough that at most a third of a larger step is padding.
fn sizes(max_num_seqs: usize) -> Vec<usize> {
    const DENSE: usize = 16;
    let powers = (0..usize::BITS - 1).map(|k| 1 << k).take_while(|&power| power < max_num_seqs);
    let mut sizes: Vec<usize> =
        powers.flat_map(|power| [power, if power < DENSE { power } else { power / 2 * 3 }]).collect();
    sizes.retain(|&size| size < max_num_seqs);
    sizes.dedup();
    sizes.push(max_num_seqs);
    sizes
}

/// The integers of decode steps in memory that stays where it is.
struct FixedInputs {
    /// For each row of the largest step: token, position and `last_index`, and then `seqlens_k` in half the width.
    words: Vec<i64>,
    rows: usize,
    storage: Storage,
    total_sequence_length: i32,
}

impl FixedInputs {
    fn new(rows: usize, positions: usize, device: Device) -> Result<Self, EngineError> {
        let words = vec![0; 3 * rows + rows.div_ceil(2)];
        let storage = Storage::new(size_of_val(words.as_slice()), device)?;
        Ok(Self { words, rows, storage, total_sequence_length: positions as i32 })
    }

    fn set(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let (wide, narrow) = self.words.split_at_mut(3 * self.rows);
        let columns = [&batch.input_ids, &batch.position_ids, &batch.last_index];
        for (column, values) in wide.chunks_exact_mut(self.rows).zip(columns) {
            column[..values.len()].copy_from_slice(values);
        }
        bytemuck::cast_slice_mut(narrow)[..batch.rows].copy_from_slice(&batch.seqlens_k);
        self.storage.write(bytemuck::cast_slice(&self.words))
    }

    /// Those of the first `rows` rows.
    fn inputs(&mut self, rows: usize) -> Inputs<'_> {
        let [input_ids, position_ids, last_index, seqlens_k] =
            [0, 1, 2, 3].map(|column| self.storage.at(column * self.rows * size_of::<i64>()));
        Inputs {
            rows,
            width: 1,
            input_ids,
            position_ids,
            last_index,
            seqlens_k,
            on_device: self.storage.on_device(),
            total_sequence_length: &self.total_sequence_length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::sequence::DecodeRow;

    #[test]
    fn steps_are_padded_by_a_third_at_most() {
        assert_eq!(sizes(1), [1]);
        assert_eq!(sizes(3), [1, 2, 3]);
        assert_eq!(sizes(16), [1, 2, 4, 8, 16]);
        assert_eq!(sizes(100), [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100]);
        let sizes = sizes(300);
        for rows in 9..=300 {
            let size = sizes[sizes.partition_point(|&size| size < rows)];
            assert!(size >= rows && (size <= 16 || 3 * (size - rows) < size), "{rows} rows run as {size}");
        }
    }

    #[test]
    fn a_replay_that_differs_is_refused() {
        let computed = [3.0, -80.0, 0.5, 7.0];
        require_equal(&[3.001, -80.02, 0.5, 7.0], &computed, 2).unwrap();
        for wrong in [[3.0, -80.0, 0.5, 9.0], [3.0, -80.0, f32::NAN, 7.0]] {
            let error = require_equal(&wrong, &computed, 2).unwrap_err().to_string();
            assert!(error.contains("2 rows") && error.contains("without --cuda-graphs"), "{error}");
        }
    }

    #[test]
    fn inputs_lie_row_by_row_in_one_block() {
        let mut batch = Batch::default();
        let rows = [DecodeRow { token: 5, position: 3 }, DecodeRow { token: 6, position: 10 }];
        batch.set_decode(rows.into_iter());
        batch.pad(3);
        let mut fixed = FixedInputs::new(4, 64, Device::Cpu).unwrap();
        fixed.set(&batch).unwrap();
        assert_eq!(fixed.words[..11], [5, 6, 0, 0, 3, 10, 0, 0, 0, 0, 0]);
        assert_eq!(bytemuck::cast_slice::<i64, i32>(&fixed.words[12..])[..3], [3, 10, 0]);
        let first = fixed.storage.at(0) as usize;
        let inputs = fixed.inputs(3);
        assert_eq!((inputs.rows, inputs.width, *inputs.total_sequence_length, inputs.on_device), (3, 1, 64, false));
        let columns = [inputs.input_ids, inputs.position_ids, inputs.last_index, inputs.seqlens_k];
        assert_eq!(columns.map(|column| column as usize - first), [0, 32, 64, 96]);
    }
}
