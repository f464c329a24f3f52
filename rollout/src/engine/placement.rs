//! Which provider of ONNX Runtime runs which nodes of a graph: a device leaves what it does not know to the next one, and
//! to the CPU at last, without a word.

use std::{collections::BTreeMap, ffi::CStr, fmt, ptr, slice};

use ort::{AsPointer, ortsys, session::Session, sys};

/// The session option without which ONNX Runtime keeps no account.
pub(super) const RECORD: &str = "session.record_ep_graph_assignment_info";
/// Operators that are named for each provider.
const NAMED: usize = 4;

/// The nodes of one provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Pieces that the provider took: engines of TensorRT, single nodes elsewhere.
    pub pieces: usize,
    /// Number of nodes by operator.
    pub operators: BTreeMap<String, usize>,
}

/// Shares by name of the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placement(pub BTreeMap<String, Share>);

impl Placement {
    /// Of a session that was made with [`RECORD`].
    pub fn of(session: &Session) -> ort::Result<Self> {
        let (mut pieces, mut count) = (ptr::null(), 0);
        // SAFETY: the session is alive; both pointers are valid for the call.
        ortsys![unsafe Session_GetEpGraphAssignmentInfo(session.ptr(), &mut pieces, &mut count)?];
        let mut placement = Self::default();
        // SAFETY: ONNX Runtime gave this array of this length; it lives as long as the session.
        for &piece in unsafe { array(pieces, count) } {
            let mut name = ptr::null();
            // SAFETY: the piece is one of the session's.
            ortsys![unsafe EpAssignedSubgraph_GetEpName(piece, &mut name)?];
            // SAFETY: the text is the session's.
            let share = placement.0.entry(unsafe { text(name) }).or_default();
            share.pieces += 1;
            let (mut nodes, mut count) = (ptr::null(), 0);
            // SAFETY: as above.
            ortsys![unsafe EpAssignedSubgraph_GetNodes(piece, &mut nodes, &mut count)?];
            // SAFETY: as above.
            for &node in unsafe { array::<sys::OrtEpAssignedNode>(nodes, count) } {
                let mut operator = ptr::null();
                // SAFETY: the node is one of the session's.
                ortsys![unsafe EpAssignedNode_GetOperatorType(node, &mut operator)?];
                // SAFETY: the text is the session's.
                *share.operators.entry(unsafe { text(operator) }).or_default() += 1;
            }
        }
        Ok(placement)
    }
}

/// # Safety
/// `first` must point to `count` pointers, unless there are none.
unsafe fn array<'a, T>(first: *const *const T, count: usize) -> &'a [*const T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: passed on to the caller.
    unsafe { slice::from_raw_parts(first, count) }
}

/// # Safety
/// `text` must be a text that ends with a zero byte.
unsafe fn text(text: *const std::ffi::c_char) -> String {
    // SAFETY: passed on to the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (provider, share)) in self.0.iter().enumerate() {
            let nodes: usize = share.operators.values().sum();
            let provider = provider.strip_suffix("ExecutionProvider").unwrap_or(provider);
            write!(f, "{}{provider} {nodes} nodes in {} pieces (", if i > 0 { "; " } else { "" }, share.pieces)?;
            let mut operators: Vec<_> = share.operators.iter().collect();
            operators.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
            for (j, (operator, count)) in operators.iter().take(NAMED).enumerate() {
                write!(f, "{}{count} {operator}", if j > 0 { ", " } else { "" })?;
            }
            write!(f, "{})", if operators.len() > NAMED { ", …" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use exporters::{ExportOptions, export};
    use shared::{ModelDir, config::Device, manifest::MODEL_FILE};

    use super::*;
    use crate::engine::session::{SessionOptions, alone, builder};

    #[test]
    fn every_node_of_a_graph_is_placed() {
        let model = ModelDir::open(::tests::golden_dir().join("models/qwen2")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("v0");
        export(&model, &dir, &ExportOptions::default()).unwrap();
        let options =
            SessionOptions { device: Device::Cpu, threads: 1, spinning: false, hot_swap: false, cuda_graphs: false };
        let mut builder = builder(options).unwrap().with_config_entry(RECORD, "1").unwrap();
        let session = alone(|| builder.commit_from_file(dir.join(MODEL_FILE))).unwrap();
        let placement = Placement::of(&session).unwrap();
        assert_eq!(placement.0.keys().collect::<Vec<_>>(), ["CPUExecutionProvider"]);
        let cpu = &placement.0["CPUExecutionProvider"];
        assert_eq!(cpu.operators["GroupQueryAttention"], model.config().num_hidden_layers);
        let text = placement.to_string();
        assert!(text.starts_with("CPU ") && text.contains(" nodes in ") && text.ends_with(", …)"), "{text}");
    }
}
