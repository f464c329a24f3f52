//! `tandem export`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use harness::{
    cli::{self, Finished},
    tiny_model::{ModelFolder, Qwen2, TINY},
};
use serde_json::json;

/// A folder with the directory of a model in it.
struct Exports(ModelFolder);

impl Exports {
    fn new() -> Self {
        Self(ModelFolder::new())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn files(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let paths = fs::read_dir(self.path(name)).unwrap().map(|entry| entry.unwrap().path());
        paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    fn export(&self, out: &Path, more: &[&str]) -> Finished {
        let (model, out) = (self.path("model"), out.to_str().unwrap());
        let args = ["export", "--model", model.to_str().unwrap(), "--out", out];
        cli::run("tandem", args.iter().chain(more))
    }

    fn refusal(&self, out: &Path) -> String {
        let finished = self.export(out, &[]);
        assert!(finished.stdout.is_empty() && finished.stderr.lines().count() == 1, "{finished:?}");
        finished.refusal().to_owned()
    }
}

#[test]
fn there_and_back() {
    let place = Exports::new();
    let (onnx, hf) = (place.path("onnx"), place.path("hf"));
    let exported = place.export(&onnx, &[]).success().stdout;
    assert!(exported.starts_with("exported ") && exported.contains("up to 2048 tokens"), "{exported}");
    let _ = place.export(&onnx, &["--dtype", "fp16", "--max_positions", "32"]).success();
    let _ = place.export(&onnx, &["--dtype", "fp32"]).success();

    let to_hf = || {
        let flags = [("--model", place.path("model")), ("--version-dir", onnx.clone()), ("--out", hf.clone())];
        let words = flags.iter().flat_map(|(flag, path)| [Path::new(flag), path]);
        cli::run("tandem", [Path::new("export"), Path::new("to-hf")].into_iter().chain(words))
    };
    let _ = to_hf().success();
    let same = |a: &Path, b: &Path| fs::read(a).unwrap() == fs::read(b).unwrap();
    assert!(same(&hf.join("config.json"), &place.path("model/config.json")));
    let again = place.path("again");
    let _ =
        cli::run("tandem", ["export".as_ref(), "--model".as_ref(), hf.as_path(), "--out".as_ref(), &again]).success();
    assert!(same(&again.join("weights.data"), &onnx.join("weights.data")), "the weights are others");
    assert!(to_hf().refusal().contains("the folder is not empty"));
}

#[test]
fn help_names_everything() {
    let text = cli::run("tandem", ["export", "--help"]).success().stdout;
    for word in ["tandem export", "--model", "--out", "--dtype", "fp16", "--max-positions", "to-hf", "weights.data"] {
        assert!(text.contains(word), "{word} is missing from --help");
    }
    assert_eq!(cli::run("tandem", ["export"]).status.code(), Some(2));
    assert_eq!(cli::run("tandem", ["export", "--model", "x"]).status.code(), Some(2));
}

#[test]
fn a_folder_with_other_content_is_left_alone() {
    let place = Exports::new();
    let before = place.files("model");
    let error = place.refusal(&place.path("model"));
    assert!(error.contains("the folder is not an earlier output (it has `"), "{error}");
    assert_eq!(place.files("model"), before);

    let out = place.path("out");
    fs::create_dir(&out).unwrap();
    let _ = place.export(&out, &[]).success();
    fs::write(out.join("optimizer.safetensors"), "").unwrap();
    assert!(place.refusal(&out).contains("`optimizer.safetensors`"));
}

#[test]
fn an_output_that_cannot_be_written_is_one_clear_line() {
    let place = Exports::new();
    fs::write(place.path("file"), "").unwrap();
    assert!(place.refusal(&place.path("file")).contains("file: Not a directory"));
    assert!(place.refusal(&place.path("file/below")).contains("file/below: Not a directory"));
    let proc = place.refusal(Path::new("/proc/tandem/export"));
    assert!(proc.contains("/proc/tandem/export"), "{proc}");
}

#[test]
fn a_model_too_large_for_the_disk_is_refused_before_anything_is_written() {
    // Rotary tables of 2^31 rows, 512 TiB, need no large input.
    let wide = Qwen2 { hidden_size: 1 << 16, num_attention_heads: 1, ..TINY };
    let place = Exports::new();
    wide.write_sparse(&place.path("model"));
    let mut config = wide.config();
    config["max_position_embeddings"] = i32::MAX.into();
    fs::write(place.path("model/config.json"), config.to_string()).unwrap();
    let finished = place.export(&place.path("onnx"), &["--max-positions", &i32::MAX.to_string()]);
    let error = finished.refusal();
    assert!(error.contains(&place.path("").display().to_string()), "{error}");
    assert!(error.contains("MiB are needed, the file system has"), "{error}");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 1);
}

#[test]
fn what_cannot_be_exported_is_one_line_with_key_and_value() {
    let place = Exports::new();
    let out = place.path("onnx");
    for (changes, expected) in [
        (json!({"model_type": "gpt2"}), "`model_type` = \"gpt2\""),
        (json!({"layer_types": ["sliding_attention"]}), "`layer_types` = [\"sliding_attention\"]"),
        (json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), "`rope_scaling.rope_type` = \"yarn\""),
    ] {
        place.0.change_config(&changes);
        let error = place.refusal(&out);
        assert!(error.contains(expected), "{error}");
        assert!(!out.exists());
    }
    let missing = cli::run("tandem", [Path::new("export"), "--model=/no/model".as_ref(), "--out".as_ref(), &out]);
    assert!(missing.refusal().contains("/no/model: no such directory"), "{missing:?}");
}

#[test]
fn a_corrupt_header_is_one_line_with_the_file() {
    let place = Exports::new();
    let path = place.path("model/model.safetensors");
    let mut content = fs::read(&path).unwrap();
    content[8] = b'#';
    fs::write(&path, content).unwrap();
    let error = place.refusal(&place.path("onnx"));
    assert!(error.contains(&format!("{}: not a whole safetensors file", path.display())), "{error}");
}
