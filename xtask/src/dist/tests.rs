//! Packages of a few small files: what is in them, and that their bytes follow from their content.

use std::{collections::BTreeMap, io::Read, process::Command};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use zip::ZipArchive;

use super::*;

/// Two programs, a library in a file, a licence and a page; `reversed` is the order in which a file system lists them.
fn files(dir: &Path, reversed: bool) -> Files {
    let library = dir.join("liba.so");
    fs::write(&library, "library").unwrap();
    let program = |name: &str, text: &str| Entry { is_program: true, ..Entry::text(format!("bin/{name}"), text) };
    let mut bin = vec![
        program("tandem", "#!/bin/sh\necho \"$TANDEM_REWARD_PYTHON\" \"$@\"\n"),
        program("rollout-fleet", "#!/bin/sh\nexit 3\n"),
        Entry::file("bin/libtorch/lib/liba.so", library),
    ];
    if reversed {
        bin.reverse();
    }
    let licences = vec![Entry::text("LICENSE-MIT", "MIT"), Entry::text("licences/crates.txt", "crates")];
    Files { bin, licences, documents: vec![Entry::text("README.md", "# Tandem")], glibc: (2, 34) }
}

/// The names and hashes of everything that was packed.
fn sums(dir: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(dir.join(SUMS)).unwrap();
    text.lines().map(|line| line.split_once("  ").unwrap()).map(|(sum, name)| (name.into(), sum.into())).collect()
}

#[test]
fn the_same_files_make_the_same_bytes_and_others_do_not() {
    let packed = |reversed, time| {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        pack(&files(&from, reversed), time, &to).unwrap();
        sums(&to)
    };
    let first = packed(false, 1_000_000);
    assert_eq!(first, packed(true, 1_000_000));
    let (archive, wheel) = (format!("{}.tar.gz", archive_name()), wheel::file_name(VERSION, (2, 34)));
    assert_eq!(first.keys().map(String::as_str).collect::<Vec<_>>(), ["Dockerfile", &archive, &wheel]);
    let later = packed(false, 2_000_000);
    assert!(first[&archive] != later[&archive] && first[&wheel] == later[&wheel]);
}

#[test]
fn the_sums_are_those_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    pack(&files(dir.path(), false), 0, dir.path()).unwrap();
    let mut check = Command::new("sha256sum");
    let output = check.args(["--check", "--strict", SUMS]).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_call_that_fails_leaves_no_hashes_and_whole_packages() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = files(dir.path(), false);
    pack(&files, 0, dir.path()).unwrap();
    let packages =
        [dir.path().join(format!("{}.tar.gz", archive_name())), dir.path().join(wheel::file_name(VERSION, (2, 34)))];
    let before = packages.each_ref().map(|path| fs::read(path).unwrap());
    files.bin.push(Entry::file("bin/libz.so", dir.path().join("absent")));
    pack(&files, 0, dir.path()).unwrap_err();
    assert!(!dir.path().join(SUMS).exists());
    assert_eq!(packages.map(|path| fs::read(path).unwrap()), before);
}

