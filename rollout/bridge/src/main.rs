//! `rollout-bridge`: environments and tools on servers, for a sampler that knows lines alone.

use std::{
    io::{self, BufReader, Write},
    process::ExitCode,
    sync::Arc,
};

use clap::{Parser, Subcommand};
use rollout_bridge::{
    lines::{self, Peer, greeting, refused, serve},
    mcp::Mcp,
    openenv::{OpenEnv, Return},
};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

/// Environments and tools on servers, as a program that a sampler starts: `environment_factory = "openenv:ws://…"` and
/// `tools = ["mcp:http://…"]`.
#[derive(Debug, Parser)]
#[command(name = "rollout-bridge", version)]
struct Args {
    #[command(subcommand)]
    server: Server,
}

#[derive(Debug, Subcommand)]
enum Server {
    /// An environment on a server of OpenEnv.
    Openenv {
        /// Address of the server, ws://HOST:PORT or http://HOST:PORT.
        address: String,
        /// Which reward an episode has.
        #[arg(long = "return", value_enum, default_value = "sum")]
        returns: Return,
    },
    /// Tools of a server of MCP.
    Mcp {
        /// Address of the server, http://HOST:PORT/PATH, or the command line that starts one.
        #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
        server: Vec<String>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| runtime.block_on(run(args.server)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The sampler tells the user what its first line says.
            let told = refused(&format!("{error:#}"));
            let reason = told["error"].as_str().unwrap_or_default().to_owned();
            let _ = writeln!(io::stdout(), "{}", Value::Object(told));
            // Last words have gone to standard error by now.
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn run(server: Server) -> anyhow::Result<()> {
    match server {
        Server::Openenv { address, returns } => {
            let server = OpenEnv::meet(&address, returns).await?;
            let first = greeting(true, server.tools());
            bridge(server, first).await?;
        }
        Server::Mcp { server } => {
            let server = Mcp::meet(&server.join(" ")).await?;
            eprintln!("the server of MCP speaks revision {}", server.revision());
            server.remarks().iter().for_each(|remark| eprintln!("{remark}"));
            let first = greeting(false, server.tools());
            bridge(server, first).await?;
        }
    }
    Ok(())
}

async fn bridge(server: impl Peer, first: Value) -> anyhow::Result<()> {
    let answers: UnboundedSender<Value> = lines::write(io::stdout());
    let _ = answers.send(first);
    serve(Arc::new(server), lines::read(BufReader::new(io::stdin())), answers).await
}
