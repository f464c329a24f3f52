//! One version of the weights in the layout of the kernels.

use std::{fs::File, ops::Range, time::Duration};

use exporters::{ROTARY_COS, ROTARY_SIN};
use memmap2::Mmap;
use rollout_kernels::{
    buffer::LargeBuffer,
    element::Format,
    linear::{Linear, Norm},
    packed::{Columns, PackedShape, Quantized},
};
use shared::{ModelConfig, WeightManifest, manifest::DATA_FILE};

use super::{
    super::{EngineError, WeightSource},
    graph::LINEARS_PER_LAYER,
    start_threads,
};

const EMBEDDING: &str = "model.embed_tokens.weight";

/// A product and what belongs to it.
struct LinearWeights {
    shape: PackedShape,
    panels: Range<usize>,
    quantized: Option<Quantized>,
    bias: Option<Vec<f32>>,
    gamma: Option<Vec<f32>>,
}

/// A packed version.
pub(in super::super) struct PackedWeights {
    /// The embedding is read where it lies.
    data: Mmap,
    embedding: Range<usize>,
    hidden: usize,
    epsilon: f32,
    /// The panels of all products.
    memory: LargeBuffer,
    /// [`LINEARS_PER_LAYER`] for each layer, then the language-model head.
    linears: Vec<LinearWeights>,
    /// Norms of query and key heads, layer by layer.
    head_norms: Vec<Option<[Vec<f32>; 2]>>,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl PackedWeights {
    /// Maps the weights of a folder and packs them on `threads` threads, into `spare` if it has the right size.
    pub fn load(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        format: Format,
        spare: Option<LargeBuffer>,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let threads = start_threads(threads, Duration::ZERO)?;
        let path = source.dir.join(DATA_FILE);
        let failed = |message: String| EngineError::Weights { path: path.display().to_string(), message };
        let file = File::open(&path).map_err(|e| failed(e.to_string()))?;
        // SAFETY: versions are written under another name and renamed, and never changed afterwards.
        let data = unsafe { Mmap::map(&file) }.map_err(|e| failed(e.to_string()))?;
        let stored = Stored { data: &data, manifest };
        stored.check(config.head_dim).map_err(failed)?;

        let words = products(config, format).map(|product| product.shape.words()).sum();
        let mut memory = match spare.filter(|memory| memory.len() == words) {
            Some(memory) => memory,
            None => LargeBuffer::new(words).map_err(|e| failed(format!("no memory for the packed weights: {e}")))?,
        };
        let (mut linears, mut end) = (Vec::new(), 0);
        for Product { names, norm, shape, bias } in products(config, format) {
            let all = |what: &str| names.iter().map(|n| stored.floats(&format!("{n}.{what}"))).collect::<Vec<&[f32]>>();
            let panels = end..end + shape.words();
            end = panels.end;
            let weights = all("weight");
            linears.push(LinearWeights {
                shape,
                quantized: shape.pack(&weights, &mut memory[panels.clone()], &threads),
                panels,
                bias: bias.then(|| shape.pack_bias(&all("bias"))),
                gamma: norm.map(|n| stored.floats(&n).to_vec()),
            });
            stored.forget(&weights);
        }
        let head_norm = |layer: usize, which: &str| {
            let name = format!("model.layers.{layer}.self_attn.{which}_norm.weight");
            manifest.tensor(&name).map(|_| stored.floats(&name).to_vec())
        };
        let head_norms =
            (0..config.num_hidden_layers).map(|l| Some([head_norm(l, "q")?, head_norm(l, "k")?])).collect();
        Ok(Self {
            embedding: stored.range(EMBEDDING),
            cos: stored.floats(ROTARY_COS).to_vec(),
            sin: stored.floats(ROTARY_SIN).to_vec(),
            hidden: config.hidden_size,
            epsilon: config.rms_norm_eps as f32,
            linears,
            head_norms,
            memory,
            data,
        })
    }

    /// The memory of the panels, when nobody needs the version any more.
    pub fn into_memory(self) -> LargeBuffer {
        self.memory
    }

    /// One of the products.
    pub fn linear(&self, index: usize) -> Linear<'_> {
        let LinearWeights { shape, panels, quantized, bias, gamma } = &self.linears[index];
        Linear {
            shape: *shape,
            panels: &self.memory[panels.clone()],
            quantized: quantized.as_ref(),
            bias: bias.as_deref(),
            norm: gamma.as_deref().map(|gamma| Norm { gamma, epsilon: self.epsilon }),
        }
    }

    /// Index of the language-model head among the products.
    pub fn head(&self) -> usize {
        self.linears.len() - 1
    }

