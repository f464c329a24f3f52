//! The wheel: a Python package with the programs, which pip installs as commands.

use std::{fs::File, io::Write, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

use super::archive::Entry;

/// The package, as Python imports it, and as file names spell it.
const PACKAGE: &str = "tandem_rl";

/// The sources of the package, by their names in it. `_commands.py` gets a function for each program besides.
const SOURCES: [(&str, &str); 19] = [
    ("__init__.py", include_str!("tandem_rl/__init__.py")),
    ("_callbacks.py", include_str!("tandem_rl/_callbacks.py")),
    ("_commands.py", include_str!("tandem_rl/_commands.py")),
    ("_data.py", include_str!("tandem_rl/_data.py")),
    ("_host.py", include_str!("tandem_rl/_host.py")),
    ("_inputs.py", include_str!("tandem_rl/_inputs.py")),
    ("_peft.py", include_str!("tandem_rl/_peft.py")),
    ("_places.py", include_str!("tandem_rl/_places.py")),
    ("_process.py", include_str!("tandem_rl/_process.py")),
    ("_programs.py", include_str!("tandem_rl/_programs.py")),
    ("_progress.py", include_str!("tandem_rl/_progress.py")),
    ("_rewards.py", include_str!("tandem_rl/_rewards.py")),
    ("_session.py", include_str!("tandem_rl/_session.py")),
    ("_stub.py", include_str!("tandem_rl/_stub.py")),
    ("_toml.py", include_str!("tandem_rl/_toml.py")),
    ("_trl.py", include_str!("tandem_rl/_trl.py")),
    ("config.py", include_str!("tandem_rl/config.py")),
    ("run.py", include_str!("tandem_rl/run.py")),
    ("trainer.py", include_str!("tandem_rl/trainer.py")),
];
/// Tells type checkers that the sources have types; it is empty.
const TYPED: &str = "py.typed";

/// The file name of the wheel. `glibc` is the oldest release that the programs run with.
pub fn file_name(version: &str, glibc: (u32, u32)) -> String {
    format!("{PACKAGE}-{version}-{}.whl", tag(glibc))
}

/// The wheel is for any Python 3, since no extension module is in it.
fn tag((major, minor): (u32, u32)) -> String {
    format!("py3-none-manylinux_{major}_{minor}_x86_64")
}

/// All files of the wheel but its list of files. `bin` are programs and libraries, `licences` the files about licences.
pub fn entries(bin: &[Entry], licences: &[Entry], version: &str, glibc: (u32, u32)) -> Vec<Entry> {
    let info = format!("{PACKAGE}-{version}.dist-info");
    let mut programs: Vec<&str> =
        bin.iter().filter(|entry| entry.is_program).filter_map(|entry| entry.path.strip_prefix("bin/")).collect();
    programs.sort_unstable();
    let functions = programs.iter().map(|program| {
        format!(
            "\n\ndef {}():\n    \"\"\"The command `{program}`.\"\"\"\n    _become({program:?})\n",
            function(program)
        )
    });
    let functions: String = functions.collect();
    let source = |(name, text): &(&str, &str)| {
        let text = text.replace("@VERSION@", version);
        let more = if *name == "_commands.py" { &*functions } else { "" };
        Entry::text(format!("{PACKAGE}/{name}"), text + more)
    };
    let points = programs.iter().map(|name| format!("{name} = {PACKAGE}._commands:{}\n", function(name)));
    let mut entries: Vec<Entry> = bin.iter().map(|entry| entry.below(PACKAGE)).collect();
    entries.extend(SOURCES.iter().map(source));
    entries.extend([
        Entry::text(format!("{PACKAGE}/{TYPED}"), ""),
        Entry::text(format!("{info}/METADATA"), include_str!("tandem_rl/METADATA").replace("@VERSION@", version)),
        Entry::text(
            format!("{info}/WHEEL"),
            format!("Wheel-Version: 1.0\nGenerator: cargo xtask dist\nRoot-Is-Purelib: false\nTag: {}\n", tag(glibc)),
        ),
        Entry::text(format!("{info}/entry_points.txt"), "[console_scripts]\n".to_owned() + &points.collect::<String>()),
    ]);
    entries.extend(licences.iter().map(|entry| {
        let path = entry.path.strip_prefix("licences/").unwrap_or(&entry.path);
        Entry { path: format!("{info}/licenses/{path}"), ..entry.clone() }
    }));
    entries
}

fn function(program: &str) -> String {
    program.replace('-', "_")
}

/// Writes a wheel of these files and of `RECORD`, their list. All files have the first time that the format knows.
///
/// # Errors
/// When a file cannot be read or the disk is full.
pub fn write(entries: &[Entry], version: &str, to: &Path) -> Result<()> {
    let mut entries = entries.to_vec();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    // At the end, as the specification of wheels has it.
    let record = record(&entries, version)?;
    entries.push(record);
    let file = File::create(to).with_context(|| to.display().to_string())?;
    let mut zip = ZipWriter::new(file);
    for entry in &entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(if entry.is_program { 0o755 } else { 0o644 });
        zip.start_file(&*entry.path, options)?;
        entry.copy(&mut zip)?;
    }
    zip.finish().map(drop).with_context(|| to.display().to_string())
}

/// The list of files: path, hash and size of each, and its own path.
fn record(entries: &[Entry], version: &str) -> Result<Entry> {
    let path = format!("{PACKAGE}-{version}.dist-info/RECORD");
    let mut lines = String::new();
    for entry in entries {
        let mut hash = Hash::default();
        let size = entry.copy(&mut hash)?;
        let hash = URL_SAFE_NO_PAD.encode(hash.0.finalize());
        lines += &format!("{},sha256={hash},{size}\n", entry.path);
    }
    lines += &format!("{path},,\n");
    Ok(Entry::text(path, lines))
}

/// Names of the files in the folder of the package's sources.
#[cfg(test)]
pub fn sources() -> Vec<&'static str> {
    SOURCES.iter().map(|(name, _)| *name).chain([TYPED, "METADATA"]).collect()
}

/// The SHA-256 of what is written to it.
#[derive(Default)]
pub struct Hash(pub Sha256);

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
