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
    for folder in search_path() {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{folder}");
    }
    // RUNPATH, unlike RPATH, lets LD_LIBRARY_PATH name another libtorch (the CUDA build).
    println!("cargo::rustc-link-arg=-Wl,--enable-new-dtags");
}

/// Folders in which the program looks for libtorch, first to last. A libtorch beside the program wins: a folder that
/// was copied elsewhere then never depends on the place where it was built. The set-up folder is found from the program
/// (target/<profile>/ lies two levels below the root of the repository), and only then by its path of today. A libtorch
/// of the user's own comes before the set-up folder, since the program was built for it.
fn search_path() -> Vec<String> {
    let beside = "$ORIGIN/libtorch/lib".to_owned();
    let set_up = "$ORIGIN/../../.native/libtorch/lib".to_owned();
    let Ok(named) = env::var("LIBTORCH_LIB").or_else(|_| env::var("LIBTORCH")) else {
        return vec![beside, set_up];
    };
    let absolute = |folder: PathBuf| folder.canonicalize().unwrap_or(folder);
    let named = absolute(Path::new(&named).join("lib"));
    let manifest = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let is_set_up = named == absolute(manifest.join("../.native/libtorch/lib"));
    let named = named.display().to_string();
    if is_set_up { vec![beside, set_up, named] } else { vec![beside, named, set_up] }
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
