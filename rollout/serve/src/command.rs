//! `rollout-serve serve`.

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    process::ExitCode,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::builder::NonEmptyStringValueParser;
use rollout::{
    commands::{
        flags::{BatchingFlags, ModelFlag, TemplateFlags},
        model,
    },
    engine::available_memory,
    generate::drive,
};
use rollout_constraint::Grammars;
use shared::{process::command_line::tell_warnings, system::memory::Size};
use tokio::sync::Notify;

use crate::{
    adapter_flags::AdapterFlags,
    answer::TokenNames,
    desk,
    metrics::Metrics,
    models::Models,
    routes::{App, Fresh, Limits, router, workers},
    server::{self, Bounds},
};

/// Tokens of prompt and completion where nobody says, if the model has room for more: keys and values of long sequences
/// take much memory.
const MAX_MODEL_LEN: usize = 8192;

/// The help of `--max-model-len`.
#[must_use]
pub fn max_model_len_help() -> String {
    format!(
        "Longest prompt plus completion, in tokens: longer requests are refused, and more takes more memory for each \
         sequence [default: the model's limit, at most {MAX_MODEL_LEN}]"
    )
}

/// The help of `--max-num-seqs`.
#[must_use]
pub fn max_num_seqs_help() -> &'static str {
    "Completions that are made at once: more use the machine better, and each of them is slower [default: 64, as far \
     as memory allows]"
}

/// Flags of `rollout-serve serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model.
    #[command(flatten)]
    pub named: ModelFlag,
    /// What the model is called in requests and answers [default: as --model is written]
    #[arg(long, env = "TANDEM_SERVED_MODEL_NAME", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub served_model_name: Option<String>,
    /// How messages are rendered; a request may add variables.
    #[command(flatten)]
    pub template: TemplateFlags,
    /// Adapters on the model.
    #[command(flatten)]
    pub adapters: AdapterFlags,
    /// The endpoint.
    #[command(flatten)]
    pub endpoint: EndpointFlags,
    /// Sizes and resources.
    #[command(flatten)]
    pub batching: BatchingFlags,
}

/// The address, and bounds of what it takes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Endpoint")]
pub struct EndpointFlags {
    /// Address to listen at; beyond this machine, an API key is needed
    #[arg(long, env = "TANDEM_SERVE_HOST", value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port; 0 takes any that is free
    #[arg(long, env = "TANDEM_SERVE_PORT", value_name = "N", default_value_t = 8000)]
    pub port: u16,
    /// Key that every request must have (`Authorization: Bearer KEY`). A flag is seen by all users of a machine, its
    /// environment variable is not
    #[arg(long, env = "TANDEM_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Prompts that may wait for their first token; while so many do, requests are refused with status 429
    #[arg(long, env = "TANDEM_MAX_QUEUE", value_name = "N", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_queue: u32,
    /// Most bytes of a request's body; a longer one is refused with status 413
    #[arg(long, env = "TANDEM_MAX_BODY_SIZE", value_name = "BYTES", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_body_size: u32,
    /// Longest time for an answer; then it is cancelled, and its status is 504
    #[arg(long, env = "TANDEM_REQUEST_TIMEOUT", value_name = "SECONDS", default_value_t = 600,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub request_timeout: u32,
    /// Most connections at once. When all places are taken, the oldest without a request in progress gives way
    #[arg(long, env = "TANDEM_MAX_CONNECTIONS", value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_connections: u32,
    /// At SIGTERM or Ctrl-C, time for requests that are being answered; new ones are refused
    #[arg(long, env = "TANDEM_GRACE", value_name = "SECONDS", default_value_t = 30)]
    pub grace: u32,
}

