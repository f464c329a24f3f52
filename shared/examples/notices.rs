//! Prints `docs/notices.md`, the page of all notices; `cargo xtask docs` writes it.

use shared::{config::Choice, process::exit, run::notices::NoticeKind};

const HEAD: &str = "\
# Notices

<!-- Written by `cargo xtask docs` from shared/src/run/notices. Do not edit. -->

After each step, the learner looks for signs that the run does not learn, and for figures that are easily taken for \
such signs.
It writes each finding once to `notices.jsonl`, with a remedy. The terminal and `report.html` show the same findings. \
A line has
`kind`, `step` (completed steps; 0 before the first one), `text` and `remedy`. A finding about a reward function also \
names it, as
`subject`. A run that goes on from a checkpoint keeps the notices up to this checkpoint. \
[not-learning.md](not-learning.md) leads from
symptoms to remedies. The last evaluation may end after the learner; then the launcher looks at it.

";

fn main() {
    print!("{}", page());
}

/// The page as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned() + "| `kind` | what was found |\n|---|---|\n";
    for kind in NoticeKind::WORDS {
        let words: Vec<&str> = kind.doc.split_whitespace().collect();
        page += &format!("| `{}` | {} |\n", kind.word, words.join(" "));
    }
    page += "\nA notice changes nothing in the run. A reward function that fails on every completion of a step may \
        end it: see\n\
             `reward_failure_stops` in [configuration.md](configuration.md).\n\n## Nothing was learned\n\n";
    page += &format!(
        "When all steps are made and no update had a gradient, or the policy collapsed and its last steps earned less \
         than its\n\
         first, `tandem train` ends with `error: nothing was learned`, the notice that says why, and exit code {}. \
         Checkpoints,\n\
         metrics and report are there as always.\n",
        exit::NOTHING_LEARNED
    );
    page
}
