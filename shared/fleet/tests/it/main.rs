//! Coordinator and workers through the crate's public interface, on loopback.

mod cuts;
mod frames;
mod support;
mod talk;
mod tidy;
mod tls;
mod wrong;
