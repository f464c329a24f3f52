//! `tandem export`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use harness::{
    binary,
    cli::{self, Finished},
    copy_folder, data_dir, golden_dir,
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

    /// As [`Exports::export`] of another model, in the folder and with a cache of its own.
    fn export_of(&self, model: &Path, out: &str, more: &[&str]) -> Finished {
        let mut command = Command::new(binary("tandem"));
        command.args(["export", "--out", out, "--model"]).arg(model).args(more);
        command.current_dir(self.path("")).env("TANDEM_CACHE_DIR", self.path("cache"));
        // Its sampler is beside it.
        let _ = binary("rollout");
        cli::finish(command).success()
    }

    fn refusal(&self, out: &Path) -> String {
        self.refusal_of(out, &[])
    }

    fn refusal_of(&self, out: &Path, more: &[&str]) -> String {
        let finished = self.export(out, more);
        assert!(finished.stdout.is_empty() && finished.stderr.lines().count() == 1, "{finished:?}");
        finished.refusal().to_owned()
    }
}

/// A tokenizer that llama.cpp knows, for the model in a folder: BPE over bytes.
fn write_tokenizer(model: &Path) {
    let tokenizer = json!({
        "added_tokens": [{"id": 3, "content": "<end>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    });
    fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

/// Whoever has run the demo can take its model anywhere.
#[test]
fn a_model_with_the_demos_tokenizer_goes_into_the_formats_of_other_programs() {
    let place = Exports::new();
    let model = place.path("demo");
    copy_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/demo/model"), &model);
    let _ = cli::run("learner", [Path::new("init"), Path::new("--model"), &model]).success();
    for format in ["gguf", "genai"] {
        let printed = place.export_of(&model, place.path(format).to_str().unwrap(), &["--format", format]).stdout;
        assert!(printed.contains("opened again and compared"), "{printed}");
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
    for word in [
        "tandem export",
        "--model",
        "--out",
        "--dtype",
        "fp16",
        "--max-positions",
        "to-hf",
        "weights.data",
        "--format",
        "safetensors",
        "gguf",
        "q4_0",
        "genai",
        "int4",
        "--rows",
        "--eval-rows",
    ] {
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
        (json!({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}), "`rope_scaling.rope_type` = \"ntk\""),
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

#[test]
fn a_gguf_file_is_compared_with_its_model_and_appears_whole() {
    let place = Exports::new();
    write_tokenizer(&place.path("model"));
    let file = place.path("small.gguf");
    let told = place.export(&file, &["--format", "gguf", "--dtype", "q8_0"]).success().stdout;
    for words in [
        "wrote 10944 parameters as gguf (q8_0, 0.0 MiB) to ",
        "opened again and compared on 252 tokens of 4 rows (fixed pseudo-random tokens: the model belongs to no run",
        "(no bound: the values of a block are within half a step of the model's)",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(fs::read(&file).unwrap().starts_with(b"GGUF\x03\0\0\0"));
    assert!(place.refusal_of(&file, &["--format", "gguf"]).contains("small.gguf: exists; choose another name"));

    let rows = place.path("rows.jsonl");
    fs::write(&rows, "{\"prompt_ids\": [1, 2], \"completion_ids\": [3]}\n{\"prompt\": \"abab\"}\n").unwrap();
    let whole = place.path("whole.gguf");
    let told = place.export(&whole, &["--format", "gguf", "--rows", rows.to_str().unwrap()]).success().stdout;
    assert!(told.contains(&format!("compared on 3 tokens of 2 rows (of {})", rows.display())), "{told}");
    assert!(told.contains("log-probs differ by 0.0e0 at most (bound 1e-4)"), "{told}");
    assert!(told.contains("the same for 100.0%"), "{told}");
}

#[test]
fn a_directory_of_another_type_is_compared_with_its_model_and_exported_again() {
    let place = Exports::new();
    write_tokenizer(&place.path("model"));
    let out = place.path("bf16");
    let told = place.export(&out, &["--format", "safetensors", "--dtype", "bf16"]).success().stdout;
    assert!(told.contains("as safetensors (bf16, ") && told.contains("at most (no bound for tokens that"), "{told}");
    let config: serde_json::Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["torch_dtype"], "bfloat16");
    assert!(out.join("tokenizer.json").is_file());
    let size = |dir: &Path| fs::metadata(dir.join("model.safetensors")).unwrap().len();
    assert!(size(&out) * 2 < size(&place.path("model")) + 4096);
    let words = ["export", "--format", "gguf", "--dtype", "bf16", "--model"];
    let again = place.path("again.gguf");
    let paths = [out.as_path(), Path::new("--out"), &again];
    let words = words.iter().map(Path::new).chain(paths);
    let told = cli::run("tandem", words).success().stdout;
    assert!(told.contains("log-probs differ by 0.0e0 at most"), "bf16 is exact in bf16: {told}");
}

/// Rounding moves the log-probs of pseudo-random tokens far, in a model that has learned something.
#[test]
fn a_pretrained_model_goes_into_bf16_and_its_bound_holds_for_texts() {
    let Some(data) = data_dir("a_pretrained_model_goes_into_bf16_and_its_bound_holds_for_texts") else { return };
    let (place, model) = (Exports::new(), data.join("stories260K"));
    for (format, out) in [("safetensors", "folder"), ("gguf", "file.gguf")] {
        let told = place.export_of(&model, out, &["--format", format, "--dtype", "bf16"]).stdout;
        assert!(told.contains("no bound for tokens that a model holds for unlikely"), "{told}");
    }
    fs::write(place.path("rows.jsonl"), "{\"text\": \"Once upon a time there was a little girl.\"}\n").unwrap();
    let of_texts = ["--format", "safetensors", "--dtype", "bf16", "--rows", "rows.jsonl"];
    assert!(place.export_of(&model, "of-texts", &of_texts).stdout.contains("(bound 8e-2)"));
}

#[test]
fn a_folder_for_genai_is_run_by_onnx_runtime_before_it_appears() {
    let place = Exports::new();
    write_tokenizer(&place.path("model"));
    fs::write(place.path("model/tokenizer_config.json"), "{}").unwrap();
    for (dtype, words) in [("fp32", "bound 1e-4"), ("fp16", "bound 1e-2"), ("int8", "no bound"), ("int4", "no bound")] {
        let out = place.path(dtype);
        // Shorter than the rows would be otherwise.
        let flags = ["--format", "genai", "--dtype", dtype, "--max-positions", "48"];
        let told = place.export(&out, &flags).success().stdout;
        assert!(told.contains(&format!("as genai ({dtype}, ")) && told.contains(words), "{told}");
        assert!(told.contains("compared on 188 tokens of 4 rows"), "{told}");
        let config: serde_json::Value =
            serde_json::from_slice(&fs::read(out.join("genai_config.json")).unwrap()).unwrap();
        assert_eq!(config["model"]["context_length"], 48);
        assert!(!out.join("manifest.json").exists(), "GenAI takes it for its own");
        assert!(place.refusal_of(&out, &["--format", "genai"]).contains("the folder is not empty"));
    }
    let has_blocks = |dtype: &str| {
        let graph = fs::read(place.path(dtype).join("model.onnx")).unwrap();
        graph.windows(11).any(|window| window == b"MatMulNBits")
    };
    assert_eq!(["fp32", "fp16", "int8", "int4"].map(has_blocks), [false, false, true, true]);
    fs::remove_file(place.path("model/tokenizer_config.json")).unwrap();
    let error = place.refusal_of(&place.path("none"), &["--format", "genai"]);
    assert!(error.contains("has no tokenizer_config.json, which onnxruntime-genai needs"), "{error}");
}

#[test]
fn what_a_format_cannot_hold_is_one_line_and_leaves_nothing() {
    let place = Exports::new();
    let unknown = place.export(&place.path("out"), &["--format", "ggml"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        unknown.stderr.contains("ggml") && unknown.stderr.contains("onnx, safetensors, gguf, genai"),
        "{unknown:?}"
    );
    let out = place.path("out.gguf");
    let no_tokenizer = place.refusal_of(&out, &["--format", "gguf"]);
    assert!(no_tokenizer.contains("tokenizer.json: no such file"), "{no_tokenizer}");
    harness::tiny_model::write_tokenizer(&place.path("model"));
    for (words, expected) in [
        (&["--format", "gguf"][..], "neither BPE over bytes (`ByteLevel`) nor SentencePiece"),
        (&["--dtype", "bf16"], "--dtype bf16: onnx has fp32, fp16"),
        (&["--format", "safetensors", "--dtype", "q4_0"], "--dtype q4_0: safetensors has fp32, fp16, bf16"),
        (&["--format", "genai", "--dtype", "bf16"], "--dtype bf16: genai has fp32, fp16, int8, int4"),
        (&["--format", "gguf", "--dtype", "int4"], "--dtype int4: gguf has fp32, fp16, bf16, q8_0, q4_0"),
        (&["--rows", "x"], "--rows: an export to onnx is compared on no rows"),
        (&["--eval-rows", "8"], "--eval-rows: an export to onnx is not evaluated"),
        (&["--format", "gguf", "--max-positions", "8"], "--max-positions: gguf has no such limit"),
        (&["--format", "gguf", "--rows", "/no/rows.jsonl"], "--rows: /no/rows.jsonl"),
    ] {
        let error = place.refusal_of(&out, words);
        assert!(error.contains(expected), "{words:?}: {error}");
    }
    let folder = place.refusal_of(&place.path("model"), &["--format", "gguf"]);
    assert!(folder.contains("gguf is one file; name it, as in ") && folder.contains("model/model.gguf"), "{folder}");
    let full = place.refusal_of(&place.path("model"), &["--format", "safetensors"]);
    assert!(full.contains("--out: ") && full.contains("the folder is not empty"), "{full}");
    assert_eq!(fs::read_dir(place.path("")).unwrap().count(), 1, "the model alone is there");
}

/// A checkpoint of a run with prompts that it is trained on and, with `eval`, prompts that it is evaluated on.
fn run_with(place: &Exports, eval: bool) -> PathBuf {
    let run = place.path("run");
    let checkpoint = run.join("checkpoint-2");
    // In GGUF, rows of its queries and keys are in another order.
    copy_folder(&golden_dir().join("models/llama"), &checkpoint);
    write_tokenizer(&checkpoint);
    fs::write(checkpoint.join("tokenizer_config.json"), "{}").unwrap();
    let rows: String = (1..8).map(|n| format!("{{\"prompt\": \"{}\"}}\n", "ab".repeat(n) + "b")).collect();
    fs::write(place.path("rows.jsonl"), rows).unwrap();
    let eval = if eval { format!("eval_dataset = {:?}\n", place.path("rows.jsonl")) } else { String::new() };
    let config = format!(
        "model = {:?}\ndataset = {:?}\noutput_dir = {run:?}\nreward_funcs = [\"length:target=4\"]\n\
         max_completion_length = 12\n{eval}",
        checkpoint,
        place.path("rows.jsonl")
    );
    fs::write(run.join("config.toml"), config).unwrap();
    checkpoint
}

#[test]
fn the_effect_on_the_runs_evaluation_is_told_for_every_format() {
    let place = Exports::new();
    let checkpoint = run_with(&place, true);
    let export = |out: &str, words: &[&str]| {
        let finished = place.export_of(&checkpoint, out, words);
        assert!(!finished.stderr.contains("warning"), "{finished:?}");
        finished.stdout
    };
    for (format, dtype, same) in [
        ("safetensors", "fp32", true),
        ("safetensors", "bf16", false),
        ("gguf", "fp32", true),
        ("gguf", "q4_0", false),
        ("genai", "fp32", true),
        ("genai", "int4", false),
    ] {
        let out = format!("{format}-{dtype}");
        let told = export(&out, &["--format", format, "--dtype", dtype]);
        let effect = told.split_once("effect on the run's evaluation: ").unwrap_or_else(|| panic!("{out}: {told}")).1;
        let lines: Vec<&str> = effect.lines().collect();
        assert!(lines[0].starts_with("model and export answered 7 prompts of `eval_dataset` greedily, and "), "{told}");
        assert!(lines[1].starts_with("accuracy: ") && lines[2].starts_with("reward: "), "{told}");
        assert!(lines[2].contains("(95 % interval ") && lines[2].contains(" over 7 prompts; "), "{told}");
        // A model as it is answers as it does; whether a rounded one does is a matter of the model.
        let unchanged = lines[0].ends_with("and 100.0 % of the tokens are the same") && lines[2].contains("by +0.0000");
        assert!(unchanged || !same, "{out}: {told}");
        // Weights of 4 bits make another text of this model.
        assert!(!unchanged || !dtype.contains('4'), "{out}: {told}");
        if format == "safetensors" {
            let card = fs::read_to_string(place.path(&out).join("README.md")).unwrap();
            assert!(card.contains("## What the export changes\n\nGreedy answers to 7 prompts of"), "{card}");
            assert!(card.contains("\n| reward | "), "{card}");
        }
    }
    let few = export("few.gguf", &["--format", "gguf", "--eval-rows", "3"]);
    assert!(few.contains("answered 3 prompts of") && few.contains(" over 3 prompts; "), "{few}");
    let none = export("none.gguf", &["--format", "gguf", "--eval-rows", "0"]);
    assert!(!none.contains("effect") && none.contains("opened again"), "{none}");
    assert!(fs::read_dir(place.path("cache/exports")).unwrap().all(|entry| {
        let name = entry.unwrap().file_name();
        !name.to_str().unwrap().starts_with(".tmp-")
    }));
}

#[test]
fn an_effect_that_cannot_be_measured_keeps_no_export_back() {
    let place = Exports::new();
    let checkpoint = run_with(&place, false);
    let export = |model: &Path, out: &str| place.export_of(model, out, &["--format", "gguf"]);
    let trained = export(&checkpoint, "trained.gguf").stdout;
    assert!(trained.contains("7 prompts of `dataset` (the run names no `eval_dataset`) greedily"), "{trained}");
    fs::remove_file(place.path("rows.jsonl")).unwrap();
    let gone = export(&checkpoint, "gone.gguf");
    let warning = "warning: the effect on the run's evaluation is not known: `dataset`: ";
    assert!(gone.stderr.contains(warning) && gone.stderr.contains("rows.jsonl"), "{gone:?}");
    assert!(!gone.stdout.contains("effect") && place.path("gone.gguf").is_file(), "{gone:?}");
    write_tokenizer(&place.path("model"));
    let alone = export(&place.path("model"), "alone.gguf").stdout;
    assert!(alone.ends_with("the effect on an evaluation is not measured: the model belongs to no run\n"), "{alone}");
}
