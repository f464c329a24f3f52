//! The decoder's parameters and gradients, each in one flat buffer.
//!
//! Every parameter is a slice of the flat buffer, so the optimiser, the norm and the clipping are a few operations on
//! one long vector instead of several on each of hundreds of tensors. Projections that read the same input (q, k and v;
//! gate and up; all of a delta rule) lie next to each other and are one *leaf*: one matrix product instead of two to
//! four. Each projection keeps its Hugging Face name as a slice of rows.

use std::{collections::HashMap, ops::Range, sync::Arc};

use tch::{Device, Kind, Tensor};

use super::{coded::Coded, kinds::wide};
use crate::{error::LearnerError, ranks::pieces};

/// Leaves start at multiples of this many elements: 64 bytes of float32, which matrix products like.
const ALIGNMENT: i64 = 16;
/// Number of elements whose squares are summed in the elements' own precision.
const NORM_BLOCK: i64 = 1 << 17;

/// A Hugging Face parameter: a run of rows of a leaf.
#[derive(Debug, Clone)]
struct Slice {
    name: String,
    shape: Vec<i64>,
    elements: Range<i64>,
}

/// Shape of a leaf, and where it lies.
#[derive(Debug, Clone)]
struct Extent {
    shape: Vec<i64>,
    offset: i64,
}

impl Extent {
    fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// Where everything lies in a flat buffer; the same for parameters, gradients and optimiser moments.
#[derive(Debug)]
struct Layout {
    leaves: Vec<Extent>,
    by_name: HashMap<String, usize>,
    slices: Vec<Slice>,
    /// Numbers of the slices.
    slice_of: HashMap<String, usize>,
    /// Elements before this index belong to matrices, those after it to vectors (norms and biases).
    matrices: i64,
    length: i64,
}

impl Layout {
    fn new(named: Vec<(String, Vec<usize>)>) -> Self {
        type Members = Vec<(String, Vec<i64>)>;
        let mut groups: Vec<(String, Members)> = Vec::new();
        // A model with experts has thousands of parameters.
        let mut group_of: HashMap<String, usize> = HashMap::new();
        for (name, shape) in named {
            let key = leaf_name(&name);
            let shape = shape.iter().map(|&n| n as i64).collect();
            match group_of.get(&key) {
                Some(&group) => groups[group].1.push((name, shape)),
                None => {
                    group_of.insert(key.clone(), groups.len());
                    groups.push((key, vec![(name, shape)]));
                }
            }
        }
        // Matrices first: weight decay is then one contiguous range.
        groups.sort_by_key(|(_, members)| members[0].1.len() < 2);
        let mut layout = Self {
            leaves: Vec::new(),
            by_name: HashMap::new(),
            slices: Vec::new(),
            slice_of: HashMap::new(),
            matrices: 0,
            length: 0,
        };
        for (key, members) in groups {
            layout.by_name.insert(key, layout.leaves.len());
            let offset = layout.length;
            let mut shape = members[0].1.clone();
            shape[0] = members.iter().map(|(_, s)| s[0]).sum();
            let mut start = offset;
            for (name, shape) in members {
                let end = start + shape.iter().product::<i64>();
                layout.slice_of.insert(name.clone(), layout.slices.len());
                layout.slices.push(Slice { name, shape, elements: start..end });
                start = end;
            }
            layout.length = (start + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            if shape.len() >= 2 {
                layout.matrices = layout.length;
            }
            layout.leaves.push(Extent { shape, offset });
        }
        layout
    }

    fn leaf_views(&self, flat: &Tensor) -> Vec<Tensor> {
        self.leaves.iter().map(|l| flat.narrow(0, l.offset, l.numel()).view(l.shape.as_slice())).collect()
    }

    fn slice(&self, name: &str) -> Option<&Slice> {
        Some(&self.slices[*self.slice_of.get(name)?])
    }
}

/// The leaf that a parameter is part of. The second factors of low-rank projections differ in shape and stand alone.
fn leaf_name(name: &str) -> String {
    let mut key = name.to_owned();
    if name.contains(".lora_B.") {
        return key;
    }
    for (member, leaf) in [("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj")] {
        key = key.replace(&format!(".{member}."), &format!(".{leaf}."));
    }
    // The gate of attention has another input than that of the MLP, and fewer outputs than queries.
    if name.contains(".self_attn.gate_proj.") {
        return key;
    }
    for member in ["gate_proj", "up_proj", "w1", "w3"] {
        key = key.replace(&format!(".{member}."), ".gate_up_proj.");
    }
    for member in ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"] {
        key = key.replace(&format!(".{member}."), ".in_proj.");
    }
    key
}

/// A tensor that a product takes as a whole: one or more parameters stacked along the first dimension.
#[derive(Debug)]
pub(super) struct Leaf {
    /// The values, as a view of the flat buffer.
    pub(super) values: Tensor,
    /// Its index in [`Gradients`]; absent = frozen.
    trained: Option<usize>,
}

impl Leaf {
    /// Whether it has a gradient.
    pub(super) fn is_trained(&self) -> bool {
        self.trained.is_some()
    }

