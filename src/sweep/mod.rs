//! `tandem sweep`: a run for each combination of values, and a table of the results.
//!
//! Each run is a `tandem train` of its own in a folder of the sweep's `output_dir`. All that is known of a run is read
//! from its folder, so the command can be repeated after an interruption: finished runs are not made again, and others
//! go on. A run that fails is a row of the table.

mod grid;
mod row;
mod table;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Mutex,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use shared::{
    RunDir,
    config::{TrainConfig, layers},
    files::atomic,
    metrics::Figure,
    run::resume,
};
use shared_bounds::{OneLine, read_text};

use crate::{
    import_config,
    programs::tool::{self, Words},
    terminal::{
        output,
        signals::{self, Interrupted},
    },
    train,
};
use grid::Setting;
use row::{Row, State};

/// The record of the sweep, in its folder.
const RECORD: &str = "sweep.json";

/// How long a run may take to end once the user has asked for the end: it makes its step and a checkpoint first.
const AFTER_TERM: Duration = Duration::from_secs(600);

/// Words of `tandem sweep`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tandem sweep [RUN.toml] --key value,value... [--key value]... [--jobs N] [--dry-run]")]
pub struct Args {
    /// The configuration file, then options as for `tandem train`, of which some have several values.
    ///
    /// `--learning_rate 1e-6,1e-5 --seed 1,2,3` makes six runs. Options that take lists or texts are varied by a table
    /// `[sweep]` in RUN.toml: `reward_funcs = [["format"], ["format", "length"]]`. `--jobs N` makes N runs at once,
    /// `--jobs max` as many as memory holds; `--dry-run` lists the runs.
    #[arg(value_name = "RUN.toml", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs `tandem sweep`. The table goes to stderr; the last line on stdout is one JSON object.
pub fn run(args: &Args) -> Result<ExitCode> {
    let sweep = Sweep::new(&args.words)?;
    if sweep.dry_run {
        sweep.runs.iter().for_each(|run| output::print(grid::words(&run.setting)));
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        !RunDir::new(&sweep.root).config().exists(),
        "`output_dir` {} is the folder of a run: name another one with --output_dir",
        sweep.root.display()
    );
    fs::create_dir_all(&sweep.root).with_context(|| format!("`output_dir` {}", sweep.root.display()))?;
    // A second process would make the same runs.
    let _lock = train::hold(&sweep.root.join("sweep.lock"), &sweep.root, Duration::ZERO)?;
    let at_once = sweep.check()?;
    let rows = sweep.rows()?;
    let done = rows.iter().filter(|row| row.state.is_final()).count();
    let before = if done > 0 { format!(", {done} of them done before") } else { String::new() };
    output::tell(format_args!("{} runs in {}{before}, {at_once} at once", rows.len(), sweep.root.display()));
    let rows = Mutex::new(rows);
    let interrupted = sweep.make(&rows, at_once);
    let rows = rows.into_inner().expect("no thread has panicked");
    let settings: Vec<Setting> = sweep.runs.iter().map(|run| run.setting.clone()).collect();
    let figure = sweep.runs[0].config.metric_for_best_model.as_deref().unwrap_or("reward");
    let compared = table::compare(&settings, &rows, figure, sweep.greater_is_better());
    output::tell(format_args!("\n{}", table::text(&settings, &rows, &compared, figure).trim_end()));
    output::print(json!({ "runs": rows, "settings": compared, "figure": figure }));
    interrupted?;
    let failed = rows.iter().filter(|row| row.state == State::Failed).count();
    ensure!(failed == 0, "{failed} of {} runs failed; the same command tries them again", rows.len());
    Ok(ExitCode::SUCCESS)
}

/// A run of the sweep.
struct Run {
    name: String,
    setting: Setting,
    config: TrainConfig,
}

struct Sweep {
    root: PathBuf,
    runs: Vec<Run>,
    jobs: Jobs,
    dry_run: bool,
}

/// Runs at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Jobs {
    Number(u64),
    Max,
}

