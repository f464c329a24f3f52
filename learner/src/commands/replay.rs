//! `learner replay`: the loss lab's command line.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};
use shared::{
    RunDir,
    config::{OPTIONS, OptionSpec, TrainConfig, layers},
    metrics::{self, Figure, Metric, OPTIMISATION, POLICY},
};

use crate::{
    checkpoint::read_step_batch,
    cores, device,
    replay::{Replayed, cosine, fingerprint, replay},
};

/// Flags of `learner replay`.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tandem replay --run-dir DIR [--step N] [--device D] [--threads N] [--key value]...",
    after_help = "Every option of the training that follows the flags above is another than the run's, for instance\n\
                  --loss-type cispo --epsilon-high 5. Weights, completions and rewards stay those of the run: options\n\
                  that cannot act on a kept step are refused. The run must have been made with\n\
                  save_step_batches."
)]
pub struct Args {
    /// Run directory.
    #[arg(long)]
    pub run_dir: PathBuf,
    /// Step to train again, counted as in metrics.jsonl; the newest that was kept without it.
    #[arg(long)]
    pub step: Option<u64>,
    /// Where to compute: cpu or cuda.
    #[arg(long, default_value_t = TrainConfig::default().learner_device)]
    pub device: shared::config::Device,
    /// Threads; those of the run without it.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Options that differ from the run's.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub overrides: Vec<String>,
}

/// The metrics that are compared: those that depend on the method.
fn compared() -> impl Iterator<Item = &'static Metric> {
    let decided = [OPTIMISATION, POLICY].into_iter().flat_map(|section| section.metrics).copied();
    decided.chain([metrics::ROLLOUT_CORR_ROLLOUT_IS_EFF_SAMPLE_SIZE, metrics::FRAC_REWARD_ZERO_STD])
}

/// Prints a table and, as the last line on stdout, one JSON object.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let run_dir = RunDir::new(&args.run_dir);
    let original = layers::load(Some(&run_dir.config()), &Vec::new())?;
    let changed = layers::load(Some(&run_dir.config()), &layers::parse_overrides(&args.overrides)?)?;
    changed.validate()?;
    refuse_idle(&original, &changed)?;
    let step = chosen(args.step, &run_dir.step_batches()?, &args.run_dir)?;
    let dir = run_dir.step_batch(step);
    let groups = read_step_batch(&dir)?;
    let device = device::open(args.device)?;
    cores::set_threads(args.threads.or(original.learner_threads));
    let first = replay(&dir, &groups, &original, device).with_context(|| format!("step {step} as it was"))?;
    let second = replay(&dir, &groups, &changed, device).context("step with the changed options")?;
    report(step, &args.overrides, &first, &second)
}

/// Sections of options that say how a step is trained.
const OF_TRAINING: [&str; 8] = [
    "Batch and schedule",
    "Memory of the learner",
    "Advantages",
    "Critic (advantage_estimator gae)",
    "Objective",
    "Reference policy",
    "Mismatch between sampler and learner",
    "Optimiser",
];
/// Options of other sections that do so too.
const ALSO_OF_TRAINING: [&str; 11] = [
    "model",
    "reward_failure",
    "max_completion_length",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "structured_outputs_regex",
    "router_replay",
    "seed",
];

/// Refuses changed options that cannot act on a kept step: its completions and their rewards are there already. Its
/// figures would be the same, as if the option did not matter.
fn refuse_idle(original: &TrainConfig, changed: &TrainConfig) -> anyhow::Result<()> {
    let values = |config| serde_json::to_value(config).expect("a configuration is serialisable");
    let (before, now) = (values(original), values(changed));
    // The weights that are trained are the run's, and so are a critic and a reference that moves. Of `model` come the
    // base of an adapter, any other reference, and a critic that the run did not have.
    let critic = |config: &TrainConfig| config.advantage_estimator.spec().critic;
    let keeps_reference = changed.sync_ref_model && original.sync_ref_model && original.beta != 0.0;
    let reads_model = changed.use_peft
        || changed.beta != 0.0 && !keeps_reference
        || critic(changed) && !critic(original) && changed.critic_model.is_none();
    let acts = |option: &&OptionSpec| match option.key {
        "model" => reads_model,
        // A critic that the run had is the one that is saved.
        "critic_model" => critic(changed) && !critic(original),
        key => OF_TRAINING.contains(&option.section) || ALSO_OF_TRAINING.contains(&key),
    };
    let idle = OPTIONS.iter().filter(|option| before[option.key] != now[option.key] && !acts(option));
    let idle: Vec<String> = idle.map(|option| format!("`{}`", option.key)).collect();
    ensure!(
        idle.is_empty(),
        "{} cannot act on a kept step, whose weights, completions and rewards are those of the run; options of the \
         training can, as `loss_type`, `epsilon` or `learning_rate`, and --device and --threads",
        idle.join(", ")
    );
    Ok(())
}

