//! Prints `docs/configuration.md`; `cargo xtask docs` writes it.

fn main() {
    print!("{}", shared::config::reference::page());
}
