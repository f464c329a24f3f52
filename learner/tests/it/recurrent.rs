//! Models with a state in some layers, with experts or with shared keys: texts that go through together are texts of
//! their own.

use learner::{
    batch::{MicroBatch, Sequence, split},
    model::{Decoder, LoadOptions, Parameters, Span, TokenGradients, adapter_config, load, load_adapter},
};
use proptest::prelude::*;
use shared::{ModelDir, config::TrainConfig};
use tch::{Device, Kind, Tensor};

/// One family for each kind of state, one with experts, and one whose layers share keys and values, to which the same
/// holds.
const FAMILIES: [&str; 6] = ["lfm2", "qwen3_5", "lfm3", "granite4_h", "qwen3_moe", "gemma4"];

/// Those without experts, whose adapters are on every linear layer that mixes tokens.
const ADAPTED: [&str; 5] = ["lfm2", "qwen3_5", "lfm3", "granite4_h", "gemma4"];

type Rows = Vec<(Vec<u32>, Vec<u32>)>;

fn model(family: &str) -> Option<ModelDir> {
    harness::has_golden_model(family).then(|| ModelDir::open(harness::golden_model_dir(family)).unwrap())
}

fn decoder(family: &str, options: LoadOptions) -> Option<Decoder> {
    tch::set_num_threads(1);
    model(family).map(|model| load(&model, options).unwrap())
}

fn double() -> LoadOptions {
    LoadOptions { kind: Kind::Double, ..LoadOptions::default() }
}

/// Log-probs of each row, and the gradients of their sum weighted by turns, through the passes that a budget makes.
fn differentiate(model: &Decoder, rows: &Rows, order: &[usize], budget: usize) -> (Vec<Vec<f64>>, Tensor) {
    let sequences: Vec<Sequence<'_>> = rows.iter().map(|(prompt, ids)| Sequence::new(prompt, ids)).collect();
    let mut gradients = model.weights().trained().gradients();
    let mut logprobs = vec![Vec::new(); rows.len()];
    for pass in split(&sequences, order, budget) {
        let batch = MicroBatch::new(&sequences, &pass, Device::Cpu);
        let weights = batch.per_token(|row| (row as f64 + 1.0).sin());
        let mut found = Vec::new();
        model.differentiate(&batch, 0.9, Span::Token, &mut gradients, &mut |run, stats| {
            found.extend(Vec::<f64>::try_from(stats.logprobs_N.to_kind(Kind::Double)).unwrap());
            let of_run = &weights[run.start as usize..run.end as usize];
            let of_run = Tensor::from_slice(of_run).to_kind(stats.logprobs_N.kind());
            TokenGradients::from(of_run)
        });
        for (&row, tokens) in batch.rows.iter().zip(&batch.tokens) {
            logprobs[row] = found[tokens.clone()].to_vec();
        }
    }
    (logprobs, gradients.flat().copy())
}

