//! `completions/step-N.jsonl`: what was sampled, what it earned and what it was taken for.

use serde::Serialize;
use serde_json::{Map, Value};
use shared::{
    Completion, Episode, EpisodeEnd, Exchange, FinishReason, Group, LedgerGroup, LedgerState, Note, Notes,
    PolicyVersion, RewardOutcome, Segment,
};

use crate::{ragged::Ragged, step::StepBatch};

/// One sampled completion.
#[derive(Debug, Serialize)]
struct Record<'a> {
    step: u64,
    /// Index within the batch; null of a group that dynamic sampling dropped on the way to it.
    group: Option<u32>,
    /// Its place in the endless order of prompts.
    position: u64,
    prompt_id: u64,
    sample: u32,
    /// What became of it.
    state: LedgerState,
    prompt: &'a str,
    completion: &'a str,
    rewards: Map<String, Value>,
    /// Why reward functions failed, where any did.
    #[serde(skip_serializing_if = "Map::is_empty")]
    reward_errors: Map<String, Value>,
    reward: Option<f64>,
    /// Mean over its tokens; null for a completion without tokens.
    advantage: Option<f64>,
    finish_reason: FinishReason,
    version: u64,
    /// Sampled tokens.
    tokens: usize,
    /// Tokens that were given between its turns, where there were any.
    #[serde(skip_serializing_if = "is_none")]
    given_tokens: usize,
    /// Messages, owners, calls and end of a conversation with tools.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    conversation: Option<Conversation<'a>>,
    /// The other columns of the row, long values cut ([`Note`]).
    #[serde(skip_serializing_if = "Map::is_empty")]
    columns: Map<String, Value>,
    /// What reward functions have logged of it beside their scores, as columns.
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: Map<String, Value>,
}

/// What a conversation with tools has beside the fields of every completion.
#[derive(Debug, Serialize)]
struct Conversation<'a> {
    /// With the roles `assistant` and `tool`, as reward functions get them.
    messages: Vec<Value>,
    /// The text of the environment, which is at the end of the prompt's last user message, or of its last message where
    /// none is the user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    opening: Option<&'a str>,
    /// With an agent, the ids that all prompts of the group begin with; an agent may ask with a prompt of its own. The
    /// tokens of each path stand behind these.
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_prompt_ids: Option<&'a [u32]>,
    /// Runs of tokens, each with its owner: `["sampled", 12]`, `["given", 7]`.
    owners: Vec<(&'static str, usize)>,
    turns: usize,
    /// Conversations of its agent beside the first one, where there are any.
    #[serde(skip_serializing_if = "is_none")]
    branches: usize,
    /// The number of messages of each of these conversations, and of the first one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    branch_messages: Vec<usize>,
    /// What the environment gave for each turn, where it gave rewards by turn; null for a turn without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    turn_rewards: Vec<Option<f64>>,
    /// What it gave at the end beside them.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reward: Option<f64>,
    calls: u32,
    failed_calls: u32,
    end: EpisodeEnd,
    /// Why the environment failed, where it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a str>,
}

impl<'a> Conversation<'a> {
    fn of(exchange: &'a Exchange, episode: &Episode, prompt_ids: &'a [u32]) -> Self {
        let owner = |segment: Segment<'_>| match segment {
            Segment::Sampled { ids, .. } => ("sampled", ids.len()),
            Segment::Given { ids, .. } => ("given", ids.len()),
        };
        let mut owners: Vec<(&str, usize)> = Vec::new();
        for (owner, tokens) in episode.segments().map(owner) {
            match owners.last_mut().filter(|(last, _)| *last == owner && owner == "given") {
                Some((_, known)) => *known += tokens,
                None => owners.push((owner, tokens)),
            }
        }
        let by_turn = exchange.turn_rewards();
        let turns = if by_turn.is_empty() { 0 } else { episode.turns() };
        let conversations = exchange.messages.of_conversations();
        let branches = Some(&conversations).filter(|all| all.len() > 1);
        let of_turn = |turn: usize| by_turn.iter().find(|one| one.end as usize == turn).map(|one| one.score);
        Self {
            turn_rewards: (0..turns).map(of_turn).collect(),
            end_reward: of_turn(turns).filter(|_| turns > 0),
            branch_messages: branches.into_iter().flatten().map(Vec::len).collect(),
            messages: conversations.into_iter().flatten().collect(),
            opening: exchange.opening.as_deref(),
            shared_prompt_ids: exchange.overridden.is_some().then_some(prompt_ids),
            owners,
            turns: episode.turns(),
            branches: episode.paths().count() - 1,
            calls: exchange.calls,
            failed_calls: exchange.failed_calls,
            end: exchange.end,
            failure: exchange.failure.as_deref(),
        }
    }
}

fn is_none(tokens: &usize) -> bool {
    *tokens == 0
}