    /// Norms of the query and key heads of a layer.
    pub fn head_norms(&self, layer: usize) -> [Option<Norm<'_>>; 2] {
        let norm = |i: usize| self.head_norms[layer].as_ref().map(|n| Norm { gamma: &n[i], epsilon: self.epsilon });
        [norm(0), norm(1)]
    }

    /// Cosines and sines, `[positions, head_dim / 2]`.
    pub fn rotary(&self) -> [&[f32]; 2] {
        [&self.cos, &self.sin]
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Embedding of a token; `None` outside the vocabulary.
    pub fn embedding(&self, token: i64) -> Option<&[f32]> {
        let table: &[f32] = bytemuck::cast_slice(&self.data[self.embedding.clone()]);
        let start = usize::try_from(token).ok()?.checked_mul(self.hidden)?;
        table.get(start..start + self.hidden)
    }
}

/// The tensors of a mapped version.
struct Stored<'a> {
    data: &'a Mmap,
    manifest: &'a WeightManifest,
}

impl<'a> Stored<'a> {
    /// Whether every tensor lies within the file, on whole elements, and the tables of positions fit the heads.
    fn check(&self, head_dim: usize) -> Result<(), String> {
        let fits = |start: u64, length: u64| start.checked_add(length).is_some_and(|end| end <= self.data.len() as u64);
        for t in &self.manifest.tensors {
            if !fits(t.offset, t.length)
                || !t.offset.is_multiple_of(4)
                || t.length != t.shape.iter().product::<u64>() * 4
            {
                return Err(format!("tensor {} does not lie within the file", t.name));
            }
        }
        let [cos, sin] = [ROTARY_COS, ROTARY_SIN].map(|name| self.manifest.tensor(name).map(|t| &t.shape));
        match (cos, sin) {
            (Some(cos), Some(sin)) if cos == sin && cos.get(1) == Some(&(head_dim as u64 / 2)) => Ok(()),
            _ => Err(format!("tensors {ROTARY_COS} and {ROTARY_SIN} must be [positions, {}]", head_dim / 2)),
        }
    }

    /// Lets go of the pages of weights that were packed; they count as memory of this process otherwise.
    fn forget(&self, weights: &[&[f32]]) {
        #[cfg(unix)]
        for weight in weights {
            let start = weight.as_ptr() as usize - self.data.as_ptr() as usize;
            // SAFETY: the mapping is read-only and shared with the file: a later read brings the same bytes back.
            let result = unsafe {
                self.data.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, size_of_val(*weight))
            };
            if let Err(error) = result {
                tracing::debug!(%error, "mapped weights stay in memory");
            }
        }
    }

    fn range(&self, name: &str) -> Range<usize> {
        let tensor = self.manifest.tensor(name).expect("the manifest is of the model");
        tensor.offset as usize..(tensor.offset + tensor.length) as usize
    }

    fn floats(&self, name: &str) -> &'a [f32] {
        bytemuck::cast_slice(&self.data[self.range(name)])
    }
}

/// Where a product comes from: names without `.weight` and `.bias`.
struct Product {
    names: Vec<String>,
    norm: Option<String>,
    shape: PackedShape,
    bias: bool,
}

/// The products in the order of the graph.
fn products(config: &ModelConfig, format: Format) -> impl Iterator<Item = Product> {
    let head = Product {
        names: vec![if config.tie_word_embeddings { "model.embed_tokens" } else { "lm_head" }.into()],
        norm: Some("model.norm.weight".into()),
        shape: PackedShape { depth: config.hidden_size, outputs: config.vocab_size, columns: Columns::Joined, format },
        bias: false,
    };
    (0..config.num_hidden_layers).flat_map(move |layer| layer_products(config, format, layer)).chain([head])
}

fn layer_products(config: &ModelConfig, format: Format, layer: usize) -> [Product; LINEARS_PER_LAYER] {
    let name = |what: &str| format!("model.layers.{layer}.{what}");
    let heads = config.num_attention_heads + 2 * config.num_key_value_heads;
    let product = |names: &[&str], norm: Option<&str>, columns, depth, outputs, bias| Product {
        names: names.iter().map(|n| name(n)).collect(),
        norm: norm.map(name),
        shape: PackedShape { depth, outputs, columns, format },
        bias,
    };
    let (hidden, inner, width) =
        (config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_dim);
    [
        product(
            &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            Some("input_layernorm.weight"),
            Columns::Joined,
            hidden,
            heads * config.head_dim,
            config.qkv_bias,
        ),
        product(&["self_attn.o_proj"], None, Columns::Joined, width, hidden, config.attention_output_bias),
        product(
            &["mlp.gate_proj", "mlp.up_proj"],
            Some("post_attention_layernorm.weight"),
            Columns::Gated,
            hidden,
            inner,
            config.mlp_bias,
        ),
        product(&["mlp.down_proj"], None, Columns::Joined, inner, hidden, config.mlp_bias),
    ]
}
