//! The user's own Python as a parser of Python: it reads the text of a script, and runs nothing of it.

use std::{
    io::{Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use shared_bounds::OneLine;

use super::expression::Report;

/// The program that reads a script.
const READER: &str = include_str!("reader.py");

/// How long it may take: a script of the largest size takes a few seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// Most bytes of its answer.
const MOST_BYTES: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Wrong { wrong: String },
    Report(Report),
}

/// What the trainer of a script is given, as that interpreter reads it.
///
/// # Errors
/// An interpreter that cannot be started or does not answer, and a script that is no valid Python, with the line.
pub fn report(python: &str, text: &str) -> Result<Report> {
    // Isolated, and without packages: neither variables nor files of the user change how a script is read.
    let mut command = Command::new(python);
    command.args(["-I", "-S", "-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        anyhow!(
            "is a Python script, which `{python}` reads, and that cannot be started ({error}): install Python, or let \
             TANDEM_REWARD_PYTHON name one"
        )
    })?;
    let (stdin, script) = (child.stdin.take(), text.to_owned());
    let writer = thread::spawn(move || {
        // A program that has ended says itself why.
        let _ = stdin.map(|mut stdin| stdin.write_all(script.as_bytes()));
    });
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let status = wait(&mut child);
    let (stdout, stderr) = (joined(stdout), joined(stderr));
    joined(writer);
    let said = String::from_utf8_lossy(&stderr).trim_end().lines().last().map(|line| OneLine(line).to_string());
    if !status?.success() {
        bail!("is a Python script, which `{python}` does not read: {}", said.as_deref().unwrap_or("it says no reason"));
    }
    match serde_json::from_slice(&stdout).with_context(|| format!("`{python}` did not answer with JSON"))? {
        Answer::Wrong { wrong } => bail!("{}", OneLine(wrong)),
        Answer::Report(report) => Ok(report),
    }
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Bytes that were read before an error count. A longer answer is cut, and is no JSON then.
        let _ = pipe.map(|pipe| pipe.take(MOST_BYTES).read_to_end(&mut bytes));
        bytes
    })
}

fn joined<T>(thread: JoinHandle<T>) -> T {
    thread.join().expect("passing on bytes does not panic")
}

fn wait(child: &mut Child) -> Result<ExitStatus> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child process")? {
            return Ok(status);
        }
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            bail!("is a Python script that was not read within {} s", PATIENCE.as_secs());
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(python: &str, text: &str) -> String {
        format!("{:#}", report(python, text).expect_err(text))
    }

    #[test]
    fn an_interpreter_that_is_missing_or_does_not_answer_is_named_with_the_way_out() {
        let message = wrong("no-such-python", "x = 1\n");
        assert!(message.contains("`no-such-python` reads, and that cannot be started"), "{message}");
        assert!(message.contains("TANDEM_REWARD_PYTHON"), "{message}");
        assert!(wrong("true", "x = 1\n").contains("did not answer with JSON"));
        assert!(wrong("false", "x = 1\n").contains("does not read: it says no reason"));
    }

    #[test]
    fn what_is_no_python_is_an_error_with_its_line() {
        let message = wrong("python3", "a = 1\nb = (\n");
        assert!(message.starts_with("line 2: is no valid Python: "), "{message}");
        assert!(wrong("python3", "a = 1\0").contains("is no valid Python"));
        let deep = format!("a = {}1{}\n", "-(".repeat(3000), ")".repeat(3000));
        let message = wrong("python3", &deep);
        assert!(message.contains("too deep") || message.contains("too many nested parentheses"), "{message}");
    }

    /// Nothing of a script is run, and a short one cannot stand for an answer without end.
    #[test]
    fn a_script_is_not_run_and_its_reading_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let mut text = format!("open({:?}, 'w')\na0 = [0, 0]\n", mark.display().to_string());
        for n in 0..60 {
            text += &format!("a{0} = [a{1}, a{1}]\n", n + 1, n);
        }
        text += "n = 9 ** 9 ** 9 ** 9\ntrl.GRPOTrainer(args=n, model=a60, tools=a16)\nimport trl\n";
        let report = report("python3", &text).unwrap();
        let why = |name: &str| {
            let named = &report.trainers[0].call.named;
            named.iter().find(|(known, _)| known == name).unwrap().1.literal().unwrap_err().to_string()
        };
        assert!(why("model").ends_with("is within more than 24 lists, mappings and calls"), "{}", why("model"));
        assert!(why("args").ends_with("is computed when the script runs"), "{}", why("args"));
        assert!(why("tools").ends_with("the script has too many expressions"), "{}", why("tools"));
        assert!(!mark.exists());
    }
}
