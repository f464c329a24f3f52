//! The command line.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use safetensors::Dtype;
use serde_json::json;

use crate::support::{TestModel, files};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_export")).args(args).output().unwrap()
}

fn export(model: &Path, out: &Path, more: &[&str]) -> Output {
    let args = ["--model", model.to_str().unwrap(), "--out", out.to_str().unwrap()];
    run(&[&args, more].concat())
}

/// The one line of a failure.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{text}");
    assert!(text.starts_with("error: ") && text.lines().count() == 1, "{text}");
    text.trim_end().to_string()
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn there_and_back() {
    let model = TestModel::new(&json!({"torch_dtype": "float32"}), Dtype::F32);
    let (onnx, hf) = (model.path().join("onnx"), model.path().join("hf"));
    let output = export(model.path(), &onnx, &[]);
    assert_success(&output);
    let line = String::from_utf8(output.stdout).unwrap();
    assert!(line.starts_with("exported ") && line.contains("up to 64 tokens"), "{line}");
    assert_success(&export(model.path(), &onnx, &["--dtype", "fp16", "--max-positions", "32"]));
    assert_success(&export(model.path(), &onnx, &["--dtype", "fp32"]));

    let to_hf = |out: &Path| {
        let (model, onnx, out) = (model.path().to_str().unwrap(), onnx.to_str().unwrap(), out.to_str().unwrap());
        run(&["to-hf", "--model", model, "--version-dir", onnx, "--out", out])
    };
    assert_success(&to_hf(&hf));
    for name in ["config.json", "model.safetensors"] {
        assert_eq!(fs::read(hf.join(name)).unwrap(), fs::read(model.path().join(name)).unwrap(), "{name}");
    }
    assert!(refusal(&to_hf(&hf)).contains("the folder is not empty"));
}

#[test]
fn help_names_everything() {
    let output = run(&["--help"]);
    assert_success(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["--model", "--out", "--dtype", "fp16", "--max-positions", "to-hf", "weights.data"] {
        assert!(text.contains(word), "{word} is missing from --help");
    }
    assert_eq!(run(&[]).status.code(), Some(2));
    assert_eq!(run(&["--model", "x"]).status.code(), Some(2));
}

#[test]
fn a_folder_with_other_content_is_left_alone() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let before = files(model.path());
    let error = refusal(&export(model.path(), model.path(), &[]));
    assert!(error.contains("the folder is not an export (it has `"), "{error}");
    assert_eq!(files(model.path()), before);

    let empty = tempfile::tempdir().unwrap();
    assert_success(&export(model.path(), empty.path(), &[]));
    fs::write(empty.path().join("optimizer.safetensors"), "").unwrap();
    assert!(refusal(&export(model.path(), empty.path(), &[])).contains("`optimizer.safetensors`"));
}

#[test]
fn an_output_that_cannot_be_written_is_one_clear_line() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let file = model.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refusal(&export(model.path(), &file, &[])).contains("file: Not a directory"));
    assert!(refusal(&export(model.path(), &file.join("below"), &[])).contains("file/below: Not a directory"));
    let proc = refusal(&export(model.path(), Path::new("/proc/tandem/export"), &[]));
    assert!(proc.contains("/proc/tandem/export"), "{proc}");
}

#[test]
fn a_model_too_large_for_the_disk_is_refused_before_anything_is_written() {
    // Rotary tables of 2^31 rows, 512 TiB, need no large input.
    let wide = json!({"max_position_embeddings": i32::MAX, "head_dim": 1 << 16, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1});
    let model = TestModel::new(&wide, Dtype::F32);
    let out = model.path().join("onnx");
    let error = refusal(&export(model.path(), &out, &["--max-positions", &i32::MAX.to_string()]));
    assert!(error.contains(&model.path().display().to_string()), "{error}");
    assert!(error.contains("MiB are needed, the file system has"), "{error}");
    assert_eq!(fs::read_dir(model.path()).unwrap().count(), 2);
}

#[test]
fn what_cannot_be_exported_is_one_line_with_key_and_value() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let out = model.path().join("onnx");
    for (changes, expected) in [
        (json!({"model_type": "gpt2"}), "`model_type` = \"gpt2\""),
        (json!({"head_dim": 12}), "`head_dim` = 12"),
        (json!({"sliding_window": 4096}), "`sliding_window` = 4096"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "`rope_scaling.rope_type` = \"yarn\""),
    ] {
        model.write_config(&changes);
        let error = refusal(&export(model.path(), &out, &[]));
        assert!(error.contains(expected), "{error}");
        assert!(!out.exists());
    }
    assert!(refusal(&export(Path::new("/no/model"), &out, &[])).contains("/no/model: no such directory"));
}

#[test]
fn a_corrupt_header_is_one_line_with_the_file() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let path = model.path().join("model.safetensors");
    let mut content = fs::read(&path).unwrap();
    content[8] = b'#';
    fs::write(&path, content).unwrap();
    let error = refusal(&export(model.path(), &model.path().join("onnx"), &[]));
    assert!(error.contains(&format!("{}: not a whole safetensors file", path.display())), "{error}");
}
