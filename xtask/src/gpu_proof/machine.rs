//! The machine that the proof runs on: the paths of its libraries, and the memory in use on its GPU.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::plan::{Device, Program};

/// Torch's folder and version; the shared libraries of CUDA are beside that folder.
const FIND_TORCH: &str = "import torch; print(torch.__path__[0]); print(torch.__version__)";
const RIVALS: &str = include_str!("rivals.py");

/// Paths that the user gives.
#[derive(Debug)]
pub struct Places {
    /// The folder of the bundle.
    pub bundle: PathBuf,
    /// Where models, runs and logs go.
    pub work: PathBuf,
    /// A Python interpreter, which may have torch and transformers.
    pub python: PathBuf,
    /// A libtorch to use instead of that of Python's torch.
    pub libtorch: Option<PathBuf>,
    /// A libonnxruntime.so to use instead of the one beside the bundle.
    pub onnxruntime: Option<PathBuf>,
}

/// Paths of all files, after the search.
#[derive(Debug)]
pub struct Machine {
    bundle: PathBuf,
    work: PathBuf,
    python: PathBuf,
    /// Variables by which the programs of the bundle find their libraries.
    environment: Vec<(&'static str, OsString)>,
}

impl Machine {
    /// Searches for the libraries.
    ///
    /// # Errors
    /// When a library is not found, with what to do about it.
    pub fn find(places: Places, device: Device) -> Result<Self> {
        let Places { bundle, work, python, libtorch, onnxruntime } = places;
        let torch = match libtorch {
            Some(dir) => dir,
            None => installed_torch(&python).with_context(|| {
                format!(
                    "the learner needs torch 2.11: name its folder with --libtorch, or a python that has it with \
                    --python (now {})",
                    python.display()
                )
            })?,
        };
        ensure!(torch.join("lib/libtorch_cpu.so").is_file(), "{} has no lib/libtorch_cpu.so", torch.display());
        let own = bundle.join("onnxruntime/libonnxruntime.so");
        let runtime = match onnxruntime {
            Some(path) => path,
            None if own.is_file() => own,
            None => bail!(
                "no ONNX Runtime: unpack the one of `cargo xtask gpu-proof --libraries` into {}, or name one with \
                 --onnxruntime",
                bundle.display()
            ),
        };
        let provider = runtime.with_file_name("libonnxruntime_providers_cuda.so");
        ensure!(device == Device::Cpu || provider.is_file(), "--device cuda needs {}", provider.display());

        let mut folders = vec![runtime.parent().unwrap_or(&bundle).to_path_buf(), torch.join("lib")];
        folders.extend(cuda_folders(&torch));
        folders.extend(env::var_os("LD_LIBRARY_PATH").iter().flat_map(env::split_paths));
        let mut environment = vec![
            ("LD_LIBRARY_PATH", env::join_paths(folders).context("a folder of libraries has a colon in its name")?),
            ("ORT_DYLIB_PATH", runtime.into()),
            ("TANDEM_CACHE_DIR", work.join("cache").into()),
            ("TANDEM_GOLDEN_DIR", bundle.join("golden").into()),
        ];
        if device == Device::Cuda {
            environment.push(("TANDEM_TEST_DEVICE", device.name().into()));
        }
        for dir in ["logs", "runs"].map(|dir| work.join(dir)) {
            fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        let rivals = work.join("rivals.py");
        fs::write(&rivals, RIVALS).with_context(|| rivals.display().to_string())?;
        Ok(Self { bundle, work, python, environment })
    }

    /// A program with its environment.
    pub fn command(&self, program: Program) -> Command {
        let name = match program {
            Program::Rollout => "rollout",
            Program::Learner => "learner",
            Program::Tandem => "tandem",
            Program::EngineTests => "engine-tests",
            Program::Rivals => {
                let mut command = Command::new(&self.python);
                // The libraries of the bundle are not meant for Python, which has its own.
                command.arg(self.work.join("rivals.py")).env("HF_HUB_OFFLINE", "1");
                return command;
            }
        };
        let mut command = Command::new(self.bundle.join(name));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Facts about the machine, for the head of the table.
    pub fn describe(&self) -> Value {
        let gpu =
            Command::new("nvidia-smi").args(["--query-gpu=name,driver_version", "--format=csv,noheader"]).output();
        let gpu = gpu.ok().filter(|output| output.status.success());
        json!({
            "gpu": gpu.map(|output| {
                String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
            }),
            "cores": thread::available_parallelism().map_or(1, usize::from),
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

fn installed_torch(python: &Path) -> Result<PathBuf> {
    let output = Command::new(python).args(["-c", FIND_TORCH]).output();
    let output = output.with_context(|| format!("cannot start {}", python.display()))?;
    ensure!(output.status.success(), "{} has no torch", python.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (path, version) = text.trim().split_once('\n').context("python did not say where torch is")?;
    ensure!(version.starts_with("2.11."), "{} has torch {version}", python.display());
    Ok(path.into())
}

/// The folders of NVIDIA's wheels beside torch.
fn cuda_folders(torch: &Path) -> Vec<PathBuf> {
    let wheels = torch.with_file_name("nvidia");
    let Ok(entries) = fs::read_dir(wheels) else { return Vec::new() };
    let mut folders: Vec<_> =
        entries.flatten().map(|entry| entry.path().join("lib")).filter(|dir| dir.is_dir()).collect();
    folders.sort();
    folders
}

/// Watches the memory in use on the GPU, over all processes.
#[derive(Debug)]
pub struct MemoryWatch(Option<(Child, JoinHandle<Option<u64>>)>);

impl MemoryWatch {
    /// Begins to watch; without a GPU there is nothing to watch.
    pub fn start(device: Device) -> Self {
        let mut command = Command::new("nvidia-smi");
        command.args(["--query-gpu=memory.used", "--format=csv,noheader,nounits", "--loop-ms=100"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = (device == Device::Cuda).then(|| command.spawn().ok()).flatten();
        Self(child.and_then(|mut child| {
            let lines = BufReader::new(child.stdout.take()?).lines();
            let peak = || lines.map_while(Result::ok).filter_map(|line| line.trim().parse::<u64>().ok()).max();
            Some((child, thread::spawn(peak)))
        }))
    }

    /// Ends, and returns the largest number of bytes in use.
    pub fn stop(self) -> Option<u64> {
        let (mut child, peak) = self.0?;
        // The process may be gone already.
        let _ = child.kill();
        let _ = child.wait();
        peak.join().ok().flatten().map(|mebibytes| mebibytes << 20)
    }
}
