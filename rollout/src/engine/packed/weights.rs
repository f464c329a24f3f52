//! One version of the weights in the layout of the kernels.

use std::{ops::Range, sync::Arc, time::Duration};

use exporters::{Adapter, LowRank, QUERY_FACTORS, rotary_names};
use memmap2::Mmap;
use rollout_kernels::{
    attention::RotaryTables,
    buffer::LargeBuffer,
    element::Format,
    linear::{Activation, Linear, Norm},
    packed::{Columns, PackedShape, Quantized, WeightRows},
    per_layer::LayerInputs,
    recurrent::{delta_rule::DeltaRule, mamba::Mamba, short_conv::ShortConv},
    thread_pool::ThreadPool,
};
use shared::{Experts, ModelConfig, PerLayerInput, Rotary, WeightManifest, model::manifest::DATA_FILE};

use super::{
    super::{EngineError, WeightSource},
    graph::{MIXER_LINEARS, first_linear},
    mixers::{AttentionPart, Mixer, mixers},
    products::{Product, layer_products, products},
    start_threads,
};

const EMBEDDING: &str = "model.embed_tokens.weight";

/// What belongs to a product beside its panels.
struct LinearWeights {
    shape: PackedShape,
    bias: Option<Vec<f32>>,
    gamma: Option<Vec<f32>>,
    factor: f32,
}

/// Some of the products of a version, packed.
pub(super) struct Panels {
    memory: LargeBuffer,
    /// Those that are here, by their number.
    packed: Vec<Option<PackedProduct>>,
}

/// A product within that memory, and what it is rounded to.
pub(super) struct PackedProduct {
    panels: Range<usize>,
    quantized: Option<Quantized>,
}

/// The products that an adapter leaves as they are. They are packed once for all versions that are adapters on one
/// base.
pub(in super::super) struct Kept {
    /// Hash of the base.
    base: String,
    panels: Panels,
}

/// What need not be made anew for a version.
#[derive(Default)]
pub(in super::super) struct Provided {
    /// Memory of a version that nobody needs any more.
    pub memory: Option<LargeBuffer>,
    /// Products of the version before, which may be the same.
    pub kept: Option<Arc<Kept>>,
    /// Its weights, where they are mapped already.
    pub data: Option<Mmap>,
}

/// A packed version.
pub(in super::super) struct PackedWeights {
    /// The embedding is read where it lies.
    data: Mmap,
    /// What lies there.
    manifest: WeightManifest,
    embedding: Range<usize>,
    hidden: usize,
    epsilon: f32,
    /// The products that are this version's own.
    own: Panels,
    /// With an adapter, the others.
    kept: Option<Arc<Kept>>,
    /// Those of each layer, from [`first_linear`] on, then that of the inputs of layers, where there is one, then the
    /// language-model head.
    linears: Vec<LinearWeights>,
    /// What mixes the tokens of each layer.
    mixers: Vec<Mixer>,
    /// Whether norms of queries and keys are over each head.
    norms_heads: bool,
    /// Number of the router of each layer that has experts.
    routers: Vec<Option<usize>>,
    experts: Option<Experts>,
    attention_scale: f32,
    /// Norms of the results of a layer's parts, layer by layer, in the families that have them, and the factors on the
    /// sums with the residual stream.
    output_norms: Vec<(Vec<f32>, f32)>,
    /// What the inputs of each layer's own are made of, in the families that have them.
    inputs: Option<TableOfInputs>,
    logit_cap: Option<f32>,
    activation: Activation,
    embedding_scale: Option<f32>,
    /// Cosines and sines, with the number of entries of a head that they turn.
    rotary: Vec<(Rotary, usize, [Vec<f32>; 2])>,
    query_factors: Option<Vec<f32>>,
}

/// Inputs of each layer's own, beside the product that they begin with.
struct TableOfInputs {
    /// The table is read where it lies.
    rows: Range<usize>,
    gamma: Vec<f32>,
    factor: f32,
    layers: usize,
}