/// The step that is asked for, if the run has kept it; without one, the newest that it has kept.
fn chosen(asked: Option<u64>, kept: &[u64], run_dir: &Path) -> anyhow::Result<u64> {
    let Some(newest) = kept.last() else {
        bail!("{} keeps no step: train with --save_step_batches", run_dir.display());
    };
    let step = asked.unwrap_or(*newest);
    ensure!(
        kept.contains(&step),
        "--step {step} was not kept; there are {}",
        kept.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    );
    Ok(step)
}

fn report(step: u64, overrides: &[String], original: &Replayed, changed: &Replayed) -> anyhow::Result<()> {
    let (as_it_was, now) = (figures(original)?, figures(changed)?);
    let gradient_cosine = cosine(&original.gradient, &changed.gradient);
    let change_cosine = cosine(&original.change, &changed.change);
    println!("step {step}; changed: {}", if overrides.is_empty() { "nothing".into() } else { overrides.join(" ") });
    println!("{:<38} {:>16} {:>16}", "", "as it was", "changed");
    for key in compared().map(|metric| metric.key) {
        if as_it_was[key].is_number() || now[key].is_number() {
            println!("{key:<38} {:>16} {:>16}", shown(&as_it_was[key]), shown(&now[key]));
        }
    }
    for (key, name) in [("change_norm", "change of the weights"), ("gradient", "bits of the first gradient")] {
        println!("{name:<38} {:>16} {:>16}", shown(&as_it_was[key]), shown(&now[key]));
    }
    println!("{:<38} {:>16} {:>16}", "cosine of the first gradient", "", shown(&gradient_cosine.into()));
    println!("{:<38} {:>16} {:>16}", "cosine of the change of the weights", "", shown(&change_cosine.into()));
    let answer = json!({
        "step": step,
        "overrides": overrides,
        "original": as_it_was,
        "changed": now,
        "gradient_cosine": gradient_cosine,
        "change_cosine": change_cosine,
    });
    println!("{answer}");
    Ok(())
}

fn figures(replayed: &Replayed) -> anyhow::Result<Value> {
    let mut figures: Map<String, Value> =
        compared().map(|metric| (metric.key.to_owned(), replayed.record.get(metric).into())).collect();
    figures.insert("gradient".into(), fingerprint(&replayed.gradient)?.into());
    figures.insert("gradient_norm".into(), replayed.gradient.norm().double_value(&[]).into());
    figures.insert("change_norm".into(), replayed.change.norm().double_value(&[]).into());
    Ok(figures.into())
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => format!("{:.6}", Figure(number.as_f64().unwrap_or(f64::NAN))),
        Value::String(text) => text.clone(),
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use shared::config::AdvantageEstimator;

    use super::*;

    #[test]
    fn options_that_cannot_act_on_a_kept_step_are_refused_by_name() {
        let run = TrainConfig::default();
        let weights = TrainConfig { reward_weights: vec![2.0], num_generations: 4, ..run.clone() };
        let error = refuse_idle(&run, &weights).unwrap_err().to_string();
        assert!(error.starts_with("`reward_weights`, `num_generations` cannot act on a kept step"), "{error}");
        let trained = TrainConfig { temperature: 0.5, epsilon: 0.1, learning_rate: 1e-3, seed: 7, ..run.clone() };
        refuse_idle(&run, &trained).unwrap();
        let other = TrainConfig { model: "other".into(), ..run.clone() };
        assert!(refuse_idle(&run, &other).unwrap_err().to_string().starts_with("`model` cannot act on a kept step"));
        for reads in [
            TrainConfig { beta: 0.1, ..other.clone() },
            TrainConfig { advantage_estimator: AdvantageEstimator::Gae, ..other.clone() },
        ] {
            refuse_idle(&run, &reads).unwrap();
        }
        let moving = TrainConfig { beta: 0.1, sync_ref_model: true, ..run.clone() };
        let critic = TrainConfig { advantage_estimator: AdvantageEstimator::Gae, ..run.clone() };
        for kept in [moving, critic] {
            let other = TrainConfig { model: "other".into(), ..kept.clone() };
            assert!(refuse_idle(&kept, &other).is_err(), "{:?}", kept.advantage_estimator);
        }
        let adapter = TrainConfig { use_peft: true, ..run };
        refuse_idle(&adapter, &TrainConfig { model: "other".into(), ..adapter.clone() }).unwrap();
        for known in OF_TRAINING {
            assert!(OPTIONS.iter().any(|option| option.section == known), "{known}");
        }
        for known in ALSO_OF_TRAINING {
            assert!(
                OPTIONS.iter().any(|option| option.key == known && !OF_TRAINING.contains(&option.section)),
                "{known}"
            );
        }
    }

    #[test]
    fn a_step_that_is_not_there_is_refused_with_those_that_are_or_with_the_option_that_keeps_them() {
        let of = |asked, kept: &[u64]| chosen(asked, kept, Path::new("run")).map_err(|error| error.to_string());
        assert_eq!((of(None, &[2, 3]), of(Some(2), &[2, 3])), (Ok(3), Ok(2)));
        assert_eq!(of(Some(1), &[2, 3]), Err("--step 1 was not kept; there are 2, 3".into()));
        for asked in [None, Some(1)] {
            assert_eq!(of(asked, &[]), Err("run keeps no step: train with --save_step_batches".into()));
        }
    }
}
