//! `rollout-serve run`: from the configuration of a run to its agents and their endpoint.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow, ensure};
use rollout::{
    conversation::{Dialogue, Limits},
    generate::PairGenerator,
    pair::{GeneratorFactory, LocalEngine, factory::RunParts},
};
use rollout_constraint::Grammars;
use shared::config::TrainConfig;
use tokio::sync::Notify;

use crate::{
    agent::{Agents, Policy, Program, Samples, Server, Starter, Verifiers},
    answer::TokenNames,
    desk,
    metrics::Metrics,
    models::Models,
    routes::{self, App, Fresh, router, workers},
    server::{self, Bounds},
};

/// What the policy is called in answers. Requests may call it by any name.
const NAME: &str = "policy";
/// Most bytes of a request's body.
const MOST_BYTES: usize = 8 << 20;
/// Requests of an agent that may wait for their first token at once, and its connections.
const MOST_REQUESTS: usize = 16;
/// Time for requests that are being answered when the run ends.
const GRACE: Duration = Duration::from_secs(1);

/// Makes the generator of a run with agents.
#[derive(Debug, Clone, Copy)]
pub struct AgentFactory;

impl GeneratorFactory for AgentFactory {
    fn check(&self, config: &TrainConfig) -> anyhow::Result<()> {
        ensure!(config.agent.is_some(), "`agent` is not set: the sampler of this run is `rollout run`");
        Ok(())
    }

    fn generator(&self, run: RunParts<'_>) -> anyhow::Result<Option<Box<dyn PairGenerator>>> {
        let (config, model, tokenizer) = (run.config, run.model, run.tokenizer.clone());
        let max_model_len = run.options.max_model_len;
        let command = config.agent.as_deref().context("`agent` is not set")?;
        let limits = Limits {
            max_completion_length: config.max_completion_length as usize,
            max_model_len,
            max_tool_calling_iterations: None,
        };
        let dialogue = Dialogue::new(&tokenizer, &model.generation().eos_token_ids, limits);
        let dialogue = dialogue.context("`agent` needs a chat template that holds conversations with tools")?;
        let Some(engine) = LocalEngine.generator(run)? else { return Ok(None) };

        let most = config.max_concurrent_agents as usize;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for agents on 127.0.0.1")?;
        let url = format!("http://{}", listener.local_addr()?);
        let timeout = Duration::from_secs_f64(config.agent_timeout);
        let starter = starter(config, command, &url).map_err(|problem| anyhow!("`agent`: {problem}"))?;
        let metrics = Arc::new(Metrics::default());
        let (service, desk) = desk::open(MOST_REQUESTS * most, Arc::clone(&metrics));
        let samples = Samples::new(dialogue);
        let samples = Arc::new(if config.verifiers().is_some() { samples.without_sessions() } else { samples });
        let app = App {
            models: Models::of_any_name(NAME),
            names: Arc::new(TokenNames::new(&tokenizer)),
            grammars: Grammars::new(&tokenizer, model),
            tokenizer,
            max_model_len,
            service,
            metrics,
            key: None,
            agents: Some(Arc::clone(&samples)),
            limits: routes::Limits { body: MOST_BYTES, time: timeout },
            fresh: Fresh::new().context("random numbers of the system")?,
            workers: workers(),
        };
        let bounds = Bounds { connections: MOST_REQUESTS * most, grace: GRACE };
        let (app, over) = (router(Arc::new(app)), Arc::new(Notify::new()));
        let until = Arc::clone(&over);
        let serve = move || {
            if let Err(error) = server::serve(listener, &app, bounds, &until) {
                tracing::error!("agents have no endpoint any more: {error:#}");
            }
        };
        let thread = thread::Builder::new().name("http".into()).spawn(serve).context("cannot start the server")?;
        tracing::info!("agents ask at {url}");
        let server = Server { over, thread: Some(thread) };
        Ok(Some(Box::new(Agents::new(engine, (desk, samples, server), starter, most))))
    }
}

/// What begins the agents that `command` names, which ask the policy at `url`.
fn starter(config: &TrainConfig, command: &str, url: &str) -> Result<Box<dyn Starter>, String> {
    let timeout = Duration::from_secs_f64(config.agent_timeout);
    let Some(host) = config.verifiers() else {
        let program = Program::new(command, &config.reward_host(), url.to_owned(), timeout)?;
        return Ok(Box::new(Arc::new(program)));
    };
    let base_url = format!("{url}/v1");
    let policy = Policy { base_url, temperature: config.temperature, top_p: config.top_p };
    let server = Verifiers::meet(host, policy, timeout);
    Ok(Box::new(server.map_err(|problem| format!("{problem}; start it before the run"))?))
}
