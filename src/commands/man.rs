//! `tandem man`: manual pages of `tandem` and of its commands.

use std::{fs, io, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use shared::files::atomic;

use super::{
    described::{self, Commands},
    halves::Delegated,
};
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
    let pages = pages(&described::commands(|_| true)).context("the pages cannot be made")?;
    for (name, text) in &pages {
        let path = dir.join(name);
        atomic::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let count = pages.len();
    output::print(format_args!("wrote {count} pages; `man {}` shows the first", dir.join(&pages[0].0).display()));
    Ok(ExitCode::SUCCESS)
}

/// The pages, that of `tandem` first.
fn pages(commands: &Commands) -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    add(&commands.tandem, "tandem", &mut pages)?;
    if !commands.by_name.is_empty() {
        pages[0].1.extend(by_name(&commands.by_name)?);
    }
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

/// A list of the commands that have no page.
fn by_name(commands: &[&Delegated]) -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("SH", ["COMMANDS WITHOUT PAGES"]);
    roff.text([roman(
        "Other programs carry these commands out, and were not there to be asked for their flags. `tandem COMMAND \
         --help` says more once they are.",
    )]);
    for command in commands {
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
    use std::collections::BTreeMap;

    use clap::Arg;
    use shared::config::OPTIONS;

    use super::*;
    use crate::{commands::halves::COMMANDS, programs::binaries};

    /// What is written where no other program is there.
    fn own_pages() -> Vec<Page> {
        pages(&described::joined(&BTreeMap::new())).unwrap()
    }

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
        let pages = own_pages();
        check(&crate::own_commands(), "tandem", &pages);
        assert!(pages.len() > 12, "{}", pages.len());
        assert!(page(&pages, "tandem-export-to-hf.1").contains("tandem export to-hf"));
    }

    #[test]
    fn the_page_of_train_has_every_option_in_its_section() {
        let text = page(&own_pages(), "tandem-train.1");
        for option in OPTIONS {
            let (_, section) = text.split_once(&option.section.to_uppercase()).expect(option.section);
            let section = section.split("\n.SH ").next().unwrap();
            assert!(section.contains(&format!("\n--{} ", option.key)), "{}: {section}", option.key);
        }
        assert!(text.contains("--dry-run") && text.contains("Absent by default: as many as"));
    }

    #[test]
    fn a_command_of_another_program_has_a_page_if_the_program_describes_it() {
        let arg = Arg::new("max_num_seqs").long("max-num-seqs").help("Slots");
        let serve = Command::new("serve").about("Answer requests").arg(arg);
        let pages = pages(&described::joined(&BTreeMap::from([(binaries::SERVE, Ok(vec![serve]))]))).unwrap();
        let text = page(&pages, "tandem-serve.1");
        for part in ["tandem-serve - Answer requests", "\ntandem serve ", "--max-num-seqs", "Slots"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let first = page(&pages, "tandem.1");
        assert!(first.contains("tandem-serve(1)\nAnswer requests") && !first.contains("tandem serve\n"), "{first}");
    }

    #[test]
    fn the_first_page_lists_the_commands_of_programs_that_are_not_there() {
        let text = page(&own_pages(), "tandem.1");
        for command in COMMANDS {
            assert!(text.contains(&format!("tandem {}\n", command.name)) && text.contains(command.about), "{text}");
            assert!(!text.contains(&format!("tandem-{}(1)", command.name)), "a page that there is not");
        }
    }
}
