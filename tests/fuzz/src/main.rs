//! Runs one target under libFuzzer, which takes the command line: see `cargo xtask fuzz`.

// libFuzzer has its own main function.
#![no_main]

use std::{env, fs, path::Path, process, sync::LazyLock};

use fuzz::{TARGETS, Target};
use shared_bounds::{Metered, within};

#[global_allocator]
static MEMORY: Metered = Metered;

/// The target that `TANDEM_FUZZ_TARGET` names. Its inputs are written to the folder `TANDEM_FUZZ_CORPUS`, from which
/// libFuzzer begins.
static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    shared_bounds::abort_on_excess();
    let name = env::var("TANDEM_FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        // Without a name, it lists the targets.
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        process::exit(0)
    })
});

libfuzzer_sys::fuzz_target!(
    init: {
        let inputs = fuzz::inputs(&TARGET);
        if let Some(corpus) = env::var_os("TANDEM_FUZZ_CORPUS") {
            for (index, input) in inputs.iter().enumerate() {
                fs::write(Path::new(&corpus).join(format!("seed-{index}")), input).expect("a writable folder");
            }
        }
    },
    |bytes: &[u8]| {
        within("the input", harness::fuzz::MOST_MEMORY, || (TARGET.parse)(bytes));
    }
);
