//! A LoRA adapter on weights: `W + scaling * B A`, computed in double precision.

use std::path::Path;

use ndarray::ArrayView2;

use crate::{Rounding, Tensor, VerifyError, Weights, file::json, safetensor::Safetensors};

/// Largest relative difference between two ways to compute a sum of few products in fp32.
const ERROR: f32 = 4.0 / (1 << 22) as f32;

/// Weights with an adapter on them.
pub struct Adapted {
    base: Box<dyn Weights>,
    adapter: Safetensors,
    scaling: f64,
}

impl Adapted {
    /// Opens the folder of an adapter: `adapter_config.json` and `adapter_model.safetensors`.
    pub fn open(base: Box<dyn Weights>, folder: &Path) -> Result<Self, VerifyError> {
        let path = folder.join("adapter_config.json");
        let config = json(&path)?;
        let number = |key: &str| {
            let wrong = || VerifyError::file(&path, format!("`{key}` is no number"));
            config[key].as_f64().ok_or_else(wrong)
        };
        let (r, alpha) = (number("r")?, number("lora_alpha")?);
        let scaling = if config["use_rslora"].as_bool() == Some(true) { alpha / r.sqrt() } else { alpha / r };
        let adapter = Safetensors::open([folder.join("adapter_model.safetensors").as_path()])?;
        Ok(Self { base, adapter, scaling })
    }
}

impl Weights for Adapted {
    fn names(&self) -> Vec<String> {
        self.base.names()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        let mut tensor = self.base.read(name)?;
        let module = name.strip_suffix(".weight").unwrap_or(name);
        // Within a model of images and text, the layers are one part deeper.
        let within = module.replacen("model.", "model.language_model.", 1);
        let names = |module: &str| ["A", "B"].map(|part| format!("base_model.model.{module}.lora_{part}.weight"));
        let stored = self.adapter.names();
        let Some([a, b]) = [names(module), names(&within)].into_iter().find(|[a, _]| stored.contains(a)) else {
            return Ok(tensor);
        };
        let (a, b) = (matrix(&a, self.adapter.read(&a)?)?, matrix(&b, self.adapter.read(&b)?)?);
        let ((r, inputs), (outputs, ranks)) = (a.dim(), b.dim());
        if r != ranks || tensor.shape != [outputs, inputs] {
            let message = format!("the adapter of {module} is of another shape than {:?}", tensor.shape);
            return Err(VerifyError::Differs(message));
        }
        let update = b.dot(&a) * self.scaling;
        let largest = tensor.values.iter().zip(&update).map(|(w, u)| w.abs().max(u.abs() as f32)).fold(0.0, f32::max);
        tensor.values.iter_mut().zip(&update).for_each(|(w, u)| *w = (f64::from(*w) + u) as f32);
        tensor.rounding = Rounding::Computed { error: ERROR * largest };
        Ok(tensor)
    }
}

fn matrix(name: &str, tensor: Tensor) -> Result<ndarray::Array2<f64>, VerifyError> {
    let wrong = || VerifyError::Differs(format!("tensor {name} is no matrix"));
    let [rows, columns] = tensor.shape[..] else { return Err(wrong()) };
    let view = ArrayView2::from_shape((rows, columns), &tensor.values).map_err(|_| wrong())?;
    Ok(view.mapv(f64::from))
}
