//! Programs that reach for more than they may have.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::Path,
    time::{Duration, Instant},
};

use harness::processes;
use rustix::io::{FdFlags, fcntl_setfd};
use shared::{RewardOutcome, config::RewardBounds};

use super::*;
use crate::{Registry, RewardFunction, RewardInput, testing};

/// A function with processes that start in a folder, bounded otherwise than by default.
fn function(folder: &Path, spec: &str, bound: impl FnOnce(&mut RewardBounds)) -> RewardFunction {
    let mut host = RewardHost { dir: folder.to_owned(), ..testing::host() };
    bound(&mut host.bounds);
    Registry::default().on(host).function(spec).unwrap()
}

/// A function in Python, its body being `text`, from a file in a folder.
fn python(folder: &Path, text: &str, bound: impl FnOnce(&mut RewardBounds)) -> RewardFunction {
    let body: String = text.lines().map(|line| format!("    {line}\n")).collect();
    fs::write(folder.join("r.py"), format!("import os, sys\n\n\ndef f(completions, **kwargs):\n{body}")).unwrap();
    function(folder, "r.py:f", bound)
}

/// The outcome for one completion.
fn outcome(function: &RewardFunction, text: &str) -> RewardOutcome {
    let deadline = Some(Instant::now() + Duration::from_secs(60));
    let input = RewardInput { completions: testing::completions(&[text]), deadline, ..RewardInput::default() };
    function.reward().score(&input).remove(0)
}

fn reason(outcome: RewardOutcome) -> String {
    match outcome {
        RewardOutcome::Failed(reason) => reason,
        other => panic!("{other:?} is no failure"),
    }
}

/// Asserts that the function fails for a reason with these words.
fn assert_fails(function: &RewardFunction, words: &[&str]) {
    let reason = reason(outcome(function, "a"));
    assert!(words.iter().all(|word| reason.contains(word)), "{words:?} in {reason}");
}

const ONE: RewardOutcome = RewardOutcome::Score(1.0);

#[test]
fn programs_get_paths_and_language_and_what_is_named_but_no_keys() {
    let given = [
        ("PATH", "/bin"),
        ("LC_ALL", "C"),
        ("HF_TOKEN", "x"),
        ("WANDB_API_KEY", "x"),
        ("AWS_SECRET", "x"),
        ("JUDGE_KEY", "x"),
        ("JUDGE_URL", "x"),
        ("HOME", "/h"),
    ];
    let given = || given.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let names = |named: &[&str]| -> Vec<String> {
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        environment(&named, given()).into_iter().map(|(name, _)| name.into_string().unwrap()).collect()
    };
    assert_eq!(names(&[]), ["PATH", "LC_ALL", "HOME", "HF_HOME"]);
    let named = names(&["JUDGE_*", "HF_TOKEN"]);
    assert_eq!(named, ["PATH", "LC_ALL", "HF_TOKEN", "JUDGE_KEY", "JUDGE_URL", "HOME", "HF_HOME"]);
    assert_eq!(environment(&[], given()).last().unwrap().1, "/h/.cache/huggingface");
}

#[test]
fn a_variable_that_an_error_asks_for_is_found() {
    for (words, variable) in [
        ("KeyError: 'OPENAI_API_KEY' (r.py, line 2, in f)", Some("OPENAI_API_KEY")),
        ("set the environment variable ANTHROPIC_API_KEY", Some("ANTHROPIC_API_KEY")),
        ("by setting the OPENAI_API_KEY environment variable", Some("OPENAI_API_KEY")),
        ("sh: 1: JUDGE_KEY: parameter not set", Some("JUDGE_KEY")),
        ("bash: line 1: JUDGE_URL: unbound variable", Some("JUDGE_URL")),
        ("KeyError: 'TOKEN' (r.py, line 2, in f), the environment variable `TOKEN` is not set", Some("TOKEN")),
        ("KeyError: 'answer' (r.py, line 2, in f)", None),
        ("ValueError: MAX_LEN is too small", None),
    ] {
        assert_eq!(hidden_variable(words), variable, "{words}");
    }
}

