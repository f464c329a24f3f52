//! `rollout generate`: complete prompts.

use std::{
    io::{self, IsTerminal},
    path::PathBuf,
};

use anyhow::ensure;
use clap::{ArgMatches, Command, FromArgMatches, error::ErrorKind, parser::ValueSource};
use shared::{Completion, FinishReason, SamplingParams};

use super::{
    complete::{GenerationFlags, Task, Watch},
    constraint::{Compile, GrammarFlags},
    flags::PromptFlags,
    printed::{Out, ReaderGone, Rows, Texts},
    progress::rate,
    prompts::{Given, Prompts, STDIN},
    rows,
};

/// Flags of `rollout generate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What is typed goes before the environment. It comes first, since it takes values away from the others.
    #[command(flatten)]
    pub typed_wins: TypedWins,
    /// The model and how prompts are made for it.
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// The prompts.
    #[command(flatten)]
    pub asked: AskedFlags,
    /// Leave the texts of --prompt as they are; without it, they are user messages where the model has a chat template
    #[arg(long, requires = "prompt")]
    pub raw: bool,
    /// Write the completions to a file instead of stdout: JSONL, one row per completion, ordered by prompt and sample;
    /// written whole at the end
    #[arg(long, env = "TANDEM_OUTPUT", value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print rows of JSON with token ids and log-probs, as --output has them, instead of text
    #[arg(long)]
    pub json: bool,
    /// Completions per prompt: time grows with them, but the prompt is prefilled once for all
    #[arg(long, env = "TANDEM_NUM_GENERATIONS", value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub num_generations: u32,
    /// What they may be.
    #[command(flatten)]
    pub grammar: GrammarFlags,
    /// How they are made and scored.
    #[command(flatten)]
    pub generation: GenerationFlags,
}

/// Flags that exclude each other, by the names of their fields. Only the second of each two has a variable of the
/// environment.
const EXCLUSIVE: [(&str, &str); 3] = [("prompt", "prompts"), ("json", "output"), ("raw", "system_prompt")];

/// Takes the value of a variable away where a flag is typed that excludes it, and refuses two such flags if both are
/// typed. To clap, a flag that has its value from the environment is as good as typed.
#[derive(Debug)]
pub struct TypedWins;

impl clap::Args for TypedWins {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for TypedWins {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, clap::Error> {
        for (typed, other) in EXCLUSIVE {
            match [typed, other].map(|flag| matches.value_source(flag)) {
                [Some(ValueSource::CommandLine), Some(ValueSource::CommandLine)] => {
                    let other = other.replace('_', "-");
                    let message = format!("the argument '--{typed}' cannot be used with '--{other}'");
                    return Err(clap::Error::raw(ErrorKind::ArgumentConflict, message));
                }
                [Some(ValueSource::CommandLine), Some(ValueSource::EnvVariable)] => {
                    matches.try_clear_id(other).expect("it is a flag of this command");
                }
                _ => {}
            }
        }
        Ok(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(drop)
    }
}

/// Where the prompts are.
#[derive(Debug, clap::Args)]
#[group(required = true)]
pub struct AskedFlags {
    /// A prompt; may be given several times. `-` reads one from stdin
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// Prompts: a file or folder in any format of docs/data.md, with rows of `prompt` (a text or messages),
    /// `prompt_ids`, GSM8K's `question` and `answer`, or countdown's `nums` and `target`. `-` reads rows of JSONL from
    /// stdin
    #[arg(long, env = "TANDEM_PROMPTS", value_name = "FILE")]
    pub prompts: Option<PathBuf>,
}

impl AskedFlags {
    /// The prompts. Those of stdin are read now.
    fn prompts(&self, raw: bool) -> anyhow::Result<Prompts<'_>> {
        Ok(match &self.prompts {
            None => Prompts::Given(Given::texts(&self.prompt, raw)?),
            Some(path) if path.as_os_str() == STDIN => Prompts::Given(Given::lines_of_stdin()?),
            Some(path) => Prompts::Dataset(path, "train"),
        })
    }
}

/// Runs the subcommand, where `compiler` understands grammars.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args, compiler: &dyn Compile) -> anyhow::Result<()> {
    match complete(args, compiler) {
        Err(error) if error.is::<ReaderGone>() => Ok(()),
        ended => ended,
    }
}

