//! Whether a checkpoint is as it was written. The list of its files, with their lengths and hashes, is written last.

mod contents;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    RunDir,
    files::atomic::{self, named},
    run::resume::STATE_FILE,
};

/// The list of a checkpoint's files.
pub const CHECKSUMS_FILE: &str = "checksums.json";
/// Most bytes of that list.
const MOST_BYTES: u64 = 64 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Checksums {
    /// By the path in the checkpoint, with `/` between folders.
    files: BTreeMap<String, Checksum>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Checksum {
    bytes: u64,
    blake3: String,
}

/// Thoroughness of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Compares the lengths of the files: takes no time.
    Lengths,
    /// Compares the contents: takes as long as reading them.
    Contents,
}

/// A fault of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// A file is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A file is not in the list.
    #[error("{0} is not listed in {CHECKSUMS_FILE}: it was added since, or the list is not whole")]
    Unlisted(String),
    /// A link leads out of the run.
    #[error("it is a link to {0}, outside of the run")]
    Elsewhere(PathBuf),
    /// A file differs from what was written.
    #[error("{0} is not what was written (by its length or hash in {CHECKSUMS_FILE})")]
    Changed(String),
    /// A file has content that cannot be used.
    #[error("{file} {reason}")]
    Content {
        /// The file.
        file: String,
        /// The fault.
        reason: String,
    },
    /// A file cannot be read.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        reason: io::Error,
    },
}

/// Writes the list of all files in a folder, in place of an earlier one.
///
/// # Errors
/// A file that cannot be read, or a list that cannot be written.
pub fn seal(dir: &Path) -> io::Result<()> {
    let mut list = Checksums::default();
    add(dir, "", &mut list)?;
    let text = serde_json::to_vec_pretty(&list).expect("texts and numbers are valid JSON");
    atomic::write(&dir.join(CHECKSUMS_FILE), &text)
}

fn add(dir: &Path, within: &str, list: &mut Checksums) -> io::Result<()> {
    let folder = dir.join(within);
    for entry in fs::read_dir(&folder).map_err(named(&folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = if within.is_empty() { name } else { format!("{within}/{name}") };
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            add(dir, &name, list)?;
        } else if name != CHECKSUMS_FILE {
            let checksum = Checksum { bytes: path.metadata()?.len(), blake3: hash(&path).map_err(named(&path))? };
            list.files.insert(name, checksum);
        }
    }
    Ok(())
}

fn hash(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(shared_bounds::open(path)?)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// The evidence that a checkpoint is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voucher {
    /// Its list of checksums.
    Checksums,
    /// Its readability only: it has no list, as checkpoints of an earlier version.
    Reading,
}

/// Checks that a checkpoint is as it was written, by its list; with [`Depth::Contents`], also that its contents can be
/// read. A checkpoint without a list is of an earlier version, or has lost it; it is checked as far as possible without
/// one.
///
/// # Errors
/// The first file that differs.
pub fn check(dir: &Path, depth: Depth) -> Result<Voucher, Damage> {
    if !dir.join(STATE_FILE).is_file() {
        return Err(Damage::Missing(STATE_FILE.into()));
    }
    let Some(list) = list_of(dir)? else {
        contents::look(dir, contents::files(dir)?)?;
        contents::compare(dir)?;
        return Ok(Voucher::Reading);
    };
    complete(dir, &list)?;
    list.files.iter().try_for_each(|(name, checksum)| compare(dir, name, checksum, depth))?;
    if depth == Depth::Contents {
        contents::look(dir, list.files.keys().map(Into::into))?;
    }
    Ok(Voucher::Checksums)
}

/// Checks that some files of a folder have the contents that its list gives for them. A folder without a list, which is
/// no checkpoint or one of an earlier version, passes.
///
/// # Errors
/// The first file that differs, or that the list does not name.
pub fn check_files<'a>(dir: &Path, names: impl IntoIterator<Item = &'a str>) -> Result<(), Damage> {
    let Some(list) = list_of(dir)? else { return Ok(()) };
    names.into_iter().try_for_each(|name| {
        let checksum = list.files.get(name).ok_or_else(|| Damage::Unlisted(name.to_owned()))?;
        compare(dir, name, checksum, Depth::Contents)
    })
}

