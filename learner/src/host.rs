//! Between host and device.

use tch::{Device, Kind, Tensor};

use crate::error::LearnerError;

/// Values of a tensor, `[N]`.
///
/// # Errors
/// When libtorch cannot copy them.
pub fn to_host(values_N: &Tensor) -> Result<Vec<f64>, LearnerError> {
    Ok(Vec::<f64>::try_from(values_N.to_kind(Kind::Double).to_device(Device::Cpu))?)
}
