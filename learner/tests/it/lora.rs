//! Low-rank adapters: gradients, what is trained, and what is refused.

use exporters::{AdapterConfig, ExportOptions};
use learner::{
    batch::{MicroBatch, Sequence},
    checkpoint::open_trainer,
    model::{Decoder, LoadOptions, Parameters, Span, TokenGradients, adapter_config, load, load_adapter},
    step::{StepBatch, evaluate},
};
use shared::{BaseFormat, ModelDir, PolicyVersion, config::TrainConfig};
use tch::{Device, Kind, Tensor};

use crate::support;

/// An adapter of rank 3 on some of the layers, with a scaling that is no power of two.
fn config() -> TrainConfig {
    TrainConfig {
        use_peft: true,
        lora_r: 3,
        lora_alpha: 5.0,
        use_rslora: true,
        lora_target_modules: ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"].map(str::to_owned).to_vec(),
        warmup_steps: 0,
        ..support::config("unused.jsonl".into())
    }
}

fn sequences() -> Vec<(Vec<u32>, Vec<u32>)> {
    let prompt = vec![7, 8, 9, 10];
    vec![(prompt.clone(), vec![20, 21, 22, 23, 24]), (prompt.clone(), vec![30, 31]), (prompt, vec![40, 41, 42])]
}

/// Log-probs, and gradients of their sum weighted by turns.
fn differentiate(model: &Decoder) -> (Vec<f64>, Tensor) {
    let owned = sequences();
    let sequences: Vec<_> = owned.iter().map(|(prompt, completion)| Sequence::new(prompt, completion)).collect();
    let batch = MicroBatch::new(&sequences, &[0, 1, 2], Device::Cpu);
    let (mut gradients, mut logprobs) = (model.weights().trained().gradients(), Vec::new());
    model.differentiate(&batch, 0.9, Span::Token, &mut gradients, &mut |run, stats| {
        logprobs.extend(Vec::<f64>::try_from(&stats.logprobs_N).unwrap());
        let weights: Vec<f64> = run.map(|i| 0.3 + f64::from(i as i32 % 3) - 1.0).collect();
        TokenGradients::from(Tensor::from_slice(&weights))
    });
    (logprobs, gradients.flat().copy())
}

fn slice(parameters: &Parameters, flat: &Tensor, name: &str) -> Tensor {
    parameters.slice_of(flat, name).unwrap_or_else(|| panic!("no parameter {name}"))
}

/// On a text model within a whole, each layer is named in the file, where the run has the ends of names.
#[test]
fn a_saved_adapter_is_loaded_again_also_within_a_whole_model() {
    let (config, model) = (config(), ModelDir::open(support::model()).unwrap());
    let options = LoadOptions::default();
    for wrapped in [false, true] {
        let adapter = AdapterConfig { wrapped, ..adapter_config(&config, &model).unwrap().unwrap() };
        let first = load_adapter(&adapter, &model, None, 7, options).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| {
            let values: Vec<f32> = slice(&first, first.flat(), name).flatten(0, -1).try_into().unwrap();
            Ok(values.into())
        };
        exporters::fill_adapter(dir.path(), &adapter, model.config().parameters(), &mut { read }).unwrap();
        let again = load_adapter(&adapter, &model, Some(dir.path()), 8, options).unwrap();
        assert!(again.flat().equal(first.flat()), "wrapped {wrapped}");
        let other = AdapterConfig { target_modules: vec!["q_proj".into()], ..adapter };
        let error = load_adapter(&other, &model, Some(dir.path()), 8, options).unwrap_err().to_string();
        assert!(error.contains("the run asks for rank 3 on q_proj"), "{error}");
    }
}