impl EndpointFlags {
    /// The key, which must be there where other machines can connect.
    fn key(&self) -> Result<Option<String>> {
        let key = self.api_key.clone();
        if let Some(key) = &key {
            let fits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
            ensure!(fits, "--api-key takes letters, digits and signs of ASCII, without blanks");
        }
        let host = self.host;
        ensure!(
            key.is_some() || host.is_loopback(),
            "--host {host} lets other machines in: set a key with --api-key or TANDEM_API_KEY"
        );
        Ok(key)
    }

    fn listen(&self) -> Result<TcpListener> {
        let address = SocketAddr::from((self.host, self.port));
        TcpListener::bind(address).with_context(|| {
            format!("cannot listen at {address}; --port takes another port, and --port 0 any that is free")
        })
    }
}

/// Runs the subcommand until a signal ends it. The address is the only line on stderr, but for warnings.
///
/// # Errors
/// With context for the user.
pub fn run(args: &Args) -> Result<ExitCode> {
    let endpoint = &args.endpoint;
    let key = endpoint.key()?;
    let model = args.template.model(&args.named)?;
    let tokenizer = args.template.tokenizer(model.dir())?;
    tell_warnings(model.dir().remarks_on_generation());
    let name = args.served_model_name.clone().unwrap_or_else(|| args.named.model.display().to_string());
    let mut options = args.batching.engine_options(usize::MAX, MAX_MODEL_LEN, model::limit(&model)?)?;
    let adapters = args.adapters.find(&model, &name, &options)?;
    // A port that is taken is told before the model is loaded.
    let listener = endpoint.listen()?;
    let beside = adapters.as_ref().map_or(0, |adapters| adapters.bytes(model.dir().config(), &options));
    if beside > 0 {
        options.memory = Some(available_memory(&options)?.saturating_sub(beside));
    }
    let opened = args.batching.engine(&model, options);
    let (mut engine, _) = match beside {
        0 => opened?,
        _ => opened.with_context(|| format!("beside {} for adapters (--max-loras)", Size(beside)))?,
    };
    let models = match adapters {
        None => Models::new(&name, None),
        Some(adapters) => adapters.load(&mut engine, &name)?,
    };

    let metrics = Arc::new(Metrics::default());
    let (service, mut desk) = desk::open(endpoint.max_queue as usize, Arc::clone(&metrics));
    let max_model_len = engine.options().max_model_len;
    let limits =
        Limits { body: endpoint.max_body_size as usize, time: Duration::from_secs(endpoint.request_timeout.into()) };
    let fresh = Fresh::new().context("random numbers of the system")?;
    let grammars = Grammars::new(&tokenizer, model.dir());
    let (names, workers) = (Arc::new(TokenNames::new(&tokenizer)), workers());
    let adapters = models.adapters();
    let app = App {
        models,
        tokenizer,
        names,
        grammars,
        max_model_len,
        service: service.clone(),
        metrics,
        key,
        agents: None,
        limits,
        fresh,
        workers,
    };
    let (app, over) = (router(Arc::new(app)), Arc::new(Notify::new()));
    let grace = Duration::from_secs(endpoint.grace.into());
    let bounds = Bounds { connections: endpoint.max_connections as usize, grace };
    let address = listener.local_addr()?;
    let server = {
        let over = Arc::clone(&over);
        let serve = move || {
            let served = server::serve(listener, &app, bounds, &over);
            service.stop();
            served
        };
        thread::Builder::new().name("http".into()).spawn(serve).context("cannot start the server")?
    };
    let adapters: Vec<String> = adapters.into_iter().map(|(adapter, _)| adapter.to_string()).collect();
    let with = if adapters.is_empty() { String::new() } else { format!("; adapters: {}", adapters.join(", ")) };
    shared::tell!("serving {name} at http://{address} (context of {max_model_len} tokens{with})");
    let driven = drive(&mut engine, &mut desk);
    // Whoever still waits for the engine hears that it is gone.
    drop(desk);
    over.notify_one();
    let served = server.join().map_err(|_| anyhow!("the server has panicked"))?;
    driven.context("the engine has stopped")?;
    served.map(|()| ExitCode::SUCCESS)
}
