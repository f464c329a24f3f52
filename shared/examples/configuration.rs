//! Prints `docs/configuration.md`, the page of all options, made of their declarations; `cargo xtask docs` writes it.

use std::fmt::Write;

use shared::config::{Bounds, ChoiceSpec, OPTIONS, OptionSpec, Origin, ValueKind};

const HEAD: &str = "\
# Configuration

<!-- Written by `cargo xtask docs` from shared/src/config. Do not edit. -->

Every option of a run, as a key of `run.toml` and as `--key value` on the command line of `tandem train`. The command
line wins over the file, the file over the defaults. In the file, relative paths are relative to the file's folder, also
those within `reward_funcs`; on the command line, to the working directory. `none` takes back the value of an optional
key. An unknown key is refused with the nearest known one, and combinations that make no sense are refused with the
reason.

Names and defaults are TRL's if TRL has the option, and otherwise verl's or RLinf's. `tandem train` takes a
configuration of any of these systems as it is ([importing.md](importing.md)).

Editors complete and check `run.toml` by its JSON schema ([run.schema.json](run.schema.json)).
`tandem schema > run.schema.json` writes the schema, and the first line `#:schema ./run.schema.json` of `run.toml` names
it to Taplo (in VS Code: Even Better TOML). The schema knows each option by itself; `tandem train run.toml --dry-run`
also checks combinations.

The environment variable `TANDEM_LOG`, and no option, sets how much sampler and learner log. It takes a filter of Rust's
`tracing`, for instance `debug`, `warn` or `rollout::engine=trace`. Without the variable, the filter is `info`.
";

fn main() {
    print!("{}", page());
}

/// The page as Markdown.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let mut section = "";
    for option in OPTIONS {
        if option.section != section {
            section = option.section;
            page.push_str(&format!("\n## {section}\n"));
        }
        page.push_str(&entry(option));
    }
    page
}

fn entry(option: &OptionSpec) -> String {
    let mut head = option.kind.words().to_owned();
    if option.bounds != Bounds::FINITE {
        write!(head, " {}", option.bounds).expect("writing to a String");
    }
    write!(head, ", {}", default(option)).expect("writing to a String");
    if !option.aliases.is_empty() {
        let spellings: Vec<String> = option.aliases.iter().map(|alias| format!("`{alias}`")).collect();
        write!(head, "; also spelt {}", spellings.join(", ")).expect("writing to a String");
    }
    let source = match option.source {
        Origin::Own => String::new(),
        Origin::Trl => format!(" TRL `{}`.", option.key),
        Origin::Named(names) => format!(" {names}."),
    };
    let mut text = format!("\n### `{}`\n\n*{head}*\n\n{}{source}\n", option.key, option.doc);
    if let ValueKind::Choice(values) = option.kind {
        text.push('\n');
        values.iter().for_each(|value| text.push_str(&line(value)));
    }
    text
}

/// The default, or what its absence means.
fn default(option: &OptionSpec) -> String {
    match (option.default_text().as_deref(), option.absent) {
        (_, Some(meaning)) => format!("absent by default: {meaning}"),
        (None, None) => "required".to_owned(),
        (Some("[]"), None) => "empty by default".to_owned(),
        (Some(text), None) => format!("default `{text}`"),
    }
}

fn line(value: &ChoiceSpec) -> String {
    let aliases: Vec<String> = value.aliases.iter().map(|alias| format!("`{alias}`")).collect();
    let also = if aliases.is_empty() { String::new() } else { format!(" (also {})", aliases.join(", ")) };
    format!("- `{}`{also}: {}\n", value.word, value.doc)
}
