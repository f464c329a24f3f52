//! The processor time of this process.

use rustix::time::{ClockId, clock_gettime};

/// Processor time of all threads so far, in seconds.
pub(super) fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_grows_with_work() {
        let before = processor_seconds();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {}
        assert!(processor_seconds() > before);
    }
}
