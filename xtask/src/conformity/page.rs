//! `docs/conformity.md`: the last recorded results.

use std::{fmt::Write as _, fs};

use anyhow::{Context, Result, ensure};

use super::{
    answer::{Outcome, Verdict, number},
    checks::CHECKS,
    environment::Environment,
};
use crate::host::Host;

/// Where the page is, from the root of the workspace.
pub const PATH: &str = "docs/conformity.md";

/// Flags of /proc/cpuinfo by which kernels of the two programs are chosen, so results may differ in their last digits.
const FLAGS: &[&str] = &[
    "avx2",
    "fma",
    "avx512f",
    "avx_vnni",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_tile",
];

/// When and where the checks ran.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// Day, in UTC.
    pub date: String,
    /// git's description of the commit; empty outside of a checkout.
    pub commit: String,
    /// The processor's flags that matter.
    pub processor: String,
    /// Python and packages.
    pub versions: Vec<String>,
}

impl Circumstances {
    /// The present circumstances.
    ///
    /// # Errors
    /// When the date or a version cannot be read.
    pub fn of(host: &Host, environment: &Environment) -> Result<Self> {
        let date = said(host, "date", &["--utc", "+%-d %B %Y"]).context("the date cannot be had")?;
        let mut commit = said(host, "git", &["describe", "--always", "--abbrev=7", "--exclude=*"]).unwrap_or_default();
        // The page itself may have changed: its checks are recorded one after the other.
        let others = format!(":!{PATH}");
        let changed = said(host, "git", &["status", "--porcelain", "--untracked-files=no", "--", ".", &others]);
        if changed.is_ok_and(|files| !files.is_empty()) {
            commit.push_str("-dirty");
        }
        let mut versions = vec![environment.version(host)?];
        versions.extend(environment.packages());
        Ok(Self { date, commit, processor: flags(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()), versions })
    }

    /// Day and commit, as the row of a figure has them.
    fn made(&self) -> String {
        if self.commit.is_empty() { self.date.clone() } else { format!("{}, {}", self.date, self.commit) }
    }

    /// The table of all that the whole page is of.
    fn head(&self) -> String {
        let processor =
            if self.processor.is_empty() { "none of those that kernels choose by" } else { &self.processor };
        let programs = self.versions.join(", ");
        format!("| | |\n|---|---|\n| programs | {programs} |\n| processor | {processor} |\n")
    }
}

/// Output of a program, in English.
fn said(host: &Host, program: &str, args: &[&str]) -> Result<String> {
    let output = host.command(program).args(args).env("LC_ALL", "C").output().with_context(|| program.to_owned())?;
    ensure!(output.status.success(), "`{program}` fails with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The flags among [`FLAGS`] that the first processor has.
pub fn flags(cpuinfo: &str) -> String {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &&&str| line.split_whitespace().any(|word| word == **flag);
    FLAGS.iter().filter(has).copied().collect::<Vec<_>>().join(", ")
}

/// The page. Rows of checks without an outcome stay as they are on the page of `earlier`.
///
/// # Errors
/// When rows would stay that are of other programs, or of another processor.
pub fn page(circumstances: &Circumstances, outcomes: &[Outcome], earlier: &str) -> Result<String> {
    let mut rows: Vec<(usize, String)> = Vec::new();
    for outcome in outcomes {
        let place = CHECKS.iter().position(|check| check.name == outcome.check.name);
        rows.push((place.unwrap_or(CHECKS.len()), rows_of(outcome, &circumstances.made())));
    }
    let head = circumstances.head();
    for (place, check) in CHECKS.iter().enumerate() {
        let begin = format!("| `{}` | {} | ", check.name, check.rival);
        let stay: String =
            earlier.lines().filter(|line| line.starts_with(&begin)).flat_map(|line| [line, "\n"]).collect();
        if stay.is_empty() || outcomes.iter().any(|outcome| outcome.check.name == check.name) {
            continue;
        }
        ensure!(earlier.contains(&head), "{PATH} is of other programs or another processor: record all checks");
        rows.push((place, stay));
    }
    rows.sort_by_key(|(place, _)| *place);
    let mut page = format!(
        "# Conformity with other programs\n\n\
         <!-- Written by `cargo xtask conformity --record`. Do not edit. -->\n\n\
         Each check runs another program as it is released, and compares what it computes with what Tandem computes, \
         or\nwith the golden figures that Tandem's tests compare with. A figure is 0 where both agree; a check passes \
         when each\nof its figures is within its bound.\n\n\
         {head}\n\
         | check | compared with | cases | figure | value | bound | verdict | made |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    page.extend(rows.into_iter().map(|(_, rows)| rows));
    page.push_str("\n## What is compared\n\n| check | what |\n|---|---|\n");
    for check in CHECKS {
        let _ = writeln!(page, "| `{}` | {} |", check.name, check.about);
    }
    Ok(page)
}

/// A row for each figure of a check.
fn rows_of(outcome: &Outcome, made: &str) -> String {
    let (check, cases) = (outcome.check, &outcome.cases);
    let mut rows = String::new();
    for (index, figure) in check.figures.iter().enumerate() {
        let value = outcome.values.get(index).map_or("–".to_owned(), |value| number(*value));
        let verdict = match &outcome.verdict {
            Verdict::Passed => "passed".to_owned(),
            Verdict::Failed(reason) => format!("**failed**: {}", reason.replace('|', "\\|")),
        };
        let bound = number(Some(figure.bound));
        let _ = writeln!(
            rows,
            "| `{}` | {} | {cases} | {} | {value} | {bound} | {verdict} | {made} |",
            check.name, check.rival, figure.about
        );
    }
    rows
}
