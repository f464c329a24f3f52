//! What `/metrics` says, in the text format of Prometheus. Names are vLLM's, with `tandem_` in front.

use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Upper bounds of the buckets of the time to the first token, in seconds: vLLM's, without the smallest.
const BUCKETS: [f64; 16] = [0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0];

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<Answered, u64>>,
    /// Tokens of prompts that were begun or scored, each prompt once.
    pub prompt_tokens: AtomicU64,
    /// Tokens that were drawn.
    pub generation_tokens: AtomicU64,
    /// Completions that were given up because their client was gone or their time was over.
    pub cancelled: AtomicU64,
    /// Completions in the engine.
    pub running: AtomicUsize,
    /// Completions that have not started.
    pub waiting: AtomicUsize,
    first_token: Mutex<Histogram>,
}

/// What requests are counted by: route, status, and the model that was asked.
type Answered = (&'static str, u16, Option<Arc<str>>);

#[derive(Debug, Default)]
struct Histogram {
    /// Values up to each bound, those up to the bound before left out.
    counts: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
}

impl Metrics {
    /// A request was answered, which asked a model if it came so far.
    pub fn answered(&self, route: &'static str, model: Option<&Arc<str>>, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status, model.cloned())).or_default() += 1;
    }

    /// The first token of a prompt came after that time.
    pub fn first_token(&self, time: Duration) {
        let mut histogram = self.first_token.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = time.as_secs_f64();
        if let Some(bucket) = BUCKETS.iter().position(|&bound| seconds <= bound) {
            histogram.counts[bucket] += 1;
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }

    /// The page.
    #[must_use]
    pub fn page(&self) -> String {
        let mut page = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, String)]| {
            let mut line = |text: std::fmt::Arguments| page.write_fmt(text).expect("a string takes everything");
            line(format_args!("# HELP tandem_{name} {help}\n# TYPE tandem_{name} {kind}\n"));
            samples.iter().for_each(|(end, value)| line(format_args!("tandem_{name}{end} {value}\n")));
        };
        let one = |value: String| vec![(String::new(), value)];
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests: Vec<_> = requests
            .iter()
            .map(|((route, status, model), count)| {
                let model = model.as_ref().map(|model| format!(",model_name=\"{}\"", escaped(model)));
                let model = model.unwrap_or_default();
                (format!("{{route=\"{route}\",status=\"{status}\"{model}}}"), count.to_string())
            })
            .collect();
        let help = "Requests answered, by route, status and model. A stream has the status with which it began.";
        family("http_requests_total", "counter", help, &requests);
        for (name, help, value) in [
            ("prompt_tokens_total", "Tokens of prompts that were begun or scored.", &self.prompt_tokens),
            ("generation_tokens_total", "Tokens drawn.", &self.generation_tokens),
            ("completions_cancelled_total", "Completions given up before their end.", &self.cancelled),
        ] {
            family(name, "counter", help, &one(value.load(Relaxed).to_string()));
        }
        for (name, help, value) in [
            ("num_requests_running", "Completions that are being made.", &self.running),
            ("num_requests_waiting", "Completions that have not started.", &self.waiting),
        ] {
            family(name, "gauge", help, &one(value.load(Relaxed).to_string()));
        }
        let Histogram { counts, count, sum } = &*self.first_token.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum_up = 0;
        let mut samples: Vec<_> = BUCKETS
            .iter()
            .zip(counts)
            .map(|(bound, count)| {
                sum_up += count;
                (format!("_bucket{{le=\"{bound}\"}}"), sum_up.to_string())
            })
            .collect();
        samples.push(("_bucket{le=\"+Inf\"}".into(), count.to_string()));
        samples.push(("_sum".into(), sum.to_string()));
        samples.push(("_count".into(), count.to_string()));
        family(
            "time_to_first_token_seconds",
            "histogram",
            "From the request to the first token of a prompt.",
            &samples,
        );
        page
    }
}

/// A value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_all_values_up_to_each_bound() {
        let metrics = Metrics::default();
        [0.004, 0.3, 0.3, 99.0].iter().for_each(|&seconds| metrics.first_token(Duration::from_secs_f64(seconds)));
        metrics.answered("/health", None, 200);
        metrics.answered("/health", None, 200);
        metrics.answered("/v1/completions", Some(&"a \"b\"\\".into()), 200);
        let page = metrics.page();
        for line in [
            "tandem_time_to_first_token_seconds_bucket{le=\"0.005\"} 1\n",
            "tandem_time_to_first_token_seconds_bucket{le=\"0.25\"} 1\n",
            "tandem_time_to_first_token_seconds_bucket{le=\"0.5\"} 3\n",
            "tandem_time_to_first_token_seconds_bucket{le=\"40\"} 3\n",
            "tandem_time_to_first_token_seconds_bucket{le=\"+Inf\"} 4\n",
            "tandem_time_to_first_token_seconds_count 4\n",
            "# TYPE tandem_http_requests_total counter\n",
            "tandem_http_requests_total{route=\"/health\",status=\"200\"} 2\n",
            "{route=\"/v1/completions\",status=\"200\",model_name=\"a \\\"b\\\"\\\\\"} 1\n",
        ] {
            assert!(page.contains(line), "{line} is missing: {page}");
        }
    }
}
