//! Load by other programs on this machine.

use std::{fs, num::NonZero, thread};

/// Number of runnable processes per core from which on several threads that wait for one another are slower than one.
const BUSY: f64 = 1.25;

/// Whether `threads` threads that wait for one another are slower than one, because other programs want the cores.
#[must_use]
pub fn is_too_busy_for(threads: usize) -> bool {
    too_busy_for(threads, "").is_some()
}

/// A warning if `threads` threads, which wait for one another at every product, share their cores with other programs:
/// they are then slower than one. `how` names the option that sets their number.
#[must_use]
pub fn too_busy_for(threads: usize, how: &str) -> Option<String> {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    words(&load, cores, threads, how)
}

fn words(loadavg: &str, cores: usize, threads: usize, how: &str) -> Option<String> {
    // The mean over the last minute.
    let load: f64 = loadavg.split(' ').next()?.parse().ok()?;
    (threads > 1 && load > BUSY * cores as f64).then(|| {
        format!(
            "this machine is busy: {load:.1} processes want its {cores} cores. {threads} threads that wait for one \
             another are then slower than one: set {how}, or end what else runs"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_on_a_busy_machine_are_remarked_on() {
        let of = |load: &str, cores, threads| {
            words(&format!("{load} 4.50 3.10 9/1234 5678"), cores, threads, "`--threads 1`")
        };
        assert_eq!((of("2.10", 2, 2), of("7.20", 2, 1), of("7.20", 8, 8)), (None, None, None));
        let text = of("7.20", 2, 2).unwrap();
        assert!(text.contains("7.2 processes want its 2 cores") && text.contains("set `--threads 1`"), "{text}");
        assert_eq!(words("", 2, 2, ""), None);
    }
}