#[test]
fn errors_of_a_kind_name_the_option_that_is_theirs() {
    let folder = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("return [os.environ['JUDGE_KEY']]", ["KeyError: 'JUDGE_KEY'", "`reward_env = [\"JUDGE_KEY\"]`"]),
        ("return [float(os.environ['TOKEN'])]", ["KeyError: 'TOKEN'", "`reward_env = [\"TOKEN\"]`"]),
        ("import no_such_module_of_mine", ["ModuleNotFoundError", "`reward_python`"]),
        ("return [kwargs['answers']]", ["KeyError: 'answers'", "the row has no columns"]),
    ] {
        assert_fails(&python(folder.path(), text, |_| {}), &words);
    }
}

/// Cargo sets the variable for its tests.
#[test]
fn a_program_has_only_the_variables_that_are_usual_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = "return [float('CARGO_MANIFEST_DIR' in os.environ)]";
    assert_eq!(outcome(&python(folder.path(), text, |_| {}), "a"), RewardOutcome::Score(0.0));
    let named = python(folder.path(), text, |bounds| bounds.env = vec!["CARGO_*".into()]);
    assert_eq!(outcome(&named, "a"), ONE);
}

#[test]
fn a_program_has_no_descriptors_but_its_streams() {
    let folder = tempfile::tempdir().unwrap();
    let inherited = File::create(folder.path().join("lock")).unwrap();
    fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
    let count = "command:run=read -r line; n=0; for i in $(seq 3 99); do if [ -e /proc/$$/fd/$i ]; then n=$((n + 1)); \
        fi; done; echo [$n]";
    assert_eq!(outcome(&function(folder.path(), count, |_| {}), "a"), RewardOutcome::Score(0.0));
    drop(inherited);
}

#[test]
fn the_network_is_refused_by_name_and_allowed_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let text = format!(
        "import socket\nsocket.create_connection(('{}', {}), 5).close()\nreturn [1.0]",
        address.ip(),
        address.port()
    );
    assert_fails(&python(folder.path(), &text, |_| {}), &["Network is down", "`reward_network`"]);
    assert_eq!(outcome(&python(folder.path(), &text, |bounds| bounds.network = true), "a"), ONE);
    assert!(listener.accept().is_ok());
    // The same error as libraries report it.
    let wrapped = "import urllib.request\ntry:\n    urllib.request.urlopen('http://127.0.0.1:1/')\n\
                   except OSError as error:\n    raise RuntimeError('the judge does not answer') from error";
    assert_fails(
        &python(folder.path(), wrapped, |_| {}),
        &["RuntimeError: the judge", "Network is down", "`reward_network`"],
    );
    let program = "command:run=read -r line; python3 -c 'import socket; socket.socket()'";
    assert_fails(&function(folder.path(), program, |_| {}), &["exit status: 1", "`reward_network`"]);
}

#[test]
fn writing_is_refused_by_name_but_in_the_temporary_folder_and_where_it_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let text = format!("open({:?}, 'w').close()\nreturn [1.0]", kept);
    assert_fails(&python(folder.path(), &text, |_| {}), &["Error: [Errno ", "`reward_writable`"]);
    assert!(!kept.exists());
    let named = python(folder.path(), &text, |bounds| bounds.writable = vec![folder.path().to_owned()]);
    assert_eq!(outcome(&named, "a"), ONE);
    assert!(kept.exists());
    let removed = format!("os.remove({kept:?})");
    assert_fails(&python(folder.path(), &removed, |_| {}), &["Error: [Errno ", "`reward_writable`"]);
    assert!(kept.exists());

    // Nobody else has a file of this name in a temporary folder.
    let name = format!("written-by-{}", std::process::id());
    let own = format!(
        "command:run=read -r line; echo x > $TMPDIR/x && cp $TMPDIR/x $XDG_CACHE_HOME/{name} && echo [1]; sleep 1000"
    );
    let own = function(folder.path(), &own, |_| {});
    let folders = || fs::read_dir(env::temp_dir()).unwrap().flatten().filter(|e| e.path().join(&name).exists()).count();
    assert_eq!(outcome(&own, "a"), ONE);
    assert_eq!(folders(), 1);
    drop(own);
    assert_eq!(folders(), 0, "the temporary folder goes with the process");

    let mut host = testing::host();
    host.bounds.writable = vec!["/no/such".into()];
    let error = Registry::default().on(host).function("command:run=true").unwrap_err().to_string();
    assert!(error.contains("`reward_writable`: /no/such: "), "{error}");
}

