//! Scorers: the transformer of a language model under another head, and what a reward model learns with it.

use std::{fs, path::Path, process::Command};

use exporters::write_hf_scorer;
use harness::tiny_model::Qwen2;
use learner::{
    batch::Packer,
    model::{LoadOptions, Scorer, load, load_scorer},
    reward_model::{Answer, Pair, loss_and_gradients, rank, score},
};
use serde_json::{Value, json};
use shared::{Head, ModelDir, generation::rng::Stream};
use tch::{Kind, Tensor};

const SCORE: &str = "score.weight";

fn double() -> LoadOptions {
    LoadOptions { kind: Kind::Double, ..LoadOptions::default() }
}

fn golden(name: &str) -> ModelDir {
    ModelDir::open(harness::golden_model_dir(name)).unwrap()
}

/// A scorer with a head that is not 0.
fn scorer(name: &str) -> Scorer {
    let scorer = load_scorer(&golden(name), double()).unwrap();
    let mut head = scorer.weights().trained().slice_of(scorer.weights().trained().flat(), SCORE).unwrap();
    assert_eq!(head.abs().max().double_value(&[]), 0.0, "the head of a language model's directory starts at 0");
    let values: Vec<f64> = (0..head.numel()).map(|i| (i as f64 * 0.37).sin()).collect();
    head.copy_(&Tensor::from_slice(&values).view_as(&head));
    scorer
}

fn answer(stream: &mut Stream, length: u64, ends: &[usize]) -> Answer {
    Answer { tokens: (0..length).map(|_| stream.below(512) as u32).collect(), ends: ends.to_vec() }
}

fn pairs() -> Vec<Pair> {
    let stream = &mut Stream::new(&[5]);
    [(5, vec![4], 9, vec![2, 8], 0.0), (7, vec![1, 4, 6], 3, vec![2], 0.7), (12, vec![11], 2, vec![1], -0.4)]
        .into_iter()
        .map(|(a, a_ends, b, b_ends, margin)| Pair {
            chosen: answer(stream, a, &a_ends),
            rejected: answer(stream, b, &b_ends),
            margin,
        })
        .collect()
}

/// TRL's `RewardTrainer`: `-logsigmoid(chosen - rejected - margin).mean()`.
#[test]
fn a_margin_is_taken_off_the_lead() {
    let (scorer, mut pairs) = (scorer("qwen2"), pairs());
    let mean = |answer: &Answer| {
        let scores = score(&scorer, std::slice::from_ref(answer), 1 << 20).unwrap();
        scores.values().iter().sum::<f64>() / scores.values().len() as f64
    };
    let loss = |pair: &Pair| (1.0 + (mean(&pair.rejected) + pair.margin - mean(&pair.chosen)).exp()).ln();
    let expected = pairs.iter().map(loss).sum::<f64>() / pairs.len() as f64;
    let found = rank(&scorer, &pairs, 1 << 20).unwrap();
    assert!((found.loss - expected).abs() < 1e-9, "{} is not {expected}", found.loss);
    pairs.iter_mut().for_each(|pair| pair.margin = 0.0);
    let without = rank(&scorer, &pairs, 1 << 20).unwrap();
    assert!((without.loss - expected).abs() > 1e-3, "the margins count");
    assert_eq!(without.accuracy, found.accuracy, "pairs are ranked without them");
}

#[test]
fn a_scorer_sees_the_hidden_states_of_the_language_model() {
    let models = harness::golden_models();
    for name in models.iter().filter(|name| golden(name).config().refuses_scorers().is_none()) {
        let decoder = load(&golden(name), double()).unwrap();
        let scorer = load_scorer(&golden(name), double()).unwrap();
        // With a row of the language-model head as its head, a score is that token's logit.
        let key = if decoder.config().tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" };
        let head_VH = decoder.weights().trained().slice_of(decoder.weights().trained().flat(), key).unwrap();
        let mut own = scorer.weights().trained().slice_of(scorer.weights().trained().flat(), SCORE).unwrap();
        own.copy_(&head_VH.narrow(0, 17, 1));
        let mut packer = Packer::default();
        packer.stem(&[3, 99, 211]);
        packer.stem(&[7, 7, 250]);
        let ids = packer.finish(tch::Device::Cpu);
        // A score is not divided, as logits of Granite are.
        let logits = decoder.logits(&ids).narrow(1, 17, 1).squeeze_dim(1) * decoder.config().logits_scaling;
        let scores = scorer.evaluate(&ids, &Tensor::arange(6, (Kind::Int64, tch::Device::Cpu))).unwrap();
        for (i, score) in scores.iter().enumerate() {
            assert!((score - logits.double_value(&[i as i64])).abs() < 1e-12, "{name}");
        }
    }
}