    /// The same, in float32 at least.
    pub(super) fn widened(self) -> Self {
        Self { values: wide(&self.values), ..self }
    }

    /// The same, without a gradient.
    pub(super) fn frozen(self) -> Self {
        Self { trained: None, ..self }
    }
}

/// Parameters of a model, or of a low-rank adapter.
#[derive(Debug)]
pub struct Parameters {
    layout: Arc<Layout>,
    flat: Tensor,
    leaves: Vec<Tensor>,
    /// Matrices that are quantised, which the layout does not have.
    coded: CodedLeaves,
    /// Parameters that are computed with in float32, where the others are rounded and no trained copy has these.
    exact: Option<Box<Self>>,
}

/// Quantised leaves by name, and the rows of the parameters that they consist of.
#[derive(Debug, Default)]
struct CodedLeaves {
    leaves: HashMap<String, Coded>,
    rows: HashMap<String, i64>,
}

impl CodedLeaves {
    /// The same memory under another handle.
    fn shared(&self) -> Self {
        let leaves = self.leaves.iter().map(|(name, leaf)| (name.clone(), leaf.shared())).collect();
        Self { leaves, rows: self.rows.clone() }
    }
}

impl Parameters {
    /// Parameters with the given names and shapes, filled from `read`, which gives row-major values.
    ///
    /// # Errors
    /// The error of `read`, or [`LearnerError::Shape`] when it gives another number of values.
    pub fn load(
        named: Vec<(String, Vec<usize>)>,
        kind: Kind,
        device: Device,
        read: &mut dyn FnMut(&str) -> Result<Vec<f32>, LearnerError>,
    ) -> Result<Self, LearnerError> {
        let layout = Layout::new(named);
        let flat = Tensor::zeros([layout.length], (kind, device));
        for slice in &layout.slices {
            let values = read(&slice.name)?;
            let expected = (slice.elements.end - slice.elements.start) as usize;
            if values.len() != expected {
                return Err(LearnerError::Shape { name: slice.name.clone(), expected, found: values.len() });
            }
            let mut target = flat.narrow(0, slice.elements.start, expected as i64);
            target.copy_(&Tensor::from_slice(&values));
        }
        Ok(Self::over(Arc::new(layout), flat))
    }

    /// Further parameters that are quantised, in the order of the architecture, beside those of the layout. They are
    /// not trained.
    #[must_use]
    pub(super) fn with_coded(self, coded: Vec<(String, Coded)>) -> Self {
        let mut rows = HashMap::new();
        let mut members: HashMap<String, Vec<Coded>> = HashMap::new();
        for (name, matrix) in coded {
            rows.insert(name.clone(), matrix.rows());
            members.entry(leaf_name(&name)).or_default().push(matrix);
        }
        let stack = |(name, members)| (name, Coded::stacked(members).expect("a leaf has a member"));
        Self { coded: CodedLeaves { leaves: members.into_iter().map(stack).collect(), rows }, ..self }
    }

    fn over(layout: Arc<Layout>, flat: Tensor) -> Self {
        Self { leaves: layout.leaf_views(&flat), layout, flat, coded: CodedLeaves::default(), exact: None }
    }

