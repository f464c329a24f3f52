//! Rewards on workers (`rewards_on`): what travels of a row, and the reward functions beside a worker's engine.
//!
//! A worker scores groups that it makes all of. Everything else, such as what is left of a group that was begun before,
//! is scored beside the learner as ever.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc, thread, time::Duration};

use anyhow::Context;
use rollout::{
    data::{PromptRow, Tokenizer},
    reward,
};
use rollout_rewards::{RewardCompletion, RewardPool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shared::{
    channel::fleet::{Lease, Made},
    config::TrainConfig,
};

/// What travels of a row.
#[derive(Serialize, Deserialize)]
struct RowText<'a> {
    prompt: Cow<'a, str>,
    prefill: Cow<'a, str>,
    messages: Option<Cow<'a, [Value]>>,
    columns: Cow<'a, Map<String, Value>>,
}

/// A row as JSON.
#[must_use]
pub fn text_of(row: &PromptRow) -> String {
    let text = RowText {
        prompt: Cow::Borrowed(&row.prompt_text),
        prefill: Cow::Borrowed(&row.prefill),
        messages: row.messages.as_deref().map(Cow::Borrowed),
        columns: Cow::Borrowed(&row.columns),
    };
    serde_json::to_string(&text).expect("a row is made of JSON")
}

/// The row of a lease.
fn row_of(lease: &Lease, text: &str, tokenizer: &Tokenizer) -> anyhow::Result<PromptRow> {
    let RowText { prompt, prefill, messages, columns } = serde_json::from_str(text)?;
    Ok(PromptRow {
        prompt_id: lease.prompt_id,
        prompt_text: prompt.into_owned(),
        prompt_ids: lease.prompt_ids.as_slice().into(),
        shortened: false,
        prefill: prefill.into_owned(),
        messages: messages.map(|messages| messages.into_owned().into()),
        question: None,
        columns: Arc::new(columns.into_owned()),
        tokenizer: tokenizer.clone(),
        beginning: None,
    })
}

/// Scores the completions of leases once all of one are there.
pub struct Scorer {
    pool: RewardPool,
    tokenizer: Tokenizer,
    open: BTreeMap<u64, Open>,
    next_tag: u64,
}

struct Open {
    /// What the pool knows it by: another coordinator gives the numbers of leases anew.
    tag: u64,
    row: PromptRow,
    samples: usize,
    made: Vec<Made>,
}

impl Scorer {
    /// With the reward functions of a run.
    ///
    /// # Errors
    /// Functions that this host does not have.
    pub fn open(config: &TrainConfig, tokenizer: &Tokenizer) -> anyhow::Result<Self> {
        let functions = reward::registry().on(config.reward_host()).functions(&config.reward_funcs);
        let functions = functions.context(
            "the run has its completions scored by workers; --reward-dir says where this host has the functions",
        )?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let deadline = Duration::from_secs_f64(config.reward_timeout);
        let pool = reward::pool(functions, cores, deadline).context("threads of the reward functions")?;
        Ok(Self { pool, tokenizer: tokenizer.clone(), open: BTreeMap::new(), next_tag: 0 })
    }

    /// A lease was begun; if it has a row, its completions are to be scored.
    ///
    /// # Errors
    /// A row that is none.
    pub fn begin(&mut self, lease: &Lease) -> anyhow::Result<()> {
        let Some(text) = &lease.row else { return Ok(()) };
        let row = row_of(lease, text, &self.tokenizer).context("a row that the coordinator has sent")?;
        let open = Open { tag: self.next_tag, row, samples: lease.samples.len(), made: Vec::new() };
        self.next_tag += 1;
        self.open.insert(lease.id, open);
        Ok(())
    }

    /// Takes a completion; gives it back if it is not to be scored.
    ///
    /// # Errors
    /// Tokens that cannot be decoded.
    pub fn add(&mut self, made: Made) -> anyhow::Result<Option<Made>> {
        let Some(Open { tag, row, samples, made: all }) = self.open.get_mut(&made.lease) else { return Ok(Some(made)) };
        all.push(made);
        if all.len() == *samples {
            all.sort_unstable_by_key(|made| made.sample);
            let texts: Vec<String> =
                all.iter().map(|made| self.tokenizer.decode(&made.token_ids)).collect::<Result<_, _>>()?;
            let seen = texts
                .into_iter()
                .zip(all.iter())
                .map(|(text, made)| RewardCompletion::of_one_turn(text, made.token_ids.clone(), made.finish_reason));
            self.pool.submit(*tag, row.reward_input(seen));
        }
        Ok(None)
    }