fn complete(args: &Args, compiler: &dyn Compile) -> anyhow::Result<()> {
    let sampling = args.generation.sampling.params(SamplingParams::default().temperature)?;
    let grammar = args.grammar.wanted(compiler)?;
    let functions = args.generation.rewards.functions(None)?;
    let has_functions = !functions.is_empty();
    ensure!(
        !has_functions || args.json || args.output.is_some(),
        "--reward-funcs: rewards are in the rows of completions; add --json or --output FILE"
    );
    match (&args.output, &args.asked.prompts) {
        (Some(output), Some(prompts)) => rows::check_output(output, "--prompts", prompts)?,
        (Some(output), None) => rows::check_writable("--output", output)?,
        (None, _) => {}
    }
    let prompts = args.asked.prompts(args.raw)?;
    let model = args.prompt.model()?;
    if !args.raw && !args.asked.prompt.is_empty() {
        args.prompt.rows.system.tell_of_system_prompt(&model);
    }
    let is_terminal = io::stdout().is_terminal();
    let stdout = || Out::new(io::stdout(), is_terminal);
    let mut watch: Option<Box<dyn Watch>> = match (&args.output, args.json) {
        (Some(_), _) => None,
        (None, true) => Some(Box::new(Rows::new(io::stdout(), is_terminal))),
        (None, false) => Some(Box::new(Texts::new(stdout(), args.num_generations, &sampling.stop))),
    };
    let completed = args.generation.complete(
        &model,
        &args.prompt.rows,
        &prompts,
        Task {
            functions,
            sampling,
            num_generations: args.num_generations,
            correct_at: None,
            keep: None,
            grammar,
            tools: None,
            watch: watch.as_mut().map(|watch| watch.as_mut() as &mut dyn Watch),
        },
    )?;
    if let Some(output) = &args.output {
        rows::write(output, &completed.groups)?;
    }
    let failures = rows::failures(&completed.groups);
    failures.iter().for_each(|failure| shared::tell!("warning: {failure}"));
    if let Some(reason) = &completed.given_up {
        shared::tell!("warning: completions were given up (finish_reason aborted): {reason}");
    }
    let completions = || completed.groups.iter().flat_map(|group| &group.completions);
    let cut = completions().filter(|completion| completion.finish_reason() == FinishReason::Length).count();
    let cut = match (cut, &args.output) {
        (0, _) | (_, Some(_)) => String::new(),
        (cut, None) => format!(", {cut} cut off at the longest length (--max-completion-length)"),
    };
    let written = args.output.as_ref().map(|path| format!(", written to {}", path.display())).unwrap_or_default();
    shared::tell!(
        "{} completions of {} prompts, {} tokens in {:.2} s ({:.0} tokens/s){cut}{written}",
        completions().count(),
        completed.groups.len(),
        completed.tokens,
        completed.seconds,
        rate(completed.tokens, completed.seconds),
    );
    let is_scored = |completion: &Completion| completion.rewards.iter().any(|outcome| outcome.score().is_some());
    if has_functions && !completions().any(is_scored) {
        return Err(rows::nothing_scored(&failures));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    /// The flags of a command line, where these ones have variables of the environment that are set.
    fn parsed(line: &str, of_environment: &[&str]) -> Result<Args, clap::Error> {
        let command = Args::augment_args(Command::new("generate"));
        // Any variable that is always set.
        let with = |command: Command, flag: &&str| command.mut_arg(*flag, |arg| arg.env("PATH"));
        let command = of_environment.iter().fold(command, with);
        let matches = command.try_get_matches_from(format!("generate --model m {line}").split_whitespace())?;
        Args::from_arg_matches(&matches)
    }

    fn system_prompt(args: &Args) -> Option<&String> {
        args.prompt.rows.system.system_prompt.as_ref()
    }

    #[test]
    fn what_is_typed_goes_before_the_environment() {
        let all = ["prompts", "output", "system_prompt"];
        let path = std::env::var_os("PATH").map(PathBuf::from);
        let of_environment = parsed("", &all).unwrap();
        assert_eq!((&of_environment.asked.prompts, &of_environment.output), (&path, &path));
        assert!(of_environment.asked.prompt.is_empty() && system_prompt(&of_environment).is_some());
        let typed = parsed("--prompt a --json --raw", &all).unwrap();
        assert_eq!((typed.asked.prompts.as_ref(), typed.output.as_ref(), system_prompt(&typed)), (None, None, None));
        assert!(typed.asked.prompt == ["a"] && typed.json && typed.raw);
        let typed = parsed("--prompts a --output b", &all).unwrap();
        assert_eq!((typed.asked.prompts, typed.output), (Some("a".into()), Some("b".into())));
    }

    #[test]
    fn two_that_exclude_each_other_are_refused_by_name() {
        for (line, named) in [
            ("--prompt a --prompts b", "'--prompt' cannot be used with '--prompts'"),
            ("--prompt a --json --output b", "'--json' cannot be used with '--output'"),
            ("--prompt a --raw --system-prompt b", "'--raw' cannot be used with '--system-prompt'"),
        ] {
            let error = parsed(line, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict);
            assert!(error.to_string().contains(named), "{error}");
        }
        assert_eq!(parsed("", &[]).unwrap_err().kind(), ErrorKind::MissingRequiredArgument);
    }
}
