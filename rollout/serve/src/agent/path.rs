//! A recorded path: a conversation with the messages by which it is recognised.

use rollout::{
    conversation::{Conversation, Dialogue},
    engine::State,
};
use serde_json::Value;

use super::messages::Said;

/// A conversation with the messages by which it is recognised.
#[derive(Clone)]
pub struct Path {
    /// Its tokens.
    pub conversation: Conversation,
    /// Calls of tools in it.
    pub calls: u32,
    /// Turns whose context was computed again.
    pub recomputed: u32,
    pub(super) said: Vec<Said>,
    pub(super) tools: Vec<Value>,
    /// What its client calls it, where the client does.
    pub(super) session: Option<String>,
    pub(super) state: Option<State>,
    pub(super) seed: u64,
    /// Whether it begins with the prompt of its row.
    pub(super) is_of_row: bool,
    /// Whether it goes on from within another path. So what was sampled there is a part of its prompt.
    pub(super) is_branch: bool,
    /// Whether token ids continued it, so that it has no messages to be recognised by.
    pub(super) is_of_ids: bool,
    /// Whether a turn of it is being sampled.
    pub(super) is_busy: bool,
}

/// What a request in messages asks.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub said: &'a [Said],
    pub tools: &'a [Value],
    pub session: Option<&'a str>,
}

impl Path {
    /// Whether messages may be those of this path: it has some, with the same tools and of the same session.
    fn is_like(&self, asked: &Asked<'_>) -> bool {
        !self.is_of_ids && self.tools == asked.tools && self.session.as_deref() == asked.session
    }

    /// Whether a request goes on from the end of this path.
    pub(super) fn is_continued_by(&self, asked: &Asked<'_>) -> bool {
        let rest = asked.said.strip_prefix(&self.said[..]);
        !self.is_busy && self.is_like(asked) && rest.is_some_and(follows)
    }

    /// How many messages, up to a turn of the policy, a request has in common with this path, where it goes on from
    /// there in another way.
    pub(super) fn common(&self, asked: &Asked<'_>) -> Option<usize> {
        let same = self.said.iter().zip(asked.said).take_while(|(a, b)| a == b).count();
        let kept = (self.conversation.prompt().len() + 1..=same).rev().find(|&kept| self.said[kept - 1].is_of_policy());
        kept.filter(|&kept| self.is_like(asked) && follows(&asked.said[kept..]))
    }

    /// The conversation that goes on after so many messages of this path.
    pub(super) fn forked(&self, dialogue: &Dialogue, kept: usize) -> Option<Conversation> {
        let after_prompt = &self.said[self.conversation.prompt().len()..kept];
        let turns = after_prompt.iter().filter(|said| said.is_of_policy()).count();
        self.conversation.forked(dialogue, turns)
    }

    /// How many tokens the prompt has that its agent has written. None of a branch, and of the prompt of the row, which
    /// was looked over with the dataset.
    pub fn written(&self, of_row: &[u32]) -> Option<usize> {
        let prompt = self.conversation.prompt_ids();
        (!self.is_branch && prompt[..] != *of_row).then(|| prompt.len())
    }

    /// What orders the paths of a sample, whoever was first: that of the row's own prompt, then by their tokens.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let ids = (self.conversation.prompt_ids().to_vec(), self.conversation.episode().token_ids().to_vec());
        (!self.is_of_row, ids, self.seed)
    }
}

/// Whether messages can follow a turn: there are some, and none is the policy's.
fn follows(rest: &[Said]) -> bool {
    !rest.is_empty() && !rest.iter().any(Said::is_of_policy)
}
