//! Nothing speaks to the network, and nothing is written where nobody asked for it.

use std::{fs, io, os::unix::process::CommandExt, path::PathBuf, process::Command};

use harness::{binary, cli, tiny_model};
use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use shared::{RunDir, channel::iox};

/// Folders of a user, with a model and prompts in one of them.
struct User {
    dir: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        let user = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["home", "tmp", "work"] {
            fs::create_dir(user.path(name)).unwrap();
        }
        tiny_model::SMALL.write(&user.path("work/model"), 1);
        tiny_model::write_tokenizer(&user.path("work/model"));
        fs::write(user.path("work/prompts.jsonl"), "{\"prompt\": \"1+1=\"}\n{\"prompt\": \"2+2=\"}\n").unwrap();
        user
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that the kernel kills as soon as it, or one that it starts, asks for a socket of the internet.
    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = Command::new(binary(name));
        command
            .args(args)
            .current_dir(self.path("work"))
            .env("HOME", self.path("home"))
            .env("TMPDIR", self.path("tmp"));
        command.env("TANDEM_CACHE_DIR", self.path("cache")).env_remove("XDG_CACHE_HOME");
        // Cargo sets it for tests: the programs are to do it themselves.
        command.env_remove("ORT_DISABLE_TELEMETRY");
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe; what it reads is on the stack.
        unsafe { command.pre_exec(kill_at_internet_sockets) };
        command
    }

    fn names(&self, dir: &str) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(self.path(dir)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_only(&self, in_work: &[&str]) {
        assert_eq!(self.names("."), ["cache", "home", "tmp", "work"]);
        assert_eq!(self.names("work"), in_work);
        for dir in ["home", "tmp"] {
            assert_eq!(self.names(dir), Vec::<String>::new(), "{dir}");
        }
    }
}

/// Has the kernel kill the process, and those that come of it, at `socket(AF_INET…)` and `socket(AF_INET6…)`.
fn kill_at_internet_sockets() -> io::Result<()> {
    /// Offsets in `seccomp_data`: the number of the system call, and the lower half of its first argument.
    const NUMBER: u32 = 0;
    const FIRST_ARGUMENT: u32 = 16;
    let load = |offset| instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0);
    let skip_if = |value: i64, otherwise| instruction(BPF_JMP | BPF_JEQ | BPF_K, value as u32, 0, otherwise);
    let end = |action| instruction(BPF_RET | BPF_K, action, 0, 0);
    let mut filter = [
        load(NUMBER),
        skip_if(libc::SYS_socket, 4),
        load(FIRST_ARGUMENT),
        instruction(BPF_JMP | BPF_JEQ | BPF_K, libc::AF_INET as u32, 1, 0),
        skip_if(i64::from(libc::AF_INET6), 1),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is a valid filter of the stated length, and the kernel copies it.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn instruction(code: u32, k: u32, if_so: u8, otherwise: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: if_so, jf: otherwise, k }
}

/// Ten steps of at least a second each: telemetry is sent some seconds after the start.
#[test]
fn a_training_run_opens_no_internet_socket_and_writes_nothing_elsewhere() {
    let user = User::new();
    let config = "model = \"model\"\ndataset = \"prompts.jsonl\"\noutput_dir = \"run\"\nnum_generations = 2\n\
                  reward_funcs = [\"command:run=while read -r line; do sleep 1; echo '[0, 1]'; done\"]\n\
                  max_completion_length = 4\nper_device_train_batch_size = 2\nmax_steps = 10\nmax_restarts = 0\n";
    fs::write(user.path("work/run.toml"), config).unwrap();
    let _ = cli::finish(user.command("tandem", &["train", "run.toml"])).success();
    user.assert_only(&["model", "prompts.jsonl", "run", "run.toml"]);
    assert_eq!(iox::files(&RunDir::new(user.path("work/run"))).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn neither_do_programs_that_are_called_alone() {
    let user = User::new();
    let generate = ["generate", "--model=model", "--prompts=prompts.jsonl", "--output=out.jsonl"];
    let _ = cli::finish(user.command("rollout", &generate)).success();
    let _ = cli::finish(user.command("tandem", &["doctor"]));
    user.assert_only(&["model", "out.jsonl", "prompts.jsonl"]);
}

/// What the two tests above rely on.
#[test]
fn an_internet_socket_is_noticed() {
    let mut command = Command::new("/bin/bash");
    command.args(["-c", "exec 3<>/dev/udp/127.0.0.1/9"]);
    // SAFETY: as above.
    unsafe { command.pre_exec(kill_at_internet_sockets) };
    let status = cli::finish(command).status;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGSYS), "{status}");
}