impl Jobs {
    fn parse(text: &str) -> Result<Self> {
        match (text, text.parse()) {
            ("max", _) => Ok(Self::Max),
            (_, Ok(number)) if number > 0 => Ok(Self::Number(number)),
            _ => bail!("--jobs must be a number of runs of at least 1, or `max`, got {text}"),
        }
    }
}

impl Sweep {
    /// Reads words and file, and makes the configuration of each run.
    fn new(words: &[String]) -> Result<Self> {
        let (file, options) = layers::file_and_options(words);
        let mut options = options.to_vec();
        let dry_run = options.iter().any(|word| word == "--dry-run" || word == "--dry_run");
        options.retain(|word| word != "--dry-run" && word != "--dry_run");
        let jobs = train::take(&mut options, "--jobs", "2")?.map_or(Ok(Jobs::Number(1)), |text| Jobs::parse(&text))?;
        if let Some(file) = file.filter(|file| import_config::is_foreign(file)) {
            // A file that cannot be translated has a reason of its own.
            import_config::Imported::read(file, None)?;
            bail!(
                "{}: a sweep takes a run.toml; `tandem import-config {0} --output run.toml` makes one of this file",
                file.display()
            );
        }
        let text = match file {
            Some(file) => read_text(file, layers::MOST_BYTES).with_context(|| file.display().to_string())?,
            None => String::new(),
        };
        let path = file.unwrap_or(Path::new("run.toml"));
        let (text, table) = grid::split(&text, path)?;
        let overrides = layers::parse_overrides(&options).map_err(train::explained)?;
        let (axes, single) = grid::axes(table, file, &overrides)?;
        let settings = grid::combinations(&axes)?;
        let names = grid::names(&settings);
        let mut runs = Vec::new();
        let mut root = PathBuf::new();
        for (setting, name) in settings.into_iter().zip(names) {
            let values = setting.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
            let overrides: layers::Overrides = single.iter().cloned().chain(values).collect();
            let mut config = layers::parse_named(&text, path, &overrides).map_err(train::explained)?;
            train::make_absolute(&mut config)?;
            root.clone_from(&config.output_dir);
            config.output_dir = root.join(&name);
            runs.push(Run { name, setting, config });
        }
        Ok(Self { root, runs, jobs, dry_run })
    }

    fn greater_is_better(&self) -> bool {
        let metric = self.runs[0].config.best_metric().ok().flatten();
        metric.is_none_or(|metric| metric.greater_is_better)
    }

    /// Looks at everything that would keep a run from starting, before the first one starts. Returns the number of runs
    /// at once.
    fn check(&self) -> Result<usize> {
        let mut at_once = u64::MAX;
        let mut looked_at = HashSet::new();
        for run in &self.runs {
            let mut config = run.config.clone();
            if RunDir::new(&config.output_dir).checkpoints().is_ok_and(|list| !list.is_empty()) {
                config.resume_from_checkpoint = Some("latest".to_owned());
            }
            let checked = train::resolved_plan(config).and_then(|(config, plan)| {
                // A run without a checkpoint begins anew.
                if config.resume_from_checkpoint.is_some() {
                    Self::refuse_other_options(run, &config)?;
                }
                if looked_at.insert(grid::words(&grid::names_code(&run.setting))) {
                    train::check_code(&config)?;
                }
                Ok(plan.at_once())
            });
            at_once = at_once.min(checked.with_context(|| grid::words(&run.setting))?);
        }
        let runs = self.runs.len() as u64;
        let chosen = match self.jobs {
            Jobs::Max => at_once.max(1).min(runs),
            Jobs::Number(number) if number > at_once.max(1) => {
                bail!("--jobs {number}: memory holds {} of these runs at once", at_once.max(1))
            }
            Jobs::Number(number) => number.min(runs),
        };
        Ok(usize::try_from(chosen)?)
    }

    /// A run that was made with other options is no run of this sweep.
    fn refuse_other_options(run: &Run, config: &TrainConfig) -> Result<()> {
        let saved = RunDir::new(&run.config.output_dir).config();
        let saved = layers::load(Some(&saved), &Vec::new()).map_err(train::explained)?;
        let changes = resume::changed_options(&serde_json::to_value(&saved)?, config);
        match changes.first() {
            None => Ok(()),
            Some(change) => bail!(
                "was made with another option before ({change}): choose another `output_dir`, or remove {}",
                run.config.output_dir.display()
            ),
        }
    }

