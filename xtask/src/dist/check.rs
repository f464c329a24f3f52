//! `cargo xtask dist --check`: the packages, tried where nothing of this machine helps them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use super::archive_name;
use crate::{host::Host, steps};

/// The system that the archive is tried on.
const SYSTEM: &str = "bookworm";
/// Programs that make and enter that system, with the packages of Debian that have them.
const TOOLS: [(&str, &str); 4] =
    [("debootstrap", "debootstrap"), ("chroot", "coreutils"), ("unshare", "util-linux"), ("mount", "mount")];

/// Enters a system as its only process, without network. `$0` is its root, `$1` the name of the archive.
const ENTER: &str = r#"set -e
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/dev/shm"
exec chroot "$0" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/srv /bin/sh -ec "$2" "$1""#;
/// What a user does there. `$0` is the name of the archive.
const USE: &str = r#"cd /srv
for tool in gcc cargo python3; do
  if command -v "$tool"; then echo "this system is not bare" >&2; exit 1; fi
done
tar xzf "/opt/$0.tar.gz" -C /opt
PATH="/opt/$0/bin:$PATH"
tandem doctor
tandem demo --max-steps 3"#;
/// A line for each step of that demo, in the system.
const REWARDS: &str = "srv/runs/demo/run/metrics.jsonl";

/// A module that only the tried environment has, and a reward function that imports it.
const MODULE: (&str, &str) = ("of_this_environment.py", "def score(text):\n    return float(len(text) % 3)\n");
const REWARD: (&str, &str) = (
    "own.py",
    "import of_this_environment\n\n\ndef scored(completions, **kwargs):\n    \
     return [of_this_environment.score(text) for text in completions]\n",
);

/// A script that trains with a function of its own, and asks the package for what came of it.
const SCRIPT: (&str, &str) = (
    "train.py",
    r#"import tandem_rl

calls = []


def scored(completions, **kwargs):
    calls.append(len(completions))
    return [float(sum(map(ord, text)) % 7) for text in completions]


options = tandem_rl.Run("run").config
args = tandem_rl.GRPOConfig("script", max_steps=2, max_completion_length=8)
trainer = tandem_rl.GRPOTrainer(options["model"], scored, args, options["dataset"])
assert trainer.train().global_step == 2 and calls
assert [record["step"] for record in tandem_rl.Run("script").metrics()] == [1, 2]
"#,
);

/// Tries both packages in the folder `output`.
///
/// # Errors
/// When a package or a tool is missing, and when a package does not work.
pub fn run(host: &Host, output: &Path) -> Result<()> {
    let archive = output.join(format!("{}.tar.gz", archive_name()));
    let wheel = wheel(output)?;
    ensure!(archive.is_file(), "{} is not there: run `cargo xtask dist`", archive.display());
    on_a_bare_system(host, &archive, &output.join(".bare-system"))?;
    in_an_empty_environment(host, &wheel, &output.join(".empty-environment"))
}

fn wheel(output: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(output).with_context(|| format!("{}: run `cargo xtask dist`", output.display()))?;
    let is_wheel = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "whl");
    let mut wheels: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_wheel).collect();
    match (wheels.pop(), wheels.pop()) {
        (Some(wheel), None) => Ok(wheel),
        (None, _) => bail!("{} has no wheel: run `cargo xtask dist`", output.display()),
        (Some(one), Some(other)) => bail!("remove the old one of {} and {}", one.display(), other.display()),
    }
}

/// Unpacks the archive on a system without compilers, Python and network, and trains there.
fn on_a_bare_system(host: &Host, archive: &Path, root: &Path) -> Result<()> {
    check_tools(host)?;
    let pristine = system(host)?;
    remove(root)?;
    let mut copy = host.command("cp");
    copy.arg("--archive").arg(pristine).arg(root);
    steps::run(copy)?;
    let name = archive_name();
    let place = root.join(format!("opt/{name}.tar.gz"));
    fs::copy(archive, &place).with_context(|| place.display().to_string())?;

    let begin = Instant::now();
    let mut enter = host.command("unshare");
    enter.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", ENTER]);
    enter.arg(root).args([&name, USE]).stdin(Stdio::null());
    let mut child = enter.spawn().context("cannot start unshare")?;
    let first = first_reward(&mut child, &root.join(REWARDS), begin)?;
    let status = child.wait().context("cannot wait for unshare")?;
    ensure!(status.success(), "{} does not work on a bare Debian {SYSTEM}: {status}", archive.display());
    let first = first.context("the demo ended without a reward")?;
    println!(
        "bare Debian {SYSTEM}, no network: unpacked, examined, and the first reward after {:.0} s",
        first.as_secs_f64()
    );
    remove(root)
}

