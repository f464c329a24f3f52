//! The packed operators as ONNX Runtime sees them.
//!
//! A node knows its index; everything else is in a state that all nodes of a session share and the engine fills before
//! a run. Kernels run on a pool of their own; the session has one thread.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use ort::{
    operator::{ComputeContext, Kernel, KernelContext, Operator, OperatorDomain, OperatorInput, OperatorOutput},
    value::TensorElementType,
};
use rollout_kernels::{
    attention::{Attention, Gate},
    cap::cap_logits,
    experts::{ExpertMemory, Experts},
    linear::Input,
    packed::PackedShape,
    pages::Pages,
    parallel::Machine,
    per_layer::open_input,
    residual::add_normed,
    simd::Isa,
    spans::Spans,
    states::States,
    thread_pool::ThreadPool,
    width_norm::norm_queries_and_keys,
};

use shared::{AttentionGate, AttentionKind};

use super::{
    super::backend::Cost,
    adapted::Share,
    choices::Choices,
    graph::{
        ATTENTION, DELTA_RULE, DOMAIN, EMBEDDING, EXPERTS, INDEX, LAYER_INPUTS, LINEAR, MAMBA, MLP_LINEARS, OPEN_INPUT,
        RESIDUAL, SHORT_CONV, WIDTH_NORM,
    },
    weights::PackedWeights,
};

/// What the nodes of a session work on.
pub(in super::super) struct State {
    pub weights: Arc<PackedWeights>,
    /// The pools of pages.
    pub pages: [Pages; 2],
    pub states: States,
    pub spans: Spans,
    /// What the tokens of the spans are computed with.
    pub shares: Vec<Share>,
    /// For each row of logits, the token it belongs to.
    pub last_tokens: Vec<usize>,
    pub heads: usize,
    pub isa: Isa,
    pub threads: ThreadPool,
    pub scratch: Vec<f32>,
    pub experts: ExpertMemory,
    /// Where choices of experts are kept, if they are.
    pub choices: Option<Choices>,
    /// Where the time of the nodes went.
    pub cost: Cost,
}

pub(super) type SharedState = Arc<Mutex<State>>;

/// The state; a panic of another run does not keep it.
pub(super) fn lock(state: &SharedState) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The operators over a state.
pub(super) fn domain(state: &SharedState) -> ort::Result<OperatorDomain> {
    let node = |operation| Node { operation, state: Arc::clone(state) };
    OperatorDomain::new(DOMAIN)?
        .add(node(Operation::Embedding))?
        .add(node(Operation::Linear))?
        .add(node(Operation::Residual))?
        .add(node(Operation::WidthNorm))?
        .add(node(Operation::Attention))?
        .add(node(Operation::Experts))?
        .add(node(Operation::ShortConv))?
        .add(node(Operation::DeltaRule))?
        .add(node(Operation::Mamba))?
        .add(node(Operation::LayerInputs))?
        .add(node(Operation::OpenInput))
}

#[derive(Clone, Copy)]
enum Operation {
    Embedding,
    Linear,
    Residual,
    WidthNorm,
    Attention,
    Experts,
    ShortConv,
    DeltaRule,
    Mamba,
    LayerInputs,
    OpenInput,
}

/// One of the operators.
struct Node {
    operation: Operation,
    state: SharedState,
}

impl Operator for Node {
    type Kernel<'attr> = NodeKernel;

    fn name(&self) -> &str {
        match self.operation {
            Operation::Embedding => EMBEDDING,
            Operation::Linear => LINEAR,
            Operation::Residual => RESIDUAL,
            Operation::WidthNorm => WIDTH_NORM,
            Operation::Attention => ATTENTION,
            Operation::Experts => EXPERTS,
            Operation::ShortConv => SHORT_CONV,
            Operation::DeltaRule => DELTA_RULE,
            Operation::Mamba => MAMBA,
            Operation::LayerInputs => LAYER_INPUTS,
            Operation::OpenInput => OPEN_INPUT,
        }
    }