#[test]
fn a_scorer_is_written_under_the_name_that_transformers_has_for_the_family() {
    let folder = tempfile::tempdir().unwrap();
    let families = [
        ("llama", "Llama"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("smollm3", "SmolLM3"),
        ("gemma3", "Gemma3Text"),
        ("olmo2", "Olmo2"),
        ("ministral3", "Ministral3"),
        ("phi3", "Phi3"),
        ("granite4", "GraniteMoeHybrid"),
        ("qwen3_moe", "Qwen3Moe"),
        ("lfm2", "Lfm2"),
    ];
    for (name, family) in families.into_iter().filter(|(name, _)| harness::golden_models().iter().any(|n| n == name)) {
        let (model, scorer, out) = (golden(name), scorer(name), folder.path().join(name));
        write_hf_scorer(&model, &out, &mut |name| Ok(scorer.weights().trained().read_f32(name).unwrap().into()))
            .unwrap();
        let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["architectures"], json!([format!("{family}ForSequenceClassification")]));
        assert!(load_scorer(&ModelDir::open(&out).unwrap(), double()).is_ok(), "{name}");
    }
}

#[test]
fn gradients_are_derivatives_and_do_not_depend_on_the_split() {
    tch::set_num_threads(1);
    let scorer = scorer("qwen2");
    let pairs = pairs();
    let all: Vec<&Pair> = pairs.iter().collect();
    let mut gradients = scorer.weights().trained().gradients();
    let loss = loss_and_gradients(&scorer, &all, 1 << 20, &mut gradients).unwrap();
    assert!((loss - rank(&scorer, &pairs, 1 << 20).unwrap().loss).abs() < 1e-12);
    let mut split = scorer.weights().trained().gradients();
    let again = loss_and_gradients(&scorer, &all, 1, &mut split).unwrap();
    assert!((loss - again).abs() < 1e-12);
    let difference = (gradients.flat() - split.flat()).abs().max().double_value(&[]);
    assert!(difference < 1e-12, "{difference}");
    for name in
        [SCORE, "model.norm.weight", "model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.up_proj.weight"]
    {
        let values =
            scorer.weights().trained().slice_of(scorer.weights().trained().flat(), name).unwrap().reshape([-1]);
        let gradient = scorer.weights().trained().slice_of(gradients.flat(), name).unwrap().reshape([-1]);
        let at = gradient.abs().argmax(0, false).int64_value(&[]);
        let shifted = |by: f64| {
            let _ = values.get(at).g_add_scalar_(by);
            let loss = rank(&scorer, &pairs, 1 << 20).unwrap().loss;
            let _ = values.get(at).g_add_scalar_(-by);
            loss
        };
        let numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
        let analytic = gradient.double_value(&[at]);
        assert!(
            (numeric - analytic).abs() < 1e-7 * (1.0 + analytic.abs()),
            "{name}: {analytic}, numerically {numeric}"
        );
    }
}

