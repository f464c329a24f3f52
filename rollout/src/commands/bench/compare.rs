//! `--compare`, `--compare-binary`: two settings or two builds in turns (A B A B …), each time in a process of its own,
//! so that neither finds the memory and the caches of the other, and other load on the machine affects both alike.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail, ensure};
use clap::Args as _;
use serde_json::{Map, Value, json};
use shared::process::command_line::with_dashes;

use super::{super::print, Args, measure::median, text};

/// The figures that are shown of the records: field, title and factor of the unit.
const FIGURES: [(&str, &str, f64); 11] = [
    ("tokens_per_s", "tokens/s", 1.0),
    ("prefill_tokens_per_s", "prefill tokens/s", 1.0),
    ("decode_tokens_per_s", "decode tokens/s", 1.0),
    ("ttft_seconds_p50", "TTFT p50, ms", 1e3),
    ("tpot_seconds_p50", "TPOT p50, ms", 1e3),
    ("attention_seconds", "attention, s", 1.0),
    ("sampling_seconds", "sampler, s", 1.0),
    ("swap_seconds", "new weights, ms", 1e3),
    ("swap_first_token_seconds", "their 1st token, ms", 1e3),
    ("peak_rss_bytes", "peak memory, MiB", 1.0 / 1_048_576.0),
    ("cores", "cores busy", 1.0),
];

/// Flags that are about the comparison and not about the compared sides.
const OWN: [&str; 3] = ["--compare", "--compare-binary", "--repeat"];
/// Flags with which stdout has no record, or more than one.
const NOT_COMPARED: [&str; 4] = ["--sweep", "--trace", "--help", "--version"];

/// One side of the comparison.
struct Side {
    name: &'static str,
    program: PathBuf,
    /// The program's name in the report: the usual one for this program, the path for another.
    shown: PathBuf,
    words: Vec<String>,
    records: Vec<Map<String, Value>>,
}

/// Runs the comparison; `words` is the command line after `bench`.
pub(super) fn run(args: &Args, words: &[String]) -> anyhow::Result<()> {
    let mut sides = sides(args, words)?;
    for round in 1..=args.repeat {
        for side in &mut sides {
            let record = side.measure()?;
            shared::tell!(
                "round {round}, {}: {:.1} tokens/s",
                side.name,
                figure(&record, "tokens_per_s").unwrap_or(0.0)
            );
            side.records.push(record);
        }
    }
    let [a, b] = &sides;
    let work = |side: &Side| side.records.first().and_then(|r| figure(r, "generated_tokens"));
    if work(a) != work(b) {
        shared::tell!("warning: the two generate different numbers of tokens: compare rates only");
    }
    shared::tell!("A: {}\nB: {}", a.line(), b.line());
    shared::tell!("{:<19} {:>12} {:>12} {:>8}   per round", "median", "A", "B", "B / A");
    let mut summary = Map::new();
    for (name, label, factor) in FIGURES {
        let Some(found) = Compared::new(name, a, b) else { continue };
        shared::tell!(
            "{label:<19} {:>12.2} {:>12.2} {:>8.3}   {:.3} to {:.3}",
            found.a * factor,
            found.b * factor,
            found.ratio,
            found.lowest,
            found.highest
        );
        summary.insert(
            name.into(),
            json!({
                "a": found.a, "b": found.b,
                "ratio": found.ratio, "ratio_min": found.lowest, "ratio_max": found.highest,
            }),
        );
    }
    print(&json!({"rounds": args.repeat, "a": a.line(), "b": b.line(), "figures": summary}))
}

/// Medians of a figure, and B over A in each round.
#[derive(Debug, PartialEq)]
struct Compared {
    a: f64,
    b: f64,
    /// Median of the ratios.
    ratio: f64,
    lowest: f64,
    highest: f64,
}

impl Compared {
    /// `None` where a side does not know the figure, or A's is 0.
    fn new(name: &str, a: &Side, b: &Side) -> Option<Self> {
        let all = |side: &Side| side.records.iter().map(|r| figure(r, name)).collect::<Option<Vec<f64>>>();
        let (a, b) = (all(a)?, all(b)?);
        if a.contains(&0.0) {
            return None;
        }
        let mut ratios: Vec<f64> = a.iter().zip(&b).map(|(a, b)| b / a).collect();
        ratios.sort_by(f64::total_cmp);
        let (lowest, highest) = (*ratios.first()?, *ratios.last()?);
        Some(Self { a: median(&a)?, b: median(&b)?, ratio: median(&ratios)?, lowest, highest })
    }
}

fn figure(record: &Map<String, Value>, name: &str) -> Option<f64> {
    record.get(name)?.as_f64()
}