impl PackedWeights {
    /// Maps the weights of a folder and packs them on `threads` threads, with what an adapter adds to them.
    pub fn load(
        source: &WeightSource,
        config: &ModelConfig,
        manifest: &WeightManifest,
        format: Format,
        provided: Provided,
        threads: usize,
    ) -> Result<Self, EngineError> {
        let threads = start_threads(threads, Duration::ZERO)?;
        let path = manifest.export_dir(&source.dir).join(DATA_FILE);
        let failed = |message: String| EngineError::Weights { path: path.display().to_string(), message };
        let data = match provided.data {
            Some(data) => data,
            None => {
                let file = shared_bounds::open(&path).map_err(|e| failed(e.to_string()))?;
                // SAFETY: versions are written under another name and renamed, and never changed afterwards.
                unsafe { Mmap::map(&file) }.map_err(|e| failed(e.to_string()))?
            }
        };
        let stored = Stored { data: &data, manifest };
        stored.check(config).map_err(failed)?;
        let adapter = Adapter::of_version(&source.dir, manifest)
            .map_err(|e| EngineError::Weights { path: source.dir.display().to_string(), message: e.to_string() })?;

        let products: Vec<Product> = products(config, format).collect();
        let packing = Packing { products: &products, stored: &stored, adapter: adapter.as_ref(), threads: &threads };
        let kept = match &adapter {
            None => None,
            Some(_) => Some(match provided.kept.filter(|kept| packing.leaves(kept)) {
                Some(kept) => kept,
                None => Arc::new(Kept {
                    base: manifest.data_blake3.clone(),
                    panels: packing.pack(|product| !packing.is_own(product), None).map_err(failed)?,
                }),
            }),
        };
        let own = packing.pack(|product| packing.is_own(product), provided.memory).map_err(failed)?;
        let gamma = |name: &str| stored.floats(name).iter().map(|x| x + config.norm_offset()).collect::<Vec<f32>>();
        let linears = products.iter().map(|Product { names, norm, shape, bias, factor }| LinearWeights {
            shape: *shape,
            factor: *factor,
            bias: bias.then(|| shape.pack_bias(&stored.all(names, "bias"))),
            gamma: norm.as_deref().map(gamma),
        });
        let output_norms = (0..config.num_hidden_layers).filter(|_| config.output_norms()).flat_map(|layer| {
            let of_input = config.per_layer_input.map(|_| PerLayerInput::OUTPUT_NORM);
            let name = |what: &str| format!("model.layers.{layer}.{what}");
            let names = config.output_norm_names().into_iter().chain(of_input);
            let mut norms: Vec<_> = names.map(|norm| (gamma(&name(&format!("{norm}.weight"))), 1.0)).collect();
            if let Some((_, factor)) = norms.last_mut().filter(|_| config.layer_scalars()) {
                *factor = stored.floats(&name(ModelConfig::LAYER_SCALAR))[0];
            }
            norms
        });
        Ok(Self {
            embedding: stored.range(EMBEDDING),
            rotary: config
                .rotaries()
                .map(|rotary| {
                    let tables = rotary_names(rotary).map(|name| stored.floats(name).to_vec());
                    (rotary, config.rotary_entries(rotary), tables)
                })
                .collect(),
            inputs: config.per_layer_input.map(|input| TableOfInputs {
                rows: stored.range(PerLayerInput::TABLE),
                gamma: gamma(&format!("{}.weight", PerLayerInput::NORM)),
                factor: input.table_scale() as f32,
                layers: config.num_hidden_layers,
            }),
            logit_cap: config.logit_cap.map(|cap| cap as f32),
            output_norms: output_norms.collect(),
            activation: match config.activation() {
                shared::Activation::Silu => Activation::Silu,
                shared::Activation::GeluTanh => Activation::GeluTanh,
            },
            embedding_scale: config.embedding_scale().map(|scale| scale as f32),
            routers: (0..config.num_hidden_layers)
                .map(|layer| config.experts_of(layer).map(|_| first_linear(config, layer) + MIXER_LINEARS))
                .collect(),
            experts: config.experts.clone(),
            attention_scale: config.attention_scale as f32,
            hidden: config.hidden_size,
            epsilon: config.rms_norm_eps as f32,
            linears: linears.collect(),
            mixers: mixers(config, |name| stored.floats(name), gamma),
            norms_heads: config.head_norms(),
            query_factors: config.query_scaling.map(|_| stored.floats(QUERY_FACTORS).to_vec()),
            own,
            kept,
            manifest: manifest.clone(),
            data,
        })
    }

