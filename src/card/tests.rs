//! Cards of a run of an earlier build, and of models of which nothing is known.

use std::{fs, path::PathBuf};

use serde_json::Value;
use shared::metrics::MetricsFile;

use super::*;

/// A run of six steps with a checkpoint after four, in a folder of its own.
fn run() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/runs/sync");
    let run = dir.path().join("run");
    fs::create_dir_all(run.join("checkpoint-4")).unwrap();
    for name in ["config.toml", "metrics.jsonl"] {
        fs::copy(fixtures.join(name), run.join(name)).unwrap();
    }
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let name = format!("checkpoint-4/{name}");
        fs::copy(fixtures.join(&name), run.join(&name)).unwrap();
    }
    (dir, run)
}

fn subject(title: &str) -> Subject<'_> {
    Subject { title, repo: None, as_adapter: false, base: None }
}

fn card(model: &Path, subject: &Subject<'_>) -> String {
    text(&NamedModel::find(model).unwrap(), subject).unwrap()
}

/// The head of a card, as the Hub reads it.
fn head(card: &str) -> Value {
    let (head, _) = card.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
    serde_saphyr::from_str(head).unwrap()
}

#[test]
fn a_checkpoint_has_the_card_of_its_run_as_far_as_it_has_come() {
    let (dir, run) = run();
    let card = card(&run.join("checkpoint-4"), &subject("my-model"));
    let head = head(&card);
    assert_eq!(head["tags"], serde_json::json!(["tandem", "reinforcement-learning", "grpo", "dapo"]));
    assert_eq!((&head["library_name"], &head["pipeline_tag"]), (&"transformers".into(), &"text-generation".into()));
    for absent in ["base_model", "datasets", "license"] {
        assert!(head.get(absent).is_none(), "{absent}: {card}");
    }
    for line in [
        "# my-model",
        "| digits | 1 | `digits.py:digits` |",
        "learning_rate = 0.001",
        "reward_funcs = [\"digits.py:digits\"]",
        "model = \"model\"",
        "- Tandem 0.1.0 (it wrote this card)",
    ] {
        assert!(card.lines().any(|known| known == line), "{line}: {card}");
    }
    assert!(card.contains("trained with GRPO on `rows.jsonl`") && card.contains("- **Steps**: 4 of 6"), "{card}");
    let rows: Vec<&str> = card.lines().skip_while(|line| !line.starts_with("| steps ")).skip(2).collect();
    assert!(rows[0].starts_with("| 1 | 0.1146 | 11 |") && rows[3].starts_with("| 4 |"), "{card}");
    assert!(!rows.iter().any(|row| row.starts_with("| 5 |")), "steps after the checkpoint: {card}");
    for private in ["/fixture", dir.path().to_str().unwrap(), "output_dir", "rollout_threads"] {
        assert!(!card.contains(private), "{private}: {card}");
    }
}

