//! Prints `docs/losses.md`; `cargo xtask docs` writes it. With the argument `recipes`, the runs of `cargo xtask methods`.

fn main() {
    if std::env::args().nth(1).as_deref() == Some("recipes") {
        println!("{}", shared::methods::page::recipes());
    } else {
        print!("{}", shared::methods::page::page());
    }
}