fn learner(args: &[&str]) -> Value {
    let run = Command::new(harness::binary("learner")).args(args).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let stdout = String::from_utf8(run.stdout).unwrap();
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

fn failure(args: &[&str]) -> String {
    let run = Command::new(harness::binary("learner")).args(args).output().unwrap();
    assert!(!run.status.success());
    String::from_utf8(run.stderr).unwrap()
}

/// Pairs whose better completion has the token 7 in it.
fn write_pairs(path: &Path, seed: u64, count: usize) {
    let mut stream = Stream::new(&[seed]);
    let rows = (0..count).map(|_| {
        let mut other = |n: u64| -> Vec<u64> { (0..n).map(|_| 8 + stream.below(32)).collect() };
        let (prompt, mut chosen, rejected) = (other(3), other(6), other(6));
        let at = chosen[0] as usize % 6;
        chosen[at] = 7;
        json!({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected,
               "chosen_ends": [2, 5], "rejected_ends": [2, 5]})
        .to_string()
    });
    fs::write(path, rows.collect::<Vec<_>>().join("\n")).unwrap();
}

fn write_model(dir: &Path) {
    let sizes = Qwen2 {
        vocab_size: 40,
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
    };
    sizes.write(dir, 3);
}

#[test]
fn a_reward_model_learns_what_makes_a_completion_better() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    write_model(&folder.path().join("model"));
    write_pairs(&folder.path().join("pairs.jsonl"), 1, 270);
    write_pairs(&folder.path().join("history.jsonl"), 2, 100);
    write_pairs(&folder.path().join("unseen.jsonl"), 3, 200);
    let (model, pairs, history) = (path("model"), path("pairs.jsonl"), path("history.jsonl"));
    for level in ["outcome", "steps"] {
        let output = path(level);
        let train = ["reward-model", "--model", &model, "--pairs", &pairs, "--output", &output, "--level", level];
        let flags = ["--history", &history, "--epochs", "3", "--learning-rate", "3e-3", "--threads", "1"];
        let summary = learner(&[&train[..], &flags].concat());
        assert_eq!((&summary["pairs"], &summary["accuracy_before"]), (&json!(270), &json!(0.5)), "{summary}");
        assert_eq!(summary["replayed"], 90, "a tenth of three passes over 300");
        assert!(summary["accuracy_after"].as_f64().unwrap() > 0.9, "{summary}");

        // What was written is a reward model that ranks pairs it has never seen.
        let written = ModelDir::open(&output).unwrap();
        assert_eq!(written.config().head, Head::Score { labels: 1 });
        let config: Value = serde_json::from_slice(&fs::read(written.path().join("config.json")).unwrap()).unwrap();
        assert_eq!(config["architectures"], json!(["Qwen2ForSequenceClassification"]));
        assert_eq!(config["id2label"], json!({"0": "LABEL_0"}));
        let scorer = load_scorer(&written, LoadOptions::default()).unwrap();
        let reader = learner::reward_model::Reader::new(&written, word(level), None).unwrap();
        let unseen = reader.pairs(&folder.path().join("unseen.jsonl")).unwrap();
        let ranking = rank(&scorer, &unseen, 512).unwrap();
        assert!(ranking.accuracy > 0.9, "{ranking:?}");

        // Going on from a reward model keeps its head.
        let again = path(&format!("{level}-again"));
        let more = ["reward-model", "--model", &output, "--pairs", &pairs, "--output", &again, "--level", level];
        let summary = learner(&[&more[..], &["--learning-rate", "0", "--threads", "1"]].concat());
        assert_eq!(summary["accuracy_before"], summary["accuracy_after"]);
        assert!(summary["accuracy_before"].as_f64().unwrap() > 0.9, "{summary}");
        let bytes = |dir: &str| fs::read(Path::new(dir).join("model.safetensors")).unwrap();
        assert_eq!(bytes(&output), bytes(&again));
    }
}

fn word(level: &str) -> learner::reward_model::Level {
    serde_json::from_value(level.into()).unwrap()
}