    /// Whether an adapter is part of them.
    pub fn is_adapter(&self) -> bool {
        self.manifest.adapter.is_some()
    }

    /// The products that an adapter on these weights changes, packed on `threads` threads.
    pub(super) fn changed(
        &self,
        config: &ModelConfig,
        adapter: &Adapter,
        format: Format,
        threads: usize,
    ) -> Result<Panels, EngineError> {
        let threads = start_threads(threads, Duration::ZERO)?;
        let products: Vec<Product> = products(config, format).collect();
        let stored = Stored { data: &self.data, manifest: &self.manifest };
        let packing = Packing { products: &products, stored: &stored, adapter: Some(adapter), threads: &threads };
        packing.pack(|product| packing.is_own(product), None).map_err(EngineError::Memory)
    }

    /// Words of the panels that are this version's own.
    pub fn own_words(&self) -> usize {
        self.own.words()
    }

    /// The memory of the panels, when nobody needs the version any more.
    pub fn into_memory(self) -> LargeBuffer {
        self.own.memory
    }

    /// Spoils the scales of a product of int8.
    #[cfg(test)]
    pub fn scale_for_test(&mut self, product: usize, factor: f32) {
        let product = self.own.packed[product].as_mut().unwrap();
        product.quantized.as_mut().unwrap().scales.iter_mut().for_each(|scale| *scale *= factor);
    }

    /// What the next version may have in common with this one.
    pub fn kept(&self) -> Option<Arc<Kept>> {
        self.kept.clone()
    }

