//! Run-time search path of libtorch, so that the binary starts without cargo and without environment variables.

use std::{env, path::Path};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["LIBTORCH", "LIBTORCH_LIB"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    let native = env::var("LIBTORCH_LIB").or_else(|_| env::var("LIBTORCH"));
    if let Ok(root) = native {
        let lib = Path::new(&root).join("lib");
        rpath(&lib.canonicalize().unwrap_or(lib).display().to_string());
    }
    // A binary that was moved or copied still finds the set-up folder (target/<profile>/ lies two levels below the
    // repository root) or a libtorch beside itself.
    rpath("$ORIGIN/../../.native/libtorch/lib");
    rpath("$ORIGIN/libtorch/lib");
    // RUNPATH, unlike RPATH, lets LD_LIBRARY_PATH name another libtorch (the CUDA build).
    println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags");
}

fn rpath(dir: &str) {
    println!("cargo::rustc-link-arg=-Wl,-rpath,{dir}");
}
