//! The Python environment of the programs with which Tandem is compared.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::{host::Host, steps};

/// The packages, with exact versions, from the root of the workspace.
const REQUIREMENTS: &str = "tests/conformity/requirements.txt";
/// A copy of the list of packages, written after all of them are installed.
const STAMP: &str = "installed.txt";

/// An environment with all packages.
#[derive(Debug)]
pub struct Environment {
    folder: PathBuf,
    requirements: String,
}

impl Environment {
    /// Opens the environment in `place`; creates it first if it is missing or has other packages.
    ///
    /// # Errors
    /// When python3 cannot create one, or pip cannot install a package.
    pub fn open(host: &Host, place: &Path) -> Result<Self> {
        let list = host.root.join(REQUIREMENTS);
        let requirements = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let (folder, stamp) = (place.join("venv"), place.join("venv").join(STAMP));
        let environment = Self { folder, requirements };
        if fs::read_to_string(&stamp).is_ok_and(|installed| installed == environment.requirements) {
            return Ok(environment);
        }
        eprintln!("installing {} (5 GB)", environment.packages().join(", "));
        if environment.folder.exists() {
            fs::remove_dir_all(&environment.folder).with_context(|| environment.folder.display().to_string())?;
        }
        let mut make = host.command("python3");
        make.args(["-m", "venv"]).arg(&environment.folder);
        steps::run(make).context("a Python environment needs python3 with venv (Debian and Ubuntu: python3-venv)")?;
        let mut install = environment.python(host);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        steps::run({
            install.arg("--requirement").arg(&list);
            install
        })
        .context("the packages cannot be installed: check the network, the disk and `python3 -m pip config list`")?;
        fs::write(&stamp, &environment.requirements).with_context(|| stamp.display().to_string())?;
        Ok(environment)
    }

    /// Its Python, without network and GPU.
    pub fn python(&self, host: &Host) -> Command {
        let mut python = host.command(self.folder.join("bin/python"));
        for (name, value) in [
            ("PYTHONDONTWRITEBYTECODE", "1"),
            ("PYTHONNOUSERSITE", "1"),
            ("HF_HUB_OFFLINE", "1"),
            ("HF_HUB_DISABLE_TELEMETRY", "1"),
            ("TOKENIZERS_PARALLELISM", "false"),
            ("CUDA_VISIBLE_DEVICES", ""),
        ] {
            python.env(name, value);
        }
        python.env_remove("PYTHONPATH");
        python
    }

    /// Packages and versions, as `name version`.
    pub fn packages(&self) -> Vec<String> {
        let lines = self.requirements.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        lines.map(|line| line.replace("==", " ")).collect()
    }

    /// Version of Python itself.
    ///
    /// # Errors
    /// When Python does not answer.
    pub fn version(&self, host: &Host) -> Result<String> {
        let asked =
            self.python(host).arg("--version").output().context("cannot start the Python of the environment")?;
        ensure!(asked.status.success(), "the Python of the environment fails with {}", asked.status);
        Ok(String::from_utf8_lossy(&asked.stdout).trim().to_owned())
    }
}
