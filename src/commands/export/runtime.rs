//! ONNX Runtime as a reader of exports: `rollout logits`, which links it.

use std::{
    io::{self, Read, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use exporters_verify::{Reader, VerifyError};
use ndarray::Array2;

use crate::programs::binaries;

/// Most bytes of the runtime's messages that are kept.
const MOST_WORDS: u64 = 64 << 10;

/// The program with a folder that it has opened. It ends when this is dropped.
pub(super) struct Runtime {
    child: Child,
    rows: Option<ChildStdin>,
    logits: ChildStdout,
    words: Option<JoinHandle<String>>,
}

impl Runtime {
    /// Starts the program on a folder for ONNX Runtime GenAI.
    pub fn start(folder: &Path) -> Result<Self> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut command = binaries::command(&binaries::find("rollout")?);
        command.args(["logits", &format!("--threads={threads}"), "--folder"]).arg(folder);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start rollout, which runs the export")?;
        let (rows, logits) = (child.stdin.take(), child.stdout.take().expect("it is a pipe"));
        let mut words = child.stderr.take().expect("it is a pipe").take(MOST_WORDS);
        // Read at once: a program that finds its pipe full would wait.
        let words = thread::spawn(move || {
            let mut text = Vec::new();
            let _ = words.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, rows, logits, words: Some(words) })
    }

    /// The program's own error, once it has ended; else that of the pipe.
    fn error(&mut self, of_pipe: &io::Error) -> VerifyError {
        self.rows = None;
        let _ = self.child.wait();
        let words = self.words.take().and_then(|words| words.join().ok()).unwrap_or_default();
        let own = words.lines().rev().find_map(|line| line.strip_prefix("error: "));
        VerifyError::Runtime(own.map_or_else(|| format!("rollout has ended ({of_pipe})"), str::to_owned))
    }

    fn ask(&mut self, tokens: &[u32]) -> io::Result<Array2<f32>> {
        let rows = self.rows.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(rows, "{}", serde_json::json!(tokens))?;
        rows.flush()?;
        let mut sizes = [0; 8];
        self.logits.read_exact(&mut sizes)?;
        let [length, vocabulary] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|i| sizes[at + i])) as usize);
        let mut bytes = vec![0; length * vocabulary * size_of::<f32>()];
        self.logits.read_exact(&mut bytes)?;
        let floats = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        Array2::from_shape_vec((length, vocabulary), floats).map_err(io::Error::other)
    }
}

impl Reader for Runtime {
    fn logits(&mut self, tokens: &[u32]) -> Result<Array2<f32>, VerifyError> {
        self.ask(tokens).map_err(|error| self.error(&error))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // It ends with its input, but may be within a pass.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
