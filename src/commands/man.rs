//! `tandem man`: manual pages of `tandem` and of its own commands.

use std::{fs, io, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use shared::files::atomic;

use super::halves;
use crate::terminal::output;

/// Flags of `tandem man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder to write, as ~/.local/share/man/man1; pages of the same names in it are replaced.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// A page: the name of its file, and its text.
type Page = (String, Vec<u8>);

/// Runs `tandem man`; a message on stdout says what was written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let dir = &args.dir;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let pages = pages().context("the pages cannot be made")?;
    for (name, text) in &pages {
        let path = dir.join(name);
        atomic::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let count = pages.len();
    output::print(format_args!("wrote {count} pages; `man {}` shows the first", dir.join(&pages[0].0).display()));
    Ok(ExitCode::SUCCESS)
}

/// The pages, that of `tandem` first.
fn pages() -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    add(&crate::own_commands(), "tandem", &mut pages)?;
    pages[0].1.extend(of_halves()?);
    Ok(pages)
}

/// Adds the page of a command, and those of the commands below it.
fn add(command: &Command, name: &str, pages: &mut Vec<Page>) -> io::Result<()> {
    let title = name.replace(' ', "-");
    let version = env!("CARGO_PKG_VERSION");
    let alone = command.clone().display_name(&title).bin_name(name).version(version).disable_help_subcommand(true);
    let mut text = Vec::new();
    Man::new(alone).source(format!("tandem {version}")).manual("Tandem").render(&mut text)?;
    pages.push((format!("{title}.1"), text));
    command.get_subcommands().try_for_each(|below| add(below, &format!("{name} {}", below.get_name()), pages))
}

/// The commands of other programs, which describe them by themselves.
fn of_halves() -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS OF SAMPLER AND LEARNER"]);
    roff.text([roman(
        "Other programs carry these commands out. They have no pages here: `tandem COMMAND --help` says more.",
    )]);
    for command in halves::COMMANDS {
        roff.control("TP", []);
        roff.text([bold(format!("tandem {}", command.name))]);
        roff.text([roman(command.about)]);
    }
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use shared::config::OPTIONS;

    use super::*;

    /// A page as a reader sees it: dashes and apostrophes are written with a backslash.
    fn page(pages: &[Page], name: &str) -> String {
        let (_, text) = pages.iter().find(|(page, _)| page == name).unwrap_or_else(|| panic!("no page {name}"));
        let text = String::from_utf8(text.clone()).unwrap();
        [("\\-", "-"), ("\\*(Aq", "'"), ("\\fB", ""), ("\\fR", "")]
            .iter()
            .fold(text, |text, (from, to)| text.replace(from, to))
    }

    #[test]
    fn every_own_command_has_a_page_with_all_of_its_flags() {
        fn check(command: &Command, title: &str, pages: &[Page]) {
            let text = page(pages, &format!("{title}.1"));
            for flag in command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| arg.get_long()) {
                assert!(text.contains(&format!("--{flag}")), "{title} lacks --{flag}: {text}");
            }
            for below in command.get_subcommands() {
                check(below, &format!("{title}-{}", below.get_name()), pages);
            }
        }
        let pages = pages().unwrap();
        check(&crate::own_commands(), "tandem", &pages);
        assert!(pages.len() > 12, "{}", pages.len());
        assert!(page(&pages, "tandem-export-to-hf.1").contains("tandem export to-hf"));
    }

    #[test]
    fn the_page_of_train_has_every_option_in_its_section() {
        let text = page(&pages().unwrap(), "tandem-train.1");
        for option in OPTIONS {
            let (_, section) = text.split_once(&option.section.to_uppercase()).expect(option.section);
            let section = section.split("\n.SH ").next().unwrap();
            assert!(section.contains(&format!("\n--{} ", option.key)), "{}: {section}", option.key);
        }
        assert!(text.contains("--dry-run") && text.contains("Absent by default: as many as"));
    }

    #[test]
    fn the_first_page_lists_what_other_programs_do() {
        let text = page(&pages().unwrap(), "tandem.1");
        for command in halves::COMMANDS {
            assert!(text.contains(&format!("tandem {}\n", command.name)) && text.contains(command.about), "{text}");
            assert!(!text.contains(&format!("tandem-{}(1)", command.name)), "a page that there is not");
        }
    }
}