/// With W' = W + s·B·A the chain rule gives dB = s·dW'·Aᵀ and dA = s·Bᵀ·dW', and the merged model is the same function.
#[test]
fn an_adapter_is_the_merged_model_and_so_are_its_gradients() {
    tch::set_num_threads(1);
    let (config, model) = (config(), ModelDir::open(support::model()).unwrap());
    let options = LoadOptions { kind: Kind::Double, ..LoadOptions::default() };
    let adapter = adapter_config(&config, &model).unwrap().unwrap();
    let (base, merged) = (load(&model, options).unwrap(), load(&model, options).unwrap());
    let parameters = load_adapter(&adapter, &model, None, 1, options).unwrap();
    tch::manual_seed(3);
    let noise = Tensor::randn(parameters.flat().size(), (Kind::Double, Device::Cpu)) * 0.1;
    let _ = parameters.flat().shallow_clone().g_add_(&noise);
    let adapted = base.with_adapter(Some((adapter.clone(), parameters)));
    let (_, factors) = adapted.weights().adapter().unwrap();
    let modules = adapter.modules(model.config().parameters()).unwrap();
    assert_eq!(modules.len(), 5 * model.config().num_hidden_layers);
    let scaling = 5.0 / 3.0f64.sqrt();
    let names = |module: &str| AdapterConfig::tensor_names(module);
    for (module, _) in &modules {
        let [a, b] = names(module).map(|name| slice(factors, factors.flat(), &name));
        let all = merged.weights().base();
        let _ = slice(all, all.flat(), &format!("{module}.weight")).g_add_(&(b.matmul(&a) * scaling));
    }
    let ((own, own_flat), (other, other_flat)) = (differentiate(&adapted), differentiate(&merged));
    for (a, b) in own.iter().zip(&other) {
        assert!((a - b).abs() < 1e-11, "{a} is not {b}");
    }
    for (module, _) in &modules {
        let whole = slice(merged.weights().base(), &other_flat, &format!("{module}.weight"));
        let [a, b] = names(module).map(|name| slice(factors, factors.flat(), &name));
        let expected = [b.tr().matmul(&whole) * scaling, whole.matmul(&a.tr()) * scaling];
        for (name, expected) in names(module).iter().zip(expected) {
            let found = slice(factors, &own_flat, name);
            let distance = (&found - &expected).norm().double_value(&[]) / expected.norm().double_value(&[]);
            assert!(distance < 1e-11, "{name}: {distance}");
        }
    }
}

/// Passes widen the codes to the very numbers that the export of the base has for the sampler, and so do the gradients
/// of the adapter, with layers kept or computed again.
#[test]
fn a_quantised_base_is_the_model_of_its_export() {
    tch::set_num_threads(1);
    let config = TrainConfig { lora_target_modules: Vec::new(), ..config() };
    let folder = tempfile::tempdir().unwrap();
    let formats = [(BaseFormat::Int8, Kind::Float), (BaseFormat::Nf4, Kind::Float), (BaseFormat::Nf4, Kind::BFloat16)];
    for (family, (format, kind)) in
        harness::golden_models().into_iter().flat_map(|family| formats.map(|format| (family.clone(), format)))
    {
        let model = ModelDir::open(harness::golden_model_dir(&family)).unwrap();
        let options = ExportOptions { base: Some(format), ..ExportOptions::default() };
        let case = format!("{family}-{format}-{kind:?}");
        let [export, whole] = ["export", "whole"].map(|name| folder.path().join(format!("{case}-{name}")));
        exporters::export(&model, &export, &options).unwrap();
        exporters::version_to_hf(&model, &export, &whole).unwrap();
        let whole = ModelDir::open(&whole).unwrap();
        let adapted = |model: &ModelDir, base| {
            let options = LoadOptions { kind, base, gradient_checkpointing: base.is_some(), ..LoadOptions::default() };
            let adapter = adapter_config(&config, model).unwrap().unwrap();
            let parameters = load_adapter(&adapter, model, None, 1, options).unwrap();
            tch::manual_seed(3);
            let noise = Tensor::randn(parameters.flat().size(), (Kind::Float, Device::Cpu)) * 0.1;
            let _ = parameters.flat().shallow_clone().g_add_(&noise);
            load(model, LoadOptions { trainable: false, ..options }).unwrap().with_adapter(Some((adapter, parameters)))
        };
        let (quantised, plain) = (adapted(&model, Some(format)), adapted(&whole, None));
        let held = |model: &Decoder| model.weights().base().flat().numel();
        assert!(held(&quantised) < held(&plain), "{case}: matrices are held twice");
        let ((own, own_gradient), (other, gradient)) = (differentiate(&quantised), differentiate(&plain));
        assert_eq!(own, other, "{case}");
        assert!(own_gradient.equal(&gradient), "{case}");
        assert_ne!(own, differentiate(&adapted(&model, None)).0, "{case}: nothing was rounded");
    }
}

