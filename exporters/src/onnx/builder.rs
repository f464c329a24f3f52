//! A small builder of ONNX graphs: values are known by their names, every node is named like its first output.

use shared::{Dtype, TensorEntry, model::manifest::DATA_FILE};

use super::proto::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, DimensionProto, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};
use crate::values;

/// IR version that belongs to [`OPSET`].
const IR_VERSION: i64 = 10;
/// Version of the ai.onnx operator set.
const OPSET: i64 = 21;
/// Domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";
const MICROSOFT_OPSET: i64 = 1;

/// A length in the shape of an input or output.
#[derive(Debug, Clone, Copy)]
pub enum Dim<'a> {
    /// A length fixed in the graph.
    Fixed(usize),
    /// The name of a length known at run time.
    Named(&'a str),
}

/// A tensor whose elements are in another file, in the folder of the graph.
#[derive(Debug, Clone)]
pub(crate) struct External<'a> {
    /// Name of the value.
    pub name: &'a str,
    /// Element type.
    pub element: DataType,
    /// Shape.
    pub shape: &'a [u64],
    /// Name of the file.
    pub file: &'a str,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl<'a> External<'a> {
    /// A tensor of `weights.data`.
    pub fn of(tensor: &'a TensorEntry) -> Self {
        Self {
            name: &tensor.name,
            element: data_type(tensor.dtype),
            shape: &tensor.shape,
            file: DATA_FILE,
            offset: tensor.offset,
            length: tensor.length,
        }
    }
}

/// A graph under construction; nodes are added in topological order.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: GraphProto,
}

impl GraphBuilder {
    /// Declares an input and returns its name.
    pub fn input(&mut self, name: &str, element: DataType, shape: &[Dim<'_>]) -> String {
        self.graph.input.push(value_info(name, element, shape));
        name.to_string()
    }

    /// Declares a value that some node makes as an output.
    pub fn output(&mut self, name: &str, element: DataType, shape: &[Dim<'_>]) {
        self.graph.output.push(value_info(name, element, shape));
    }

    /// Declares a tensor of another file.
    pub(crate) fn external(&mut self, tensor: &External<'_>) {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        self.graph.initializer.push(TensorProto {
            dims: tensor.shape.iter().map(|&n| n as i64).collect(),
            data_type: tensor.element as i32,
            name: tensor.name.into(),
            external_data: vec![
                entry("location", tensor.file.into()),
                entry("offset", tensor.offset.to_string()),
                entry("length", tensor.length.to_string()),
            ],
            data_location: Some(DataLocation::External as i32),
            raw_data: None,
        });
    }

    /// A number inside the graph, without dimensions; returns its name.
    pub(crate) fn integer(&mut self, name: &str, value: i64) -> String {
        self.graph.initializer.push(TensorProto {
            data_type: DataType::Int64 as i32,
            name: name.into(),
            raw_data: Some(value.to_le_bytes().into()),
            ..TensorProto::default()
        });
        name.to_string()
    }

    /// A small integer vector inside the graph; returns its name.
    pub fn integers(&mut self, name: &str, values: &[i64]) -> String {
        self.graph.initializer.push(TensorProto {
            dims: vec![values.len() as i64],
            data_type: DataType::Int64 as i32,
            name: name.into(),
            raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            ..TensorProto::default()
        });
        name.to_string()
    }

    /// As [`Self::integers`], unless the graph has them under that name already.
    pub(crate) fn integers_once(&mut self, name: &str, values: &[i64]) -> String {
        if self.has_constant(name) { name.to_string() } else { self.integers(name, values) }
    }

    /// A small vector of float32 numbers inside the graph, unless it is there under that name already; returns its
    /// name.
    pub(crate) fn floats_once(&mut self, name: &str, values: &[f32]) -> String {
        if !self.has_constant(name) {
            self.graph.initializer.push(TensorProto {
                dims: vec![values.len() as i64],
                data_type: DataType::Float as i32,
                name: name.into(),
                raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
                ..TensorProto::default()
            });
        }
        name.to_string()
    }

    /// A vector of ones in the type of the weights, unless it is there under that name already; returns its name.
    pub(crate) fn ones_once(&mut self, name: &str, length: usize, dtype: Dtype) -> String {
        if !self.has_constant(name) {
            let ones = vec![1.0; length];
            let bytes = values::encode(name, &ones, dtype).expect("every type has a one");
            self.graph.initializer.push(TensorProto {
                dims: vec![length as i64],
                data_type: data_type(dtype) as i32,
                name: name.into(),
                raw_data: Some(bytes.into_owned()),
                ..TensorProto::default()
            });
        }
        name.to_string()
    }

    fn has_constant(&self, name: &str) -> bool {
        self.graph.initializer.iter().any(|tensor| tensor.name == name)
    }

    /// A number inside the graph, in the type of the weights; returns its name.
    pub(crate) fn scalar(&mut self, name: &str, value: f32, dtype: Dtype) -> String {
        let value = [value];
        let bytes = values::encode(name, &value, dtype).expect("a constant of the graph is of moderate size");
        self.graph.initializer.push(TensorProto {
            data_type: data_type(dtype) as i32,
            name: name.into(),
            raw_data: Some(bytes.into_owned()),
            ..TensorProto::default()
        });
        name.to_string()
    }

    /// An ai.onnx node with one output, which is named like the node.
    pub fn node(&mut self, op: &str, name: &str, inputs: &[&str], attributes: &[AttributeProto]) -> String {
        self.operator("", op, name, inputs, &[name], attributes);
        name.to_string()
    }

    /// A node of the operator set of `domain`.
    pub(crate) fn operator(
        &mut self,
        domain: &str,
        op: &str,
        name: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[AttributeProto],
    ) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(ToString::to_string).collect(),
            output: outputs.iter().map(ToString::to_string).collect(),
            name: name.into(),
            op_type: op.into(),
            attribute: attributes.to_vec(),
            domain: domain.into(),
        });
    }

    /// The finished model.
    pub fn finish(mut self, name: &str) -> ModelProto {
        self.graph.name = name.into();
        ModelProto {
            ir_version: IR_VERSION,
            producer_name: "tandem".into(),
            graph: Some(self.graph),
            opset_import: vec![
                OperatorSetIdProto { domain: String::new(), version: OPSET },
                OperatorSetIdProto { domain: MICROSOFT.into(), version: MICROSOFT_OPSET },
            ],
        }
    }
}

/// An integer attribute.
pub fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

/// A float attribute.
pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

/// A text attribute.
pub(crate) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.into()), ..attribute(name, AttributeType::String) }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: kind as i32, ..AttributeProto::default() }
}

/// ONNX element type of a stored type.
///
/// # Panics
/// For bf16, which exports refuse.
pub(crate) fn data_type(dtype: Dtype) -> DataType {
    match dtype {
        Dtype::Fp32 => DataType::Float,
        Dtype::Fp16 => DataType::Float16,
        Dtype::Bf16 => unreachable!("bf16 exports are refused before a graph is built"),
    }
}

fn value_info(name: &str, element: DataType, shape: &[Dim<'_>]) -> ValueInfoProto {
    let dim = |d: &Dim<'_>| DimensionProto {
        value: Some(match *d {
            Dim::Fixed(n) => Dimension::DimValue(n as i64),
            Dim::Named(name) => Dimension::DimParam(name.into()),
        }),
    };
    let shape = TensorShapeProto { dim: shape.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: element as i32, shape: Some(shape) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}