fn largest(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

fn rows() -> impl Strategy<Value = Rows> {
    let ids = |length: std::ops::Range<usize>| prop::collection::vec(1..240u32, length);
    // Some rows share a prompt, and some reach beyond a chunk of the rule.
    let group = (ids(1..90), prop::collection::vec(ids(1..70), 1..4));
    let of_group = |(prompt, completions): (Vec<u32>, Vec<Vec<u32>>)| {
        completions.into_iter().map(|ids| (prompt.clone(), ids)).collect::<Rows>()
    };
    prop::collection::vec(group, 1..4).prop_map(move |groups| groups.into_iter().flat_map(of_group).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Neither log-probs nor gradients depend on the other texts of a pass, on the order of the rows, or on whether a
    /// prompt goes through once for several rows.
    #[test]
    fn rows_are_the_same_alone_and_together(rows in rows(), budget in 1..400usize, seed in any::<u64>()) {
        for model in FAMILIES.iter().filter_map(|family| decoder(family, double())) {
            let order: Vec<usize> = (0..rows.len()).collect();
            let mut other = order.clone();
            other.sort_by_key(|&row| (row as u64 + 1).wrapping_mul(seed | 1));
            let (alone, expected) = differentiate(&model, &rows, &order, 1);
            for (order, budget) in [(&order, 1 << 20), (&other, budget)] {
                let (found, gradients) = differentiate(&model, &rows, order, budget);
                for (a, b) in found.iter().flatten().zip(alone.iter().flatten()) {
                    prop_assert!((a - b).abs() < 1e-10, "{} is not {}", a, b);
                }
                let largest = largest(&gradients, &expected);
                prop_assert!(largest < 1e-9, "gradients differ by {}", largest);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_its_neighbours_say() {
    let text = |start: u32, length: u32| (0..length).map(|i| 1 + (start + 7 * i) % 230).collect::<Vec<u32>>();
    let rows =
        |middle: u32| vec![(text(3, 70), text(5, 20)), (text(middle, 66), text(middle, 9)), (text(8, 2), text(1, 65))];
    for model in FAMILIES.iter().filter_map(|family| decoder(family, LoadOptions::default())) {
        let [one, other] = [11, 90].map(|middle| differentiate(&model, &rows(middle), &[0, 1, 2], 1 << 20).0);
        assert_eq!((&one[0], &one[2]), (&other[0], &other[2]));
        assert_ne!(one[1], other[1]);
    }
}

/// What decides a state's decay, and what else is exact, is the same number on both sides, to the last bit, although
/// the passes are rounded.
#[test]
fn decays_are_not_rounded_in_what_is_computed_with_and_what_is_published() {
    let families =
        [("qwen3_5", "linear_attn", &["A_log", "dt_bias"][..]), ("granite4_h", "mamba", &["A_log", "dt_bias", "D"])];
    for (family, block, names) in families {
        let options = LoadOptions { kind: Kind::BFloat16, ..LoadOptions::default() };
        for what in names {
            let (Some(trained), Some(frozen)) =
                (decoder(family, options), decoder(family, LoadOptions { trainable: false, ..options }))
            else {
                continue;
            };
            let (name, masters) = (format!("model.layers.0.{block}.{what}"), trained.weights().trained());
            let _ = slice(masters, masters.flat(), &name).g_add_scalar_(1e-4);
            let published = trained.weights().host().values(&name).unwrap().to_vec();
            assert_eq!(published, masters.read_f32(&name).unwrap(), "{family}: {what}");
            let rounded = trained.weights().base().read_f32(&name).unwrap();
            assert_ne!(published, rounded, "{family}: the rounded copy of {what} has other numbers");
            // The reference of a run is such a model.
            let rows: Rows = vec![((1..60).collect(), (7..40).collect())];
            let logprobs = |model: &Decoder| {
                let sequences: Vec<Sequence<'_>> =
                    rows.iter().map(|(prompt, ids)| Sequence::new(prompt, ids)).collect();
                let batch = MicroBatch::new(&sequences, &[0], Device::Cpu);
                Vec::<f64>::try_from(model.evaluate(&batch, 1.0).logprobs_N.to_kind(Kind::Double)).unwrap()
            };
            let moved = logprobs(&trained);
            let _ = slice(masters, masters.flat(), &name).g_add_scalar_(-1e-4);
            assert_eq!(logprobs(&trained), logprobs(&frozen), "{family}: {what}");
            assert_ne!(moved, logprobs(&frozen), "{family}: {what} that training moves is the one that passes read");
        }
    }
}

#[test]
fn layers_that_are_computed_again_give_the_same_bits() {
    let prompt: Vec<u32> = (1..80).collect();
    let rows: Rows = vec![(prompt.clone(), vec![9; 70]), (prompt.clone(), vec![4, 5, 6]), (vec![3], vec![7, 8])];
    for family in FAMILIES {
        let options = |gradient_checkpointing| LoadOptions { gradient_checkpointing, ..LoadOptions::default() };
        let (Some(kept), Some(again)) = (decoder(family, options(false)), decoder(family, options(true))) else {
            continue;
        };
        let [kept, again] = [kept, again].map(|model| differentiate(&model, &rows, &[0, 1, 2], 1 << 20));
        assert_eq!(kept, again, "{family}");
    }
}

/// Products are in bfloat16, and sums, states and routers are not. The tiny models' weights are steep, so the exact
/// model is one with the weights that the passes read, and a single log-prob may be far off where products have other
/// instructions. Every tensor's gradient counts by itself.
#[test]
fn bfloat16_is_near_with_every_tensor() {
    let prompt: Vec<u32> = (1..100).collect();
    let rows: Rows = vec![(prompt.clone(), vec![9; 20]), (prompt, vec![4, 5, 6])];
    for family in FAMILIES {
        let (Some(exact), Some(rounded)) = (
            decoder(family, double()),
            decoder(family, LoadOptions { kind: Kind::BFloat16, ..LoadOptions::default() }),
        ) else {
            continue;
        };
        let of_rounded = rounded.weights().base();
        // Scores that nothing scales are so steep in a tiny model that bfloat16 has no digits left for their gradients.
        let is_steep = |name: &str| family == "gemma4" && name.ends_with("q_norm.weight");
        for (name, _) in of_rounded.named().filter(|(name, _)| is_steep(name)) {
            let _ = slice(of_rounded, of_rounded.flat(), name).g_mul_scalar_(0.125);
        }
        let (of_exact, read) = (exact.weights().base(), rounded.weights().host());
        for (name, shape) in of_exact.named() {
            let values = Tensor::from_slice(read.values(name).unwrap()).view(shape).to_kind(Kind::Double);
            slice(of_exact, of_exact.flat(), name).copy_(&values);
        }
        let [(own, own_flat), (other, other_flat)] =
            [&exact, &rounded].map(|model| differentiate(model, &rows, &[0, 1], 1 << 20));
        let off = own.iter().flatten().zip(other.iter().flatten()).map(|(a, b)| (a - b).abs()).collect::<Vec<f64>>();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        assert!(mean < 0.15, "{family}: log-probs are off by {mean} on average, {off:?}");
        let other_flat = other_flat.to_kind(Kind::Double);
        for (name, _) in of_exact.named() {
            let [a, b] = [&own_flat, &other_flat].map(|flat| slice(of_exact, flat, name).reshape([-1]));
            let cosine = (a.dot(&b) / (a.norm() * b.norm())).double_value(&[]);
            assert!(cosine > 0.95 || a.norm().double_value(&[]) == 0.0, "{family}: {name} has the cosine {cosine}");
        }
    }
}

fn slice(parameters: &Parameters, flat: &Tensor, name: &str) -> Tensor {
    parameters.slice_of(flat, name).unwrap_or_else(|| panic!("no parameter {name}"))
}

/// With W' = W + s·B·A the chain rule gives dB = s·dW'·Aᵀ and dA = s·Bᵀ·dW', and the merged model is the same function.
#[test]
fn an_adapter_on_every_linear_layer_is_the_merged_model() {
    let prompt: Vec<u32> = (1..70).collect();
    let rows: Rows = vec![(prompt.clone(), vec![9; 20]), (prompt, vec![4, 5, 6])];
    for family in ADAPTED {
        let Some(model) = model(family) else { return };
        let config = TrainConfig { use_peft: true, lora_r: 3, lora_alpha: 6.0, ..TrainConfig::default() };
        let adapter = adapter_config(&config, &model).unwrap().unwrap();
        let of_mixers = match family {
            "qwen3_5" => ["in_proj_qkv", "out_proj"],
            "gemma4" => ["k_proj", "o_proj"],
            _ => ["in_proj", "out_proj"],
        };
        assert!(of_mixers.iter().all(|name| adapter.target_modules.iter().any(|target| target == name)));
        let (base, merged) = (load(&model, double()).unwrap(), load(&model, double()).unwrap());
        let parameters = load_adapter(&adapter, &model, None, 1, double()).unwrap();
        tch::manual_seed(3);
        let noise = Tensor::randn(parameters.flat().size(), (Kind::Double, Device::Cpu)) * 0.1;
        let _ = parameters.flat().shallow_clone().g_add_(&noise);
        let adapted = base.with_adapter(Some((adapter.clone(), parameters)));
        let (_, factors) = adapted.weights().adapter().unwrap();
        let modules = adapter.modules(model.config().parameters()).unwrap();
        let names = |module: &str| exporters::AdapterConfig::tensor_names(module);
        for (module, _) in &modules {
            let [a, b] = names(module).map(|name| slice(factors, factors.flat(), &name));
            let all = merged.weights().base();
            let _ = slice(all, all.flat(), &format!("{module}.weight")).g_add_(&(b.matmul(&a) * 2.0));
        }
        let [(own, own_flat), (other, other_flat)] =
            [&adapted, &merged].map(|model| differentiate(model, &rows, &[0, 1], 1 << 20));
        for (a, b) in own.iter().flatten().zip(other.iter().flatten()) {
            assert!((a - b).abs() < 1e-10, "{family}: {a} is not {b}");
        }
        for (module, _) in &modules {
            let whole = slice(merged.weights().base(), &other_flat, &format!("{module}.weight"));
            let [a, b] = names(module).map(|name| slice(factors, factors.flat(), &name));
            let expected = [b.tr().matmul(&whole) * 2.0, whole.matmul(&a.tr()) * 2.0];
            for (name, expected) in names(module).iter().zip(expected) {
                let found = slice(factors, &own_flat, name);
                let distance = (&found - &expected).norm() / expected.norm().clamp_min(1e-12);
                assert!(distance.double_value(&[]) < 1e-9, "{name}: {distance}");
            }
        }
    }
}
