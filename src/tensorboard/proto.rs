//! The protocol buffers of TensorFlow that event files consist of (tensorflow/core/util/event.proto and
//! tensorflow/core/framework/{summary,tensor}.proto).

use prost::Message;

/// Version of the format, in the first event of a file.
pub const FILE_VERSION: &str = "brain.Event:2";
/// `SessionLog.SessionStatus.START`: earlier events of this step and later ones are void.
pub const START: i32 = 1;
/// `DataType.DT_STRING`.
const DT_STRING: i32 = 7;
/// Name of the plug-in that shows texts.
const TEXT: &str = "text";

/// An event, with the moment at which it was written.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    pub wall_time: f64,
    #[prost(int64, tag = "2")]
    pub step: i64,
    #[prost(string, optional, tag = "3")]
    pub file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    pub session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SessionLog {
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// The values of a step.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub value: Vec<Value>,
}

/// A number, a histogram or a text.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub tag: String,
    #[prost(float, optional, tag = "2")]
    pub simple_value: Option<f32>,
    #[prost(message, optional, tag = "5")]
    pub histo: Option<Histogram>,
    #[prost(message, optional, tag = "8")]
    pub tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    pub metadata: Option<Metadata>,
}

impl Value {
    /// A number.
    pub fn scalar(tag: String, value: f64) -> Self {
        Self { tag, simple_value: Some(value as f32), ..Self::default() }
    }

    /// A distribution of numbers.
    pub fn histogram(tag: String, histogram: Histogram) -> Self {
        Self { tag, histo: Some(histogram), ..Self::default() }
    }

    /// Texts in Markdown, shown one below the other.
    pub fn texts(tag: String, texts: Vec<String>) -> Self {
        let shape = Shape { dim: vec![Dim { size: texts.len() as i64 }] };
        let string_val = texts.into_iter().map(String::into_bytes).collect();
        Self {
            tag,
            tensor: Some(Tensor { dtype: DT_STRING, tensor_shape: Some(shape), string_val }),
            metadata: Some(Metadata { plugin_data: Some(PluginData { plugin_name: TEXT.to_owned() }) }),
            ..Self::default()
        }
    }
}

/// Counts between limits; the first bucket begins at `min`.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    /// Upper limits of the buckets.
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    tensor_shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub string_val: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
struct PluginData {
    #[prost(string, tag = "1")]
    plugin_name: String,
}
