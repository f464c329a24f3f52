//! `judge:rubric.md`: a language model behind an endpoint in OpenAI's forms scores completions by a rubric.
//!
//! [`Rubric`] is the text that the model gets, with the values of a row and a completion in it. [`Client`] asks the
//! endpoint, and asks again where another attempt may help. The score is what a pattern finds in the answer. Equal
//! texts are asked about once. An answer that does not come, or has no score, is a failure and never a score of 0.

mod client;
mod rubric;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use regex::Regex;
use shared::{Logged, RewardOutcome};

use crate::{
    Reward, RewardInput, Scope,
    entry::{Entry, Parameter, Parameters},
};
use client::{Answer, Client};
use rubric::Rubric;

/// The function's name.
pub const NAME: &str = "judge";

/// Answers that are remembered.
const REMEMBERED: usize = 10_000;

/// The number after the word. To its end, and with any minus: the start of `0,5`, `1e3` or `1-10` is another number.
/// And with what makes it a part of another number: `1/2`, `50%`, `4 out of 5`. docs/rewards.md has it in a table, in
/// which `|` and backticks have a meaning of their own.
const PATTERN: &str = concat!(
    r"(?i)\bscore\b\W*?([-−–]?[0-9]*\.?[0-9]+(?:[.,'_ex–−-][-+]?[0-9]+)*",
    r"(?:[ *_(]*[/%] *[0-9]*)?(?:[ *_(]*(?:out )?of +[0-9]+)?)",
);

/// Characters of an answer that a message quotes.
const QUOTED: usize = 120;

/// Metrics of judges, as means over completions: tokens of question and answer, and whether an earlier answer was used.
const TOKENS: &str = "judge/tokens";
const CACHED: &str = "judge/cached";

/// The function.
pub const ENTRY: &Entry = &Entry {
    name: NAME,
    about: "a language model at `judge_base_url` scores by a rubric (docs/rewards.md)",
    columns: &[],
    parameters: &[
        Parameter { name: "rubric", default: None, about: "the file with the text that the model gets" },
        Parameter {
            name: "pattern",
            default: Some(PATTERN),
            about: "regular expression whose last match has the score as its first group",
        },
        Parameter { name: "max_tokens", default: Some("1024"), about: "most tokens of an answer" },
        Parameter { name: "concurrency", default: Some("8"), about: "requests at once" },
        Parameter { name: "retries", default: Some("4"), about: "further attempts where the endpoint is busy" },
    ],
    build,
};

fn build(parameters: &Parameters) -> Result<Arc<dyn Reward>, String> {
    let endpoint = &parameters.host().judge;
    let missing = |option: &str, what: &str| format!("needs the option `{option}`, {what}");
    let base_url = endpoint.base_url.as_deref().ok_or_else(|| {
        missing("judge_base_url", "the address of an endpoint in OpenAI's forms, as http://localhost:8000/v1")
    })?;
    let model = endpoint.model.as_deref().ok_or_else(|| missing("judge_model", "the name of a model there"))?;
    let path = parameters.path("rubric")?;
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let pattern: String = parameters.get("pattern")?;
    let pattern = Regex::new(&pattern).map_err(|error| format!("parameter `pattern`: {error}"))?;
    if pattern.captures_len() < 2 {
        return Err("parameter `pattern` needs a group in parentheses, which is the score".to_owned());
    }
    let key = std::env::var(&endpoint.api_key_env).ok().filter(|key| !key.is_empty());
    let (max_tokens, retries) = (parameters.positive("max_tokens")?, parameters.get("retries")?);
    Ok(Arc::new(Judge {
        rubric: Rubric::parse(&text).map_err(|reason| format!("{}: {reason}", path.display()))?,
        pattern,
        client: Client::new(base_url, model, key, max_tokens, retries)?,
        concurrency: parameters.positive("concurrency")?,
        known: Mutex::default(),
    }))
}

struct Judge {
    rubric: Rubric,
    pattern: Regex,
    client: Client,
    concurrency: usize,
    known: Mutex<Known>,
}

