//! `tandem report`: the page of `tandem ui` for one run, in a single file that needs nothing else.
//!
//! The page is drawn by its scripts, so that live page and report share one implementation. In a browser without
//! JavaScript it says that it needs them.

mod held;
mod page;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Result, bail};
use shared::{RunDir, files::atomic};

use crate::{terminal::output, view::found};

/// Flags of `tandem report`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory (`output_dir` of the run)
    run_dir: PathBuf,
}

/// Runs `tandem report`; the path of the page is the only line on stdout.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = RunDir::new(&args.run_dir);
    if !dir.config().is_file() && !found::is_run(&args.run_dir) {
        bail!("{} is no run directory: it holds neither config.toml nor metrics.jsonl", args.run_dir.display());
    }
    output::print(write(&dir)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes `report.html` of a run and returns its path.
pub fn write(dir: &RunDir) -> Result<PathBuf> {
    let path = dir.report();
    atomic::write(&path, page::render(&held::of(dir)?).as_bytes())?;
    Ok(std::path::absolute(&path)?)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use serde_json::Value;
    use shared::{
        config::layers,
        run::notices::{Notice, NoticeKind, NoticesFile},
    };

    use super::*;

    const EVIL: &str = "</script><img src=x onerror='alert(\"1\")'><!--<script>&\u{2028}";

    fn evil_run(root: &Path) -> RunDir {
        let dir = RunDir::new(root);
        dir.create().unwrap();
        let config = shared::config::TrainConfig { model: EVIL.into(), ..Default::default() };
        fs::write(dir.config(), layers::to_toml(&config)).unwrap();
        let mut lines = String::new();
        for step in 1..=30 {
            let record = serde_json::json!({
                "step": step, "reward": 0.1 * f64::from(step), format!("rewards/{EVIL}/mean"): 0.5, "step_time": 0.5,
            });
            lines.push_str(&format!("{record}\n"));
        }
        lines.push_str("{\"step\": 31, \"rew");
        fs::write(dir.metrics(), lines).unwrap();
        for step in [1, 30] {
            let row = serde_json::json!({
                "group": 0, "position": step, "prompt_id": 1, "sample": 0, "prompt": EVIL, "completion": EVIL,
                "reward": 1.0,
            });
            fs::write(dir.step_completions(step), format!("{row}\n")).unwrap();
        }
        let notice = Notice::new(NoticeKind::EqualGroups, 3, EVIL, "take easier prompts").about(EVIL);
        NoticesFile::open(&dir.notices(), 0).unwrap().add(notice).unwrap();
        dir
    }

    /// The data for the page's scripts.
    fn held(dir: &RunDir) -> (String, Value) {
        let html = fs::read_to_string(write(dir).unwrap()).unwrap();
        let (_, rest) = html.split_once("<script type=\"application/json\" id=\"tandem-data\">").unwrap();
        let data = serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap();
        (html, data)
    }

    #[test]
    fn a_report_holds_the_run() {
        let root = tempfile::tempdir().unwrap();
        let (_, data) = held(&evil_run(root.path()));
        let run = &data["runs"][0];
        assert_eq!(run["curves"]["steps"]["step"].as_array().unwrap().len(), 30);
        assert_eq!(run["notices"]["notices"][0]["remedy"], "take easier prompts");
        assert_eq!(run["steps"]["30"]["groups"][0]["samples"][0]["completion"], EVIL);
        assert_eq!(run["samples"]["30/30/0"]["row"]["prompt"], EVIL);
        assert_eq!(run["pairs"][0]["before"]["text"], EVIL);
        let options = run["settings"]["options"].as_array().unwrap();
        assert!(options.iter().any(|one| one["key"] == "model" && one["chosen"] == true));
    }

    #[test]
    fn no_value_ends_the_script_that_holds_it() {
        let root = tempfile::tempdir().unwrap();
        let (html, _) = held(&evil_run(root.path()));
        assert!(!html.contains("<img") && !html.contains("<!--"), "a value got through");
        assert_eq!(html.matches("</script>").count(), html.matches("<script").count());
    }

    #[test]
    fn the_page_needs_nothing_from_outside_and_runs_no_script_but_its_own() {
        let root = tempfile::tempdir().unwrap();
        let (html, _) = held(&evil_run(root.path()));
        for outside in ["src=\"", "href=\"http", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert!(html.contains("default-src 'none'; script-src 'sha256-"));
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
