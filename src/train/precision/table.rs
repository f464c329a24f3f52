//! How fast this machine multiplies in each number format: measured once, and kept among the files that can be made
//! again.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use exporters::cache_dir;
use rollout_kernels::{
    element::Format,
    limits::Product,
    simd::{self, Isa},
    thread_pool::ThreadPool,
};
use serde::{Deserialize, Serialize};
use shared::{config::RolloutDtype, files::atomic, process::pace::Waiting};
use shared_bounds::read_text;

use crate::terminal::output;

/// Sequences of a decode step.
const ROWS: usize = 32;
/// Inputs and outputs of the products: of a small model, whose weights stay in the caches, and of a large one, whose
/// weights come from memory.
const SHAPES: [(usize, usize); 2] = [(256, 1024), (1024, 16384)];
/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 16;
/// How long the products of one size are repeated.
const PATIENCE: Duration = Duration::from_millis(600);
/// How long a thread without work spins.
const SPIN: Duration = Duration::from_millis(1);

/// Rates of products on a machine, over those of fp32.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The machine and the program that measured.
    measured: Measured,
    /// A row for each size of layers, by rising `depth`.
    rows: Vec<Row>,
}

/// What a table holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Measured {
    processor: String,
    instructions: String,
    threads: usize,
    version: String,
}

/// Rates at a size of layers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Inputs of the layer.
    pub depth: usize,
    /// The rate of each format, over that of fp32.
    pub rates: BTreeMap<String, f64>,
}

impl Table {
    /// That of this machine: as it was kept, else measured now, which takes about a second.
    ///
    /// # Errors
    /// When the environment names unknown instructions, or the system gives neither threads nor memory. A table that
    /// cannot be kept is measured again next time.
    pub fn of_machine(threads: usize) -> Result<Self> {
        let kept = cache_dir().ok().map(|folder| folder.join("precision.json"));
        simd::is_bounded()?;
        let measured = Measured::here(threads);
        if let Some(table) = kept.as_deref().and_then(Self::read).filter(|table| table.measured == measured) {
            return Ok(table);
        }
        let table = Self { rows: measure(threads)?, measured };
        if let Some(path) = kept {
            table.keep(&path);
        }
        Ok(table)
    }

    fn read(path: &Path) -> Option<Self> {
        serde_json::from_str(&read_text(path, MOST_BYTES).ok()?).ok()
    }

    fn keep(&self, path: &Path) {
        let text = serde_json::to_string_pretty(self).expect("a table is JSON");
        let written =
            path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| atomic::write(path, text.as_bytes()));
        if let Err(error) = written {
            output::tell(format_args!("warning: the next start measures number formats again: {error}"));
        }
    }

    /// The rates of layers with so many inputs: those of the nearest size that was measured.
    pub fn rates(&self, hidden_size: usize) -> impl Iterator<Item = (RolloutDtype, f64)> {
        let distance = |row: &&Row| ((row.depth as f64).ln() - (hidden_size as f64).ln()).abs();
        let nearest = self.rows.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let rates = nearest.into_iter().flat_map(|row| &row.rates);
        rates.filter_map(|(format, rate)| Some((format.parse().ok()?, *rate)))
    }

    /// A table with these rates at one size.
    #[cfg(test)]
    pub fn of(rates: &[(RolloutDtype, f64)]) -> Self {
        let rates = rates.iter().map(|(format, rate)| (format.to_string(), *rate)).collect();
        Self { measured: Measured::here(1), rows: vec![Row { depth: 256, rates }] }
    }
}

impl Measured {
    fn here(threads: usize) -> Self {
        let isa = Isa::detect();
        let instructions = [Format::Fp32, Format::Bf16, Format::Bf16Dot, Format::Int8].map(|format| isa.name(format));
        Self {
            processor: crate::doctor::processor_name(),
            instructions: instructions.join(" "),
            threads,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// fp32, and the formats that may be faster here. Of the two orders of bf16, the one of this processor's instructions.
fn formats() -> [(RolloutDtype, Format); 3] {
    let bf16 = match Isa::detect().bf16() {
        Some(Format::Bf16) => (RolloutDtype::Bf16, Format::Bf16),
        _ => (RolloutDtype::Bf16Dot, Format::Bf16Dot),
    };
    [(RolloutDtype::Auto, Format::Fp32), bf16, (RolloutDtype::Int8, Format::Int8)]
}

fn measure(threads: usize) -> Result<Vec<Row>> {
    let _waiting = Waiting::new("measuring the number formats of this processor");
    let pool = ThreadPool::new(threads, SPIN).context("threads to measure number formats")?;
    let row = |(depth, outputs): (usize, usize)| -> Result<Row> {
        let formats = formats();
        let product = |(_, format): &(RolloutDtype, Format)| Product::new((depth, outputs, ROWS), *format, &pool);
        let products = formats.iter().map(product).collect::<Result<Vec<_>, _>>();
        let mut products = products.context("memory to measure number formats")?;
        // In turns, and the shortest time of each: other programs make some of them longer.
        let mut best = [Duration::MAX; 3];
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            best.iter_mut().zip(&mut products).for_each(|(best, product)| *best = product.time().min(*best));
        }
        let rate = |time: &Duration| best[0].as_secs_f64() / time.as_secs_f64();
        let rates = formats.iter().zip(&best).skip(1).map(|((name, _), time)| (name.to_string(), rate(time)));
        Ok(Row { depth, rates: rates.collect() })
    };
    SHAPES.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_size_counts() {
        let row = |depth, rate| Row { depth, rates: BTreeMap::from([("int8".to_owned(), rate)]) };
        let table = Table { measured: Measured::here(1), rows: vec![row(256, 2.0), row(1024, 3.0)] };
        let int8 = |hidden_size| table.rates(hidden_size).map(|(_, rate)| rate).collect::<Vec<_>>();
        assert_eq!([64, 500, 520, 4096].map(int8), [[2.0], [2.0], [3.0], [3.0]]);
    }

    #[test]
    fn a_table_comes_back_from_its_file_and_a_damaged_one_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/precision.json");
        let table = Table::of(&[(RolloutDtype::Int8, 2.5), (RolloutDtype::Bf16Dot, 1.5)]);
        assert_eq!(Table::read(&path), None);
        table.keep(&path);
        assert_eq!(Table::read(&path), Some(table));
        fs::write(&path, "{").unwrap();
        assert_eq!(Table::read(&path), None);
    }

    #[test]
    fn a_machine_has_a_rate_of_each_format_at_each_size() {
        let rows = measure(1).unwrap();
        assert_eq!(rows.iter().map(|row| row.depth).collect::<Vec<_>>(), [256, 1024]);
        for row in rows {
            // Between a hundredth and a hundred times that of fp32.
            assert!(row.rates.len() == 2 && row.rates.values().all(|rate| (0.01..100.0).contains(rate)), "{row:?}");
        }
    }
}
