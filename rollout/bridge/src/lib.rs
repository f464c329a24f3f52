//! Environments and tools of servers, for a sampler that knows lines alone.
//!
//! The program `rollout-bridge` reads requests from its standard input and writes answers to its standard output, as
//! docs/environments-protocol.md says. On its other side is a server:
//!
//! | room | subject |
//! |---|---|
//! | [`lines`] | the lines: requests to episodes, and answers in any order |
//! | [`openenv`] | a server of OpenEnv: a socket for each episode |
//! | [`mcp`] | a server of MCP: over HTTP, or a program |
//!
//! The default build leaves the package out, and no process of a run links what it brings along.

#![forbid(unsafe_code)]

pub mod lines;
pub mod mcp;
pub mod openenv;
#[cfg(test)]
mod testing;

/// Most bytes of a message of a server.
const MAX_MESSAGE: usize = 4 << 20;

/// A client of HTTP. A proxy that the environment names would hear what is said to a server of the same host, so none
/// is used.
fn http_client() -> Result<reqwest::Client, String> {
    // The client names no provider of ciphers, and needs one also where nothing is enciphered. Whoever was first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().map_err(|error| error.to_string())
}