    /// One of the products.
    pub fn linear(&self, index: usize) -> Linear<'_> {
        let LinearWeights { shape, bias, gamma, factor } = &self.linears[index];
        let kept = || self.kept.as_ref()?.panels.get(index);
        let (panels, quantized) = self.own.get(index).or_else(kept).expect("every product was packed");
        Linear {
            shape: *shape,
            panels,
            quantized,
            bias: bias.as_deref(),
            norm: gamma.as_deref().map(|gamma| self.norm(gamma)),
            activation: self.activation,
            factor: *factor,
        }
    }

    /// Number of a layer's router, which the products of its experts follow, experts of a token, and whether their
    /// weights are divided by their sum.
    pub fn experts(&self, layer: usize) -> (usize, usize, bool) {
        let (Some(router), Some(experts)) = (self.routers[layer], &self.experts) else {
            panic!("the graph has experts where the model has them");
        };
        (router, experts.per_token, experts.normalised)
    }

    /// Index of the language-model head among the products.
    pub fn head(&self) -> usize {
        self.linears.len() - 1
    }

    /// Norms of the query and key heads of a layer, in the families that norm each head.
    pub fn head_norms(&self, layer: usize) -> [Option<Norm<'_>>; 2] {
        let norm = |which| self.mixers[layer].attention().norm(which).filter(|_| self.norms_heads);
        [0, 1].map(|which| norm(which).map(|gamma| self.norm(gamma)))
    }

    /// Norm of the value heads of a layer, in the families that have one.
    pub fn value_norm(&self, layer: usize) -> Option<Norm<'_>> {
        self.mixers[layer].attention().value_norm().map(|gamma| self.norm(gamma))
    }

    /// Norms of all queries and of all keys of a layer, in the families whose graph has such a node.
    pub fn width_norms(&self, layer: usize) -> [Norm<'_>; 2] {
        let norm = |which| self.mixers[layer].attention().norm(which).expect("the graph has norms that the model has");
        [0, 1].map(|which| self.norm(norm(which)))
    }

    /// Factors on the queries of each position.
    pub fn query_factors(&self) -> Option<&[f32]> {
        self.query_factors.as_deref()
    }

    /// Norm of the result of a part of a layer, [`outputs_per_layer`](super::graph::outputs_per_layer) for each layer,
    /// and the factor on the sum with the residual stream.
    pub fn output_norm(&self, index: usize) -> (Norm<'_>, f32) {
        let (gamma, factor) = &self.output_norms[index];
        (self.norm(gamma), *factor)
    }

    /// How the inputs of all layers are made, and how many layers there are.
    ///
    /// # Panics
    /// In a family without such inputs.
    pub fn layer_inputs(&self) -> (LayerInputs<'_>, usize) {
        let TableOfInputs { gamma, factor, layers, .. } = self.table_of_inputs();
        let factors = (*factor, PerLayerInput::SCALE as f32);
        (LayerInputs { norm: self.norm(gamma), table_factor: factors.0, factor: factors.1 }, *layers)
    }

    /// A token's row of the table of inputs, all layers together; `None` outside the vocabulary.
    pub fn row_of_inputs(&self, token: i64) -> Option<&[f32]> {
        let TableOfInputs { rows, gamma, layers, .. } = self.table_of_inputs();
        self.row_of(rows, layers * gamma.len(), token)
    }

    fn table_of_inputs(&self) -> &TableOfInputs {
        self.inputs.as_ref().expect("the graph has inputs of layers where the model has them")
    }

    /// The function that gates go through.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Bound of logits.
    pub fn logit_cap(&self) -> Option<f32> {
        self.logit_cap
    }

    fn norm<'a>(&self, gamma: &'a [f32]) -> Norm<'a> {
        Norm { gamma, epsilon: self.epsilon }
    }

    /// What embeddings are multiplied with.
    pub fn embedding_scale(&self) -> Option<f32> {
        self.embedding_scale
    }

    /// A layer's attention.
    pub fn attention(&self, layer: usize) -> &AttentionPart {
        self.mixers[layer].attention()
    }

    /// The pool with the keys and values of a layer with attention, and the number of the layer in it.
    pub fn place(&self, layer: usize) -> (usize, usize) {
        self.mixers[layer].place()
    }

    /// The short convolution of a layer that has one.
    pub fn short_conv(&self, layer: usize) -> ShortConv<'_> {
        self.mixers[layer].short_conv()
    }

    /// The delta rule of a layer that has one.
    pub fn delta_rule(&self, layer: usize) -> DeltaRule<'_> {
        self.mixers[layer].delta_rule(self.epsilon)
    }

    /// The state space of a layer that has one.
    pub fn mamba(&self, layer: usize) -> Mamba<'_> {
        self.mixers[layer].mamba(self.epsilon)
    }

    /// Factor of the scores of attention.
    pub fn attention_scale(&self) -> f32 {
        self.attention_scale
    }

    /// Cosines and sines.
    pub fn rotary(&self, rotary: Rotary) -> RotaryTables<'_> {
        let found = self.rotary.iter().find(|(of, ..)| *of == rotary);
        let (_, entries, [cos, sin]) = found.expect("the model's tables were loaded");
        RotaryTables { cos, sin, entries: *entries }
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Embedding of a token; `None` outside the vocabulary.
    pub fn embedding(&self, token: i64) -> Option<&[f32]> {
        self.row_of(&self.embedding, self.hidden, token)
    }

    /// A token's row of a table in the mapped file.
    fn row_of(&self, table: &Range<usize>, width: usize, token: i64) -> Option<&[f32]> {
        let table: &[f32] = bytemuck::cast_slice(&self.data[table.clone()]);
        let start = usize::try_from(token).ok()?.checked_mul(width)?;
        table.get(start..start.checked_add(width)?)
    }
}