/// The list of a checkpoint, if it has one.
fn list_of(dir: &Path) -> Result<Option<Checksums>, Damage> {
    let text = match shared_bounds::read(&dir.join(CHECKSUMS_FILE), MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(unreadable(CHECKSUMS_FILE))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|_| Damage::Changed(CHECKSUMS_FILE.into()))
}

fn compare(dir: &Path, name: &str, checksum: &Checksum, depth: Depth) -> Result<(), Damage> {
    let path = dir.join(name);
    let length = path.metadata().map_err(unreadable(name))?.len();
    let whole = length == checksum.bytes
        && (depth == Depth::Lengths || hash(&path).map_err(unreadable(name))? == checksum.blake3);
    if whole { Ok(()) } else { Err(Damage::Changed(name.to_owned())) }
}

/// Ends of the names of files that are read by name, so that an unlisted one would be read unseen.
const READ: [&str; 4] = ["json", "safetensors", "data", "jinja"];

/// Checks that a list names only files within the checkpoint, all files that a checkpoint needs, and all files that
/// would be read.
fn complete(dir: &Path, list: &Checksums) -> Result<(), Damage> {
    let within =
        |name: &str| !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if let Some(name) = list.files.keys().find(|name| !within(name)) {
        let reason = format!("names `{name}`, which is no file of a checkpoint");
        return Err(Damage::Content { file: CHECKSUMS_FILE.into(), reason });
    }
    let has = |name: &str| list.files.contains_key(name);
    let read = |path: &Path| path.extension().is_some_and(|end| READ.iter().any(|read| end == *read));
    let names = contents::files(dir)?.into_iter().filter(|path| read(path)).map(|path| path.display().to_string());
    if let Some(name) = names.into_iter().find(|name| name != CHECKSUMS_FILE && !has(name)) {
        return Err(Damage::Unlisted(name));
    }
    let is_model = |name: &String| {
        ["model", "adapter_model"].iter().any(|begin| name.starts_with(begin)) && name.ends_with(".safetensors")
    };
    let (model, config) = (list.files.keys().any(is_model), has("config.json") || has("adapter_config.json"));
    // A list that lacks one of the two files is not whole; a list that lacks both belongs to no model.
    let needed =
        [(STATE_FILE, has(STATE_FILE)), ("config.json", config || !model), ("model.safetensors", model || !config)];
    match needed.into_iter().find(|(_, is_there)| !is_there) {
        Some((name, _)) => Err(Damage::Missing(name.into())),
        None => Ok(()),
    }
}

fn unreadable(file: &str) -> impl Fn(io::Error) -> Damage + use<> {
    let file = file.to_owned();
    move |reason| match reason.kind() {
        io::ErrorKind::NotFound => Damage::Missing(file.clone()),
        _ => Damage::Unreadable { file: file.clone(), reason },
    }
}

/// The result of a search through the checkpoints of a run, from the newest back.
#[derive(Debug)]
pub struct Newest {
    /// The newest checkpoint that is whole.
    pub step: Option<u64>,
    /// The evidence for it.
    pub voucher: Voucher,
    /// Later checkpoints, with their faults.
    pub damaged: Vec<(u64, Damage)>,
}

