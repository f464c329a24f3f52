//! Run-time search path of libtorch, so that the binary starts without cargo and without environment variables; torch's
//! process groups behind functions of C.

use std::{
    env,
    path::{Path, PathBuf},
};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["LIBTORCH", "LIBTORCH_LIB"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    process_groups();
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

/// Compiles `src/ranks/gloo.cpp` against libtorch's headers, and stand-ins for those of Gloo, which it does not ship.
fn process_groups() {
    println!("cargo::rerun-if-changed=src/ranks/gloo.cpp");
    println!("cargo::rerun-if-changed=src/ranks/stubs");
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    let root = env::var("LIBTORCH_INCLUDE").or_else(|_| env::var("LIBTORCH")).unwrap_or_default();
    let headers = PathBuf::from(root).join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .define("USE_C10D_GLOO", None)
        .include("src/ranks/stubs")
        .flag(format!("-isystem{}", headers.display()))
        .flag(format!("-isystem{}", headers.join("torch/csrc/api/include").display()))
        .file("src/ranks/gloo.cpp")
        .compile("tandem_ranks");
}
