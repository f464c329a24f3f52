//! Between host and device.

use ndarray::Array2;
use tch::{Device, Kind, Tensor};

use crate::error::LearnerError;

/// Values of a tensor, `[N]`.
///
/// # Errors
/// When libtorch cannot copy them.
pub fn to_host(values_N: &Tensor) -> Result<Vec<f64>, LearnerError> {
    Ok(Vec::<f64>::try_from(values_N.to_kind(Kind::Double).to_device(Device::Cpu))?)
}

/// A tensor of the same shape.
pub fn to_device(array: &Array2<i64>, device: Device) -> Tensor {
    let (rows, columns) = array.dim();
    let values: Vec<i64> = array.iter().copied().collect();
    Tensor::from_slice(&values).view([rows as i64, columns as i64]).to_device(device)
}