/// Searches a run for the newest checkpoint that is whole. A checkpoint without a list of checksums counts only if none
/// before it has one: where others have lists, it has lost its own.
///
/// # Errors
/// When the run directory cannot be listed.
pub fn newest(run_dir: &RunDir, depth: Depth) -> io::Result<Newest> {
    let (mut damaged, mut unlisted) = (Vec::new(), None);
    for step in run_dir.checkpoints()?.into_iter().rev() {
        match of_run(run_dir, step).and_then(|checkpoint| check(&checkpoint, depth)) {
            Ok(Voucher::Checksums) => return Ok(Newest { step: Some(step), voucher: Voucher::Checksums, damaged }),
            Ok(Voucher::Reading) => {
                unlisted.get_or_insert((step, damaged.len()));
                damaged.push((step, Damage::Missing(CHECKSUMS_FILE.into())));
            }
            Err(damage) => damaged.push((step, damage)),
        }
    }
    let after = unlisted.map_or(damaged.len(), |(_, after)| after);
    damaged.truncate(after);
    Ok(Newest { step: unlisted.map(|(step, _)| step), voucher: Voucher::Reading, damaged })
}

/// The folder of a checkpoint, unless it is a link to another run's checkpoint, or to a folder of no run.
fn of_run(run_dir: &RunDir, step: u64) -> Result<PathBuf, Damage> {
    let path = run_dir.checkpoint(step);
    if path.is_symlink()
        && let (Ok(target), Ok(root)) = (path.canonicalize(), run_dir.root().canonicalize())
        && !target.starts_with(root)
    {
        return Err(Damage::Elsewhere(target));
    }
    Ok(path)
}

impl Newest {
    /// The newest checkpoint that is whole, if there are any at all.
    ///
    /// # Errors
    /// The faults, if there are checkpoints and none is whole, with the way out.
    pub fn usable(&self, run_dir: &RunDir) -> Result<Option<u64>, String> {
        if self.step.is_some() || self.damaged.is_empty() {
            return Ok(self.step);
        }
        let run = run_dir.root().display();
        Err(format!("no checkpoint of {run} is whole: {}; begin a run in another `output_dir`", self.in_words()))
    }

    /// The faults of the checkpoints that are passed over.
    fn in_words(&self) -> String {
        let list: Vec<String> =
            self.damaged.iter().map(|(step, damage)| format!("checkpoint-{step} ({damage})")).collect();
        list.join(", ")
    }
}