impl Panels {
    pub fn get(&self, index: usize) -> Option<(&[f32], Option<&Quantized>)> {
        let PackedProduct { panels, quantized } = self.product(index)?;
        Some((&self.memory[panels.clone()], quantized.as_ref()))
    }

    pub fn product(&self, index: usize) -> Option<&PackedProduct> {
        self.packed[index].as_ref()
    }

    /// Words of memory.
    pub fn words(&self) -> usize {
        self.memory.len()
    }
}

/// Words of the products that an adapter changes; without one, of all that any changes.
pub(super) fn changed_words(config: &ModelConfig, format: Format, adapter: Option<&Adapter>) -> usize {
    let layers = (0..config.num_hidden_layers).flat_map(|layer| layer_products(config, format, layer));
    let changed = layers.filter(|product| match adapter {
        Some(adapter) => product.is_changed_by(adapter),
        None => !product.names.iter().any(|name| Experts::own(name)),
    });
    changed.map(|product| product.shape.words()).sum()
}

/// What products are packed from.
struct Packing<'a> {
    products: &'a [Product],
    stored: &'a Stored<'a>,
    adapter: Option<&'a Adapter>,
    threads: &'a ThreadPool,
}

impl Packing<'_> {
    fn update(&self, name: &str) -> Option<&LowRank> {
        self.adapter?.update(&format!("{name}.weight"))
    }

    /// Whether a product differs from that of the base, where there is one.
    fn is_own(&self, product: &Product) -> bool {
        self.adapter.is_none_or(|adapter| product.is_changed_by(adapter))
    }

    /// Whether these are, of the same base, all that the adapter leaves as it is.
    fn leaves(&self, kept: &Kept) -> bool {
        let is_kept = kept.panels.packed.iter().map(Option::is_some);
        kept.base == self.stored.manifest.data_blake3 && self.products.iter().map(|p| !self.is_own(p)).eq(is_kept)
    }

    /// Packs some of the products, into `memory` if it has the right size.
    fn pack(&self, wanted: impl Fn(&Product) -> bool, memory: Option<LargeBuffer>) -> Result<Panels, String> {
        let words = self.products.iter().filter(|product| wanted(product)).map(|product| product.shape.words()).sum();
        let mut memory = match memory.filter(|memory| memory.len() == words) {
            Some(memory) => memory,
            None => LargeBuffer::new(words).map_err(|e| format!("no memory for the packed weights: {e}"))?,
        };
        let mut end = 0;
        let packed = self.products.iter().map(|product| {
            wanted(product).then(|| {
                let panels = end..end + product.shape.words();
                end = panels.end;
                PackedProduct { quantized: self.pack_one(product, &mut memory[panels.clone()]), panels }
            })
        });
        let packed = packed.collect();
        Ok(Panels { memory, packed })
    }

    fn pack_one(&self, Product { names, shape, .. }: &Product, panels: &mut [f32]) -> Option<Quantized> {
        let weights = self.stored.all(names, "weight");
        // Gate and up may be the halves of one tensor.
        let halves = if shape.columns == Columns::Gated && names.len() == 1 { 2 } else { 1 };
        let parts: Vec<(&String, &[f32], usize)> = names
            .iter()
            .zip(&weights)
            .flat_map(|(name, values)| {
                let rows = values.len() / shape.depth / halves;
                (0..halves)
                    .map(move |half| (name, &values[half * rows * shape.depth..][..rows * shape.depth], half * rows))
            })
            .collect();
        let change = |&(name, _, begin): &(&String, &[f32], usize)| {
            self.update(name).map(|update| move |row: usize, values: &mut [f32]| update.add_to_row(begin + row, values))
        };
        let changes: Vec<_> = parts.iter().map(change).collect();
        let source =
            |(&(_, values, _), change)| WeightRows { values, change: Option::as_ref(change).map(|change| change as _) };
        let sources: Vec<WeightRows<'_>> = parts.iter().zip(&changes).map(source).collect();
        let quantized = shape.pack(&sources, panels, self.threads);
        self.stored.forget(&weights);
        quantized
    }
}