#[test]
fn too_much_memory_is_refused_by_name_and_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let small = |bounds: &mut RewardBounds| bounds.memory = Some(200 << 20);
    let text = "size = 10**9 if completions[0] == 'a' else 10\nreturn [float(len('x' * size) > 0)]";
    let function = python(folder.path(), text, small);
    assert_fails(&function, &["MemoryError", "200.0 MiB of memory (`reward_memory`)"]);
    assert_eq!(outcome(&function, "b"), ONE);
    // Each is small enough, all together are not.
    let text = "import time\nif completions[0] == 'a':\n    for _ in range(4):\n        if os.fork() == \
        0:\n            x = b'x' * (80 << 20)\n            time.sleep(1000)\n    time.sleep(1000)\nreturn [1.0]";
    let function = python(folder.path(), text, small);
    assert_fails(
        &function,
        &["took more than 200.0 MiB of memory with all that it started and what it shared (`reward_memory`)"],
    );
    assert_eq!(outcome(&function, "b"), ONE);
}

#[test]
fn too_many_processes_end_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = format!("command:run=read -r line; while true; do tail -f {} & done", folder.path().display());
    let function = function(folder.path(), &bomb, |bounds| bounds.processes = 20);
    assert_fails(&function, &["more than 20 processes of it (`reward_max_processes`)"]);
    drop(function);
    processes::wait_for(0, "", folder.path());
}

#[test]
fn too_large_a_file_ends_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let small = |bounds: &mut RewardBounds| bounds.file_size = 1 << 20;
    let program = function(folder.path(), "command:run=read -r line; yes > $TMPDIR/x", small);
    assert_fails(&program, &["a file of more than 1.0 MiB (`reward_file_size`)"]);
    let text = "with open(os.environ['TMPDIR'] + '/x', 'w') as file:\n    file.write('x' * (2 << 20))";
    assert_fails(&python(folder.path(), text, small), &["File too large", "1.0 MiB (`reward_file_size`)"]);
}

#[test]
fn too_much_processor_time_ends_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let spins = "command:run=read -r line; while true; do true; done";
    let function = function(folder.path(), spins, |bounds| bounds.cpu = 1);
    assert_fails(&function, &["the 1 s of processor time that `reward_cpu` allows"]);
}

#[test]
fn threads_processes_and_asyncio_work_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("r.py"),
        "import asyncio, multiprocessing, subprocess, sys, tempfile\n\
         from concurrent.futures import ThreadPoolExecutor\n\n\n\
         def double(x):\n    return 2 * x\n\n\n\
         async def f(completions, **kwargs):\n    \
         with multiprocessing.Pool(2) as pool:\n        assert pool.map(double, [1, 2]) == [2, 4]\n    \
         with multiprocessing.Manager() as manager:\n        manager.list([1]).append(2)\n    \
         with ThreadPoolExecutor(4) as pool:\n        assert list(pool.map(double, [1])) == [2]\n    \
         with tempfile.NamedTemporaryFile() as file:\n        file.write(b'x')\n    \
         process = await asyncio.create_subprocess_exec(sys.executable, '-c', 'print(1)', stdout=subprocess.PIPE)\n    \
         said, _ = await process.communicate()\n    await asyncio.sleep(0.01)\n    return [float(said)]\n",
    )
    .unwrap();
    assert_eq!(outcome(&function(folder.path(), "r.py:f", |_| {}), "a"), ONE);
}