    fn inputs(&self) -> impl IntoIterator<Item = OperatorInput> {
        let ids = matches!(self.operation, Operation::Embedding);
        let first = if ids { TensorElementType::Int64 } else { TensorElementType::Float32 };
        let second = match self.operation {
            Operation::Linear => Some(OperatorInput::optional(TensorElementType::Float32)),
            Operation::Residual | Operation::OpenInput => Some(OperatorInput::required(TensorElementType::Float32)),
            Operation::LayerInputs => Some(OperatorInput::required(TensorElementType::Int64)),
            Operation::Embedding
            | Operation::WidthNorm
            | Operation::Attention
            | Operation::ShortConv
            | Operation::DeltaRule
            | Operation::Mamba
            | Operation::Experts => None,
        };
        [OperatorInput::required(first)].into_iter().chain(second)
    }

    fn outputs(&self) -> impl IntoIterator<Item = OperatorOutput> {
        [OperatorOutput::required(TensorElementType::Float32)]
    }

    fn create_kernel<'attr>(&self, context: &KernelContext<'attr>) -> ort::Result<NodeKernel> {
        let index: i64 = context.get(INDEX).ok_or_else(|| ort::Error::new("a packed node without index"))?;
        Ok(NodeKernel { operation: self.operation, index: index as usize, state: Arc::clone(&self.state) })
    }
}

/// A node of the graph.
struct NodeKernel {
    operation: Operation,
    index: usize,
    state: SharedState,
}

impl Kernel for NodeKernel {
    /// ONNX Runtime calls this through a C function, at whose edge a panic would end the process: it ends the call
    /// instead.
    fn compute(&mut self, context: &ComputeContext) -> ort::Result<()> {
        panic::catch_unwind(AssertUnwindSafe(|| self.compute_caught(context))).unwrap_or_else(|panic| {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(ort::Error::new(format!("a packed kernel panicked: {}", message.unwrap_or("without a message"))))
        })
    }
}

impl NodeKernel {
    fn compute_caught(&self, context: &ComputeContext) -> ort::Result<()> {
        let mut state = lock(&self.state);
        let begun = Instant::now();
        match self.operation {
            Operation::Embedding => embedding(&state, context)?,
            Operation::Linear => {
                linear(&mut state, self.index, context)?;
                let head = self.index == state.weights.head();
                *(if head { &mut state.cost.head } else { &mut state.cost.linear }) += begun.elapsed();
            }
            Operation::Residual => {
                residual(&mut state, self.index, context)?;
                state.cost.linear += begun.elapsed();
            }
            Operation::WidthNorm => {
                width_norm(&mut state, self.index, context)?;
                state.cost.attention += begun.elapsed();
            }
            Operation::Attention => {
                attention(&mut state, self.index, context)?;
                state.cost.attention += begun.elapsed();
            }
            Operation::Experts => {
                experts(&mut state, self.index, context)?;
                state.cost.linear += begun.elapsed();
            }
            Operation::ShortConv => {
                short_conv(&mut state, self.index, context)?;
                state.cost.attention += begun.elapsed();
            }
            Operation::DeltaRule => {
                delta_rule(&mut state, self.index, context)?;
                state.cost.attention += begun.elapsed();
            }
            Operation::Mamba => {
                mamba(&mut state, self.index, context)?;
                state.cost.attention += begun.elapsed();
            }
            Operation::LayerInputs => {
                layer_inputs(&mut state, context)?;
                state.cost.linear += begun.elapsed();
            }
            Operation::OpenInput => {
                open_layer_input(&mut state, self.index, context)?;
                state.cost.linear += begun.elapsed();
            }
        }
        Ok(())
    }
}

fn missing() -> ort::Error {
    ort::Error::new("a packed node without input or output")
}

