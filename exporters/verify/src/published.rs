//! A published version of a run: `manifest.json` and `weights.data`, or an adapter on those of an export.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use crate::{
    Model, Tensor, VerifyError, Weights,
    file::{Float, Pieces, json},
    huggingface,
    lora::Adapted,
};

/// Opens the folder of a version. Its architecture is in the `config.json` of the model that the run began with.
///
/// # Errors
/// A file that cannot be read, or a manifest that lacks what is needed.
pub fn open(folder: &Path, config: &Path) -> Result<Model, VerifyError> {
    let architecture = huggingface::architecture(config)?;
    let manifest = json(&folder.join("manifest.json"))?;
    let weights: Box<dyn Weights> = match manifest["adapter"]["base"].as_str().map(Path::new) {
        None => Box::new(Published::open(folder, &manifest)?),
        Some(base) => {
            let stored = Published::open(base, &json(&base.join("manifest.json"))?)?;
            Box::new(Adapted::open(Box::new(stored), folder)?)
        }
    };
    Ok(Model::new(architecture, weights))
}

struct Entry {
    float: Float,
    shape: Vec<usize>,
    offset: u64,
    length: u64,
}

/// The parameters in `weights.data`.
struct Published {
    data: Pieces,
    tensors: BTreeMap<String, Entry>,
}

impl Published {
    fn open(folder: &Path, manifest: &Value) -> Result<Self, VerifyError> {
        let path = folder.join("manifest.json");
        let entry = |tensor: &Value| {
            let float = match tensor["dtype"].as_str()? {
                "fp32" => Float::F32,
                "fp16" => Float::F16,
                "bf16" => Float::Bf16,
                _ => return None,
            };
            let shape = tensor["shape"].as_array()?.iter().map(|n| n.as_u64().map(|n| n as usize));
            let (offset, length) = (tensor["offset"].as_u64()?, tensor["length"].as_u64()?);
            Some((
                tensor["name"].as_str()?.to_owned(),
                Entry { float, shape: shape.collect::<Option<_>>()?, offset, length },
            ))
        };
        let listed = manifest["tensors"].as_array().into_iter().flatten();
        let parameters = listed.filter(|tensor| tensor["role"] == "parameter").map(entry);
        let tensors: Option<BTreeMap<_, _>> = parameters.collect();
        let tensors = tensors.ok_or_else(|| VerifyError::file(&path, "has a tensor that is not read here"))?;
        Ok(Self { data: Pieces::open(&folder.join("weights.data"))?, tensors })
    }
}

impl Weights for Published {
    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<Tensor, VerifyError> {
        let missing = || VerifyError::Differs(format!("it has no tensor {name}"));
        let entry = self.tensors.get(name).ok_or_else(missing)?;
        let values = entry.float.decode(&self.data.read(entry.offset, entry.length)?);
        Ok(Tensor { shape: entry.shape.clone(), values, rounding: entry.float.rounding() })
    }
}
