//! Unpacking: the wanted files of wheels into a folder that appears whole or not at all.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result, bail, ensure};
use zip::ZipArchive;

use super::pins::{Component, Take, Wheel};

/// File in a component's folder that names its sources. It is written last.
pub const STAMP: &str = "SETUP";

/// Makes the folder of a component from downloaded wheels, and replaces an older one.
///
/// # Errors
/// When a wheel lacks a wanted file or the disk cannot be written; the old folder is then still in place.
pub fn install(component: &Component, wheels: &[PathBuf], stamp: &str, native: &Path) -> Result<()> {
    let temporary = temporary(native, component.name);
    fs::create_dir_all(&temporary).with_context(|| temporary.display().to_string())?;
    for (wheel, path) in component.wheels.iter().zip(wheels) {
        unpack(wheel, path, &temporary).with_context(|| format!("cannot unpack {}", path.display()))?;
    }
    for (link, target) in component.links {
        symlink(target, temporary.join(link)).with_context(|| format!("cannot link {link}"))?;
    }
    sync_file_system(&temporary)?;
    fs::write(temporary.join(STAMP), stamp).with_context(|| format!("cannot write {STAMP}"))?;
    sync_file_system(&temporary)?;
    replace(&temporary, &native.join(component.name))?;
    sync_file_system(native)
}

/// Removes the remains of an interrupted set-up.
///
/// # Errors
/// When a file or folder cannot be removed.
pub fn remove_litter(native: &Path) -> Result<()> {
    for entry in fs::read_dir(native).with_context(|| native.display().to_string())? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".tmp-")) {
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// Path under which something is prepared before it gets its name. It contains the process id, so that a pip that
/// outlived its killed set-up does not write into the folder of the next one.
pub fn temporary(native: &Path, name: &str) -> PathBuf {
    native.join(format!(".tmp-{name}-{}", process::id()))
}

fn unpack(wheel: &Wheel, path: &Path, into: &Path) -> Result<()> {
    let mut archive = ZipArchive::new(io::BufReader::new(File::open(path)?))?;
    let mut found = vec![false; wheel.take.len()];
    for index in 0..archive.len() {
        let mut member = archive.by_index(index)?;
        let name = member.name().to_owned();
        let Some((rule, target)) = target(wheel.take, &name) else { continue };
        found[rule] = true;
        ensure!(member.enclosed_name().is_some(), "{name} points outside the archive");
        let target = into.join(target);
        let folder = target.parent().expect("a file below a folder has a parent");
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let written = File::create(&target).and_then(|mut file| io::copy(&mut member, &mut file));
        written.with_context(|| format!("{name} to {}", target.display()))?;
    }
    match wheel.take.iter().zip(found).find(|(_, found)| !found) {
        Some((rule, _)) => bail!("it holds nothing for {rule}"),
        None => Ok(()),
    }
}

/// The rule that matches a member of the archive, and the member's path in the component's folder.
fn target(take: &[Take], member: &str) -> Option<(usize, PathBuf)> {
    if member.ends_with('/') {
        return None;
    }
    let file_name = member.rsplit('/').next().expect("split yields at least one part");
    take.iter().enumerate().find_map(|(index, rule)| {
        let path = match *rule {
            Take::File { from, into } => (member == from).then(|| Path::new(into).join(file_name)),
            Take::Tree { from, into } => member.strip_prefix(from).map(|rest| Path::new(into).join(rest)),
            Take::Libraries { below, into } => {
                (member.starts_with(below) && is_library(file_name)).then(|| Path::new(into).join(file_name))
            }
        };
        Some((index, path?))
    })
}

fn is_library(name: &str) -> bool {
    name.ends_with(".so") || name.contains(".so.")
}

/// A folder cannot be renamed over one that is not empty, so the old folder is moved aside first; after a crash in
/// between there is no folder, and the next set-up makes it again.
fn replace(new: &Path, target: &Path) -> Result<()> {
    let old = new.with_extension("old");
    if target.symlink_metadata().is_ok() {
        fs::rename(target, &old).with_context(|| format!("cannot move {} aside", target.display()))?;
    }
    fs::rename(new, target).with_context(|| format!("cannot rename {} to {}", new.display(), target.display()))?;
    if old.symlink_metadata().is_ok() {
        fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    Ok(())
}

/// Thousands of headers: one `syncfs` instead of an `fsync` for each.
fn sync_file_system(dir: &Path) -> Result<()> {
    let file = File::open(dir).with_context(|| dir.display().to_string())?;
    rustix::fs::syncfs(&file).with_context(|| format!("cannot flush {} to disk", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_choose_and_place_members() {
        const RULES: &[Take] = &[
            Take::File { from: "torch/lib/libc10.so", into: "lib" },
            Take::Tree { from: "torch/include/", into: "include" },
            Take::Libraries { below: "nvidia/", into: "lib" },
        ];
        let place = |member| target(RULES, member).map(|(rule, path)| (rule, path.display().to_string()));
        assert_eq!(place("torch/lib/libc10.so"), Some((0, "lib/libc10.so".into())));
        assert_eq!(place("torch/lib/libc10.so.1"), None);
        assert_eq!(place("torch/include/c10/a.h"), Some((1, "include/c10/a.h".into())));
        assert_eq!(place("torch/include/c10/"), None);
        assert_eq!(place("nvidia/cu13/lib/libcublas.so.13"), Some((2, "lib/libcublas.so.13".into())));
        assert_eq!(place("nvidia/cu13/include/cublas.h"), None);
        assert_eq!(place("other/liba.so"), None);
    }

    #[test]
    fn replacing_leaves_only_the_new_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (new, target) = (temporary(dir.path(), "part"), dir.path().join("part"));
        for content in ["a", "b"] {
            fs::create_dir(&new).unwrap();
            fs::write(new.join("file"), content).unwrap();
            replace(&new, &target).unwrap();
            assert_eq!(fs::read_to_string(target.join("file")).unwrap(), content);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