    /// With parameters that are computed with as they are here, and not as in the flat buffer.
    #[must_use]
    pub(super) fn with_exact(self, exact: Self) -> Self {
        Self { exact: Some(Box::new(exact)), ..self }
    }

    /// The leaf of that name of those, if it is one.
    pub(super) fn exact(&self, name: &str) -> Option<Leaf> {
        self.exact.as_ref()?.find(name).map(Leaf::frozen)
    }

    /// The same values rounded to another element type.
    #[must_use]
    pub fn rounded(&self, kind: Kind) -> Self {
        Self::over(Arc::clone(&self.layout), self.flat.to_kind(kind))
    }

    /// The same buffer under another handle.
    #[must_use]
    pub fn shared(&self) -> Self {
        let exact = self.exact.as_ref().map(|exact| Box::new(exact.shared()));
        Self { coded: self.coded.shared(), exact, ..Self::over(Arc::clone(&self.layout), self.flat.shallow_clone()) }
    }

    /// The leaf of that name (Hugging Face's, with `qkv_proj`, `gate_up_proj` and `in_proj` for the stacked
    /// projections).
    ///
    /// # Panics
    /// When the architecture has no such leaf: a mistake in the model's code.
    pub(super) fn leaf(&self, name: &str) -> Leaf {
        self.find(name).unwrap_or_else(|| panic!("the architecture has no parameter {name}"))
    }

    /// As [`Self::leaf`], for parameters that some architectures do not have.
    pub(super) fn find(&self, name: &str) -> Option<Leaf> {
        let index = *self.layout.by_name.get(name)?;
        Some(Leaf { values: self.leaves[index].shallow_clone(), trained: Some(index) })
    }

    /// The leaf of that name, if it is quantised.
    pub(super) fn coded(&self, name: &str) -> Option<Coded> {
        self.coded.leaves.get(name).map(Coded::shared)
    }

    /// Every leaf, in layout order.
    pub fn leaves(&self) -> &[Tensor] {
        &self.leaves
    }

    /// The flat buffer, `[length]`. Alignment gaps are 0 and stay 0.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// Number of leading elements of a flat buffer that belong to matrices, which alone are subject to weight decay.
    #[must_use]
    pub fn matrix_elements(&self) -> i64 {
        self.layout.matrices
    }

    /// Hugging Face names with shapes, in layout order.
    pub fn named(&self) -> impl Iterator<Item = (&str, &[i64])> {
        self.layout.slices.iter().map(|s| (s.name.as_str(), s.shape.as_slice()))
    }

    /// As [`Self::named`], with each parameter's range in a flat buffer.
    pub fn places(&self) -> impl Iterator<Item = (&str, &[i64], Range<i64>)> {
        self.layout.slices.iter().map(|s| (s.name.as_str(), s.shape.as_slice(), s.elements.clone()))
    }

    /// The part of a flat buffer of this layout that belongs to a Hugging Face parameter, in its shape.
    #[must_use]
    pub fn slice_of(&self, flat: &Tensor, name: &str) -> Option<Tensor> {
        let slice = self.layout.slice(name)?;
        let length = slice.elements.end - slice.elements.start;
        Some(flat.narrow(0, slice.elements.start, length).view(slice.shape.as_slice()))
    }

    /// Rows of a Hugging Face parameter.
    pub(super) fn rows(&self, name: &str) -> i64 {
        let coded = || *self.coded.rows.get(name).unwrap_or_else(|| panic!("the architecture has no parameter {name}"));
        self.layout.slice(name).map_or_else(coded, |slice| slice.shape[0])
    }

    /// Values of a Hugging Face parameter, row-major float32.
    ///
    /// # Errors
    /// When the name is unknown.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, LearnerError> {
        let tensor = self.slice_of(&self.flat, name).ok_or_else(|| LearnerError::Parameter(name.to_owned()))?;
        let tensor = tensor.reshape([-1]).to_kind(Kind::Float).to_device(Device::Cpu);
        Ok(Vec::<f32>::try_from(&tensor)?)
    }

