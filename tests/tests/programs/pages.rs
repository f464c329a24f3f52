//! Pages for users as tests follow them: their blocks, the files that these name, and their commands.
//!
//! What stands in a block under the name of a file is written to that file: a comment in the first line of `toml` or
//! `python`, or the word behind the language. The lines of `console` blocks that begin with `$` are commands. A comment
//! behind a command may say with which exit code it ends.

use std::{fs, path::Path, process::Command};

use harness::{
    binary,
    cli::{self, Finished},
};

/// A fenced block: its language and its lines.
pub struct Block<'a> {
    pub language: &'a str,
    pub lines: Vec<&'a str>,
}

/// The fenced blocks of a page.
pub fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(language), None) => open = Some(Block { language, lines: Vec::new() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, None) => (),
        }
    }
    assert!(open.is_none(), "a block does not end");
    blocks
}

/// The commands of a console block; a line that ends in a backslash goes on.
pub fn commands(block: &Block) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for line in &block.lines {
        if let Some(begin) = line.strip_prefix("$ ") {
            commands.push(begin.to_owned());
        } else if let Some(last) = commands.last_mut().filter(|last| last.ends_with('\\')) {
            last.push('\n');
            last.push_str(line);
        }
    }
    commands
}

/// Whether a command of README or of docs/own-task.md is run: not if it is for a clone or stands for the reader's own.
pub fn is_run(command: &str) -> bool {
    let of_a_clone = ["git ", "cd ", "cargo "].iter().any(|begin| command.starts_with(begin));
    let is_for_the_reader = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    let words = command.split('#').next().unwrap_or_default();
    !of_a_clone && !command.contains('…') && !words.split([' ', '/']).any(is_for_the_reader)
}

/// The file that a block names, and its text with the shorter settings.
pub fn file(block: &Block, shorter: &[(&str, &str)]) -> Option<(String, String)> {
    if let Some((_, name)) = block.language.split_once(' ') {
        return Some((name.to_owned(), block.lines.join("\n") + "\n"));
    }
    let name = block.lines.first()?.strip_prefix("# ")?.trim();
    let shorter = |line: &&str| {
        let key = line.split('=').next().unwrap_or_default().trim();
        let value = shorter.iter().find(|(name, _)| *name == key)?.1;
        Some(format!("{key} = {value}"))
    };
    let lines: Vec<String> =
        block.lines.iter().map(|line| shorter(line).unwrap_or_else(|| (*line).to_owned())).collect();
    let is_file =
        [("toml", ".toml"), ("python", ".py")].iter().any(|(l, end)| block.language == *l && name.ends_with(end));
    is_file.then(|| (name.to_owned(), lines.join("\n") + "\n"))
}

/// The exit code that the comment behind a command gives; 0 without one.
pub fn exit_code(command: &str) -> i32 {
    let comment = command.rsplit_once(" # ").map_or("", |(_, comment)| comment);
    let code = comment.rsplit_once("exit code ").map(|(_, code)| code.trim());
    code.map_or(0, |code| code.parse().unwrap_or_else(|error| panic!("`{command}`: {error}")))
}

/// A document of the project.
pub fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap()
}

/// A command as the reader gives it, in that folder, with the programs on the path.
pub fn in_a_shell(dir: &Path, command: &str) -> Finished {
    let programs = binary("tandem").parent().unwrap().to_owned();
    let mut shell = Command::new("/bin/sh");
    // The page is there until its reader has enough of it.
    let command = command.replacen("tandem ui ", "timeout --preserve-status --signal TERM 3 tandem ui --port 0 ", 1);
    shell.args(["-c", &command]).current_dir(dir);
    shell.env("PATH", std::env::join_paths([programs, "/usr/bin".into(), "/bin".into()]).unwrap());
    shell.env("TANDEM_CACHE_DIR", dir.join("cache"));
    cli::finish(shell)
}

#[test]
fn what_is_run_is_told_from_what_the_reader_fills_in() {
    for (command, run) in [
        ("tandem train run.toml                 # any key is also a flag: --learning_rate", true),
        ("tandem report runs/gsm8k", true),
        ("rollout bench … --trace out.json", false),
        ("rollout tune --model DIR", false),
        ("tandem replay RUN/checkpoint-1", false),
        ("cargo xtask demo", false),
    ] {
        assert_eq!(is_run(command), run, "{command}");
    }
    let text = "a\n```console\n$ one \\\n    two\nits output\n$ three\n```\nb\n```toml\n# r.toml\nmax_steps = 200 # \
        many\nseed = 1\n```\n";
    let blocks = blocks(text);
    assert_eq!(commands(&blocks[0]), ["one \\\n    two", "three"]);
    assert_eq!(
        file(&blocks[1], &[("max_steps", "3")]),
        Some(("r.toml".into(), "# r.toml\nmax_steps = 3\nseed = 1\n".into()))
    );
    assert!(file(&blocks[0], &[]).is_none());
    assert_eq!(exit_code("tandem train # says '# no'    # ends with exit code 4"), 4);
    assert_eq!(exit_code("tandem train run.toml # every check"), 0);
}