    fn row(&self, run: &Run) -> Result<Row> {
        Row::of(&run.name, &run.setting, &run.config.output_dir, &run.config)
    }

    fn rows(&self) -> Result<Vec<Row>> {
        self.runs.iter().map(|run| self.row(run)).collect()
    }

    /// Makes the runs that have no result yet, in their order, some at once.
    ///
    /// # Errors
    /// When the user asks for the end; the rows are as they stand then.
    fn make(&self, rows: &Mutex<Vec<Row>>, at_once: usize) -> Result<()> {
        let done = |rows: &[Row], at: usize| rows[at].state.is_final();
        let wanted: Vec<usize> = {
            let rows = rows.lock().expect("no thread has panicked");
            (0..self.runs.len()).filter(|&at| !done(&rows, at)).collect()
        };
        let next = Mutex::new(wanted.into_iter());
        let work = || -> Result<()> {
            loop {
                signals::check()?;
                let Some(at) = next.lock().expect("no thread has panicked").next() else { return Ok(()) };
                self.make_one(at, rows, at_once)?;
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            let ends: Vec<Result<()>> =
                workers.into_iter().map(|worker| worker.join().expect("no thread panics")).collect();
            ends.into_iter().collect()
        })
    }

    /// One run to its end, and its row.
    fn make_one(&self, at: usize, rows: &Mutex<Vec<Row>>, at_once: usize) -> Result<()> {
        let run = &self.runs[at];
        let label = format!("run {} of {} ({})", at + 1, self.runs.len(), grid::words(&run.setting));
        let mut config = run.config.clone();
        if at_once > 1 {
            share_cores(&mut config, at_once);
        }
        let begun = train::goes_on(&RunDir::new(&config.output_dir))?;
        config.resume_from_checkpoint = begun.then(|| "latest".to_owned());
        let (file, log) = (self.file(&run.name, "toml"), self.file(&run.name, "log"));
        fs::create_dir_all(file.parent().expect("a file in a folder"))?;
        atomic::write(&file, layers::to_toml(&config).as_bytes())?;
        output::tell(format_args!("{label}: {}", if begun { "goes on" } else { "begins" }));
        let words = Words(vec!["train".into(), file.display().to_string()]);
        let ended = tool::run_reported("tandem", &words, &log, &label, AFTER_TERM);
        let mut row = self.row(run)?;
        let interrupted = ended.as_ref().err().and_then(|error| error.downcast_ref::<Interrupted>()).copied();
        if let (Err(error), None, false) = (&ended, interrupted, row.state == State::NothingLearned) {
            (row.state, row.error) = (State::Failed, Some(OneLine(&format!("{error:#}")).to_string()));
        }
        let rewards = row.reward_first.zip(row.reward_last);
        let rewards = rewards.map(|(first, last)| format!(", reward {:.3} -> {:.3}", Figure(first), Figure(last)));
        let rewards = rewards.unwrap_or_default();
        let error = row.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        output::tell(format_args!("{label}: {} after {} steps{rewards}{error}", row.state.words(), row.steps));
        let mut rows = rows.lock().expect("no thread has panicked");
        rows[at] = row;
        let text = serde_json::to_string_pretty(&json!({ "runs": *rows }))?;
        atomic::write(&self.root.join(RECORD), text.as_bytes()).context("`output_dir` cannot be written")?;
        interrupted.map_or(Ok(()), |interrupted| Err(anyhow!(interrupted)))
    }

    /// A file of the sweep about a run: beside the runs, since the folder of a run belongs to the run.
    fn file(&self, run: &str, extension: &str) -> PathBuf {
        self.root.join("sweep").join(format!("{run}.{extension}"))
    }
}

/// Gives a run its share of the cores, unless its options say how many threads it has.
fn share_cores(config: &mut TrainConfig, at_once: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (rollout, learner) = config.threads((cores / at_once).max(1));
    config.rollout_threads.get_or_insert(rollout);
    config.learner_threads.get_or_insert(learner);
}
