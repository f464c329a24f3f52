//! Small models, their exports, and exports that are spoilt.

use std::{
    fs,
    path::{Path, PathBuf},
};

use exporters::{Checkpoint, fill_hf_as, gguf};
use exporters_verify::{Distance, Model, VerifyError, huggingface, verify};
use serde_json::{Value, json};
use shared::{Dtype, ModelDir, generation::rng::Stream};
use tempfile::TempDir;

pub use exporters::gguf::GgufType;

/// A model directory that llama.cpp has keys for, with weights that make every part count.
pub struct TestModel {
    pub dir: TempDir,
}

/// Tokens of [`TestModel`]s.
pub const VOCABULARY: usize = 40;

impl TestModel {
    /// A model of a family, `model_type`, with some keys of its configuration replaced.
    pub fn new(family: &str, changes: &Value) -> Self {
        let mut config = json!({
            "model_type": family, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCABULARY,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": false,
            "eos_token_id": 3,
        });
        if family.starts_with("gemma") {
            for (key, value) in [("query_pre_attn_scalar", 16), ("sliding_window", 5)] {
                config[key] = value.into();
            }
            config["tie_word_embeddings"] = true.into();
        }
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
        let model = Self { dir };
        let parameters = model.open().config().parameters();
        harness::tiny_model::write_safetensors(
            model.path(),
            parameters.into_iter().map(|(name, shape)| {
                let mut values = values(&name, &shape);
                if family.starts_with("gemma") && name == "model.embed_tokens.weight" {
                    // Gemma multiplies them by the square root of 64, and has them made small for that.
                    values.iter_mut().for_each(|value| *value /= 8.0);
                }
                if name.ends_with("conv.in_proj.weight") {
                    // A short convolution multiplies three of its results, and so their roundings.
                    values.iter_mut().for_each(|value| *value /= 2.0);
                }
                (name, shape, values)
            }),
        );
        model
    }

    /// One of the golden models, with a tokenizer.
    pub fn golden(folder: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(folder.join(name), dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("tokenizer.json"), tokenizer().to_string()).unwrap();
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn open(&self) -> ModelDir {
        ModelDir::open(self.path()).unwrap()
    }

    /// Writes it as GGUF, with its parameters changed by `change`, into its own folder.
    pub fn write_gguf(&self, kind: GgufType, change: impl Fn(&str, Vec<f32>) -> Vec<f32>) -> PathBuf {
        write_gguf(&self.open(), &self.path().join("model.gguf"), kind, change)
    }

    /// Writes it as a Hugging Face directory, changed likewise, into a folder of its own.
    pub fn write_hf(&self, dtype: Dtype, change: impl Fn(&str, Vec<f32>) -> Vec<f32>) -> PathBuf {
        let (model, out) = (self.open(), self.path().join("hf"));
        let _ = fs::remove_dir_all(&out);
        fs::create_dir(&out).unwrap();
        let checkpoint = Checkpoint::open(&model).unwrap();
        fill_hf_as(&model, &out, dtype, &mut |name| Ok(change(name, checkpoint.read_f32(name)?).into())).unwrap();
        out
    }

    pub fn source(&self) -> Model {
        huggingface::open(self.path(), None).unwrap()
    }

    /// Compares an export with the model.
    pub fn verify(&self, mut export: Model, bound: Option<f64>) -> Result<Distance, VerifyError> {
        verify(&mut self.source(), &mut export, &rows(), bound)
    }
}

/// Writes a model as GGUF, with its parameters changed.
pub fn write_gguf(
    model: &ModelDir,
    path: &Path,
    kind: GgufType,
    change: impl Fn(&str, Vec<f32>) -> Vec<f32>,
) -> PathBuf {
    let checkpoint = Checkpoint::open(model).unwrap();
    gguf::write_gguf(model, path, kind, &mut |name| Ok(change(name, checkpoint.read_f32(name)?).into())).unwrap();
    path.to_owned()
}

/// Leaves parameters as they are.
pub fn same(_: &str, values: Vec<f32>) -> Vec<f32> {
    values
}

/// Rows that reach beyond the windows of Gemma.
pub fn rows() -> Vec<Vec<u32>> {
    let mut stream = Stream::new(&[1]);
    (0..2).map(|_| (0..24).map(|_| stream.below(VOCABULARY as u64) as u32).collect()).collect()
}

/// Values that a name decides; norms are near what leaves values as they are.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut stream = Stream::new(&[name.bytes().fold(0_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte))]);
    let scale = if name.ends_with("bias") || name.ends_with("norm.weight") { 0.3 } else { 0.2 };
    (0..shape.iter().product()).map(|_| (scale * stream.next_normal()) as f32 + offset(name)).collect()
}

fn offset(name: &str) -> f32 {
    // The result of a layer of Gemma 4 is multiplied with its factor.
    match name.rsplit('.').next() {
        Some("layer_scalar") => 1.0,
        _ if name.ends_with("norm.weight") => 0.6,
        _ => 0.0,
    }
}

/// BPE over bytes, with a merge, a special token and rows of the embedding to spare.
fn tokenizer() -> Value {
    json!({
        "added_tokens": [{"id": 3, "content": "<end>", "special": true}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    })
}
