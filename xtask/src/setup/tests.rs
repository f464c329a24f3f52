//! Set-up as a whole: against a python3 that is a shell script, and against the real pip with a wheel made here.

use std::{fs, io::Write, path::PathBuf};

use zip::{ZipWriter, write::SimpleFileOptions};

use super::{
    pins::{AARCH64, CUDA, Take, Wheel},
    *,
};
use crate::host::fake;

const RULES: &[Take] = &[Take::Tree { from: "part/", into: "" }];

/// SHA-256 of no bytes at all, which no wheel has.
const WRONG: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn component(sha256: &'static str) -> Component {
    let wheel = Wheel { project: "tandem_part", version: "1.0", sha256, take: RULES };
    Component { name: "part", wheels: Box::leak(Box::new([wheel])), links: &[("liba.so", "liba.so.1")] }
}

/// A wheel that pip accepts, with one library in it.
fn wheel(dir: &Path) -> PathBuf {
    let path = dir.join("tandem_part-1.0-py3-none-any.whl");
    let mut zip = ZipWriter::new(File::create(&path).unwrap());
    for (name, content) in [
        ("part/liba.so.1", "library"),
        ("unwanted/readme", "text"),
        ("tandem_part-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tandem_part\nVersion: 1.0\n"),
        ("tandem_part-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        ("tandem_part-1.0.dist-info/RECORD", ""),
    ] {
        zip.start_file(name, SimpleFileOptions::default()).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    path
}

/// A python3 that "downloads" the given wheel.
fn copying_python(wheel: &Path) -> String {
    format!("PATH=/usr/bin:/bin; for last; do :; done; cp {} \"$last\"", wheel.display())
}

fn visible(native: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(native)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock")
        .collect();
    names.sort();
    names
}

#[test]
fn a_component_appears_whole_with_its_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let script = copying_python(&wheel(dir.path()));
    let host = fake::host(dir.path(), &[("python3", &script)]);
    let (native, part) = (host.native(), component(WRONG));
    fs::create_dir(&native).unwrap();
    assert!(!is_in_place(&host, &part));
    fetch(&host, &part, &native).unwrap();
    assert!(is_in_place(&host, &part));
    assert_eq!(visible(&native), ["part"]);
    assert_eq!(visible(&native.join("part")), ["SETUP", "liba.so", "liba.so.1"]);
    assert_eq!(fs::read_to_string(native.join("part/liba.so")).unwrap(), "library");
    let other = Component { links: &[], ..part };
    assert!(!is_in_place(&host, &other), "another layout is another component");
}

#[test]
fn a_damaged_wheel_leaves_the_old_folder_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = wheel(dir.path());
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let script = copying_python(&path);
    let host = fake::host(dir.path(), &[("python3", &script)]);
    let native = host.native();
    fs::create_dir_all(native.join("part")).unwrap();
    fs::write(native.join("part/old"), "old").unwrap();
    let error = format!("{:#}", fetch(&host, &component(WRONG), &native).unwrap_err());
    assert!(error.contains("cannot unpack"), "{error}");
    assert_eq!(visible(&native), ["part"]);
    assert_eq!(visible(&native.join("part")), ["old"]);
}

#[test]
fn a_wheel_without_a_wanted_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let script = copying_python(&wheel(dir.path()));
    let host = fake::host(dir.path(), &[("python3", &script)]);
    fs::create_dir(host.native()).unwrap();
    let wheel = Wheel { take: &[Take::File { from: "part/libb.so", into: "lib" }], ..component(WRONG).wheels[0] };
    let part = Component { wheels: Box::leak(Box::new([wheel])), ..component(WRONG) };
    let error = format!("{:#}", fetch(&host, &part, &host.native()).unwrap_err());
    assert!(error.contains("it holds nothing for part/libb.so"), "{error}");
    assert!(visible(&host.native()).is_empty());
}

/// The host of this test run, with pip cut off from every index.
fn offline_host(dir: &Path, index: &Path) -> Host {
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "export PATH={path} PIP_NO_INDEX=1 PIP_FIND_LINKS={}; unset PIP_INDEX_URL; exec python3 \"$@\"",
        index.display()
    );
    fake::host(dir, &[("python3", &script)])
}

#[test]
fn pip_refuses_a_wheel_with_another_hash() {
    let dir = tempfile::tempdir().unwrap();
    wheel(dir.path());
    let host = offline_host(dir.path(), dir.path());
    fs::create_dir(host.native()).unwrap();
    let error = format!("{:#}", fetch(&host, &component(WRONG), &host.native()).unwrap_err());
    assert!(error.contains("does not have the expected sha256"), "{error}");
    assert!(visible(&host.native()).is_empty());
}

#[test]
fn without_an_index_the_network_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let host = offline_host(dir.path(), &empty);
    let error = format!("{:#}", run(&host, false).unwrap_err());
    assert!(
        error.starts_with("set-up of libtorch failed: pip failed (No matching distribution found for torch==2.11.0"),
        "{error}"
    );
    assert!(error.contains("check the network"), "{error}");
    assert!(visible(&host.native()).is_empty());
}