#[test]
fn names_on_the_hub_and_the_licence_of_the_base_are_in_the_head() {
    let (dir, run) = run();
    let commit = "0123456789012345678901234567890123456789";
    let cached = |kind: &str| dir.path().join(format!("cache/{kind}/snapshots/{commit}"));
    let base = cached("models--owner--base");
    fs::create_dir_all(&base).unwrap();
    fs::write(base.join(FILE), "---\nlicense: other\nlicense_name: x-1\nlicense_link: LICENSE\n---\n# Base\n").unwrap();
    let config = fs::read_to_string(run.join("config.toml")).unwrap();
    let config = config.replace("/fixture/model", base.to_str().unwrap());
    let config = config.replace("/fixture/rows.jsonl", cached("datasets--openai--gsm8k").to_str().unwrap());
    let config = config.replace("use_peft = false", "use_peft = true\nsystem_prompt = \"Be <short>.\"");
    fs::write(run.join("config.toml"), config).unwrap();
    let mut evaluation = MetricRecord::default();
    evaluation.count(metrics::STEP, 4).set(metrics::AVG.of(1), 0.5).set(metrics::EVAL_ACCURACY, 0.5);
    MetricsFile::open(&run.join("eval.jsonl"), 0).unwrap().append(&evaluation).unwrap();

    let named = Subject { repo: Some("me/mine"), ..subject("mine") };
    let card = card(&run.join("checkpoint-4"), &named);
    let head = head(&card);
    let link = "https://huggingface.co/owner/base/blob/main/LICENSE";
    for (key, value) in [
        ("base_model", serde_json::json!(["owner/base"])),
        ("datasets", serde_json::json!(["openai/gsm8k"])),
        ("license", "other".into()),
        ("license_name", "x-1".into()),
        ("license_link", link.into()),
    ] {
        assert_eq!(head[key], value, "{key}: {card}");
    }
    assert!(
        card.contains("version of [owner/base](https://huggingface.co/owner/base), trained with GRPO on"),
        "{card}"
    );
    assert!(card.contains("[openai/gsm8k](https://huggingface.co/datasets/openai/gsm8k)"), "{card}");
    assert!(card.contains("| **4** (this model) | 0.5 |") && card.contains("model=\"me/mine\""), "{card}");
    assert!(card.contains(&format!("- model owner/base: commit `{commit}`")), "{card}");
    assert!(
        card.contains(&format!("model_revision = \"{commit}\"")) && card.contains("model = \"owner/base\""),
        "{card}"
    );
    assert!(!card.contains(dir.path().to_str().unwrap()), "{card}");

    // An adapter fits its base alone.
    let adapter = Subject { as_adapter: true, ..named };
    let card = super::text(&NamedModel::find(&run.join("checkpoint-4")).unwrap(), &adapter).unwrap();
    assert!(card.contains("library_name: peft") && card.contains("- lora\n"), "{card}");
    assert!(card.contains("This is a LoRA adapter on [owner/base]"), "{card}");
}

/// The code of a card finds a tokenizer where there is one: of a model that is sent without, in its base.
#[test]
fn the_code_takes_the_tokenizer_from_the_base_where_the_model_has_none() {
    let (_dir, run) = run();
    let model = run.join("checkpoint-4");
    let of_base = "model.peft_config[\"default\"].base_model_name_or_path";
    let [whole, adapter] =
        [false, true].map(|as_adapter| Subject { repo: Some("me/mine"), as_adapter, ..subject("mine") });
    let named = Subject { base: Some("owner/base"), ..whole };
    let has = |subject: &Subject<'_>, line: &str| {
        let card = card(&model, subject);
        assert!(card.contains(line), "{line}: {card}");
    };
    has(&whole, "pipeline(\"text-generation\", model=\"me/mine\")\n");
    has(&adapter, "tokenizer = AutoTokenizer.from_pretrained(\"me/mine\")\n");
    // Without its configuration, nobody knows the kind of an adapter's tokenizer.
    fs::remove_file(model.join("tokenizer_config.json")).unwrap();
    has(&whole, "pipeline(\"text-generation\", model=\"me/mine\")\n");
    has(&adapter, &format!("tokenizer = AutoTokenizer.from_pretrained({of_base})\n"));
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    has(&whole, "model=\"me/mine\", tokenizer=\"FOLDER_OR_NAME_OF_A_TOKENIZER\")\n");
    has(&named, "model=\"me/mine\", tokenizer=\"owner/base\")\n");
    has(&adapter, &format!("tokenizer = AutoTokenizer.from_pretrained({of_base})\n"));
}

#[test]
fn a_model_without_a_run_has_a_short_card() {
    let model = harness::tiny_model::ModelFolder::new();
    let card = card(&model.path("model"), &subject("a <b> | c"));
    assert!(card.contains("# a &lt;b> \\| c\n") && card.contains("belongs to no run of Tandem"), "{card}");
    assert_eq!(head(&card)["tags"], serde_json::json!(["tandem"]));
    assert!(!card.contains("## Training") && !card.contains("## Options"), "{card}");
}

#[test]
fn records_that_cannot_be_read_are_named() {
    let (_dir, run) = run();
    fs::write(run.join("config.toml"), "lerning_rate = 1\n").unwrap();
    let named = NamedModel::find(&run.join("checkpoint-4")).unwrap();
    let error = format!("{:#}", super::text(&named, &subject("x")).unwrap_err());
    assert!(error.contains("the options of its run") && error.contains("lerning_rate"), "{error}");
}