fn embedding(state: &State, context: &ComputeContext) -> ort::Result<()> {
    let ids = context.input(0)?.ok_or_else(missing)?;
    let (_, ids) = ids.try_extract_tensor::<i64>()?;
    let width = state.weights.hidden();
    let mut out = context.output(0, [ids.len(), width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    for (row, &id) in out.chunks_exact_mut(width).zip(ids) {
        let embedding = state.weights.embedding(id);
        row.copy_from_slice(embedding.ok_or_else(|| ort::Error::new(format!("token {id} is not in the vocabulary")))?);
        if let Some(scale) = state.weights.embedding_scale() {
            row.iter_mut().for_each(|x| *x *= scale);
        }
    }
    Ok(())
}

fn linear(state: &mut State, index: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, shares, last_tokens, isa, threads, scratch, .. } = state;
    let layer = weights.linear(index);
    let x = context.input(0)?.ok_or_else(missing)?;
    let (_, x) = x.try_extract_tensor::<f32>()?;
    let residual = if context.num_inputs()? > 1 { context.input(1)? } else { None };
    let residual = residual.as_ref().map(|r| r.try_extract_tensor::<f32>()).transpose()?.map(|(_, r)| r);
    let rows = (index == weights.head()).then_some(last_tokens.as_slice());
    let count = rows.map_or(x.len() / layer.shape.depth, <[usize]>::len);
    let mut out = context.output(0, [count, layer.shape.outputs])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    if rows.is_some() {
        // No adapter changes the head.
        layer.run(Input { x, rows, residual }, out, Machine { isa: *isa, threads, scratch });
        if let Some(cap) = weights.logit_cap() {
            cap_logits(cap, out, Machine { isa: *isa, threads, scratch });
        }
        return Ok(());
    }
    let PackedShape { depth, outputs, .. } = layer.shape;
    let mut begin = 0;
    for same in shares.chunk_by(|one, next| one.has_product_of(next, index)) {
        let end = begin + same.iter().map(|share| share.tokens).sum::<usize>();
        let residual = residual.map(|residual| &residual[begin * outputs..end * outputs]);
        let input = Input { x: &x[begin * depth..end * depth], rows: None, residual };
        let machine = Machine { isa: *isa, threads, scratch };
        same[0].product(index, layer).run(input, &mut out[begin * outputs..end * outputs], machine);
        begin = end;
    }
    Ok(())
}

fn residual(state: &mut State, index: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, isa, threads, scratch, .. } = state;
    let (x, stream) = (context.input(0)?.ok_or_else(missing)?, context.input(1)?.ok_or_else(missing)?);
    let ((_, x), (_, stream)) = (x.try_extract_tensor::<f32>()?, stream.try_extract_tensor::<f32>()?);
    let width = weights.hidden();
    let mut out = context.output(0, [x.len() / width, width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    let (norm, factor) = weights.output_norm(index);
    add_normed(norm, factor, x, stream, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

/// No adapter changes the table, so all tokens go through the same one.
fn layer_inputs(state: &mut State, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, isa, threads, scratch, .. } = state;
    let (projected, ids) = (context.input(0)?.ok_or_else(missing)?, context.input(1)?.ok_or_else(missing)?);
    let ((_, projected), (_, ids)) = (projected.try_extract_tensor::<f32>()?, ids.try_extract_tensor::<i64>()?);
    let row = |&id: &i64| {
        weights.row_of_inputs(id).ok_or_else(|| ort::Error::new(format!("token {id} is not in the vocabulary")))
    };
    let rows: Vec<&[f32]> = ids.iter().map(row).collect::<ort::Result<_>>()?;
    let (inputs, layers) = weights.layer_inputs();
    let mut out = context.output(0, [ids.len(), layers * inputs.norm.gamma.len()])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    inputs.run(projected, &rows, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

fn open_layer_input(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, isa, threads, scratch, .. } = state;
    let (gates, inputs) = (context.input(0)?.ok_or_else(missing)?, context.input(1)?.ok_or_else(missing)?);
    let ((_, gates), (_, inputs)) = (gates.try_extract_tensor::<f32>()?, inputs.try_extract_tensor::<f32>()?);
    let (of_layers, layers) = weights.layer_inputs();
    let width = of_layers.norm.gamma.len();
    let mut out = context.output(0, [gates.len() / width, width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    let place = [layer, layers, width];
    open_input(weights.activation(), gates, inputs, place, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

/// No adapter changes experts, so all tokens go through the same ones.
fn experts(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, spans, isa, threads, scratch, experts: memory, choices, .. } = state;
    let x = context.input(0)?.ok_or_else(missing)?;
    let (_, x) = x.try_extract_tensor::<f32>()?;
    let width = weights.hidden();
    let mut out = context.output(0, [x.len() / width, width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    let (first, per_token, normalised) = weights.experts(layer);
    let of = |expert: usize| [0, 1].map(|part| weights.linear(first + 1 + MLP_LINEARS * expert + part));
    let experts = Experts { router: weights.linear(first), experts: &of, per_token, normalised };
    experts.run(x, out, memory, Machine { isa: *isa, threads, scratch });
    if let Some(choices) = choices {
        choices.note(layer, memory.chosen(), |token| spans.place(token));
    }
    Ok(())
}

fn width_norm(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, pages, heads, isa, threads, scratch, .. } = state;
    let qkv = context.input(0)?.ok_or_else(missing)?;
    let (_, qkv) = qkv.try_extract_tensor::<f32>()?;
    let shape = pages[weights.place(layer).0].shape();
    let width = (*heads + 2 * shape.kv_heads) * shape.head_dim;
    let mut out = context.output(0, [qkv.len() / width, width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    norm_queries_and_keys(weights.width_norms(layer), width, qkv, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

fn attention(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, pages, spans, heads, isa, threads, scratch, .. } = state;
    let qkv = context.input(0)?.ok_or_else(missing)?;
    let (_, qkv) = qkv.try_extract_tensor::<f32>()?;
    let (pool, place) = weights.place(layer);
    let width = *heads * pages[pool].shape().head_dim;
    let mut out = context.output(0, [spans.tokens(), width])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    let (part, [q_norm, k_norm]) = (weights.attention(layer), weights.head_norms(layer));
    let AttentionKind { rotary, window, gate } = part.kind;
    let attention = Attention {
        heads: *heads,
        gate: gate.map(|gate| match gate {
            AttentionGate::Entries => Gate::Entries,
            AttentionGate::Heads => Gate::Heads,
        }),
        rotary: rotary.map(|rotary| weights.rotary(rotary)),
        query_factors: weights.query_factors(),
        window,
        scale: weights.attention_scale(),
        q_norm,
        k_norm,
        v_norm: weights.value_norm(layer),
        is_reader: part.is_reader,
        layer: place,
    };
    attention.run(qkv, spans, &mut pages[pool], out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

fn short_conv(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, states, spans, isa, threads, scratch, .. } = state;
    let x = context.input(0)?.ok_or_else(missing)?;
    let (_, x) = x.try_extract_tensor::<f32>()?;
    let conv = weights.short_conv(layer);
    let mut out = context.output(0, [spans.tokens(), conv.convolution.channels])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    conv.run(x, spans, states, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

fn delta_rule(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, states, spans, isa, threads, scratch, .. } = state;
    let x = context.input(0)?.ok_or_else(missing)?;
    let (_, x) = x.try_extract_tensor::<f32>()?;
    let rule = weights.delta_rule(layer);
    let mut out = context.output(0, [spans.tokens(), rule.value_heads * rule.value_dim])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    rule.run(x, spans, states, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}

fn mamba(state: &mut State, layer: usize, context: &ComputeContext) -> ort::Result<()> {
    let State { weights, states, spans, isa, threads, scratch, .. } = state;
    let x = context.input(0)?.ok_or_else(missing)?;
    let (_, x) = x.try_extract_tensor::<f32>()?;
    let mamba = weights.mamba(layer);
    let mut out = context.output(0, [spans.tokens(), mamba.heads * mamba.head_dim])?.ok_or_else(missing)?;
    let (_, out) = out.try_extract_tensor_mut::<f32>()?;
    mamba.run(x, spans, states, out, Machine { isa: *isa, threads, scratch });
    Ok(())
}