/// The two sides: A as the command line says, B with the changes of the comparison.
fn sides(args: &Args, words: &[String]) -> anyhow::Result<[Side; 2]> {
    let own = std::env::current_exe().context("the path of this program")?;
    // As the user called it: `tandem bench` becomes this program under the name of `tandem`.
    let called = std::env::args_os().next().map_or_else(|| own.clone(), PathBuf::from);
    let name = called.file_name().map_or_else(|| own.clone(), PathBuf::from);
    let changes = match &args.compare {
        Some(flags) => {
            let words = shlex::split(flags).with_context(|| format!("--compare `{flags}`: a quote is not closed"))?;
            text(with_dashes(words.into_iter().map(OsString::from)))?
        }
        None => Vec::new(),
    };
    if let Some(word) = changes.first().filter(|word| !word.starts_with("--")) {
        bail!("--compare takes flags of this command in one word, such as --compare \"--kernels stock\", not `{word}`");
    }
    let refused = OWN.into_iter().chain(NOT_COMPARED);
    if let Some(flag) = refused.into_iter().find(|own| flags(&changes).iter().any(|(name, _)| name == own)) {
        bail!("--compare cannot change {flag}");
    }
    let common = without(words, &OWN.map(str::to_owned));
    let changed: Vec<String> = flags(&changes).iter().map(|(name, _)| (*name).to_owned()).collect();
    let other = [without(&common, &changed), changes].concat();
    let (program, shown) = match &args.compare_binary {
        Some(path) => {
            ensure!(path.is_file(), "--compare-binary {}: no such file", path.display());
            // A bare name would be looked for in PATH.
            (std::path::absolute(path).context("--compare-binary")?, path.clone())
        }
        None => {
            let command = Args::augment_args(clap::Command::new("bench")).no_binary_name(true);
            if let Err(error) = command.try_get_matches_from(&other) {
                let text = error.to_string();
                bail!("--compare: {}", text.lines().next().unwrap_or_default().trim_start_matches("error: "));
            }
            (own.clone(), name.clone())
        }
    };
    let side = |name, program, shown, words| Side { name, program, shown, words, records: Vec::new() };
    Ok([side("A", own, name, common), side("B", program, shown, other)])
}

/// The flags of a command line, each with its number of words. The value of a flag of the comparison may begin with
/// dashes; the value of another flag does not.
fn flags(words: &[String]) -> Vec<(&str, usize)> {
    let mut list = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        let (name, values) = match word.split_once('=') {
            Some((name, _)) => (name, 0),
            None if OWN.contains(&word.as_str()) => (word.as_str(), after.len().min(1)),
            None => (word.as_str(), after.iter().take_while(|w| !w.starts_with("--")).count()),
        };
        list.push((name, 1 + values));
        rest = &after[values..];
    }
    list
}

/// The command line without some of its flags.
fn without(words: &[String], dropped: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    for (name, length) in flags(words) {
        if !dropped.iter().any(|d| d == name) {
            kept.extend_from_slice(&words[at..at + length]);
        }
        at += length;
    }
    kept
}

impl Side {
    /// The command line, as one would type it.
    fn line(&self) -> String {
        let words = self.words.iter().map(String::as_str);
        // Words of a command line hold no zero bytes.
        let words = shlex::try_join(words).unwrap_or_else(|_| self.words.join(" "));
        format!("{} bench {words}", self.shown.display())
    }

    /// One repeat in a fresh process.
    fn measure(&self) -> anyhow::Result<Map<String, Value>> {
        let output = Command::new(&self.program)
            .arg("bench")
            .args(&self.words)
            .args(["--repeat", "1"])
            .env_remove("TANDEM_TRACE")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("{} ({}) cannot be started", self.name, self.program.display()))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            let line =
                text.lines().find(|line| line.starts_with("error: ")).unwrap_or("error: it ended without a message");
            bail!("{} ({}): {}", self.name, self.line(), line.trim_start_matches("error: "));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.trim_end().lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| format!("{} ({}) ends without a record", self.name, self.line()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn side(name: &'static str, rates: &[f64]) -> Side {
        let record = |rate: &f64| Map::from_iter([("tokens_per_s".to_owned(), (*rate).into())]);
        let program = PathBuf::from("rollout");
        Side { name, shown: program.clone(), program, words: Vec::new(), records: rates.iter().map(record).collect() }
    }

    #[test]
    fn flags_are_taken_out_with_their_values_in_both_spellings() {
        let mut line = words("--model m --swap --kernels=packed --threads 2 --compare x --seed 1");
        let at = line.iter().position(|word| word == "x").unwrap();
        line[at] = "--kernels stock".into();
        let left = without(&line, &words("--kernels --compare --threads"));
        assert_eq!(left, words("--model m --swap --seed 1"));
        let without_swap = without(&line, &words("--swap"));
        assert_eq!((without_swap.len(), &without_swap[2][..]), (9, "--kernels=packed"));
    }

    #[test]
    fn a_line_can_be_typed_again_and_names_its_program() {
        let words = ["--model", "my models/x", "--repeat", "1"].map(str::to_owned).to_vec();
        let side = Side { words: words.clone(), shown: "../old/rollout".into(), ..side("B", &[]) };
        assert_eq!(side.line(), "../old/rollout bench --model 'my models/x' --repeat 1");
        assert_eq!(shlex::split(&side.line()).unwrap()[2..], words);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let (a, b) = (side("A", &[100.0, 50.0, 80.0]), side("B", &[110.0, 60.0, 80.0]));
        let found = Compared::new("tokens_per_s", &a, &b).unwrap();
        assert_eq!((found.a, found.b, found.ratio, found.lowest, found.highest), (80.0, 80.0, 1.1, 1.0, 1.2));
        assert_eq!(Compared::new("cores", &a, &b), None);
        assert_eq!(median(&[1.0, 4.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
