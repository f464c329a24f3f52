//! `rollout rewards`: what can be given to `reward_funcs`.

use std::io::{self, Write};

use anyhow::Context;
use rollout_rewards::entry::Entry;

use crate::reward::registry;

/// Flags of `rollout rewards`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the subcommand.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(_args: &Args) -> anyhow::Result<()> {
    let mut text = String::from("Reward functions, for --reward-funcs and `reward_funcs`:\n");
    for entry in registry().entries() {
        text.push_str(&describe(entry));
    }
    text.push_str(
        "\nParameters are written name:key=value:key=value, for instance sentence_share:word=dog; a colon within a \
         value is written \\:.\nA function in Python is written my_rewards.py:my_function; `tandem check-rewards` \
         tries functions.\n",
    );
    io::stdout().write_all(text.as_bytes()).context("stdout")
}

fn describe(entry: &Entry) -> String {
    let mut text = format!("\n{}\n    {}\n", entry.name, entry.about);
    if !entry.columns.is_empty() {
        text.push_str(&format!("    column: {}\n", entry.columns.join(" or ")));
    }
    for parameter in entry.parameters {
        let default = parameter.default.map_or_else(|| "must be given".into(), |d| format!("default {d}"));
        text.push_str(&format!("    :{}=  {} ({default})\n", parameter.name, parameter.about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_function_and_parameter() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rewards.md");
        let page = std::fs::read_to_string(page).unwrap();
        for entry in registry().entries() {
            let start = format!("| `{}` |", entry.name);
            let row = page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {start}"));
            for parameter in entry.parameters {
                let name = match parameter.default {
                    Some(default) => format!("`{}` ({default})", parameter.name),
                    None => format!("`{}`", parameter.name),
                };
                let plain = row.replace("(`", "(").replace("`)", ")");
                assert!(plain.contains(&name), "{}: {name} is not in {row}", entry.name);
            }
        }
    }
}
