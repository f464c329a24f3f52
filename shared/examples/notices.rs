//! Prints `docs/notices.md`, the page of all notices; `cargo xtask docs` writes it.

use shared::{config::Choice, process::exit, run::notices::NoticeKind};

const HEAD: &str = "\
# Notices

<!-- Written by `cargo xtask docs` from shared/src/run/notices. Do not edit. -->

While a run goes on, the learner looks after each step for signs that it does not learn, and for what is easily taken \
for one.
What it finds it writes to `notices.jsonl`, each thing once, with what to do about it; the terminal and `report.html` \
show the
same. A line has `kind`, `step` (completed steps; 0 for what is known before the first), `text` and `remedy`, and \
`subject`, the
reward function, where it is about one. A run that goes on from a checkpoint goes on with the notices up to there.

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
    page += "\nA notice changes nothing in the run. What a reward function does on every completion of a step may end \
        it: see\n\
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
