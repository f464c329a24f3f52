//! Measures a sampler whose completions are conversations: a run's own step loop, its Python host and its engine, with
//! a model of random weights that is made to call a tool in each of its turns.
//!
//! ```console
//! $ cargo build --release --locked --workspace --example conversations
//! $ target/release/examples/conversations bench --model DIR --sleep 5
//! $ target/release/examples/conversations bench --model DIR --sleep 5 --max-kept-states 100
//! $ target/release/examples/conversations bench --model DIR --message-length 481
//! ```
//!
//! The tool sleeps for a random time of up to `--sleep` seconds. Without a tool (the last command), each completion is
//! one turn of as many sampled tokens, and the message of its prompt is to be longer by the replies.

use std::{
    fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use exporters::{ExportOptions, export};
use harness::tiny_model::{CHARACTERS, CONVERSATION_TEMPLATE, Qwen2};
use rollout::{
    commands::flags::TraceFlags,
    engine::{Constrained, Constraint, EngineError, FinishedSequence, Output, Request, SwapReport, WeightSource},
    generate::{Conversed, Generate, PairGenerator},
    pair::{self, GeneratorFactory, LocalEngine, factory::RunParts},
};
use serde_json::{Map, Value, json};
use shared::{
    Exchange, ModelDir, Placed, PolicyVersion, RunDir,
    channel::{LearnerEnd, LearnerStatus, RunId, iox::IoxLearner},
    config::{TrainConfig, layers},
    run::memory_plan::SamplerSizes,
};

/// The id that ends a turn, after those of all characters.
const END: u32 = CHARACTERS as u32;
const MODEL: Qwen2 = Qwen2 {
    vocab_size: 4096,
    hidden_size: 256,
    intermediate_size: 768,
    num_hidden_layers: 4,
    num_attention_heads: 8,
    num_key_value_heads: 4,
};

/// Turns of a conversation.
const TURNS: usize = 4;
/// Tokens of a turn.
const TURN: usize = 64;
/// What the model is made to write at the end of a turn; before that it writes what it likes.
const CALL: &str = "<tool_call>\n{\"name\": \"w\", \"arguments\": {}}\n</tool_call>";
/// The reply of the tool, which has 64 tokens with what the template writes around it.
const REPLY: &str = "0123456789a";

/// Longest time without a further group.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures a sampler whose completions are conversations.
#[derive(Debug, Parser)]
enum Args {
    /// Samples conversations and prints what came of it
    Bench(Bench),
    /// The sampler itself, which the measurement starts
    #[command(hide = true)]
    Sampler {
        run_dir: PathBuf,
        #[command(flatten)]
        trace: TraceFlags,
    },
}

#[derive(Debug, clap::Args)]
struct Bench {
    /// The model's folder, which is made with random weights where there is none
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Conversations
    #[arg(long, value_name = "N", default_value_t = 1000)]
    conversations: u32,
    /// Sequences decoded at once
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_num_seqs: usize,
    /// Waiting conversations whose keys and values are held
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max_kept_states: usize,
    /// Longest time that a call of the tool sleeps; without it, there is no tool
    #[arg(long, value_name = "SECONDS")]
    sleep: Option<f64>,
    /// Characters of the user's message
    #[arg(long, value_name = "N", default_value_t = 64)]
    message_length: usize,
    /// Threads of the engine
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    #[command(flatten)]
    trace: TraceFlags,
}

/// Anything, then a call, and perhaps that again, up to the end.
struct Forced {
    /// The token that is to come in each place, if it is not free.
    tokens: Arc<[Option<u32>]>,
    at: usize,
    allowed: Vec<u32>,
}

impl Forced {
    fn of(turns: usize) -> Constrained {
        let call = CALL.bytes().map(|byte| Some(id(byte)));
        let free = TURN - CALL.len() - 1;
        let turn = (0..free).map(|_| None).chain(call).chain([Some(id(b' '))]);
        let mut tokens: Vec<Option<u32>> = turn.cycle().take(turns * TURN).collect();
        *tokens.last_mut().expect("a turn has tokens") = Some(END);
        let tokens: Arc<[Option<u32>]> = tokens.into();
        let begin = move || Box::new(Self { tokens: tokens.clone(), at: 0, allowed: vec![] }) as Box<dyn Constraint>;
        Constrained::new("the measurement", Arc::new(begin))
    }
}

/// The id of a character.
fn id(byte: u8) -> u32 {
    if byte == b'\n' { 1 } else { u32::from(byte - b' ') + 2 }
}

impl Constraint for Forced {
    fn allowed(&mut self) -> Result<&[u32], String> {
        self.allowed = vec![0; (END as usize + 1).div_ceil(32)];
        let letters: RangeInclusive<u32> = id(b'a')..=id(b'z');
        let may = self.tokens[self.at].map_or(letters, |token| token..=token);
        may.for_each(|token| self.allowed[token as usize / 32] |= 1 << (token % 32));
        Ok(&self.allowed)
    }

    fn push(&mut self, _: u32) -> Result<bool, String> {
        self.at += 1;
        Ok(self.at == self.tokens.len())
    }
}

/// An engine whose completions are what the measurement wants.
struct Forcing {
    inner: Box<dyn PairGenerator>,
    constraint: Constrained,
}

impl Generate for Forcing {
    fn version(&self) -> PolicyVersion {
        self.inner.version()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn running(&self) -> usize {
        self.inner.running()
    }

    fn waiting(&self) -> usize {
        self.inner.waiting()
    }

    fn begin(&mut self, mut request: Request) -> Result<(), EngineError> {
        request.group.constraint = Some(self.constraint.clone());
        self.inner.begin(request)
    }

    fn advance(&mut self) -> Result<Vec<Output>, EngineError> {
        self.inner.advance()
    }

    fn cancel(&mut self, tag: u64, sample: Option<u32>) -> Vec<FinishedSequence> {
        self.inner.cancel(tag, sample)
    }

    fn begin_swap(&mut self, weights: WeightSource) -> Result<(), EngineError> {
        self.inner.begin_swap(weights)
    }

    fn try_swap(&mut self) -> Result<Option<SwapReport>, EngineError> {
        self.inner.try_swap()
    }

    fn set_admission(&mut self, admit: bool) {
        self.inner.set_admission(admit);
    }
}

impl PairGenerator for Forcing {
    fn take_conversation(&mut self, sequence: &FinishedSequence) -> Option<Conversed> {
        self.inner.take_conversation(sequence)
    }
}

struct Factory;

impl GeneratorFactory for Factory {
    fn check(&self, config: &TrainConfig) -> Result<()> {
        LocalEngine.check(config)
    }

    fn generator(&self, run: RunParts<'_>) -> Result<Option<Box<dyn PairGenerator>>> {
        let constraint = Forced::of(if run.config.has_tools() { 1 } else { TURNS });
        let inner = LocalEngine.generator(run)?;
        Ok(inner.map(|inner| Box::new(Forcing { inner, constraint }) as _))
    }
}

/// Writes a model of random weights with a tokenizer of one token for each character.
fn write_model(dir: &Path) -> Result<()> {
    MODEL.write(dir, 1);
    let characters = ['\n'].into_iter().chain(' '..='~').map(String::from);
    let texts = ["<|im_start|>".to_owned()].into_iter().chain(characters).chain(["<|im_end|>".to_owned()]);
    let vocab: Map<String, Value> = texts.zip(0..).map(|(text, id): (_, u32)| (text, id.into())).collect();
    let added = [(0, "<|im_start|>"), (END, "<|im_end|>")].map(|(id, content)| {
        json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false})
    });
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    for (name, content) in [
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}).to_string()),
        ("generation_config.json", json!({"eos_token_id": END}).to_string()),
        ("chat_template.jinja", CONVERSATION_TEMPLATE.to_owned()),
    ] {
        fs::write(dir.join(name), content)?;
    }
    Ok(())
}