/// The name of each attempt that succeeds is in the failure.
#[test]
fn what_is_not_its_own_cannot_be_changed_and_what_is_can() {
    let folder = tempfile::tempdir().unwrap();
    let canary = folder.path().join("canary");
    fs::write(&canary, "x").unwrap();
    let before = fs::metadata(&canary).unwrap();
    let text = format!(
        "import shutil, socket, stat, subprocess, time\n\
         canary = {canary:?}\nown = os.environ['TMPDIR']\n\
         reading = os.open(canary, os.O_RDONLY)\n\
         now = time.clock_gettime(time.CLOCK_REALTIME)\n\
         attempts = {{\n\
         'chmod': lambda: os.chmod(canary, 0o777),\n\
         'fchmod': lambda: os.fchmod(reading, 0o777),\n\
         'chown': lambda: os.chown(canary, os.getuid(), os.getgid()),\n\
         'utime': lambda: os.utime(canary, (1, 1)),\n\
         'futimens': lambda: os.utime(reading, (1, 1)),\n\
         'setxattr': lambda: os.setxattr(canary, 'user.x', b'1'),\n\
         'fsetxattr': lambda: os.setxattr(reading, 'user.x', b'1'),\n\
         'truncate': lambda: os.truncate(canary, 0),\n\
         'link': lambda: os.link(canary, canary + '2'),\n\
         'block': lambda: os.mknod(own + '/b', stat.S_IFBLK | 0o600, os.makedev(7, 0)),\n\
         'character': lambda: os.mknod(own + '/c', stat.S_IFCHR | 0o600, os.makedev(1, 11)),\n\
         'clock': lambda: time.clock_settime(time.CLOCK_REALTIME, now),\n\
         'host name': lambda: socket.sethostname(socket.gethostname()),\n\
         'real time': lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),\n\
         'priority': lambda: os.nice(-5),\n\
         'user namespace': lambda: subprocess.run(['unshare', '-Ur', 'true'], check=True),\n\
         }}\n\
         done = []\n\
         for name, attempt in attempts.items():\n    \
             try:\n        attempt()\n        done.append(name)\n    \
             except (OSError, subprocess.CalledProcessError):\n        pass\n\
         capabilities = [line for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm', \
         'CapAmb'))]\n\
         done += [line for line in capabilities if int(line.split()[1], 16)]\n\
         assert not done, done\n\
         open(own + '/a', 'w').write('x')\n\
         shutil.copy(own + '/a', own + '/b'), shutil.copy2(own + '/a', own + '/c')\n\
         os.chmod(own + '/c', 0o700), os.utime(own + '/c', (1, 1)), os.mkfifo(own + '/fifo')\n\
         os.mkdir(own + '/out')\n\
         subprocess.run('cd $TMPDIR && cp -p a d && tar -cf x.tar a c && tar -xf x.tar -C out', shell=True, \
         check=True)\n\
         return [1.0]"
    );
    assert_eq!(outcome(&python(folder.path(), &text, |_| {}), "a"), ONE);
    let after = fs::metadata(&canary).unwrap();
    assert_eq!((before.permissions(), before.modified().unwrap()), (after.permissions(), after.modified().unwrap()));
}

/// Attempts of a program to change a file of the machine, where the system has no namespaces. A refused command of
/// `ioctl` reads as one that the file system does not know, whether or not it would know it.
#[test]
fn without_namespaces_flags_stay_and_shared_memory_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("canary"), "x").unwrap();
    let shared = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let host = RewardHost { dir: folder.path().to_owned(), ..testing::host() };
    let containment = Containment::of(&host).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let plan = Plan { scratch: scratch.path().to_owned(), ..containment.plan };
    assert!(!plan.in_namespace);
    let script = format!(
        "import ctypes, fcntl, os, errno\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         reading = os.open('canary', os.O_RDONLY)\n\
         for command in [0x40086602, 0x40046602, 0x40087602, 0x401c5820, 0x40086604]:\n    \
             try:\n        fcntl.ioctl(reading, command, bytes(64))\n        print('done', hex(command))\n    \
             except OSError as error:\n        assert error.errno == errno.ENOTTY, (hex(command), error)\n\
         assert libc.syscall(469, -100, b'canary', bytes(64), 32, 0) == -1 and ctypes.get_errno() == errno.ENOSYS\n\
         try:\n    os.open({shared:?}, os.O_RDONLY)\n    print('opened')\n\
         except PermissionError:\n    pass\n\
         for path in ['/etc/passwd', '/dev/urandom', '/proc/self/status', 'canary']:\n    open(path, 'rb').read(1)\n\
         print('fine')",
        shared = shared.path()
    );
    let mut command = Command::new(rollout().unwrap());
    command.current_dir(folder.path()).args(["contain-seal", &serde_json::to_string(&plan).unwrap()]);
    let said = command.args(["python3", "-c", &script]).output().unwrap();
    let said = [said.stdout, said.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(said[0], "fine\n", "{}", said[1]);
}

