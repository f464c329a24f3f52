//! A Hugging Face model directory with random weights, made on the spot.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

/// Sizes of a random Qwen2 model with tied embeddings.
#[derive(Debug, Clone, Copy)]
pub struct Qwen2 {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
}

/// The smallest model with every kind of part: a layer and two heads over [`CHARACTERS`].
pub const TINY: Qwen2 = Qwen2 {
    vocab_size: CHARACTERS,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 1,
    num_attention_heads: 2,
    num_key_value_heads: 1,
};

/// A folder with the directory of a [`TINY`] model in it, `model`, for a test to spoil.
#[derive(Debug)]
pub struct ModelFolder {
    dir: tempfile::TempDir,
}

impl ModelFolder {
    /// A new folder, which is removed with this value.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a temporary folder") };
        TINY.write(&place.path("model"), 1);
        place
    }

    /// The path of a file in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the model's `config.json` with these changes.
    pub fn change_config(&self, changes: &Value) {
        let mut config = TINY.config();
        config.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
        fs::write(self.path("model/config.json"), config.to_string()).expect("a writable folder");
    }
}

impl Qwen2 {
    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> Value {
        json!({
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": true,
            "use_sliding_window": false,
            "torch_dtype": "float32",
        })
    }

    /// Names and shapes of all parameters.
    #[must_use]
    pub fn parameters(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let kv = hidden / self.num_attention_heads * self.num_key_value_heads;
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, hidden])];
        for layer in 0..self.num_hidden_layers {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}"), shape.to_vec()));
            };
            add("input_layernorm.weight", &[hidden]);
            add("post_attention_layernorm.weight", &[hidden]);
            for (name, rows) in [("q_proj", hidden), ("k_proj", kv), ("v_proj", kv)] {
                add(&format!("self_attn.{name}.weight"), &[rows, hidden]);
                add(&format!("self_attn.{name}.bias"), &[rows]);
            }
            add("self_attn.o_proj.weight", &[hidden, hidden]);
            add("mlp.gate_proj.weight", &[inner, hidden]);
            add("mlp.up_proj.weight", &[inner, hidden]);
            add("mlp.down_proj.weight", &[hidden, inner]);
        }
        all.push(("model.norm.weight".to_owned(), vec![hidden]));
        all
    }

    /// Writes `config.json` and `model.safetensors` (norms 1, biases 0, the rest uniform in ±0.06).
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn write(&self, dir: &Path, seed: u64) {
        fs::create_dir_all(dir).expect("a model directory can be made");
        fs::write(dir.join("config.json"), self.config().to_string()).expect("config.json can be written");
        let mut state = seed;
        let tensors = self.parameters().into_iter().map(|(name, shape)| {
            let values = (0..shape.iter().product::<usize>())
                .map(|_| match () {
                    () if name.ends_with("norm.weight") => 1.0,
                    () if name.ends_with("bias") => 0.0,
                    () => 0.12 * (uniform(&mut state) - 0.5),
                })
                .collect();
            (name, shape, values)
        });
        write_safetensors(dir, tensors);
    }

    /// Writes `config.json` and a `model.safetensors` of the right size that takes no disk: all weights are holes, 0.
    ///
    /// # Panics
    /// When the files cannot be written.
    pub fn write_sparse(&self, dir: &Path) {
        fs::create_dir_all(dir).expect("a model directory can be made");
        fs::write(dir.join("config.json"), self.config().to_string()).expect("config.json can be written");
        let (mut header, mut end) = (Map::new(), 0);
        for (name, shape) in self.parameters() {
            let begin = end;
            end += 4 * shape.iter().map(|&n| n as u64).product::<u64>();
            header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}));
        }
        let header = Value::Object(header).to_string();
        let mut file = File::create(dir.join("model.safetensors")).expect("model.safetensors can be made");
        file.write_all(&(header.len() as u64).to_le_bytes()).expect("model.safetensors can be written");
        file.write_all(header.as_bytes()).expect("model.safetensors can be written");
        file.set_len(8 + header.len() as u64 + end).expect("the file system has holes");
    }
}

/// Writes `model.safetensors` with float32 tensors: names, shapes, values.
///
/// # Panics
/// When the file cannot be written.
pub fn write_safetensors(dir: &Path, tensors: impl Iterator<Item = (String, Vec<usize>, Vec<f32>)>) {
    fs::write(dir.join("model.safetensors"), safetensors(tensors)).expect("model.safetensors can be written");
}

/// A model that trains in a moment, with the vocabulary of [`write_tokenizer`].
pub const SMALL: Qwen2 = Qwen2 {
    vocab_size: CHARACTERS,
    hidden_size: 64,
    intermediate_size: 96,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
};

/// The parts of Qwen2.5's chat template that conversations with tools need.
pub const CONVERSATION_TEMPLATE: &str = "{%- if tools %}<|im_start|>system\n\
    {%- for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n\
    <tool_call>\n{\"name\": <name>, \"arguments\": <args>}\n</tool_call><|im_end|>\n{% endif %}\
    {%- for message in messages %}\
    {%- if message.role == 'tool' %}<|im_start|>user\n\
    <tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n\
    {% elif message.tool_calls %}<|im_start|>assistant{% for call in message.tool_calls %}\n\
    <tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n\
    </tool_call>{% endfor %}<|im_end|>\n\
    {% else %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endif %}\
    {%- endfor %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Number of tokens of [`write_tokenizer`].
pub const CHARACTERS: usize = 97;

/// Writes the files of a tokenizer with one token per printable ASCII character and line break, and `<eos>`, id 0,
/// which ends a completion.
///
/// # Panics
/// When the files cannot be written.
pub fn write_tokenizer(dir: &Path) {
    let characters = ['\n'].into_iter().chain(' '..='~').map(String::from);
    let vocab: Map<String, Value> = ["<eos>".to_owned()]
        .into_iter()
        .chain(characters)
        .zip(0..)
        .map(|(text, id): (_, u32)| (text, id.into()))
        .collect();
    assert_eq!(vocab.len(), CHARACTERS);
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "<eos>", "special": true, "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false}],
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    for (name, content) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({"eos_token": "<eos>"})),
        ("generation_config.json", json!({"eos_token_id": 0})),
    ] {
        fs::write(dir.join(name), content.to_string()).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// A safetensors file of float32 tensors: the length of the header, the header, the data.
fn safetensors(tensors: impl Iterator<Item = (String, Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// SplitMix64, as a number in [0, 1).
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
}

/// A tokenizer of one token for each character, with the marks of turns, and [`CONVERSATION_TEMPLATE`].
///
/// # Panics
/// When a file cannot be written.
pub fn write_conversation_tokenizer(dir: &Path) {
    let characters = ['\n'].into_iter().chain(' '..='~').map(String::from);
    let vocab: serde_json::Map<String, Value> = ["<|im_start|>".to_owned()]
        .into_iter()
        .chain(characters)
        .chain(["<|im_end|>".to_owned()])
        .zip(0..)
        .map(|(text, id): (_, u32)| (text, id.into()))
        .collect();
    assert_eq!(vocab.len(), CHARACTERS + 1);
    let added: Vec<Value> = [(0, "<|im_start|>"), (CHARACTERS, "<|im_end|>")]
        .map(|(id, content)| {
            json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        })
        .to_vec();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let files = [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}).to_string()),
        ("generation_config.json", json!({"eos_token_id": CHARACTERS}).to_string()),
        ("chat_template.jinja", CONVERSATION_TEMPLATE.to_owned()),
    ];
    for (name, content) in files {
        fs::write(dir.join(name), content).expect("a file can be written");
    }
}
