//! Canaries: log-probs that a version must give to a few tokens. They lie beside the manifest, and a sampler that takes
//! the version into use computes them first.

use std::{collections::BTreeMap, fs, io, path::Path};

use serde::{Deserialize, Serialize};

use crate::{files::atomic::named, generation::ids::PolicyVersion, system::compute::Dtype};

/// File name of the canaries in a version directory.
pub const CANARIES_FILE: &str = "canaries.json";

/// A few tokens with the learner's log-probs, and the norms of its parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Canaries {
    /// The version that the learner meant to publish.
    pub version: PolicyVersion,
    /// Element type in which the learner's passes compute.
    pub dtype: Dtype,
    /// Token ids of a sequence, from its first position.
    pub token_ids: Vec<u32>,
    /// The learner's log-probs of the last tokens of the sequence, over the whole vocabulary and at temperature 1.
    pub logprobs: Vec<f64>,
    /// The 2-norm of every trained parameter, as the learner computes it.
    pub norms: BTreeMap<String, f64>,
}

impl Canaries {
    /// Writes them into a folder that is not visible yet.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let path = dir.join(CANARIES_FILE);
        fs::write(&path, serde_json::to_vec_pretty(self)?).map_err(named(&path))
    }

    /// The canaries of a version, if it has any.
    ///
    /// # Errors
    /// A file that cannot be read, or (as [`io::ErrorKind::InvalidData`]) that holds no canaries.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        let path = dir.join(CANARIES_FILE);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(named(&path))?,
        };
        let canaries: Self = serde_json::from_slice(&text).map_err(|e| named(&path)(invalid(e.to_string())))?;
        if canaries.logprobs.is_empty() || canaries.logprobs.len() >= canaries.token_ids.len() {
            return Err(named(&path)(invalid("has no log-probs of the last of its tokens".into())));
        }
        Ok(Some(canaries))
    }

    /// Whether the learner's parameter of that name has this norm, within `slack`. The norms of equal values differ in
    /// the last bits of their sum at most.
    #[must_use]
    pub fn has(&self, name: &str, found: f64, slack: f64) -> bool {
        self.norms.get(name).is_some_and(|norm| (norm - found).abs() <= slack + 1e-12 * norm && found.is_finite())
    }

    /// Number of tokens that have a log-prob.
    #[must_use]
    pub fn scored(&self) -> usize {
        self.logprobs.len()
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_read_as_written_and_what_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Canaries::read(dir.path()).unwrap(), None);
        let canaries = Canaries {
            version: PolicyVersion(7),
            dtype: Dtype::Fp32,
            token_ids: vec![5, 0, 9],
            logprobs: vec![-0.1, -1.0 / 3.0],
            norms: [("a".to_owned(), 2.0_f64.sqrt())].into(),
        };
        canaries.write(dir.path()).unwrap();
        assert_eq!(Canaries::read(dir.path()).unwrap().as_ref(), Some(&canaries));
        for logprobs in [vec![], vec![-1.0; 3]] {
            Canaries { logprobs, ..canaries.clone() }.write(dir.path()).unwrap();
            let error = Canaries::read(dir.path()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("canaries.json: has no log-probs"), "{error}");
        }
    }
}
