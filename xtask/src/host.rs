//! Surroundings of the commands, in one value so that tests can replace them.

use std::{
    env,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

/// The machine and the checkout that a command works on.
#[derive(Debug, Clone)]
pub struct Host {
    /// Root of the workspace.
    pub root: PathBuf,
    /// Folder of the build outputs (`target`, or what cargo was told to use).
    pub target: PathBuf,
    /// Search path for programs.
    pub path: OsString,
    /// Operating system and processor, as Rust names them.
    pub platform: (&'static str, &'static str),
    /// C++ compiler that the `cc` crate will use.
    pub cxx: OsString,
    /// A libtorch of the user's own (`LIBTORCH`).
    pub own_libtorch: Option<PathBuf>,
    /// A libonnxruntime of the user's own (`ORT_DYLIB_PATH`).
    pub own_onnxruntime: Option<PathBuf>,
}

impl Host {
    /// The host of this process.
    ///
    /// # Errors
    /// When the executable is not where cargo puts it.
    pub fn current() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?.to_path_buf();
        let exe = env::current_exe().context("the running program has no path")?;
        let target = exe.ancestors().nth(2).context("run this through `cargo xtask`")?.to_path_buf();
        // `.cargo/config.toml` sets LIBTORCH to the folder that set-up fills: that folder is not the user's.
        let ours = root.join(".native/libtorch");
        Ok(Self {
            own_libtorch: variable("LIBTORCH").filter(|path| *path != ours),
            own_onnxruntime: variable("ORT_DYLIB_PATH"),
            root,
            target,
            path: env::var_os("PATH").unwrap_or_default(),
            platform: (env::consts::OS, env::consts::ARCH),
            cxx: env::var_os("CXX").unwrap_or_else(|| "c++".into()),
        })
    }

    /// Refuses a platform for which something is not made.
    ///
    /// # Errors
    /// Everywhere but on x86-64 Linux.
    pub fn check_x86_64(&self, what: &str) -> Result<()> {
        let (os, arch) = self.platform;
        ensure!(self.platform == ("linux", "x86_64"), "{what} for x86_64 Linux only, and this is {arch} {os}");
        Ok(())
    }

    /// Folder of the native libraries.
    pub fn native(&self) -> PathBuf {
        self.root.join(".native")
    }

    /// A binary of the workspace, where `cargo build --release` puts it.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.binary_of("release", name)
    }

    /// A binary of the workspace, where `cargo build --profile PROFILE` puts it.
    pub fn binary_of(&self, profile: &str, name: &str) -> PathBuf {
        self.target.join(profile).join(name)
    }

    /// A command that is looked up on this host's search path and starts in the workspace root.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", &self.path).current_dir(&self.root);
        if self.own_onnxruntime.is_none() && !self.target.starts_with(&self.root) {
            // Binaries look for ONNX Runtime in the folders above them. A build folder in another place has none there.
            command.env("ORT_DYLIB_PATH", self.native().join("onnxruntime/libonnxruntime.so"));
        }
        command
    }

    /// Cargo, the same one that runs this program, with the environment that a shell would give it: otherwise build
    /// scripts that read cargo's variables about this package would run again, and all their dependents be compiled
    /// again, at each change between the two.
    pub fn cargo(&self) -> Command {
        let mut cargo = self.command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let of_package = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_package)) {
            cargo.env_remove(name);
        }
        cargo
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
pub mod fake {
    //! A host whose programs are shell scripts.

    use std::{
        fs,
        io::Write,
        path::Path,
        process::{Command, Stdio},
    };

    use super::Host;

    /// Lets another process write the script: if this process had the file open for writing, a child forked meanwhile
    /// by another test could hold a copy of the descriptor, and the file could not be run.
    fn write_script(path: &Path, script: &str) {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "cat > \"$0\" && chmod +x \"$0\""]).arg(path).stdin(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        write!(shell.stdin.take().unwrap(), "#!/bin/sh\n{script}\n").unwrap();
        assert!(shell.wait().unwrap().success());
    }

    /// A host in `dir` whose search path has just the given `(program, script)` pairs.
    pub fn host(dir: &Path, programs: &[(&str, &str)]) -> Host {
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).unwrap();
        for (name, script) in programs {
            write_script(&bin.join(name), script);
        }
        Host {
            root: dir.to_path_buf(),
            target: dir.join("target"),
            path: bin.into_os_string(),
            platform: ("linux", "x86_64"),
            cxx: "c++".into(),
            own_libtorch: None,
            own_onnxruntime: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_of_this_package() {
        let dir = tempfile::tempdir().unwrap();
        let cargo = fake::host(dir.path(), &[]).cargo();
        for name in ["CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(env::var_os(name).is_some(), "cargo runs this test");
            assert!(cargo.get_envs().any(|(key, value)| key == name && value.is_none()), "{name}");
        }
    }
}