/// A line for each completion of a step: those of the batch, then those of the groups that were dropped on the way to
/// it. `groups` is what the ledger says of them; `step` is the number of steps completed with it.
///
/// # Errors
/// Values that JSON cannot hold.
pub fn text(
    step: u64,
    batch: &StepBatch<'_>,
    advantages: &Ragged<f64>,
    groups: &[LedgerGroup],
) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut line = |record: &Record<'_>| {
        serde_json::to_writer(&mut text, record)?;
        text.push(b'\n');
        std::io::Result::Ok(())
    };
    let at = |position: u64| groups.iter().find(|group| group.position == position);
    let mut i = 0;
    for rows in batch.by_group() {
        let group = rows[0].group;
        let Some(known) = at(group.position) else { continue };
        for (row, &state) in rows.iter().zip(&known.states) {
            let context = GroupContext::of(step, known, group);
            let advantage = mean(&advantages[i]);
            line(&context.record(row.completion, state, batch.rewards.rewards[i], advantage, group.policy_version))?;
            i += 1;
        }
    }
    for group in batch.groups() {
        for dropped in &group.dropped {
            let Some(known) = at(dropped.position) else { continue };
            for (completion, &state) in dropped.completions.iter().zip(&known.states) {
                let context = GroupContext { rewards: &group.reward_names, ..GroupContext::of(step, known, dropped) };
                line(&context.record(completion, state, None, None, dropped.policy_version))?;
            }
        }
    }
    Ok(text)
}

/// What the completions of a group have in common.
struct GroupContext<'a> {
    step: u64,
    known: &'a LedgerGroup,
    prompt: &'a str,
    prompt_ids: &'a [u32],
    rewards: &'a [(String, f64)],
    notes: &'a Notes,
}

impl<'a> GroupContext<'a> {
    fn of(step: u64, known: &'a LedgerGroup, group: &'a Group) -> Self {
        let (prompt, prompt_ids) = (group.prompt_text.as_str(), group.prompt_ids.as_slice());
        Self { step, known, prompt, prompt_ids, rewards: &group.reward_names, notes: &group.notes }
    }

    fn record(
        &self,
        completion: &'a Completion,
        state: LedgerState,
        reward: Option<f64>,
        advantage: Option<f64>,
        version: PolicyVersion,
    ) -> Record<'a> {
        let outcomes = self.rewards.iter().zip(&completion.rewards);
        Record {
            step: self.step,
            group: self.known.group,
            position: self.known.position,
            prompt_id: self.known.prompt_id,
            sample: completion.sample,
            state,
            prompt: self.prompt,
            completion: &completion.text,
            reward_errors: outcomes.clone().filter_map(failure).collect(),
            rewards: outcomes.map(|((name, _), outcome)| (name.clone(), outcome.score().into())).collect(),
            reward,
            advantage,
            finish_reason: completion.finish_reason(),
            version: completion.episode.versions().next().map_or(version, |(_, version)| version).0,
            tokens: completion.episode.sampled(),
            given_tokens: completion.episode.given(),
            conversation: (completion.exchange.as_deref())
                .map(|exchange| Conversation::of(exchange, &completion.episode, self.prompt_ids)),
            columns: values(self.notes.columns.iter().map(|(name, note)| (name.as_str(), note))),
            // A whole group has all of its completions, in order.
            extra: values(self.notes.logged.extra_of(completion.sample as usize)),
        }
    }
}

fn values<'a>(notes: impl Iterator<Item = (&'a str, &'a Note)>) -> Map<String, Value> {
    notes.map(|(name, note)| (name.to_owned(), note.value())).collect()
}

fn failure(((name, _), outcome): (&(String, f64), &RewardOutcome)) -> Option<(String, Value)> {
    match outcome {
        RewardOutcome::Failed(reason) => Some((name.clone(), reason.clone().into())),
        _ => None,
    }
}

fn mean(values: &[f64]) -> Option<f64> {
    // Equal advantages, the rule for most methods, are written to the last bit as they are.
    let first = *values.first()?;
    let equal = values.iter().all(|&value| value == first);
    Some(if equal { first } else { values.iter().sum::<f64>() / values.len() as f64 })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::generation::testing;

    use super::*;

    #[test]
    fn what_all_prompts_of_an_agent_begin_with_is_recorded_and_of_tools_the_row_has_it() {
        let episode = testing::completion(0, vec![5, 6]).episode;
        let recorded = |overridden: Option<u32>| {
            let exchange = Exchange { overridden, ..Exchange::new(&[], EpisodeEnd::Stop) };
            let record = serde_json::to_value(Conversation::of(&exchange, &episode, &[1, 2])).unwrap();
            record.get("shared_prompt_ids").cloned()
        };
        assert_eq!(recorded(Some(0)), Some(json!([1, 2])));
        assert_eq!(recorded(None), None);
    }
}