/// The tensors of a mapped version, or of the base of one.
struct Stored<'a> {
    data: &'a Mmap,
    manifest: &'a WeightManifest,
}

impl<'a> Stored<'a> {
    /// Whether every tensor lies within the file, on whole elements, and the tables of positions fit the heads.
    fn check(&self, config: &ModelConfig) -> Result<(), String> {
        let fits = |start: u64, length: u64| start.checked_add(length).is_some_and(|end| end <= self.data.len() as u64);
        for t in &self.manifest.tensors {
            if !fits(t.offset, t.length)
                || !t.offset.is_multiple_of(4)
                || t.length != t.shape.iter().product::<u64>() * 4
            {
                return Err(format!("tensor {} does not lie within the file", t.name));
            }
        }
        for rotary in config.rotaries() {
            let (names, half) = (rotary_names(rotary), config.rotary_entries(rotary) / 2);
            let [cos, sin] = names.map(|name| self.manifest.tensor(name).map(|t| &t.shape));
            let fits = cos.is_some_and(|cos| cos.get(1) == Some(&(half as u64)));
            if !fits || cos != sin {
                return Err(format!("tensors {} and {} must be [positions, {half}]", names[0], names[1]));
            }
        }
        if config.query_scaling.is_some() && self.manifest.tensor(QUERY_FACTORS).is_none() {
            return Err(format!("tensor {QUERY_FACTORS} is missing"));
        }
        Ok(())
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

    /// The tensors of several layers.
    fn all(&self, layers: &[String], what: &str) -> Vec<&'a [f32]> {
        layers.iter().map(|layer| self.floats(&format!("{layer}.{what}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::Path};

    use exporters::{AdapterConfig, ExportOptions, VersionDir, export, write_adapter_version, write_version};
    use rollout_rounded::Form;
    use shared::{ModelDir, PolicyVersion, config::RolloutDtype};

    use super::{super::graph::MLP_LINEARS, *};

    fn load(dir: &Path, config: &ModelConfig, provided: Provided) -> PackedWeights {
        let source = WeightSource { dir: dir.to_path_buf(), version: PolicyVersion(0) };
        let manifest = WeightManifest::read(dir).unwrap();
        PackedWeights::load(&source, config, &manifest, Format::Fp32, provided, 1).unwrap()
    }

    /// What is rounded on its way to a sampler is what is rounded here: the weights of products, and of these not one
    /// that is read as it is.
    #[test]
    fn tensors_that_are_only_products_are_those_that_lose_bits_on_their_way() {
        for name in &harness::golden_models() {
            let model = ModelDir::open(harness::golden_model_dir(name)).unwrap();
            let config = model.config();
            for (format, dtype) in [(Format::Int8, RolloutDtype::Int8), (Format::Int4, RolloutDtype::Int4)] {
                let form = |format: Format| match format {
                    Format::Int8 => Form::Bytes,
                    Format::Int4 => Form::Nibbles,
                    _ => Form::Whole,
                };
                let of_product = |product: Product| {
                    let form = form(product.shape.format);
                    product.names.into_iter().map(move |name| (name + ".weight", form))
                };
                let packed = products(config, format).flat_map(of_product);
                // A tied head is read as the embedding too.
                let packed: BTreeMap<String, Form> = packed.filter(|(name, _)| name != EMBEDDING).collect();
                let sent = config.parameters().into_iter();
                let sent = sent.map(|(name, shape)| (name.clone(), Form::of(&name, &shape, dtype)));
                let sent: BTreeMap<String, Form> = sent.filter(|(_, form)| *form != Form::Whole).collect();
                let rounded = packed.into_iter().filter(|(_, form)| *form != Form::Whole).collect();
                assert_eq!(sent, rounded, "{name}");
            }
        }
    }

    /// An adapter for `base` of rank 1, whose numbers are all 0.5.
    fn write_adapter(base: &Path, dir: &Path, config: &ModelConfig, module: &str) {
        let adapter = AdapterConfig {
            base_model_name_or_path: String::new(),
            base_blake3: None,
            r: 1,
            lora_alpha: 1.0,
            lora_dropout: 0.0,
            target_modules: vec![module.into()],
            use_rslora: false,
            wrapped: false,
        };
        let shapes: std::collections::HashMap<_, _> =
            adapter.tensors(config.parameters()).unwrap().into_iter().collect();
        let mut read = |name: &str| Ok(vec![0.5; shapes[name].iter().product()].into());
        write_adapter_version(base, dir, PolicyVersion(1), &adapter, &mut read).unwrap();
    }

    #[test]
    fn what_an_adapter_changes_is_packed_beside_its_base_and_takes_the_memory_that_is_planned() {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
        let (folder, config) = (tempfile::tempdir().unwrap(), model.config());
        let path = |name: &str| folder.path().join(name);
        export(&model, &path("v0"), &ExportOptions::default()).unwrap();
        let base = load(&path("v0"), config, Provided::default());
        let mut all = 0;
        for (module, part) in [("q_proj", 0), ("o_proj", 1), ("up_proj", 2), ("down_proj", 3)] {
            write_adapter(&path("v0"), &path(module), config, module);
            let adapter = Adapter::open(&path(module), config.parameters()).unwrap();
            let changed = base.changed(config, &adapter, Format::Fp32, 1).unwrap();
            let version = load(&path(module), config, Provided::default());
            for index in 0..=version.head() {
                let panels = changed.get(index).map(|(panels, _)| panels);
                let is_changed = index < version.head() && index % (MIXER_LINEARS + MLP_LINEARS) == part;
                assert_eq!(panels.is_some(), is_changed, "{module}: product {index}");
                assert!(panels.is_none_or(|panels| panels == version.linear(index).panels), "{module}: {index}");
            }
            assert_eq!(changed.memory.len(), changed_words(config, Format::Fp32, Some(&adapter)), "{module}");
            all += changed.memory.len();
        }
        assert_eq!(all, changed_words(config, Format::Fp32, None));
    }

    #[test]
    fn what_no_adapter_changes_is_packed_once_for_a_base() {
        let model = ModelDir::open(harness::golden_dir().join("models/qwen2")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        export(&model, &path("v0"), &ExportOptions::default()).unwrap();
        let base = VersionDir::open(&path("v0")).unwrap();
        let mut doubled = |name: &str| Ok(base.read_f32(name)?.iter().map(|value| 2.0 * value).collect());
        write_version(&path("v0"), &path("other"), PolicyVersion(0), &mut doubled).unwrap();
        for (name, base, module) in
            [("a", "v0", "q_proj"), ("b", "v0", "q_proj"), ("c", "v0", "up_proj"), ("d", "other", "q_proj")]
        {
            write_adapter(&path(base), &path(name), model.config(), module);
        }
        let first = load(&path("a"), model.config(), Provided::default());
        let kept = first.kept().unwrap();
        // Of two layers with four products each, and the head, those with queries are changed.
        assert_eq!(kept.panels.packed.iter().map(Option::is_some).filter(|is_kept| !is_kept).count(), 2);
        for (name, same) in [("b", true), ("c", false), ("d", false)] {
            let next =
                load(&path(name), model.config(), Provided { kept: Some(Arc::clone(&kept)), ..Provided::default() });
            assert_eq!(Arc::ptr_eq(&next.kept().unwrap(), &kept), same, "{name}");
            let alone = load(&path(name), model.config(), Provided::default());
            for index in 0..=alone.head() {
                assert!(next.linear(index).panels == alone.linear(index).panels, "{name}: product {index}");
            }
        }
        assert!(
            load(&path("v0"), model.config(), Provided { kept: Some(kept), ..Provided::default() }).kept().is_none()
        );
    }
}
