//! Random bytes for a parser, for as long as a test may take: seeds, and seeds that are damaged in many ways.
//!
//! This module measures no coverage. With coverage, `cargo xtask fuzz` goes deeper.

use std::{
    env, fs,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    time::{Duration, Instant},
};

use shared::generation::rng::Stream;

/// Environment variable: seconds for each parser.
pub const SECONDS: &str = "TANDEM_FUZZ_SECONDS";

/// Environment variable: the seed of the random numbers. Without it, the inputs are always the same: a change elsewhere
/// must not fail because of an old fault in a parser.
pub const SEED: &str = "TANDEM_FUZZ_SEED";

/// Seconds without [`SECONDS`]. Without optimisation (profile `bench`), parsers try half as many inputs in a second.
const DEFAULT_SECONDS: f64 = if cfg!(debug_assertions) { 20.0 } else { 10.0 };
/// Longest time for one input, on a machine that is busy with other work.
const SLOWEST: Duration = Duration::from_secs(10);
/// Memory that one input may ask for, even if it is not touched.
pub const MOST_MEMORY: u64 = 8 << 30;
/// Most bytes of an input that grows.
const LONGEST: usize = 1 << 16;

/// Runs `parse` on the seeds and on damaged seeds. An input that makes it panic, takes too long, or takes too much
/// memory (where [`Metered`](shared_bounds::Metered) is the allocator) is kept in a file that the message names.
///
/// # Panics
/// When such an input is found.
pub fn explore(name: &str, seeds: &[Vec<u8>], parse: impl Fn(&[u8])) {
    let seconds = env::var(SECONDS).ok().and_then(|text| text.parse().ok()).unwrap_or(DEFAULT_SECONDS);
    let input = Input::of(name);
    for seed in seeds {
        input.run(seed, &parse);
    }
    let begin = Instant::now();
    let mut random = Stream::new(&[env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or(0)]);
    while begin.elapsed().as_secs_f64() < seconds {
        input.run(&spoilt(seeds, &mut random), &parse);
    }
    input.forget();
}

/// The input that is being parsed, kept in a file: a parser may end the process.
struct Input {
    path: PathBuf,
}

impl Input {
    fn of(name: &str) -> Self {
        Self { path: env::temp_dir().join(format!("tandem-fuzz-{name}-{}", std::process::id())) }
    }

    fn run(&self, bytes: &[u8], parse: impl Fn(&[u8])) {
        fs::write(&self.path, bytes).expect("the folder for temporary files is writable");
        let begin = Instant::now();
        let what = self.path.display().to_string();
        let parsed =
            panic::catch_unwind(AssertUnwindSafe(|| shared_bounds::within(&what, MOST_MEMORY, || parse(bytes))));
        assert!(parsed.is_ok(), "the input in {what} made it panic");
        assert!(begin.elapsed() < SLOWEST, "the input in {what} took {:?}", begin.elapsed());
    }

    fn forget(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A seed with a few changes.
fn spoilt(seeds: &[Vec<u8>], random: &mut Stream) -> Vec<u8> {
    let mut bytes = seeds[below(seeds.len(), random)].clone();
    for _ in 0..=below(6, random) {
        spoil(&mut bytes, seeds, random);
    }
    bytes.truncate(LONGEST.max(seeds.iter().map(Vec::len).max().unwrap_or(0)));
    bytes
}

/// Numbers and characters at which parsers fail.
const WORDS: [&[u8]; 22] = [
    b"0",
    b"-1",
    b"1e999",
    b"18446744073709551615",
    b"9223372036854775808",
    b"4294967296",
    b"NaN",
    b"null",
    b"true",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b"\\",
    b",",
    b":",
    b"\n",
    b"\0",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xed\xa0\x80",
    b"\x1b[2J",
];

fn spoil(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Stream) {
    let at = below(bytes.len() + 1, random);
    let end = bytes.len().min(at + 1 + below(16, random));
    match below(9, random) {
        0 => drop(bytes.drain(at..end)),
        1 => bytes.truncate(at),
        2 if at < end => bytes[at] ^= 1 << below(8, random),
        3 if at < end => bytes[at] = random.next_u64() as u8,
        4 => drop(bytes.splice(at..end, WORDS[below(WORDS.len(), random)].iter().copied())),
        5 => drop(bytes.splice(at..at, WORDS[below(WORDS.len(), random)].iter().copied())),
        // A piece of this seed or of another one, possibly many times.
        6 => {
            let other = &seeds[below(seeds.len(), random)];
            let from = below(other.len() + 1, random);
            let piece = &other[from..other.len().min(from + 1 + below(64, random))];
            let times = if below(8, random) == 0 { 200 } else { 1 };
            drop(bytes.splice(at..at, piece.repeat(times)));
        }
        7 => {
            let piece = bytes[at..end].to_vec();
            let to = below(bytes.len() + 1, random);
            drop(bytes.splice(to..to, piece));
        }
        _ if at < end => {
            let digit = bytes[at..end].iter().position(u8::is_ascii_digit);
            if let Some(digit) = digit {
                bytes[at + digit] = b'0' + below(10, random) as u8;
            }
        }
        _ => bytes.push(random.next_u64() as u8),
    }
}

fn below(count: usize, random: &mut Stream) -> usize {
    random.below(count.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_that_a_parser_panics_at_is_found_and_kept() {
        let seeds = [b"a number: 12".to_vec()];
        let parse = |bytes: &[u8]| assert!(!bytes.starts_with(b"a number: 9"));
        let caught = panic::catch_unwind(|| explore("test", &seeds, parse)).unwrap_err();
        let message = caught.downcast_ref::<String>().unwrap();
        let path = message.strip_prefix("the input in ").unwrap().strip_suffix(" made it panic").unwrap();
        assert!(fs::read(path).unwrap().starts_with(b"a number: 9"));
        fs::remove_file(path).unwrap();
    }
}
