//! Run-time search path of libtorch for the tests of the learner's interface.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["LIBTORCH_LIB", "LIBTORCH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Ok(libtorch) = env::var("LIBTORCH_LIB").or_else(|_| env::var("LIBTORCH")) {
        println!("cargo::rustc-link-arg-tests=-Wl,-rpath,{}", Path::new(&libtorch).join("lib").display());
    }
}