#[test]
fn memory_in_files_and_shared_memory_counts() {
    let folder = tempfile::tempdir().unwrap();
    let small = |bounds: &mut RewardBounds| bounds.memory = Some(200 << 20);
    let words = ["took more than 200.0 MiB of memory", "what it shared (`reward_memory`)"];
    let piece = "piece = b'x' * (1 << 20)\n";
    for hold in [
        "files = [os.memfd_create(str(n)) for n in range(5)]\nfor n in range(300):\n    os.write(files[n % 5], \
         piece)\n",
        "import mmap\nshared = mmap.mmap(-1, 300 << 20)\nfor n in range(300):\n    shared.write(piece)\n",
        "file, memory = open('/dev/shm/x', 'wb', 0), os.memfd_create('y')\nfor n in range(120):\n    \
         file.write(piece), os.write(memory, piece)\n",
    ] {
        let text = format!(
            "import time\nif completions[0] == 'a':\n    exec({:?})\n    time.sleep(1000)\nreturn [1.0]",
            format!("{piece}{hold}")
        );
        let function = python(folder.path(), &text, small);
        assert_fails(&function, &words);
        assert_eq!(outcome(&function, "b"), ONE);
    }
}

#[test]
fn the_temporary_folder_has_a_total() {
    let folder = tempfile::tempdir().unwrap();
    let small = |bounds: &mut RewardBounds| (bounds.file_size, bounds.disk) = (1 << 20, 4 << 20);
    for body in [
        "for n in range(40):\n    open(f\"{os.environ['TMPDIR']}/{n}\", 'wb').write(b'x' * (1 << 19))\n",
        "files = [open(f\"{os.environ['TMPDIR']}/{n}\", 'wb', 0) for n in range(40)]\nfor n, file in \
         enumerate(files):\n    os.remove(f\"{os.environ['TMPDIR']}/{n}\"), file.write(b'x' * (1 << 19))\n",
    ] {
        let text = format!("import time\n{body}time.sleep(1000)");
        assert_fails(
            &python(folder.path(), &text, small),
            &["more than 4.0 MiB in all files together (`reward_disk`)"],
        );
    }
}

#[test]
fn threads_count_with_processes() {
    let folder = tempfile::tempdir().unwrap();
    let text = "import threading, time\nthreading.stack_size(1 << 16)\nfor _ in range(3000):\n    \
                threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\ntime.sleep(1000)";
    let function = python(folder.path(), text, |bounds| bounds.processes = 256);
    assert_fails(&function, &["threads of it", "`reward_max_processes`"]);
}

#[test]
fn variables_that_begin_like_usual_ones_stay_out() {
    let secrets =
        ["CUDA_API_TOKEN", "OMP_SECRET", "LC_PASSWORD", "MKL_KEY", "NVIDIA_API_KEY", "PYENV_TOKEN", "OPENBLAS_X"];
    let usual = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LC_ALL"];
    let given = secrets.iter().chain(&usual).map(|name| (OsString::from(name), OsString::from("x")));
    let kept: Vec<String> = environment(&[], given).into_iter().map(|(name, _)| name.into_string().unwrap()).collect();
    assert_eq!(kept, usual);
}