#[test]
fn training_moves_the_adapter_alone_and_begins_as_the_model() {
    let config = TrainConfig { beta: 0.1, ..config() };
    let model = ModelDir::open(support::model()).unwrap();
    let plain = load(&model, LoadOptions { trainable: false, ..LoadOptions::default() }).unwrap();
    let (mut trainer, _) = open_trainer(&config, &model, None, Device::Cpu).unwrap();
    let owned = sequences();
    let sequences: Vec<_> = owned.iter().map(|(prompt, completion)| Sequence::new(prompt, completion)).collect();
    let logprobs = |model: &Decoder| evaluate(model, &sequences, &[0, 1, 2], 1.0, 64, Device::Cpu).unwrap().logprobs;
    let begin = logprobs(&plain);
    assert_eq!(logprobs(trainer.policy().model()), begin, "B is 0");
    let batch = support::groups(&config, 3);
    let trained = trainer.step(&StepBatch::new(&batch, &config, PolicyVersion(3)), 3).unwrap();
    let weights = trainer.policy().model().weights();
    assert!(weights.base().flat().equal(plain.weights().base().flat()), "the base stays");
    assert_ne!(logprobs(trainer.policy().model()), begin);
    assert!(weights.trained().flat().numel() < weights.base().flat().numel() / 4);
    // Another trainer of the same seed says what the reference is: the model without its adapter.
    let (rows, reference) = (&trained.inputs.ref_logprobs, &trained.inputs.old_logprobs);
    let first = rows.rows().zip(reference.rows()).filter(|(r, _)| !r.is_empty());
    for (a, b) in first.flat_map(|(a, b)| a.iter().zip(b)) {
        assert!((a - b).abs() < 1e-5, "{a} is not {b}: before the first update policy and reference are the same");
    }
}

#[test]
fn the_checkpoint_of_an_adapter_has_the_tokenizer_of_its_base() {
    let config = config();
    // A copy whose files are known by their content.
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base");
    shared::files::atomic::write_dir(&base, |dir| shared::files::atomic::copy_files(&support::model(), dir)).unwrap();
    let companions = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
    for name in companions {
        std::fs::write(base.join(name), format!("{{\"this is\": \"{name}\"}}")).unwrap();
    }
    let model = ModelDir::open(&base).unwrap();
    let (trainer, state) = open_trainer(&config, &model, None, Device::Cpu).unwrap();
    let checkpoint = folder.path().join("checkpoint-1");
    std::fs::create_dir(&checkpoint).unwrap();
    learner::checkpoint::fill(&checkpoint, &model, &trainer, &state).unwrap();
    for name in companions {
        let [found, meant] = [&checkpoint, &base].map(|dir| std::fs::read_to_string(dir.join(name)).ok());
        assert!(found.is_some() && found == meant, "{name}");
    }
    assert!(!checkpoint.join("config.json").exists(), "that is the base's, and would make a model of the adapter");
}

#[test]
fn what_no_adapter_can_be_is_refused_by_its_option() {
    let model = ModelDir::open(support::model()).unwrap();
    let config = TrainConfig { lora_target_modules: vec!["qproj".into()], ..config() };
    let error = open_trainer(&config, &model, None, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("`lora_target_modules`") && error.contains("qproj"), "{error}");
    let model = ModelDir::open(harness::golden_dir().join("adapters/qwen2")).unwrap();
    let error = open_trainer(&self::config(), &model, None, Device::Cpu).unwrap_err().to_string();
    assert!(error.contains("is an adapter itself; merge it first: tandem merge"), "{error}");
}
