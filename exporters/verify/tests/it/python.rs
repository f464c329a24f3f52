//! Files against llama.cpp's own package, gguf for Python: its reader opens them, and its quantiser makes their bytes.

use std::{env, process::Command};

use serde_json::json;

use crate::{
    refused::newer_families,
    support::{GgufType, TestModel, same},
};

/// Compares every tensor of a file (first argument) with what the package makes of the same tensor of another file, in
/// fp32 (second argument), and says how many of each type there are.
const COMPARE: &str = r#"
import sys
import numpy as np
from gguf import GGUFReader, GGMLQuantizationType, quants

made, plain = GGUFReader(sys.argv[1]), GGUFReader(sys.argv[2])
source = {tensor.name: tensor for tensor in plain.tensors}
assert list(source) == [tensor.name for tensor in made.tensors]
counts = {}
for tensor in made.tensors:
    kind = GGMLQuantizationType(tensor.tensor_type)
    values = np.array(source[tensor.name].data, dtype=np.float32)
    assert list(tensor.shape) == list(source[tensor.name].shape), tensor.name
    expected = quants.quantize(values, kind)
    found = np.array(tensor.data)
    assert found.tobytes() == expected.tobytes(), (tensor.name, kind)
    counts[kind.name] = counts.get(kind.name, 0) + 1
for key in ["general.architecture", "tokenizer.ggml.model"]:
    assert made.fields[key].contents(), key
assert len(made.fields["tokenizer.ggml.tokens"].contents()) == len(made.fields["tokenizer.ggml.token_type"].contents())
print(" ".join(f"{name}={count}" for name, count in sorted(counts.items())))
"#;

fn python() -> Option<String> {
    let python = env::var("TANDEM_GGUF_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import gguf"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        harness::skipped(
            "gguf_python",
            "no Python with gguf; let TANDEM_GGUF_PYTHON name one (pip install gguf==0.19.0)",
        );
    }
    found.then_some(python)
}

#[test]
fn the_bytes_of_every_type_are_those_of_llama_cpps_package() {
    let Some(python) = python() else { return };
    // Rows of 48 values are no whole blocks.
    let experts = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true});
    let older = [("llama", json!({"intermediate_size": 48})), ("gemma3_text", json!({})), ("qwen3_moe", experts)];
    for (family, changes) in older.into_iter().chain(newer_families()) {
        let model = TestModel::new(family, &changes);
        let plain = model.write_gguf(GgufType::F32, same);
        let kept = model.path().join("plain.gguf");
        std::fs::rename(plain, &kept).unwrap();
        for kind in [GgufType::F32, GgufType::F16, GgufType::Bf16, GgufType::Q8_0, GgufType::Q4_0] {
            let made = model.write_gguf(kind, same);
            let output = Command::new(&python).arg("-c").arg(COMPARE).args([&made, &kept]).output().unwrap();
            let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{family} {kind}: {told}");
            assert!(told.contains(&format!("{kind}=")) && told.contains("F32="), "{family} {kind}: {told}");
            let odd = kind == GgufType::Q8_0 && family == "llama";
            assert!(!odd || told.contains("F16=6"), "rows of 48 are fp16: {told}");
        }
    }
}