    /// Completions that have been scored since the last call.
    pub fn finished(&mut self) -> Vec<Made> {
        let mut finished = Vec::new();
        while let Some(scored) = self.pool.try_recv() {
            // A lease that was taken back is gone.
            let lease = self.open.iter().find(|(_, open)| open.tag == scored.tag).map(|(lease, _)| *lease);
            let Some(Open { made, .. }) = lease.and_then(|lease| self.open.remove(&lease)) else { continue };
            let with_rewards = |(made, rewards)| Made { rewards, ..made };
            finished.extend(made.into_iter().zip(scored.outcomes).map(with_rewards));
        }
        finished
    }

    /// Leases of which something is still to be scored.
    pub fn leases(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// Leases that are complete and being scored.
    #[must_use]
    pub fn scoring(&self) -> u32 {
        self.pool.pending() as u32
    }

    /// Forgets all leases but these.
    pub fn retain(&mut self, leases: &[u64]) {
        self.open.retain(|lease, _| leases.contains(lease));
    }
}

#[cfg(test)]
mod tests {
    use harness::tiny_model::{self, SMALL};
    use shared::{FinishReason, ModelDir, PolicyVersion, PromptId, RewardOutcome, SamplingParams, TokenLogprob};

    use super::*;

    fn tokenizer() -> Tokenizer {
        let dir = tempfile::tempdir().expect("there is room for a folder");
        SMALL.write(dir.path(), 5);
        tiny_model::write_tokenizer(dir.path());
        let model = ModelDir::open(dir.path()).expect("it was just written");
        Tokenizer::open_at(&model, TrainConfig::default().template_now()).expect("it was just written")
    }

    fn row(tokenizer: &Tokenizer) -> PromptRow {
        let columns = serde_json::json!({"answer": "4", "tests": [1, 2]});
        PromptRow {
            prompt_id: PromptId(7),
            prompt_text: "2+2=<a>".into(),
            prompt_ids: Arc::from([1, 2]),
            shortened: false,
            prefill: "<a>".into(),
            messages: Some(Arc::from([serde_json::json!({"role": "user", "content": "2+2="})])),
            question: None,
            columns: Arc::new(columns.as_object().expect("an object").clone()),
            tokenizer: tokenizer.clone(),
            beginning: None,
        }
    }

    fn lease(id: u64, samples: u32, row: &PromptRow) -> Lease {
        Lease {
            id,
            version: PolicyVersion(0),
            prompt_id: row.prompt_id,
            epoch: 0,
            prompt_ids: row.prompt_ids.to_vec(),
            samples: (0..samples).collect(),
            sampling: SamplingParams::default(),
            row: Some(text_of(row)),
        }
    }

    fn made(lease: u64, sample: u32, tokens: usize) -> Made {
        Made {
            lease,
            sample,
            token_ids: vec![3; tokens],
            logprobs: vec![TokenLogprob::default(); tokens],
            versions: vec![(0, PolicyVersion(0))],
            finish_reason: FinishReason::Length,
            seconds: 0.0,
            rewards: Vec::new(),
        }
    }

    #[test]
    fn a_row_arrives_as_it_was() {
        let tokenizer = tokenizer();
        let row = row(&tokenizer);
        let lease = lease(1, 1, &row);
        let arrived = row_of(&lease, lease.row.as_ref().expect("it has one"), &tokenizer).expect("it is one");
        assert_eq!(arrived, row);
    }

    #[test]
    fn what_one_coordinator_was_to_get_is_not_what_the_next_one_gets_under_the_same_number() {
        let tokenizer = tokenizer();
        let config = TrainConfig { reward_funcs: vec!["length:target=6".into()], ..TrainConfig::default() };
        let mut scorer = Scorer::open(&config, &tokenizer).expect("it is one of ours");
        let row = row(&tokenizer);
        scorer.begin(&lease(1, 2, &row)).expect("a row");
        assert_eq!(scorer.add(made(2, 0, 3)).expect("tokens"), Some(made(2, 0, 3)), "nobody scores that");
        for sample in [1, 0] {
            assert_eq!(scorer.add(made(1, sample, 3 + 3 * sample as usize)).expect("tokens"), None);
        }
        // The coordinator is gone, and another one begins anew.
        scorer.retain(&[]);
        scorer.begin(&lease(1, 1, &row)).expect("a row");
        while scorer.scoring() > 0 {
            assert_eq!(scorer.finished(), []);
        }
        assert_eq!(scorer.add(made(1, 0, 6)).expect("tokens"), None);
        let scored = loop {
            let finished = scorer.finished();
            if !finished.is_empty() {
                break finished;
            }
        };
        assert_eq!(scored.len(), 1);
        assert!(matches!(scored[0].rewards[..], [RewardOutcome::Score(_)]), "{scored:?}");
        assert_eq!(scorer.leases().count(), 0);
    }
}
