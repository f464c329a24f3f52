//! Datasets.

use std::{fs, path::Path};

use shared_data::{Selection, choose, count, read};

use crate::text;

/// Names that suggest another format than the bytes have.
const NAMES: [&str; 4] = ["rows.jsonl", "rows.json", "rows.csv", "rows.parquet"];

/// The first byte chooses the name.
pub fn dataset_seeds() -> Vec<Vec<u8>> {
    let named = |index: u8, bytes: &[u8]| [&[index], bytes].concat();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/tests/fixtures");
    let fixture = |name: &str| named(3, &fs::read(fixtures.join(name)).expect("a fixture"));
    let files = [
        "bytes.arrow",
        "bytes.parquet",
        "json.parquet",
        "kinds.feather",
        "kinds.parquet",
        "sums.parquet",
        "verl.gzip.parquet",
        "verl.lz4.parquet",
        "verl.snappy.parquet",
    ];
    let lines = "{\"prompt\": \"a\", \"answer\": 5}\n\n{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}]}\n";
    let mut seeds = vec![
        named(0, lines.as_bytes()),
        named(1, b"[{\"prompt\": \"a\"}, {\"prompt\": \"b\", \"n\": 1e3}]"),
        named(2, b"prompt,answer\r\n\"a,\"\"b\",5\r\nc,\r\n"),
        named(2, b"prompt\tanswer\na\t[1, 2]\n"),
        named(0, b"{\"prompt\": \"[{\\\"role\\\": \\\"user\\\"}]\", \"n\": 123456789012345678901234}"),
        named(0, b"{\"prompt\": NaN}"),
    ];
    seeds.extend(files.map(fixture));
    seeds
}

/// As many rows are read as are counted.
pub fn dataset(bytes: &[u8]) {
    let Some((name, bytes)) = bytes.split_first() else { return };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let path = dir.path().join(NAMES[usize::from(*name) % NAMES.len()]);
    fs::write(&path, bytes).expect("a writable folder");
    if let Ok(table) = read(&path, "train") {
        assert!(!table.rows.is_empty());
        let counted = count(&path, "train").expect("what was read is counted");
        // A Parquet file states its number of rows, rightly or not.
        assert!(counted == table.rows.len() as u64 || table.about.starts_with("Parquet"), "{counted}: {}", table.about);
    }
}

pub fn card_seeds() -> Vec<Vec<u8>> {
    [
        "---\nconfigs:\n- config_name: easy\n  data_files:\n  - split: train\n    path: b.jsonl\n---\n",
        "---\nconfigs:\n- config_name: hard\n  default: true\n  data_dir: sub\n- data_files: '*.jsonl'\n---\n# words",
        "---\nlicense: mit\na: &x [1, 2]\nb: *x\n---\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Whatever a card says, only files that exist are chosen.
pub fn card(bytes: &[u8]) {
    let names = ["a.jsonl", "b.jsonl", "sub/c-1.jsonl"].map(str::to_owned);
    if let Ok((chosen, _)) =
        choose(Path::new("folder"), &names, text(bytes), Selection { split: "train", config: None })
    {
        assert!(chosen.iter().all(|name| names.contains(name)), "{chosen:?}");
    }
}
