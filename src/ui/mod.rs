//! `tandem ui`: a page about one or several runs, which follows them live.
//!
//! The binary alone serves the page. It reads the files that a run writes anyway, so the pair neither knows of the page
//! nor waits for it.

mod access;
mod api;
mod events;
mod server;

use std::{
    net::{IpAddr, SocketAddr, TcpListener},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context, Result, bail};

use crate::{terminal::output, view::found};
use access::Access;
use server::Shared;

/// Flags of `tandem ui`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run directories, or folders of some
    #[arg(value_name = "RUN_DIR", default_value = ".")]
    run_dirs: Vec<PathBuf>,
    /// Port of the page; 0 takes any that is free
    #[arg(long, value_name = "N", default_value_t = 7117)]
    port: u16,
    /// Address to listen at. Beyond this machine, the page asks for the token that is part of the address shown
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
}

/// Runs `tandem ui` until it is interrupted; the page's address is the only line on stdout.
pub fn run(args: &Args) -> Result<ExitCode> {
    for path in &args.run_dirs {
        if !path.is_dir() {
            bail!("{} is no folder", path.display());
        }
    }
    let found: Vec<usize> = args.run_dirs.iter().map(|path| found::runs(path).len()).collect();
    for (path, _) in args.run_dirs.iter().zip(&found).filter(|(_, count)| **count == found::MOST) {
        let most = found::MOST;
        output::tell(format_args!(
            "note: of {} the newest {most} runs are listed; name a folder below it for others",
            path.display()
        ));
    }
    if found.iter().all(|count| *count == 0) {
        let looked: Vec<_> = args.run_dirs.iter().map(|path| path.display().to_string()).collect();
        output::tell(format_args!(
            "warning: there is no run in {} yet: a run's folder is the output_dir of its configuration; the page shows \
             runs as they come",
            looked.join(", ")
        ));
    }
    let address = SocketAddr::from((args.host, args.port));
    let listener = TcpListener::bind(address).with_context(|| {
        format!("cannot listen at {address}; --port takes another port, and --port 0 any that is free")
    })?;
    let access = Access::new(args.host, listener.local_addr()?.port()).context("cannot make a token")?;
    output::print(access.address());
    output::tell("Ctrl-C ends the page; it does nothing to the runs.");
    server::serve(listener, Shared::new(args.run_dirs.clone(), access))?;
    Ok(ExitCode::SUCCESS)
}
