//! The page of `tandem ui` and the report, as a server and in a browser.

mod columns;
mod runs;
mod server;
mod table;
mod texts;
mod workers;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use harness::{binary, browser::Browser};
use serde_json::{Value, json};
use shared::run::workers::WorkersTable;

/// `tandem ui`, which ends with the test.
struct Ui {
    child: Child,
    address: String,
}

impl Ui {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(binary("tandem"));
        command.args(["ui", "--port", "0"]).args(words).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut address).unwrap();
        Self { child, address: address.trim().to_owned() }
    }

    fn of(folder: &Path) -> Self {
        Self::start(&[folder.to_str().unwrap()])
    }

    fn port(&self) -> u16 {
        self.address.split(['/', ':']).find_map(|part| part.parse().ok()).expect("an address has a port")
    }

    /// Head and body of an answer.
    fn get(&self, path: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(&format!("/api/{path}"), "Host: localhost");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }
}

impl Drop for Ui {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A run that has made these steps, of four completions each.
fn made_up_run(dir: &Path, steps: u64, text: impl Fn(u64, u64) -> String) {
    fs::create_dir_all(dir.join("completions")).unwrap();
    let mut metrics = String::new();
    for step in 1..=steps {
        let wave = (step as f64 / 20.0).sin();
        let record = json!({
            "step": step, "total_steps": steps, "reward": 0.00125 * wave, "rewards/one/mean": wave,
            "entropy": 1.0 / step as f64,
            "mismatch_kl": 1e-9, "step_time": 1.0, "perf/rollout_wait_s": 0.5, "perf/fwd_bwd_s": 0.4,
            "perf/publish_s": 0.1,
            "rollout/busy_s": 0.5, "rollout/idle_s": 0.5, "completions/num_tokens": 100,
            "completions/mean_length": 25.0,
        });
        metrics.push_str(&format!("{record}\n"));
        let row = |sample: u64| {
            let row = json!({
                "step": step, "group": sample / 2, "position": 2 * step + sample / 2, "prompt_id": sample / 2,
                "sample": sample % 2,
                "state": if sample == 3 { "stale" } else { "trained" }, "prompt": format!("prompt {}", sample / 2),
                "completion": text(step, sample), "rewards": {"one": sample as f64}, "reward": sample as f64,
                "advantage": 0.5,
                "finish_reason": if sample == 2 { "length" } else { "stop" }, "version": step - 1, "tokens": 3 + sample,
                "columns": {"answer": format!("It is so.\n#### {}", sample / 2), "level": "easy"},
                "extra": {"found": sample},
            });
            format!("{row}\n")
        };
        fs::write(dir.join(format!("completions/step-{step}.jsonl")), (0..4).map(row).collect::<String>()).unwrap();
    }
    fs::write(dir.join("metrics.jsonl"), metrics).unwrap();
}

/// The table of a coordinator that has just written it.
fn workers(rows: &[Value]) -> WorkersTable {
    let table = json!({
        "written": shared::run::workers::now(),
        "listen": "tls/0.0.0.0:7447", "join": "tandem worker --join tls/HOST:7447 --token-file FILE",
        "version": 7, "verified": 12, "disputed": 1,
        "refused_calls": 2, "store_bytes_out": 4_200_000_000_u64, "workers": rows,
    });
    serde_json::from_value(table).unwrap()
}

/// Chooses a value of the control of this name.
fn choose(browser: &mut Browser, name: &str, value: &str) {
    let _ = browser.eval(&format!(
        "(() => {{ const control = [...document.querySelectorAll('.control')]\
         .find((one) => one.innerText.startsWith('{name}')); \
         const select = control.querySelector('select'); select.value = '{value}'; \
         select.dispatchEvent(new Event('change')); }})()"
    ));
}

/// Words of the page.
const TEXT: &str = "document.body.innerText";