#[test]
fn scores_of_completions_are_written_for_every_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    write_model(&folder.path().join("model"));
    write_pairs(&folder.path().join("pairs.jsonl"), 1, 20);
    let rows = [
        json!({"prompt_ids": [8, 9], "completion_ids": [7, 10, 11], "ends": [0, 2]}),
        json!({"prompt_ids": [8], "token_ids": [7, 10, 11, 12]}),
    ];
    fs::write(path("in.jsonl"), rows.map(|row| row.to_string()).join("\n")).unwrap();
    let (model, output) = (path("model"), path("rm"));
    let pairs = path("pairs.jsonl");
    let train = ["reward-model", "--model", &model, "--pairs", &pairs, "--output", &output];
    learner(&[&train[..], &["--learning-rate", "1e-2", "--threads", "1"]].concat());
    let (input, scored) = (path("in.jsonl"), path("out.jsonl"));
    let flags = ["--model", &output, "--input", &input, "--output", &scored, "--level", "steps", "--threads", "1"];
    learner(&[&["score"][..], &flags].concat());
    let found: Vec<Vec<f64>> = fs::read_to_string(&scored)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_value(serde_json::from_str::<Value>(line).unwrap()["scores"].clone()).unwrap())
        .collect();
    let scorer = load_scorer(&ModelDir::open(&output).unwrap(), LoadOptions::default()).unwrap();
    let answers = [
        Answer { tokens: vec![8, 9, 7, 10, 11], ends: vec![2, 4] },
        Answer { tokens: vec![8, 7, 10, 11, 12], ends: vec![4] },
    ];
    for (found, expected) in found.iter().flatten().zip(score(&scorer, &answers, 1).unwrap().values()) {
        assert!((found - expected).abs() < 1e-6 && *found != 0.0);
    }
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn texts_become_tokens_with_an_end_where_no_steps_are_named_and_the_last_ones_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path());
    harness::tiny_model::write_tokenizer(folder.path());
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap();
    fs::write(folder.path().join("config.json"), config.replace("\"vocab_size\":40", "\"vocab_size\":97")).unwrap();
    let model = ModelDir::open(folder.path()).unwrap();
    let row = json!({"prompt": "ab", "chosen": "cde", "rejected": "f", "chosen_ends": [0, 2], "rejected_ends": [0]});
    let file = folder.path().join("pairs.jsonl");
    fs::write(&file, row.to_string()).unwrap();
    let read = |level, length| learner::reward_model::Reader::new(&model, word(level), length).unwrap().pairs(&file);
    // One token per character, 2 for the space.
    let ids = |text: &str| -> Vec<u32> { text.bytes().map(|b| u32::from(b) - 30).collect() };
    let ended = |text: &str| [ids(text), vec![model.generation().eos_token_ids[0]]].concat();
    let whole = read("outcome", None).unwrap().remove(0);
    assert_eq!(whole.chosen, Answer { tokens: ended("abcde"), ends: vec![5] });
    assert_eq!(whole.rejected, Answer { tokens: ended("abf"), ends: vec![3] });
    assert_eq!(read("steps", None).unwrap()[0].chosen.ends, [2, 4]);
    let cut = read("steps", Some(2)).unwrap().remove(0);
    assert_eq!(cut.chosen, Answer { tokens: ids("de"), ends: vec![1] });
    assert_eq!(cut.rejected, Answer { tokens: ids("bf"), ends: vec![1] });
}

#[test]
fn unusable_pairs_and_flags_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    write_model(&folder.path().join("model"));
    let (model, pairs, output) = (path("model"), path("pairs.jsonl"), path("out"));
    let start = ["reward-model", "--model", &model, "--pairs", &pairs, "--output", &output, "--threads", "1"];
    let good = json!({"prompt_ids": [8], "chosen_ids": [7], "rejected_ids": [9]});
    for (row, flags, word) in [
        (json!({"prompt_ids": [8], "chosen_ids": [7]}), &[][..], "rejected"),
        (json!({"prompt_ids": [8], "chosen_ids": [7], "rejected_ids": [99]}), &[], "vocabulary"),
        (json!({"prompt": "a", "chosen": "b", "rejected": "c"}), &[], "tokenizer.json"),
        (json!({"prompt_ids": [8], "chosen_ids": [], "rejected_ids": [9]}), &[], "no token"),
        (
            json!({"prompt_ids": [8], "chosen_ids": [7], "rejected_ids": [9], "chosen_ends": [3]}),
            &["--level", "steps"],
            "ends",
        ),
        (good.clone(), &["--history-share", "1"], "--history-share"),
        (good.clone(), &["--epochs", "0"], "--epochs"),
        (good, &["--history", "/nowhere"], "/nowhere"),
    ] {
        fs::write(&pairs, row.to_string()).unwrap();
        let message = failure(&[&start[..], flags].concat());
        assert!(message.lines().last().unwrap().starts_with("error: ") && message.contains(word), "{message}");
        assert!(!Path::new(&output).exists());
    }
}

#[test]
fn no_scorer_is_made_of_a_family_that_has_no_class_of_them() {
    let name = "gemma4";
    if !harness::has_golden_model(name) {
        return;
    }
    let error = load_scorer(&golden(name), double()).unwrap_err().to_string();
    assert!(error.contains("gemma4_text") && error.contains("gemma3_text"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let written = write_hf_scorer(&golden(name), &folder.path().join("out"), &mut |_| unreachable!("refused before"));
    assert!(written.unwrap_err().to_string().contains("gemma4_text"));
}
