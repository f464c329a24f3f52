//! Prints `docs/run.schema.json`, the JSON schema of `run.toml`; `cargo xtask docs` writes it, and `tandem schema`
//! prints the same.

fn main() {
    print!("{}", shared::config::schema::text());
}
