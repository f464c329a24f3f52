//! `model.onnx`: nodes and tensors, as far as they are looked at here.
//!
//! Field numbers are those of `onnx.proto`. Fields that are not looked at are passed over.

use std::{collections::BTreeMap, path::Path};

use prost::Message;

use crate::{
    Tensor, VerifyError,
    file::{Float, Pieces},
};

/// Most bytes of a graph. Weights are beside it.
const MOST_BYTES: u64 = 256 << 20;

/// `TensorProto.DataType`: elements of floats, and of codes.
const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const FLOAT16: i32 = 10;

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    nodes: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    tensors: Vec<Stored>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub inputs: Vec<String>,
    #[prost(string, tag = "4")]
    pub operator: String,
    #[prost(message, repeated, tag = "5")]
    attributes: Vec<Attribute>,
}

/// `AttributeProto`: a number.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    float: f32,
    #[prost(int64, tag = "3")]
    integer: i64,
}

/// `TensorProto`: a tensor of the graph or of another file.
#[derive(Clone, PartialEq, Message)]
struct Stored {
    #[prost(int64, repeated, tag = "1")]
    sizes: Vec<i64>,
    #[prost(int32, tag = "2")]
    element: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    outside: Vec<Entry>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// Attention of a layer, as its node says.
#[derive(Debug, PartialEq)]
pub(super) struct Attention {
    pub heads: i64,
    pub kv_heads: i64,
    /// Factor on scores.
    pub scale: f64,
    /// Positions that a query sees; `None` for all.
    pub window: Option<usize>,
    /// Names of the tables of cosines and sines; `None` for a layer without positions.
    pub tables: Option<[String; 2]>,
}

/// The graph of a folder.
pub(super) struct Graph {
    pub nodes: Vec<Node>,
    tensors: BTreeMap<String, Stored>,
}

impl Node {
    /// A whole number, if the node has it.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.integer)
    }

    fn float(&self, name: &str) -> Option<f64> {
        self.attributes.iter().find(|attribute| attribute.name == name).map(|attribute| attribute.float.into())
    }

    fn two(&self, from: usize) -> Option<[String; 2]> {
        Some([self.inputs.get(from)?.clone(), self.inputs.get(from + 1)?.clone()])
    }
}

impl Graph {
    pub fn open(path: &Path) -> Result<Self, VerifyError> {
        let bytes = shared_bounds::read(path, MOST_BYTES).map_err(|e| VerifyError::file(path, e))?;
        let model = ModelProto::decode(bytes.as_slice());
        let model = model.map_err(|e| VerifyError::file(path, format!("is no ONNX model: {e}")))?;
        let graph = model.graph.ok_or_else(|| VerifyError::file(path, "has no graph"))?;
        let tensors = graph.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        Ok(Self { nodes: graph.nodes, tensors })
    }

    /// Attention of each layer: the nodes stand in the order in which they run.
    pub fn attentions(&self) -> Vec<Attention> {
        let (mut found, mut turned) = (Vec::new(), None);
        for node in &self.nodes {
            match node.operator.as_str() {
                // Queries and keys are turned before, with the tables behind the positions.
                "RotaryEmbedding" => turned = node.two(2),
                "GroupQueryAttention" => {
                    let own = (node.integer("do_rotary") == Some(1)).then(|| node.two(7)).flatten();
                    let window = node.integer("local_window_size").and_then(|size| usize::try_from(size).ok());
                    found.push(Attention {
                        heads: node.integer("num_heads").unwrap_or(0),
                        kv_heads: node.integer("kv_num_heads").unwrap_or(0),
                        scale: node.float("scale").unwrap_or(0.0),
                        window: window.filter(|window| *window > 0),
                        tables: own.or(turned.take()),
                    });
                }
                _ => {}
            }
        }
        found
    }

    /// Number of nodes of an operator.
    pub fn count(&self, operator: &str) -> usize {
        self.nodes.iter().filter(|node| node.operator == operator).count()
    }

    /// Epsilons of all norms.
    pub fn epsilons(&self) -> impl Iterator<Item = f64> + '_ {
        let is_norm =
            |node: &&Node| node.operator.ends_with("SimplifiedLayerNormalization") || node.operator == "GatedRMSNorm";
        // One whose factors are a constant of the graph is no norm of the model: it divides a vector by its length.
        let is_constant = |name: &String| self.tensors.get(name).is_some_and(|tensor| tensor.outside.is_empty());
        let norms = self.nodes.iter().filter(is_norm).filter(move |node| !node.inputs.get(1).is_some_and(is_constant));
        // ONNX Runtime's default.
        norms.map(|node| node.float("epsilon").unwrap_or(1e-5))
    }

    /// Names of the tensors in the file beside the graph.
    pub fn outside(&self) -> impl Iterator<Item = &str> {
        self.tensors.values().filter(|tensor| !tensor.outside.is_empty()).map(|tensor| tensor.name.as_str())
    }

    /// Sizes of a tensor.
    pub fn shape(&self, name: &str) -> Result<Vec<usize>, VerifyError> {
        let tensor = self.tensor(name)?;
        let sizes: Option<Vec<usize>> = tensor.sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
        let product = |sizes: &Vec<usize>| sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
        sizes
            .filter(|sizes| product(sizes).is_some_and(|count| count < 1 << 48))
            .ok_or_else(|| VerifyError::Differs(format!("tensor {name} of its graph has the sizes {:?}", tensor.sizes)))
    }

    /// A tensor of floats.
    pub fn floats(&self, name: &str, data: &Pieces) -> Result<Tensor, VerifyError> {
        let float = match self.tensor(name)?.element {
            FLOAT => Float::F32,
            FLOAT16 => Float::F16,
            other => return Err(VerifyError::Differs(format!("tensor {name} of its graph has elements {other}"))),
        };
        let (shape, bytes) = self.bytes(name, float.size(), data)?;
        Ok(Tensor { shape, values: float.decode(&bytes), rounding: float.rounding() })
    }

    /// A tensor of bytes, with its sizes.
    pub fn codes(&self, name: &str, data: &Pieces) -> Result<(Vec<usize>, Vec<u8>), VerifyError> {
        match self.tensor(name)?.element {
            UINT8 => self.bytes(name, 1, data),
            other => Err(VerifyError::Differs(format!("tensor {name} of its graph has elements {other}, no codes"))),
        }
    }

    fn bytes(&self, name: &str, size: usize, data: &Pieces) -> Result<(Vec<usize>, Vec<u8>), VerifyError> {
        let (tensor, shape) = (self.tensor(name)?, self.shape(name)?);
        let of = |key: &str| tensor.outside.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
        let number = |key: &str| of(key).and_then(|value| value.parse::<u64>().ok());
        let meant = shape.iter().product::<usize>() as u64 * size as u64;
        match (of("location"), number("offset"), number("length")) {
            (Some("model.onnx.data"), Some(offset), Some(length)) if length == meant => {
                Ok((shape, data.read(offset, length)?))
            }
            (location, offset, length) => Err(VerifyError::Differs(format!(
                "tensor {name} of its graph needs {meant} bytes, and has {length:?} at {offset:?} of {location:?}"
            ))),
        }
    }

    fn tensor(&self, name: &str) -> Result<&Stored, VerifyError> {
        self.tensors.get(name).ok_or_else(|| VerifyError::Differs(format!("its graph has no tensor {name}")))
    }
}