/// When the file had its first line, since `begin`; never, if the process ended without one.
fn first_reward(child: &mut Child, rewards: &Path, begin: Instant) -> Result<Option<Duration>> {
    loop {
        let has_ended = child.try_wait().context("cannot wait for unshare")?.is_some();
        if fs::metadata(rewards).is_ok_and(|file| file.len() > 0) {
            return Ok(Some(begin.elapsed()));
        }
        if has_ended {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn check_tools(host: &Host) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "a bare system is entered as root only: run this as root");
    for (tool, package) in TOOLS {
        let is_there = env::split_paths(&host.path).any(|folder| folder.join(tool).is_file());
        ensure!(is_there, "{tool} is missing, which a bare system takes: `apt install {package}`");
    }
    Ok(())
}

/// The system as Debian installs it, fetched once.
fn system(host: &Host) -> Result<PathBuf> {
    let system = host.target.join(format!("debian-{SYSTEM}"));
    if system.is_dir() {
        return Ok(system);
    }
    let unfinished = system.with_extension("unfinished");
    remove(&unfinished)?;
    let mut debootstrap = host.command("debootstrap");
    debootstrap.args(["--variant=minbase", SYSTEM]).arg(&unfinished);
    steps::run(debootstrap).context("Debian cannot be fetched: check the network")?;
    fs::rename(&unfinished, &system).with_context(|| system.display().to_string())?;
    Ok(system)
}

/// Installs the wheel in a new virtual environment, and lets a reward function import a module of that environment.
fn in_an_empty_environment(host: &Host, wheel: &Path, root: &Path) -> Result<()> {
    remove(root)?;
    let mut venv = host.command("python3");
    venv.args(["-m", "venv"]).arg(root);
    steps::run(venv).context("python3 makes no virtual environment (Debian: `apt install python3-venv`)")?;
    // Of this machine, the programs get the system's folders only.
    let command = |program: &str, words: &[&str]| {
        let mut command = Command::new(root.join("bin").join(program));
        command.args(words).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", root).current_dir(root);
        command
    };
    let mut pip = command("python", &["-m", "pip", "install", "--no-index", "--disable-pip-version-check", "--quiet"]);
    pip.arg(wheel);
    steps::run(pip)?;
    let site = command("python", &["-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')"]).output()?;
    let site = PathBuf::from(String::from_utf8(site.stdout).context("the folder of the packages")?);
    fs::write(site.join(MODULE.0), MODULE.1).with_context(|| site.display().to_string())?;
    fs::write(root.join(REWARD.0), REWARD.1).with_context(|| root.display().to_string())?;
    steps::run(command("tandem", &["doctor"]))?;
    steps::run(command("tandem", &["demo", "--warm-up-only"]))?;
    let own = ["runs/demo/run.toml", "--reward_funcs", "own.py:scored", "--reward_weights", ""];
    steps::run(command("tandem", &[&["check-rewards"][..], &own].concat()))?;
    steps::run(command("tandem", &[&["train"][..], &own, &["--max_steps", "2", "--output_dir", "run"]].concat()))?;
    fs::write(root.join(SCRIPT.0), SCRIPT.1).with_context(|| root.display().to_string())?;
    steps::run(command("python", &[SCRIPT.0]))?;
    println!(
        "empty virtual environment: a reward function that imports a module of it has trained, and so has a script"
    );
    remove(root)
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    #[test]
    fn what_is_missing_is_named_with_the_way_to_get_it() {
        let dir = tempfile::tempdir().unwrap();
        let host = fake::host(dir.path(), &[]);
        let refused = |output: &Path| run(&host, output).unwrap_err().to_string();
        assert!(refused(&dir.path().join("absent")).contains("run `cargo xtask dist`"));
        assert!(refused(dir.path()).contains("has no wheel: run `cargo xtask dist`"));
        fs::write(dir.path().join("a.whl"), "").unwrap();
        assert!(refused(dir.path()).contains(".tar.gz is not there: run `cargo xtask dist`"));
        fs::write(dir.path().join(format!("{}.tar.gz", archive_name())), "").unwrap();
        let expected =
            if rustix::process::geteuid().is_root() { "`apt install debootstrap`" } else { "run this as root" };
        assert!(refused(dir.path()).contains(expected));
        fs::write(dir.path().join("b.whl"), "").unwrap();
        assert!(refused(dir.path()).contains("remove the old one"));
    }
}