/// A run of one step in a folder.
fn configure(bench: &Bench, folder: &Path) -> Result<TrainConfig> {
    if !bench.model.join("model.safetensors").exists() {
        write_model(&bench.model).with_context(|| bench.model.display().to_string())?;
    }
    let words = (b'a'..=b'z').cycle().map(char::from);
    let row = |at: u32| -> String {
        let message: String = words.clone().skip(at as usize).take(bench.message_length).collect();
        format!("{}\n", json!({"prompt": [{"role": "user", "content": message}]}))
    };
    fs::write(folder.join("prompts.jsonl"), (0..bench.conversations / 2).map(row).collect::<String>())?;
    let sleep = bench.sleep.unwrap_or(0.0);
    let tool = format!(
        "import asyncio, random\n\n\nasync def w() -> str:\n    \"\"\"Waits.\"\"\"\n    \
         await asyncio.sleep(random.uniform(0, {sleep}))\n    return \"{REPLY}\"\n"
    );
    fs::write(folder.join("tool.py"), tool)?;
    let tools = bench.sleep.map(|_| format!("{}:w", folder.join("tool.py").display()));
    let given = if tools.is_some() { (TURNS - 1) * TURN } else { 0 };
    let length = TURNS * TURN + given;
    let config = TrainConfig {
        model: bench.model.clone(),
        dataset: folder.join("prompts.jsonl").into(),
        output_dir: folder.join("run"),
        reward_funcs: vec!["format".into()],
        num_generations: 2,
        generation_batch_size: Some(bench.conversations),
        max_steps: Some(1),
        max_completion_length: length as u32,
        max_model_len: Some(bench.message_length + 512 + length),
        max_num_seqs: Some(bench.max_num_seqs),
        max_kept_states: tools.as_ref().map(|_| bench.max_kept_states),
        max_tool_calling_iterations: tools.as_ref().map(|_| TURNS as u32 - 1),
        tools: tools.into_iter().collect(),
        environment_timeout: sleep + 60.0,
        rollout_threads: Some(bench.threads),
        ..TrainConfig::default()
    };
    config.validate()?;
    Ok(config)
}

