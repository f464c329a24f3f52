//! `tandem report`: one self-contained HTML page about a run.

mod charts;
mod page;
mod samples;
mod scale;
mod svg;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result, bail};
use shared::{
    RunDir, atomic,
    config::layers,
    metrics::{self, MetricRecord},
    notices::{self, NothingLearned, Notice},
};

use crate::output;

/// Flags of `tandem report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory (`output_dir` of the run).
    run_dir: PathBuf,
}

/// Runs `tandem report`; the path of the page is the only line on stdout.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = RunDir::new(&args.run_dir);
    if !dir.config().is_file() && !dir.metrics().is_file() {
        bail!("{} is no run directory: it holds neither config.toml nor metrics.jsonl", args.run_dir.display());
    }
    output::print(write(&dir)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes `report.html` of a run and returns its path.
pub fn write(dir: &RunDir) -> Result<PathBuf> {
    let data = RunData::load(dir)?;
    let path = dir.report();
    atomic::write(&path, page::render(&data).as_bytes())?;
    Ok(std::path::absolute(&path)?)
}

/// What a report is made of.
#[derive(Debug, Default)]
struct RunData {
    name: String,
    model: Option<String>,
    dataset: Option<String>,
    configuration: String,
    records: Vec<MetricRecord>,
    notices: Vec<Notice>,
    /// That the run has made all of its steps and learned nothing, if so.
    nothing: Option<NothingLearned>,
    evaluations: Vec<MetricRecord>,
    samples: Vec<samples::Pair>,
}

impl RunData {
    fn load(dir: &RunDir) -> Result<Self> {
        let configuration = optional(fs::read_to_string(dir.config())).context("config.toml")?.unwrap_or_default();
        let config = layers::load(dir.config().is_file().then(|| dir.config()).as_deref(), &Vec::new()).ok();
        let root = std::path::absolute(dir.root())?;
        let records = optional(metrics::read(&dir.metrics())).context("metrics.jsonl")?.unwrap_or_default();
        let notices = notices::read(&dir.notices())?;
        let finished = config.as_ref().filter(|_| dir.finished().exists());
        Ok(Self {
            nothing: finished.and_then(|config| notices::nothing_learned(&records, &notices, config)),
            name: short_path(&root),
            model: config.as_ref().map(|c| short_path(&c.model)),
            dataset: config.as_ref().map(|c| short_paths(&c.dataset)),
            configuration,
            records,
            notices,
            evaluations: optional(metrics::read(&dir.eval())).context("eval.jsonl")?.unwrap_or_default(),
            samples: samples::pairs(dir).context("completions")?,
        })
    }
}

/// The last two parts of a path: enough to know it by.
fn short_path(path: &Path) -> String {
    let parts: Vec<_> = path.components().rev().take(2).map(|c| c.as_os_str().to_string_lossy()).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

/// As [`short_path`], of several.
fn short_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| short_path(path)).collect::<Vec<_>>().join(", ")
}

/// A file that need not be there.
fn optional<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use shared::notices::{NoticeKind, NoticesFile};

    use super::*;

    const EVIL: &str = "</script><img src=x onerror='alert(\"1\")'>&";

    fn evil_run(root: &Path) -> RunDir {
        let dir = RunDir::new(root);
        dir.create().unwrap();
        let config = shared::config::TrainConfig { model: EVIL.into(), ..Default::default() };
        fs::write(dir.config(), layers::to_toml(&config)).unwrap();
        let mut lines = String::new();
        for step in 1..=30 {
            let reward = if step % 7 == 0 { serde_json::Value::Null } else { serde_json::json!(0.1 * f64::from(step)) };
            let record = serde_json::json!({
                "step": step, "reward": reward, format!("rewards/{EVIL}/mean"): 0.5, "rewards/other/mean": 0.2,
                "mismatch_kl": if step == 3 { 0.0 } else { 1e-13 }, "entropy": null, "step_time": 0.5,
            });
            lines.push_str(&format!("{record}\n"));
        }
        lines.push_str("{\"step\": 31, \"rew");
        fs::write(dir.metrics(), lines).unwrap();
        for step in [1, 30] {
            let row = serde_json::json!({"prompt_id": 1, "prompt": EVIL, "text": EVIL, "reward": 1.0});
            fs::write(dir.step_completions(step), format!("{row}\n")).unwrap();
        }
        let notice = Notice::new(NoticeKind::EqualGroups, 3, EVIL, "take easier prompts").about(EVIL);
        NoticesFile::open(&dir.notices(), 0).unwrap().add(notice).unwrap();
        dir
    }

    #[test]
    fn notices_are_shown_with_their_remedies_and_above_them_that_nothing_was_learned() {
        let root = tempfile::tempdir().unwrap();
        let dir = evil_run(root.path());
        let page = || fs::read_to_string(write(&dir).unwrap()).unwrap();
        let (shown, in_vain) =
            ("<p>take easier prompts</p>", "<p class=\"vain\">nothing was learned: no update of 1 step");
        assert!(page().contains(shown) && !page().contains(in_vain));
        fs::write(dir.metrics(), "{\"step\":1,\"grad_norm\":0.0}\n").unwrap();
        assert!(!page().contains(in_vain), "it may come to learn");
        fs::write(dir.finished(), "{}").unwrap();
        assert!(page().contains(shown) && page().contains(in_vain));
        fs::remove_file(dir.notices()).unwrap();
        fs::write(dir.metrics(), "{\"step\":1,\"grad_norm\":0.5}\n").unwrap();
        assert!(!page().contains("<h2>Notices</h2>"));
    }

    #[test]
    fn every_value_is_escaped_and_gaps_do_no_harm() {
        let root = tempfile::tempdir().unwrap();
        let html = fs::read_to_string(write(&evil_run(root.path())).unwrap()).unwrap();
        assert!(!html.contains("<img") && !html.contains("onerror='"), "a value got through");
        assert_eq!(html.matches("</script>").count(), 1, "only the page's own script ends");
        assert!(html.contains("&lt;/script&gt;&lt;img src=x"), "the value is shown as text");
        assert!(!html.contains("NaN"));
        assert!(html.contains("Reward by function") && html.contains("mismatch_kl"));
        assert!(!html.contains("<h3>Entropy</h3>"), "a curve without values is left out");
    }

    #[test]
    fn the_page_needs_nothing_from_outside() {
        let root = tempfile::tempdir().unwrap();
        let html = fs::read_to_string(write(&evil_run(root.path())).unwrap()).unwrap();
        for outside in ["http:", "https:", "src=\"", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_run_that_has_only_begun_has_a_report_too() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path().join("run"));
        dir.create().unwrap();
        assert!(write(&dir).unwrap().is_file());
    }

    #[test]
    fn a_folder_that_is_no_run_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let error = run(&Args { run_dir: root.path().join("nothing") }).unwrap_err().to_string();
        assert!(error.contains("nothing") && error.contains("config.toml"), "{error}");
    }
}