    /// All values in this process's memory. The flat buffer is copied once, unless it is float32 there already.
    #[must_use]
    pub fn host(&self) -> HostParameters<'_> {
        let flat = self.flat.to_device(Device::Cpu).to_kind(Kind::Float);
        HostParameters { layout: &self.layout, flat }
    }

    /// A flat buffer of zeros of this layout.
    pub fn zeros_like(&self) -> Tensor {
        self.flat.zeros_like()
    }

    /// Gradient buffers of this layout, all 0.
    #[must_use]
    pub fn gradients(&self) -> Gradients {
        let flat = self.zeros_like();
        Gradients { leaves: self.layout.leaf_views(&flat), flat }
    }
}

/// The values of [`Parameters`] in this process's memory, as float32. Not to be kept over an update.
#[derive(Debug)]
pub struct HostParameters<'a> {
    layout: &'a Layout,
    flat: Tensor,
}

impl HostParameters<'_> {
    /// Takes some parameters over from others of the same layout.
    pub(super) fn take_over(&self, from: &Parameters, takes: impl Fn(&str) -> bool) {
        for (name, _, range) in from.places().filter(|(name, ..)| takes(name)) {
            debug_assert!(self.layout.slice(name).is_some_and(|slice| slice.elements == range), "another layout");
            let place = |flat: &Tensor| flat.narrow(0, range.start, range.end - range.start);
            place(&self.flat).copy_(&place(&from.flat));
        }
    }

    /// Values of a Hugging Face parameter, row-major.
    ///
    /// # Errors
    /// When the name is unknown.
    pub fn values(&self, name: &str) -> Result<&[f32], LearnerError> {
        let slice = self.layout.slice(name).ok_or_else(|| LearnerError::Parameter(name.to_owned()))?;
        let (start, end) = (slice.elements.start as usize, slice.elements.end as usize);
        // SAFETY: the tensor has one dimension, of `Kind::Float` and on the CPU, so its elements lie one after the
        // other; it lives as long as the borrowed slice, and updates, which change it, come between two uses of a
        // model.
        let all = unsafe { std::slice::from_raw_parts(self.flat.data_ptr().cast::<f32>(), self.flat.numel()) };
        Ok(&all[start..end])
    }
}

/// Accumulated gradients, laid out as [`Parameters`].
#[derive(Debug)]
pub struct Gradients {
    flat: Tensor,
    leaves: Vec<Tensor>,
}

impl Gradients {
    /// Sets everything to 0.
    pub fn zero(&mut self) {
        let _ = self.flat.zero_();
    }

    /// The flat buffer.
    pub fn flat(&self) -> &Tensor {
        &self.flat
    }

    /// The gradient of a leaf, to be added to in place; absent where the leaf is frozen.
    pub(super) fn of(&mut self, leaf: &Leaf) -> Option<&mut Tensor> {
        leaf.trained.map(|index| &mut self.leaves[index])
    }

    /// Adds `dyᵀ x` to the gradient of a leaf, unless it is frozen.
    pub(super) fn add_product(&mut self, leaf: &Leaf, dy: &Tensor, x: &Tensor) {
        let Some(gradient) = self.of(leaf) else { return };
        if gradient.kind() == x.kind() {
            let _ = gradient.addmm_(&dy.tr(), x);
        } else {
            *gradient += dy.tr().mm(x);
        }
    }

    /// Adds the rows' sum to the gradient of a leaf, unless it is frozen.
    pub(super) fn add_rows(&mut self, leaf: &Leaf, rows: &Tensor) {
        if let Some(gradient) = self.of(leaf) {
            *gradient += rows.sum_dim_intlist([0i64].as_slice(), false, gradient.kind());
        }
    }

    /// Sum of the squares of some elements of the flat buffer.
    #[must_use]
    pub fn squares(&self, elements: Range<i64>) -> f64 {
        let of = |part: Range<i64>| {
            let part = self.flat.narrow(0, part.start, part.end - part.start);
            part.dot(&part).double_value(&[])
        };
        pieces(elements, NORM_BLOCK).map(of).sum()
    }

    /// Global 2-norm: the norm of the leaves' norms, as `torch.nn.utils.clip_grad_norm_`.
    #[must_use]
    pub fn norm(&self) -> f64 {
        let norms: Vec<Tensor> = self.leaves.iter().map(Tensor::norm).collect();
        Tensor::stack(&norms, 0).norm().double_value(&[])
    }
}