/// Scores by the texts that were asked about; the oldest are forgotten.
#[derive(Default)]
struct Known {
    scores: HashMap<Arc<str>, f64>,
    order: VecDeque<Arc<str>>,
}

impl Known {
    fn remember(&mut self, text: &str, score: f64) {
        let text: Arc<str> = text.into();
        if self.scores.insert(Arc::clone(&text), score).is_none() {
            self.order.push_back(text);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.scores.remove(&oldest);
        }
    }
}

/// A score, with the tokens that it took; none where it was known.
struct Scored {
    score: f64,
    tokens: Option<u64>,
}

impl Judge {
    fn known(&self, text: &str) -> Option<f64> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).scores.get(text).copied()
    }

    fn scored(&self, text: &str, deadline: Option<Instant>) -> Result<Scored, String> {
        if let Some(score) = self.known(text) {
            return Ok(Scored { score, tokens: None });
        }
        let Answer { text: answer, tokens, is_cut } = self.client.ask(text, deadline)?;
        let cut = |text: &str| text.trim().chars().take(QUOTED).collect::<String>();
        let found = self.pattern.captures_iter(&answer).last().and_then(|found| found.get(1));
        let found = found.ok_or_else(|| {
            format!("`pattern` finds no number in the judge's answer, which begins with `{}`", cut(&answer))
        })?;
        if is_cut && answer[found.end()..].trim().is_empty() {
            return Err(format!(
                "the judge's answer is cut off at `max_tokens`, perhaps within its score: `{}`",
                cut(&answer)
            ));
        }
        let found = found.as_str();
        let score = found.parse::<f64>().ok().filter(|score| score.is_finite()).ok_or_else(|| {
            format!("`pattern` finds `{}` in the judge's answer, which is no number as `0.5` is one", cut(found))
        })?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remember(text, score);
        Ok(Scored { score, tokens: Some(tokens) })
    }

    /// The results for some texts, in order, with some requests at once. Equal texts are asked about once.
    fn all(&self, texts: &[Result<String, String>], deadline: Option<Instant>) -> Vec<Result<Scored, String>> {
        let mut seen = HashSet::new();
        let distinct: Vec<&str> =
            texts.iter().flatten().map(String::as_str).filter(|text| seen.insert(*text)).collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut own = Vec::new();
            while let Some(text) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
                own.push((*text, self.scored(text, deadline)));
            }
            own
        };
        let mut results: HashMap<&str, Result<Scored, String>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.concurrency.min(distinct.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
        });
        let mut take = |text: &String| match results.get_mut(text.as_str()) {
            None => Err("a thread that asked the judge has ended".to_owned()),
            Some(Err(reason)) => Err(reason.clone()),
            // Whoever comes next has it for nothing.
            Some(Ok(scored)) => Ok(Scored { score: scored.score, tokens: scored.tokens.take() }),
        };
        texts.iter().map(|text| text.as_ref().map_err(String::clone).and_then(&mut take)).collect()
    }
}

impl Reward for Judge {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        self.score_and_log(input).0
    }

    fn score_and_log(&self, input: &RewardInput) -> (Vec<RewardOutcome>, Logged) {
        let texts: Vec<_> = input.completions.iter().map(|one| self.rubric.fill(input, one)).collect();
        let mut logged = Logged::default();
        let outcome = |result| match result {
            Ok(Scored { score, tokens }) => {
                logged.add_metric(TOKENS, tokens.unwrap_or_default() as f64);
                logged.add_metric(CACHED, f64::from(u8::from(tokens.is_none())));
                RewardOutcome::Score(score)
            }
            Err(reason) => RewardOutcome::Failed(reason),
        };
        let outcomes = self.all(&texts, input.deadline).into_iter().map(outcome).collect();
        (outcomes, logged)
    }

    /// The completions of a prompt are asked about together, so that requests are at once without a thread of the pool
    /// for each.
    fn scope(&self) -> Scope {
        Scope::Group
    }

    /// One group after another: `concurrency` bounds all requests.
    fn concurrency(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests;
