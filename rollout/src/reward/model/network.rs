//! The network of a reward model: one ONNX Runtime session.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Instant,
};

use exporters::{ExportOptions, ensure_export, reads_positions};
use ndarray::{Array1, Array2, Axis, arr0};
use ort::{session::Session, value::Tensor};
use shared::{Head, ModelConfig, ModelDir, config::Device, model::manifest::MODEL_FILE};

use super::sequence::Sequence;
use crate::engine::{self, SessionOptions, runtime};

/// A loaded reward model.
pub(super) struct Network {
    session: Mutex<Session>,
    config: ModelConfig,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Longest sequence.
    pub positions: usize,
}

impl Network {
    /// Exports the model if need be and loads it, to run on so many threads; 0 = one per core.
    pub fn open(model: &ModelDir, threads: usize) -> Result<Self, String> {
        let at = model.path().display();
        let config = model.config();
        let Head::Score { .. } = config.head else {
            return Err(format!(
                "{at}: is a language model; a reward model is a ...ForSequenceClassification (`architectures` in \
                 config.json) with score.weight"
            ));
        };
        let export = ExportOptions::default();
        let positions = export.positions(config).map_err(|e| format!("{at}: {e}"))?;
        let dir = ensure_export(model, &export).map_err(|e| format!("{at}: {e}"))?;
        let session = load(&dir, threads).map_err(|e| format!("{at}: {e}"))?;
        Ok(Self { session: Mutex::new(session), config: config.clone(), vocab_size: config.vocab_size, positions })
    }

    /// The first label at every place of every row. Rows are padded on the right, which no score can see. After the
    /// deadline the network is not run.
    pub fn scores(&self, rows: &[&Sequence], deadline: Option<Instant>) -> Result<Vec<Vec<f32>>, String> {
        let mut session = in_time(&self.session, deadline)?;
        let width = rows.iter().map(|row| row.ids.len()).max().unwrap_or(0);
        let first_labels = self.run(&mut session, rows, width).map_err(|e| {
            let message = e.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            format!("the reward model failed: {message}")
        })?;
        drop(session);
        let mut scores = first_labels.into_iter();
        Ok(rows.iter().map(|row| scores.by_ref().take(row.places.len()).collect()).collect())
    }

    /// The first label at every place, row by row.
    fn run(&self, session: &mut Session, rows: &[&Sequence], width: usize) -> ort::Result<Vec<f32>> {
        let batch = rows.len();
        let mut input_ids = Array2::<i64>::zeros((batch, width));
        for (mut padded, row) in input_ids.rows_mut().into_iter().zip(rows) {
            padded.iter_mut().zip(&row.ids).for_each(|(to, &id)| *to = id.into());
        }
        let places =
            rows.iter().enumerate().flat_map(|(i, row)| row.places.iter().map(move |p| (i * width + p) as i64));
        // The padding counts as text: attention is causal, so nothing before it changes.
        let mut inputs = ort::inputs![
            "input_ids" => Tensor::from_array(input_ids)?,
            "seqlens_k" => Tensor::from_array(Array1::from_elem(batch, width as i32 - 1))?,
            "total_sequence_length" => Tensor::from_array(arr0(width as i32))?,
            "score_index" => Tensor::from_array(places.collect::<Array1<i64>>())?,
        ];
        if reads_positions(&self.config) {
            let begins: Vec<usize> = rows.iter().map(|row| self.config.rotary_begin(row.ids.len())).collect();
            let positions = Array2::from_shape_fn((batch, width), |(row, position)| (begins[row] + position) as i64);
            inputs.push(("position_ids".into(), Tensor::from_array(positions)?.into()));
        }
        let outputs = session.run(inputs)?;
        // `[places, labels]`.
        let scores = outputs["scores"].try_extract_array::<f32>()?;
        Ok(scores.index_axis(Axis(1), 0).iter().copied().collect())
    }
}

/// Locks, unless the deadline has passed by then. A call that was given up may have held the lock until now, and nobody
/// waits for this call any more.
fn in_time<T>(locked: &Mutex<T>, deadline: Option<Instant>) -> Result<MutexGuard<'_, T>, String> {
    let guard = locked.lock().unwrap_or_else(PoisonError::into_inner);
    match deadline {
        Some(deadline) if deadline <= Instant::now() => Err("out of time".to_owned()),
        _ => Ok(guard),
    }
}

fn load(dir: &Path, threads: usize) -> Result<Session, engine::EngineError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { threads };
    // The engine generates at the same time: a thread that spins would take a core from it.
    let options = SessionOptions { device: Device::Cpu, threads, spinning: false, hot_swap: false, cuda_graphs: false };
    let path = dir.join(MODEL_FILE);
    let doing = format!("cannot load {}", path.display());
    runtime::environment()?;
    engine::load(&path, options, None, Vec::new()).map_err(engine::EngineError::runtime(&doing))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_that_waited_for_another_beyond_its_deadline_does_not_run() {
        let session = Mutex::new(());
        let other = session.lock().unwrap();
        thread::scope(|scope| {
            let late = scope.spawn(|| in_time(&session, Some(Instant::now() + Duration::from_millis(20))).is_err());
            thread::sleep(Duration::from_millis(100));
            drop(other);
            assert!(late.join().unwrap());
        });
        assert!(in_time(&session, Some(Instant::now() + Duration::from_secs(3600))).is_ok());
        assert!(in_time(&session, None).is_ok());
    }
}
