//! Prints `docs/metrics.md`; `cargo xtask docs` writes it.

fn main() {
    print!("{}", shared::metrics::page());
}