/// The sampler's process, which ends with this value.
struct Sampler(Child);

impl Sampler {
    fn start(run_dir: &RunDir, trace: &TraceFlags) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // Set before the process starts, as ONNX Runtime reads it when it is loaded.
        command.env("ORT_DISABLE_TELEMETRY", "1");
        command.arg("sampler").arg(run_dir.root());
        if let Some(path) = &trace.trace {
            command.arg("--trace").arg(path);
        }
        Ok(Self(command.spawn()?))
    }

    /// The most memory that it has had, in bytes.
    fn peak_memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(peak.context("no VmHWM")?.trim().parse::<u64>()? * 1024)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays the learner: takes all groups of the step. Returns them with the seconds from the sampler's first work and the
/// most memory that it has had.
fn receive(run_dir: &RunDir, sampler: &mut Sampler, groups: usize) -> Result<(Vec<Placed>, f64, u64)> {
    let mut end = IoxLearner::open(run_dir, RunId::NONE)?;
    let mut status = LearnerStatus { incarnation: 1, total_steps: 1, ..LearnerStatus::default() };
    let (mut received, mut begun, mut newest) = (Vec::<Placed>::new(), None, Instant::now());
    while received.len() < groups {
        status.received = received.iter().map(|group| group.id.index).collect();
        status.next_cursor = received.len() as u64;
        end.publish_status(&status)?;
        if let Some(group) = end.receive_group(Duration::from_millis(5))? {
            newest = Instant::now();
            received.push(group);
        }
        if end.sampler_status()?.is_some_and(|status| status.busy_micros > 0) {
            begun.get_or_insert_with(Instant::now);
        }
        if let Some(ended) = sampler.0.try_wait()? {
            bail!("the sampler has ended: {ended}");
        }
        ensure!(newest.elapsed() < PATIENCE, "{} of {groups} groups came", received.len());
    }
    let begun = begun.context("the sampler has not said that it works")?;
    let seconds = newest.duration_since(begun).as_secs_f64();
    let peak = sampler.peak_memory()?;
    // It ends by itself, and writes its timeline.
    end.publish_status(&LearnerStatus { finished: true, ..status })?;
    let patience = Instant::now() + PATIENCE;
    let ended = loop {
        if let Some(ended) = sampler.0.try_wait()? {
            break ended;
        }
        ensure!(Instant::now() < patience, "the sampler does not end");
        thread::sleep(Duration::from_millis(10));
    };
    ensure!(ended.success(), "the sampler has failed: {ended}");
    Ok((received, seconds, peak))
}

fn bench(bench: &Bench) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = configure(bench, folder.path())?;
    let run_dir = RunDir::new(&config.output_dir);
    run_dir.create()?;
    fs::write(run_dir.config(), layers::to_toml(&config))?;
    let model = ModelDir::open(&config.model)?;
    export(&model, &run_dir.version(PolicyVersion(0)), &ExportOptions::default())?;
    let length = config.max_model_len.unwrap_or_default();
    let plan = SamplerSizes::of(&config, model.config(), bench.max_num_seqs, length).plan(model.config()).total();
    let mut sampler = Sampler::start(&run_dir, &bench.trace)?;
    let (groups, seconds, peak) = receive(&run_dir, &mut sampler, config.groups_per_step() as usize)?;
    let episodes = || groups.iter().flat_map(|group| &group.completions).map(|completion| &completion.episode);
    let exchanges: Vec<&Exchange> =
        groups.iter().flat_map(|group| &group.completions).filter_map(|c| c.exchange.as_deref()).collect();
    let sum = |of: &dyn Fn(&shared::Episode) -> usize| episodes().map(of).sum::<usize>();
    let (sampled, given) = (sum(&|episode| episode.sampled()), sum(&|episode| episode.given()));
    let prompt = groups.iter().map(|group| group.prompt_ids.len()).sum::<usize>() / groups.len();
    let recomputed: u32 = exchanges.iter().map(|exchange| exchange.recomputed).sum();
    let waited = exchanges.iter().fold(0.0, |sum, exchange| sum + exchange.waited_seconds);
    println!(
        "{} completions of {} turns in {seconds:.1} s: {sampled} sampled tokens ({:.0}/s), {given} given ones, prompts \
         of {prompt} tokens; {recomputed} turns computed again, {waited:.0} s waited; peak {:.0} MiB, planned {:.0} \
         MiB",
        episodes().count(),
        sum(&|episode| episode.turns()),
        sampled as f64 / seconds,
        peak as f64 / f64::from(1 << 20),
        plan as f64 / f64::from(1 << 20),
    );
    Ok(())
}

fn main() -> ExitCode {
    let result = match Args::parse() {
        Args::Bench(args) => bench(&args),
        Args::Sampler { run_dir, trace } => trace
            .start()
            .and_then(|()| pair::run(&RunDir::new(&run_dir), None, &Factory).map(drop))
            .and_then(|()| trace.write()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