#[test]
fn without_python_or_pip_nothing_is_touched() {
    for (programs, message) in
        [(vec![], "no working python3"), (vec![("python3", r#"[ "$1" = --version ]"#)], "python3 has no pip")]
    {
        let dir = tempfile::tempdir().unwrap();
        let host = fake::host(dir.path(), &programs);
        let error = format!("{:#}", run(&host, false).unwrap_err());
        assert!(error.starts_with(message), "{error}");
        assert!(!host.native().exists());
    }
}

#[test]
fn another_platform_needs_libraries_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |platform, cuda| {
        let host = Host { platform, ..fake::host(dir.path(), &[]) };
        run(&host, cuda).unwrap_err().to_string()
    };
    for (platform, cuda, begin) in [
        (("linux", "riscv64"), false, "native libraries cannot be fetched for riscv64 linux: "),
        (("macos", "aarch64"), false, "native libraries cannot be fetched for aarch64 macos: "),
        (("linux", "aarch64"), true, "libraries for CUDA cannot be fetched for aarch64 linux: "),
    ] {
        let error = refused(platform, cuda);
        assert!(error.starts_with(&format!("{begin}set LIBTORCH to a libtorch 2.11.0")), "{error}");
        assert!(error.contains("libonnxruntime 1.31.1"), "{error}");
    }
}

/// The wheels of one processor are of no use to another one, so what pip is asked for goes with the platform.
#[test]
fn each_platform_gets_its_own_wheels() {
    for (arch, cpu, other) in [("x86_64", CPU, AARCH64), ("aarch64", AARCH64, CPU)] {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "PATH=/usr/bin:/bin; case \"$*\" in *--version) exit;; esac; echo \"$@\" > {0}/asked; \
             while [ \"$1\" != --requirement ]; do shift; done; cp \"$2\" {0}/pinned; exit 1",
            dir.path().display()
        );
        let host = Host { platform: ("linux", arch), ..fake::host(dir.path(), &[("python3", &script)]) };
        run(&host, false).unwrap_err();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let (asked, pinned) = (read("asked"), read("pinned"));
        let tags: Vec<&str> = asked.split(' ').filter(|word| word.starts_with("manylinux")).collect();
        assert!(tags.len() >= 5 && tags.iter().all(|tag| tag.ends_with(&format!("_{arch}"))), "{tags:?}");
        for (wheel, of_other) in cpu.libtorch.wheels.iter().zip(other.libtorch.wheels) {
            assert!(pinned.contains(wheel.sha256) && !pinned.contains(of_other.sha256), "{arch}: {pinned}");
        }
        assert_eq!(missing(&host, false).unwrap().len(), 2);
    }
}

#[test]
fn own_libraries_are_checked_and_then_enough() {
    let dir = tempfile::tempdir().unwrap();
    let (torch, ort) = (dir.path().join("torch"), dir.path().join("libonnxruntime.so"));
    let host =
        Host { own_libtorch: Some(torch.clone()), own_onnxruntime: Some(ort.clone()), ..fake::host(dir.path(), &[]) };
    assert!(run(&host, false).unwrap_err().to_string().contains("is no libtorch"));
    fs::create_dir_all(torch.join("include/torch")).unwrap();
    fs::create_dir_all(torch.join("lib")).unwrap();
    fs::write(torch.join("lib/libtorch_cpu.so"), "").unwrap();
    assert!(run(&host, false).unwrap_err().to_string().contains("is no file"));
    fs::write(&ort, "").unwrap();
    run(&host, false).unwrap();
    assert!(!host.native().exists(), "nothing is fetched");
}

#[test]
fn a_folder_that_is_in_place_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let host = fake::host(dir.path(), &[]);
    let put = |component: Component| {
        let folder = host.native().join(component.name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(unpack::STAMP), stamp(&component)).unwrap();
    };
    put(CPU.libtorch);
    put(CPU.onnxruntime);
    run(&host, false).unwrap();
    assert_eq!(missing(&host, true).unwrap().len(), 2, "the CPU build does not do for CUDA");
    put(CUDA.libtorch);
    put(CUDA.onnxruntime);
    assert!(missing(&host, true).unwrap().is_empty());
    assert!(missing(&host, false).unwrap().is_empty(), "the CUDA build does for the CPU");
}

#[test]
fn a_torn_stamp_is_no_set_up() {
    let dir = tempfile::tempdir().unwrap();
    let host = fake::host(dir.path(), &[]);
    let folder = host.native().join("libtorch");
    fs::create_dir_all(&folder).unwrap();
    let whole = stamp(&CPU.libtorch);
    fs::write(folder.join(unpack::STAMP), &whole[..whole.len() - 5]).unwrap();
    assert!(!is_in_place(&host, &CPU.libtorch));
    fs::write(folder.join(unpack::STAMP), whole).unwrap();
    assert!(is_in_place(&host, &CPU.libtorch));
}
