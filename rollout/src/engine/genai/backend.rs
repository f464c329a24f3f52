//! A folder as a backend: the engine draws from its logits as it does from those of a version.
//!
//! A pass takes the tokens of one sequence, whose keys and values are tensors of their own. So sequences gain nothing
//! from one another, and the engine is made for one at a time.

use ndarray::ArrayViewMut2;
use ort::value::TensorElementType;
use shared::{ModelConfig, WeightManifest};

use super::{
    super::{
        EngineError, WeightSource,
        backend::{Abilities, Backend, Cost, EachRow, Prefill, PrefillLimits},
        draft::Drafts,
        packed::LoadedAdapter,
        sequence::DecodeRow,
        swap::LoadJob,
        types::Kernels,
    },
    Cache, GenAiFolder,
};

/// A sequence on its way.
struct Line {
    cache: Cache,
    positions: usize,
}

/// A folder with the keys and values of its sequences.
pub(in crate::engine) struct FolderBackend {
    folder: GenAiFolder,
    /// The tokens of the prompt that samples start from.
    prompt: Vec<u32>,
    /// What the prompt was computed to, for the first of these samples. Others compute it again.
    ready: Option<Line>,
    slots: Vec<Option<Line>>,
}

impl FolderBackend {
    pub fn new(folder: GenAiFolder) -> Self {
        Self { folder, prompt: Vec::new(), ready: None, slots: Vec::new() }
    }

    /// Takes in the tokens that follow those of a sequence. `logits` (`[vocab]`), where it is wanted, receives what
    /// follows.
    fn extend(&mut self, tokens: &[u32], line: Option<Line>, logits: Option<&mut [f32]>) -> Result<Line, EngineError> {
        let failed = || EngineError::runtime("the exported graph failed");
        let Line { cache, positions } = match line {
            Some(line) => line,
            None => Line { cache: self.folder.empty().map_err(failed())?, positions: 0 },
        };
        let (found, cache) = self.folder.run(tokens, positions, cache).map_err(failed())?;
        if let Some(logits) = logits {
            let last = found.row(found.nrows() - 1);
            logits.iter_mut().zip(last).for_each(|(logit, found)| *logit = *found);
        }
        Ok(Line { cache, positions: positions + tokens.len() })
    }
}

impl Backend for FolderBackend {
    fn abilities(&self) -> Abilities {
        Abilities {
            kernels: Kernels::Stock,
            instruction_set: "onnxruntime",
            prefill: PrefillLimits { prompts: 1, together: usize::MAX, padded: false },
        }
    }

    fn prefill(&mut self, prompts: &[Prefill<'_>], mut logits: ArrayViewMut2<'_, f32>) -> Result<Cost, EngineError> {
        let prompt = prompts[0].tokens;
        self.ready = Some(self.extend(prompt, None, logits.row_mut(0).as_slice_mut())?);
        self.prompt = prompt.to_vec();
        Ok(Cost::default())
    }

    fn start(&mut self, slot: usize, _: usize) -> Result<(), EngineError> {
        let line = match self.ready.take() {
            Some(line) => line,
            None => {
                let prompt = self.prompt.clone();
                self.extend(&prompt, None, None)?
            }
        };
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some(line);
        Ok(())
    }

    fn moved(&mut self, from: usize, to: usize, _: usize) -> Result<(), EngineError> {
        self.slots[to] = self.slots[from].take();
        Ok(())
    }

    fn decode(
        &mut self,
        rows: &[DecodeRow],
        drafts: &Drafts,
        mut logits: ArrayViewMut2<'_, f32>,
    ) -> Result<Cost, EngineError> {
        debug_assert_eq!(drafts.len(), 0, "a pass takes one token of a sequence");
        for (slot, row) in rows.iter().enumerate() {
            let line = self.slots[slot].take().expect("a sequence was started in the slot");
            debug_assert_eq!(line.positions, row.position);
            let line = self.extend(&[row.token], Some(line), logits.row_mut(slot).as_slice_mut())?;
            self.slots[slot] = Some(line);
        }
        Ok(Cost::default())
    }

    fn release(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn kv_bytes_in_use(&self) -> u64 {
        let size = |element: TensorElementType| if element == TensorElementType::Float16 { 2 } else { 4 };
        // Keys and values have no position yet where a sequence begins, and states are whole from the first token on.
        let has_positions = |shape: &[usize]| shape.contains(&0);
        let sum = |of_positions: bool| -> usize {
            let inputs = self.folder.cache.iter().filter(|(.., shape)| has_positions(shape) == of_positions);
            inputs.map(|(_, element, shape)| shape.iter().filter(|n| **n > 0).product::<usize>() * size(*element)).sum()
        };
        let lines = || self.slots.iter().chain([&self.ready]).flatten();
        let positions: usize = lines().map(|line| line.positions).sum();
        (positions * sum(true) + lines().count() * sum(false)) as u64
    }

    fn score(
        &mut self,
        _: &ModelConfig,
        tokens: &[u32],
        scored: usize,
        _: Option<&LoadedAdapter>,
        each: EachRow<'_>,
    ) -> Result<(), EngineError> {
        let logits = self.folder.logits(tokens)?;
        let first = tokens.len() - scored - 1;
        (first..first + scored).for_each(|row| each(&logits.row(row).to_vec()));
        Ok(())
    }

    fn load(&mut self, source: WeightSource, _: ModelConfig, _: WeightManifest) -> LoadJob {
        let message = "a folder for ONNX Runtime GenAI keeps its weights".to_owned();
        Box::new(move || Err(EngineError::Swap { version: source.version, message }))
    }

    fn install(&mut self) {
        unreachable!("no other weights are ever loaded");
    }
}