/// Gives a damaged checkpoint a name under which no run resumes from it, and returns the name. It stays, for repair.
///
/// # Errors
/// Any error of the file system.
pub fn set_aside(run_dir: &RunDir, step: u64) -> io::Result<String> {
    let name = format!("damaged-checkpoint-{step}");
    let aside = run_dir.root().join(&name);
    if aside.exists() {
        atomic::remove_dir(&aside)?;
    }
    let path = run_dir.checkpoint(step);
    fs::rename(&path, &aside).map_err(named(&path))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: &[u64]) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path());
        for step in steps {
            let checkpoint = run.checkpoint(*step);
            fs::create_dir_all(checkpoint.join("critic")).unwrap();
            fs::write(checkpoint.join(STATE_FILE), format!("{{\"format\": 1, \"step\": {step}}}")).unwrap();
            harness::tiny_model::SMALL.write(&checkpoint, *step);
            fs::copy(checkpoint.join("model.safetensors"), checkpoint.join("critic/optimizer.safetensors")).unwrap();
            seal(&checkpoint).unwrap();
        }
        (dir, run)
    }

    #[test]
    fn a_checkpoint_that_is_not_as_it_was_written_is_known() {
        let (_dir, run) = run(&[3]);
        let checkpoint = run.checkpoint(3);
        let whole = || check(&checkpoint, Depth::Contents);
        whole().unwrap();
        fs::write(checkpoint.join("notes.txt"), "of the user's own").unwrap();
        whole().unwrap();
        let inner = checkpoint.join("critic/optimizer.safetensors");
        let bytes = fs::read(&inner).unwrap();
        let last = bytes.len() - 1;
        let flipped: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == last)).collect();
        fs::write(&inner, flipped).unwrap();
        let named = |damage: Damage| damage.to_string().contains("critic/optimizer.safetensors");
        assert!(named(whole().unwrap_err()));
        check(&checkpoint, Depth::Lengths).unwrap();
        fs::write(&inner, &bytes[1..]).unwrap();
        assert!(named(check(&checkpoint, Depth::Lengths).unwrap_err()));
        fs::remove_file(&inner).unwrap();
        assert!(
            matches!(check(&checkpoint, Depth::Lengths).unwrap_err(), Damage::Missing(file) if file.contains("critic/"))
        );
        fs::write(checkpoint.join(CHECKSUMS_FILE), "{").unwrap();
        assert!(matches!(whole().unwrap_err(), Damage::Changed(file) if file == CHECKSUMS_FILE));
        fs::remove_file(checkpoint.join(CHECKSUMS_FILE)).unwrap();
        assert_eq!(whole().expect("one of an earlier version has no list"), Voucher::Reading);
        fs::remove_file(checkpoint.join(STATE_FILE)).unwrap();
        assert!(matches!(whole().unwrap_err(), Damage::Missing(file) if file == STATE_FILE));
    }

    #[test]
    fn some_files_are_compared_with_the_list_and_nothing_else() {
        let (_dir, run) = run(&[3]);
        let checkpoint = run.checkpoint(3);
        let of = |name: &str| check_files(&checkpoint, [name]).map_err(|damage| damage.to_string());
        fs::write(checkpoint.join("other.safetensors"), "").unwrap();
        of("model.safetensors").unwrap();
        assert!(of("other.safetensors").unwrap_err().contains("is not listed"));
        let mut bytes = fs::read(checkpoint.join("model.safetensors")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(checkpoint.join("model.safetensors"), bytes).unwrap();
        assert!(of("model.safetensors").unwrap_err().contains("is not what was written"));
        of("config.json").unwrap();
        fs::remove_file(checkpoint.join(CHECKSUMS_FILE)).unwrap();
        of("model.safetensors").unwrap();
    }

    /// A list that is cut off, overwritten or foreign, beside intact files.
    #[test]
    fn a_list_names_what_is_there_and_nothing_else() {
        let edited = |edit: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
            let (_dir, run) = run(&[3]);
            let path = run.checkpoint(3).join(CHECKSUMS_FILE);
            let mut list: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            edit(list["files"].as_object_mut().unwrap());
            fs::write(&path, list.to_string()).unwrap();
            check(&run.checkpoint(3), Depth::Contents).unwrap_err().to_string()
        };
        for file in ["model.safetensors", "critic/optimizer.safetensors", "config.json", STATE_FILE] {
            let words = format!("{file} is not listed in checksums.json");
            assert!(edited(&|files| drop(files.remove(file))).starts_with(&words), "{file}");
        }
        assert!(edited(&|files| files.clear()).contains("is not listed in checksums.json"));
        for name in ["../checkpoint-3/config.json", "/etc/passwd", "critic/../../config.json", ""] {
            let words = format!("checksums.json names `{name}`, which is no file of a checkpoint");
            let add = |files: &mut serde_json::Map<String, serde_json::Value>| {
                let entry = files["config.json"].clone();
                files.insert(name.to_owned(), entry);
            };
            assert_eq!(edited(&add), words);
        }
        let (_dir, run) = run(&[2, 4]);
        fs::write(run.checkpoint(4).join("adapter_config.json"), "{}").unwrap();
        let found = newest(&run, Depth::Contents).unwrap();
        assert_eq!(found.step, Some(2), "what is added in a file's name that is read sets a checkpoint aside");
        assert!(found.in_words().contains("adapter_config.json is not listed"), "{}", found.in_words());
    }

    #[test]
    fn a_checkpoint_that_is_a_link_out_of_the_run_is_passed_over() {
        let ((_dir, own), (_other, other)) = (run(&[2]), run(&[9]));
        std::os::unix::fs::symlink(other.checkpoint(9), own.checkpoint(9)).unwrap();
        let found = newest(&own, Depth::Contents).unwrap();
        assert_eq!(found.step, Some(2));
        assert!(found.in_words().contains("checkpoint-9 (it is a link to "), "{}", found.in_words());
        assert_eq!(set_aside(&own, 9).unwrap(), "damaged-checkpoint-9");
        assert!(other.checkpoint(9).is_dir(), "the other run keeps it");
    }

    #[test]
    fn the_newest_whole_one_is_found_behind_damaged_ones() {
        let (_dir, run) = run(&[2, 4, 6]);
        fs::write(run.checkpoint(6).join("model.safetensors"), "cut").unwrap();
        fs::create_dir(run.checkpoint(999)).unwrap();
        let found = newest(&run, Depth::Lengths).unwrap();
        assert_eq!((found.step, found.damaged.len()), (Some(4), 2));
        let words = found.in_words();
        assert!(
            words.starts_with("checkpoint-999 (trainer_state.json is missing), checkpoint-6 (model.safetensors"),
            "{words}"
        );
        for (step, _) in found.damaged {
            set_aside(&run, step).unwrap();
        }
        assert_eq!(run.checkpoints().unwrap(), [2, 4]);
        assert!(run.root().join("damaged-checkpoint-6/model.safetensors").exists());
        fs::rename(run.checkpoint(4), run.checkpoint(6)).unwrap();
        set_aside(&run, 6).expect("a second one of that number takes the first one's place");
        assert_eq!(newest(&run, Depth::Contents).unwrap().step, Some(2));
    }

    /// Files as ext4 leaves them after a loss of power, with and without the list.
    #[test]
    fn contents_that_cannot_be_read_are_damage_whatever_the_list_says() {
        for (file, text) in [
            ("config.json", &[0; 300][..]),
            ("config.json", b"{}"),
            ("generation_config.json", &[0; 50]),
            ("model.safetensors", &[0; 4000]),
            ("model.safetensors", b""),
            (STATE_FILE, &[0; 30]),
            (STATE_FILE, b"7"),
            ("critic/optimizer.safetensors", b"\x02\0\0\0\0\0\0\0{}more"),
        ] {
            let (_dir, run) = run(&[3]);
            let checkpoint = run.checkpoint(3);
            fs::write(checkpoint.join(file), text).unwrap();
            for sealed in [false, true] {
                if sealed {
                    seal(&checkpoint).unwrap();
                } else {
                    fs::remove_file(checkpoint.join(CHECKSUMS_FILE)).unwrap();
                }
                let damage = check(&checkpoint, Depth::Contents).expect_err(file).to_string();
                let name = file.rsplit('/').next().unwrap();
                assert!(damage.contains(name), "{file}, sealed {sealed}: {damage}");
            }
        }
    }

    #[test]
    fn a_checkpoint_that_has_lost_its_list_gives_way_to_one_that_has_it_and_to_no_other() {
        let (_dir, run) = run(&[2, 4, 6]);
        let unlist = |step: u64| fs::remove_file(run.checkpoint(step).join(CHECKSUMS_FILE)).unwrap();
        unlist(6);
        let found = newest(&run, Depth::Contents).unwrap();
        assert_eq!((found.step, found.voucher), (Some(4), Voucher::Checksums));
        assert_eq!(found.in_words(), "checkpoint-6 (checksums.json is missing)");
        unlist(4);
        unlist(2);
        let found = newest(&run, Depth::Contents).unwrap();
        assert_eq!((found.step, found.voucher, found.damaged.len()), (Some(6), Voucher::Reading, 0));
        fs::write(run.checkpoint(6).join("config.json"), "").unwrap();
        let found = newest(&run, Depth::Contents).unwrap();
        assert_eq!((found.step, found.voucher, found.damaged.len()), (Some(4), Voucher::Reading, 1));
    }

    #[test]
    fn what_is_no_file_is_damage_and_is_not_waited_for() {
        for file in [CHECKSUMS_FILE, STATE_FILE, "config.json", "model.safetensors"] {
            let (_dir, run) = run(&[3]);
            let path = run.checkpoint(3).join(file);
            fs::remove_file(&path).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            for depth in [Depth::Lengths, Depth::Contents] {
                let damage = check(&run.checkpoint(3), depth).unwrap_err().to_string();
                assert!(damage.contains(file), "{damage}");
            }
        }
    }
}