#[test]
fn the_list_in_a_wheel_has_every_file_with_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    pack(&files(dir.path(), false), 0, dir.path()).unwrap();
    let wheel = File::open(dir.path().join(wheel::file_name(VERSION, (2, 34)))).unwrap();
    let mut zip = ZipArchive::new(wheel).unwrap();
    let mut members = BTreeMap::new();
    for index in 0..zip.len() {
        let mut member = zip.by_index(index).unwrap();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        members.insert(member.name().to_owned(), (bytes, member.unix_mode().unwrap() & 0o777));
    }
    let info = format!("tandem_rl-{VERSION}.dist-info");
    let record = String::from_utf8(members[&format!("{info}/RECORD")].0.clone()).unwrap();
    let listed: Vec<&str> = record.lines().map(|line| line.split(',').next().unwrap()).collect();
    assert_eq!(listed.len(), members.len());
    for line in record.lines() {
        let [path, hash, size] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        let bytes = &members[path].0;
        if path.ends_with("/RECORD") {
            assert!(hash.is_empty() && size.is_empty());
            continue;
        }
        let expected = format!("sha256={}", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)));
        assert_eq!((hash, size), (&*expected, &*bytes.len().to_string()), "{path}");
    }
    assert_eq!(members["tandem_rl/bin/tandem"].1, 0o755);
    assert_eq!(members["tandem_rl/bin/libtorch/lib/liba.so"].1, 0o644);
    let text = |path: &str| String::from_utf8(members[path].0.clone()).unwrap();
    let points = "[console_scripts]\nrollout-fleet = tandem_rl._commands:rollout_fleet\n\
                  tandem = tandem_rl._commands:tandem\n";
    assert_eq!(text(&format!("{info}/entry_points.txt")), points);
    assert!(text(&format!("{info}/WHEEL")).contains("\nTag: py3-none-manylinux_2_34_x86_64\n"));
    assert!(text(&format!("{info}/licenses/crates.txt")).contains("crates"));
    assert!(text("tandem_rl/__init__.py").contains(&format!("__version__ = \"{VERSION}\"\n")));
}

#[test]
fn every_source_of_the_package_is_packed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dist/tandem_rl");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name != "__pycache__").collect();
    let mut packed = wheel::sources();
    found.sort();
    packed.sort_unstable();
    assert_eq!(found, packed);
}

#[test]
fn packages_of_another_processor_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { platform: ("linux", "aarch64"), ..crate::host::fake::host(dir.path(), &[]) };
    for check in [false, true] {
        let error = run(&host, &Args { output: Some(dir.path().into()), check }).unwrap_err().to_string();
        assert_eq!(error, "packages are made for x86_64 Linux only, and this is aarch64 linux");
    }
}

/// The guide tells users to type these names.
#[test]
fn the_guide_names_the_packages_of_this_version() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/install.md");
    let text = fs::read_to_string(guide).unwrap();
    for name in [format!("{}.tar.gz", archive_name()), format!("tandem_rl-{VERSION}-py3-none-manylinux_")] {
        assert!(text.contains(&name), "docs/install.md does not name {name}");
    }
}

/// The functions that pip's commands call, in the interpreter of this machine.
#[test]
fn a_command_becomes_its_program_and_names_its_interpreter() {
    let dir = tempfile::tempdir().unwrap();
    for entry in wheel::entries(&files(dir.path(), false).bin, &[], VERSION, (2, 34)) {
        let path = dir.path().join(&entry.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        entry.copy(&mut File::create(&path).unwrap()).unwrap();
    }
    // Copied by another process: see `host::fake`.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "for p in tandem rollout-fleet; do cp $p $p.new && chmod +x $p.new && mv $p.new $p; done"]);
    assert!(shell.current_dir(dir.path().join("tandem_rl/bin")).status().unwrap().success());
    let python = |code: &str, named: Option<&str>| {
        let mut command = Command::new("python3");
        command
            .args(["-c", code, "train", "run.toml"])
            .env("PYTHONPATH", dir.path())
            .env_remove("TANDEM_REWARD_PYTHON");
        command.envs(named.map(|python| ("TANDEM_REWARD_PYTHON", python))).output().unwrap()
    };
    let own = python("import sys; print(sys.executable)", None).stdout;
    let own = String::from_utf8(own).unwrap();
    let tandem = "from tandem_rl._commands import tandem; tandem()";
    let said = |named| String::from_utf8(python(tandem, named).stdout).unwrap();
    assert_eq!(said(None), format!("{} train run.toml\n", own.trim()));
    assert_eq!(said(Some("python3.9")), "python3.9 train run.toml\n");
    let other = python("from tandem_rl._commands import rollout_fleet; rollout_fleet()", None);
    assert_eq!(other.status.code(), Some(3));
    let unknown = python("import tandem_rl; tandem_rl.binary('libtorch')", None);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("ValueError: tandem_rl has no program 'libtorch'"));
}
