//! Measures `rollout-serve serve` under load: starts it with a model, lets many clients ask it for a while, and prints
//! its rate, the times to first tokens, its memory and the errors. BENCHMARKS.md has the command.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use exporters::{AdapterConfig, fill_adapter};
use harness::load::{Load, Look, adapter_name, with_tokenizer};
use serde_json::json;
use shared::{ModelDir, generation::rng::Stream};

/// Rank of adapters. They are merged when they are loaded, so their speed does not depend on it.
const RANK: usize = 16;

/// Lets many clients ask an endpoint for a while, and prints what came of it.
#[derive(Debug, Parser)]
struct Args {
    /// The model; one without a tokenizer gets one of letters
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Clients at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: usize,
    /// Time after which no request is begun
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    seconds: u64,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value_t = 64)]
    prompt_length: usize,
    /// Tokens of each completion
    #[arg(long, value_name = "N", default_value_t = 128)]
    completion_length: usize,
    /// LoRA adapters with random weights, which the clients ask in turns; without any, they ask the model
    #[arg(long, value_name = "N", default_value_t = 0)]
    adapters: usize,
    /// Linear layers that an adapter changes
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    )]
    target_modules: Vec<String>,
    /// Flags of the endpoint (`--threads 2`, …)
    #[arg(last = true)]
    serve: Vec<OsString>,
}

/// The endpoint, which ends with this value.
struct Serve {
    child: Child,
    port: u16,
}

impl Serve {
    fn start(model: &Path, flags: &[OsString]) -> Result<Self> {
        let program = harness::binary("rollout-serve");
        let mut command = Command::new(&program);
        command.args(["serve", "--port", "0", "--model"]).arg(model).args(flags).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| program.display().to_string())?;
        let mut said = BufReader::new(child.stderr.take().context("its messages are piped")?);
        let mut all = String::new();
        let port = loop {
            let mut line = String::new();
            ensure!(said.read_line(&mut line)? > 0, "the endpoint has ended: {all}");
            if let Some((_, address)) = line.split_once(" at http://127.0.0.1:") {
                let port = address.split(' ').next().and_then(|port| port.trim().parse().ok());
                break port.with_context(|| line.clone())?;
            }
            all.push_str(&line);
        };
        // What it says later must find a reader.
        thread::spawn(move || _ = said.read_to_end(&mut Vec::new()));
        Ok(Self { child, port })
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes an adapter with small random weights on a model.
fn write_adapter(model: &Path, dir: &Path, target_modules: &[String]) -> Result<()> {
    let base = ModelDir::open(model)?;
    let parameters = || base.config().parameters();
    let config = AdapterConfig {
        base_model_name_or_path: model.display().to_string(),
        base_blake3: None,
        r: RANK,
        lora_alpha: RANK as f64,
        lora_dropout: 0.0,
        target_modules: target_modules.to_vec(),
        use_rslora: false,
        wrapped: false,
    };
    let shapes: HashMap<_, _> = config.tensors(parameters())?.into_iter().collect();
    let name = dir.file_name().context("an adapter has a folder of its own")?.as_encoded_bytes();
    let mut stream = Stream::new(&name.iter().copied().map(u64::from).collect::<Vec<_>>());
    fs::create_dir(dir)?;
    fill_adapter(dir, &config, parameters(), &mut |tensor| {
        Ok((0..shapes[tensor].iter().product()).map(|_| 0.01 * stream.next_normal() as f32).collect())
    })?;
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let with_tokens = with_tokenizer(&args.model).with_context(|| args.model.display().to_string())?;
    let model = with_tokens.as_ref().map_or_else(|| args.model.clone(), |folder| folder.path().to_owned());
    let folder = tempfile::tempdir()?;
    let mut flags = args.serve.clone();
    for number in 0..args.adapters {
        let (name, dir) = (adapter_name(number), folder.path().join(adapter_name(number)));
        write_adapter(&model, &dir, &args.target_modules)?;
        flags.extend(["--lora-modules".into(), format!("{name}={}", dir.display()).into()]);
    }
    let serve = Serve::start(&model, &flags)?;
    let minute = Duration::from_secs(60);
    let load = Load {
        clients: args.clients,
        time: Duration::from_secs(args.seconds),
        prompt_tokens: args.prompt_length,
        completion_tokens: args.completion_length,
        adapters: args.adapters,
        look: minute,
    };
    let outcome = load.run(serve.port, serve.child.id(), |Look { at, resident, completions }| {
        println!("minute {:.0}: {:.1} MiB, {completions} completions", at.as_secs_f64() / 60.0, mib(*resident));
    });
    outcome.errors.iter().for_each(|error| println!("{error}"));
    let seconds = outcome.time.as_secs_f64();
    let first_token = |share: f64| outcome.first_token_at(share).map(|time| time.as_secs_f64());
    // Memory of the second minute counts as that at the beginning: by then, all buffers are there.
    let second = outcome.looks.get(1).map(|look| look.resident);
    let last = outcome.looks.last().map(|look| look.resident);
    let growth = second.zip(last).map(|(second, last)| last as f64 / second as f64 - 1.0);
    let record = json!({
        "clients": args.clients,
        "adapters": args.adapters,
        "seconds": seconds,
        "completions": outcome.completions,
        "tokens_per_s": outcome.tokens as f64 / seconds,
        "ttft_seconds_p50": first_token(0.5),
        "ttft_seconds_p99": first_token(0.99),
        "resident_minute_2_mib": second.map(mib),
        "resident_last_mib": last.map(mib),
        "resident_growth": growth,
        "errors": outcome.failed,
    });
    println!("{record}");
    Ok(if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
