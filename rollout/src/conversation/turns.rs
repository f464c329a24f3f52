//! A conversation: its turns, the replies to them, and its end.

use std::sync::Arc;

use serde_json::{Value, json};
use shared::{Episode, EpisodeEnd, FinishReason, PolicyVersion, Segment, TokenLogprob, Why};
use shared_chat::calls::{self, Tools};

use super::{After, Dialogue, DialogueError, Limits, Onward, Reply, ToolCall};

/// What a conversation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// A turn of the policy.
    Turn,
    /// Replies to the calls of the last turn.
    Replies,
    /// Nothing.
    Over(EpisodeEnd),
}

/// One conversation, from its prompt on.
#[derive(Debug, Clone)]
pub struct Conversation {
    limits: Limits,
    prompt_ids: Arc<[u32]>,
    prompt: Vec<Value>,
    tools: Tools,
    /// What goes before the next turn, as text; until the first turn, the prompt is that.
    before: Option<String>,
    episode: Episode,
    /// Messages after the prompt.
    messages: Vec<Value>,
    /// Turns whose calls ran.
    iterations: u32,
    /// Whether the last turn has its end.
    is_closed: bool,
    due: Due,
}

impl Conversation {
    pub(super) fn new(limits: Limits, prompt: Vec<Value>, tools: &[Value], prompt_ids: Arc<[u32]>) -> Self {
        Self {
            limits,
            prompt_ids,
            prompt,
            tools: Tools::new(tools),
            before: None,
            episode: Episode::default(),
            messages: Vec::new(),
            iterations: 0,
            is_closed: true,
            due: Due::Turn,
        }
    }

    /// The messages of the prompt.
    #[must_use]
    pub fn prompt(&self) -> &[Value] {
        &self.prompt
    }

    /// The ids of the prompt.
    #[must_use]
    pub fn prompt_ids(&self) -> &Arc<[u32]> {
        &self.prompt_ids
    }

    /// All tokens after the prompt so far, with their owners.
    #[must_use]
    pub fn episode(&self) -> &Episode {
        &self.episode
    }

    /// The messages after the prompt so far, as reward functions get them.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// Why it is over, if it is.
    #[must_use]
    pub fn end(&self) -> Option<EpisodeEnd> {
        if let Due::Over(end) = self.due { Some(end) } else { None }
    }

    /// Turns whose calls ran.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Most tokens that the next turn may have.
    #[must_use]
    pub fn room(&self) -> usize {
        let used = self.episode.token_ids().len();
        let of_model = self.limits.max_model_len.saturating_sub(self.prompt_ids.len());
        self.limits.max_completion_length.min(of_model).saturating_sub(used)
    }

    /// Takes a turn that was sampled: its tokens with their log-probs, the runs of weight versions as in [`Segment`],
    /// and why it ended. Only a turn that ended by itself may call, and no call runs where nothing could follow.
    ///
    /// # Errors
    /// A turn that is not due or lacks log-probs, or tokens that cannot be decoded.
    pub fn turn_ended(
        &mut self,
        dialogue: &Dialogue,
        ids: &[u32],
        logprobs: &[TokenLogprob],
        versions: &[(u32, PolicyVersion)],
        finish: FinishReason,
    ) -> Result<After, DialogueError> {
        if self.due != Due::Turn {
            return Err(DialogueError::OutOfOrder("turn"));
        }
        if ids.len() != logprobs.len() {
            return Err(DialogueError::Crooked { ids: ids.len(), logprobs: logprobs.len() });
        }
        let before = match self.before.take() {
            Some(text) => text,
            None => dialogue.script.decode_all(&self.prompt_ids)?,
        };
        self.episode.push(Segment::Sampled { ids, logprobs, versions, finish });
        self.is_closed = ids.last().is_some_and(|id| dialogue.stop_tokens.contains(id));
        let (message, calls) = self.read(dialogue, &before, ids)?;
        let text = message["content"].as_str().unwrap_or_default().to_owned();
        self.messages.push(message);
        let is_at_limit = || self.limits.max_tool_calling_iterations.is_some_and(|most| self.iterations >= most);
        let end = match finish {
            FinishReason::Aborted => EpisodeEnd::Aborted,
            FinishReason::Length => EpisodeEnd::Length,
            FinishReason::Stop if calls.is_empty() => EpisodeEnd::Stop,
            FinishReason::Stop if is_at_limit() => EpisodeEnd::TurnLimit,
            FinishReason::Stop if !self.fits(1) => EpisodeEnd::ReplyTooLong,
            FinishReason::Stop => {
                self.iterations += 1;
                self.due = Due::Replies;
                return Ok(After::Calls(calls, text));
            }
        };
        self.due = Due::Over(end);
        Ok(After::Over(end))
    }

    /// The message of a turn, and its calls. A turn with a call that cannot be read is text.
    fn read(&self, dialogue: &Dialogue, before: &str, ids: &[u32]) -> Result<(Value, Vec<ToolCall>), DialogueError> {
        let script = &dialogue.script;
        let turn = calls::parse(script.format, before, &script.decode_all(ids)?, &self.tools);
        let Some(turn) = turn.filter(|turn| turn.whole) else {
            let text = script.tokenizer.decode(ids)?;
            return Ok((json!({"role": "assistant", "content": text}), Vec::new()));
        };
        let call = |call: &calls::Call| ToolCall { name: call.name.clone(), arguments: call.arguments.clone() };
        let found = turn.calls.iter().map(call).collect();
        Ok((turn.into_message(script.format), found))
    }

    /// Takes the replies to the calls of the last turn, in the order of the calls. Replies that would pass a bound are
    /// taken back with their messages.
    ///
    /// # Errors
    /// Replies that are not due, or that the template or the tokenizer refuses.
    pub fn replied(&mut self, dialogue: &Dialogue, replies: &[Reply]) -> Result<Onward, DialogueError> {
        if self.due != Due::Replies {
            return Err(DialogueError::OutOfOrder("reply"));
        }
        let message = |reply: &Reply| json!({"role": "tool", "name": reply.name, "content": reply.content});
        self.went_on(dialogue, replies.iter().map(message).collect())
    }

    /// Takes messages behind the last turn, of tools or of a user, where the turn itself need not have called. They are
    /// taken back as a whole where they would pass a bound.
    ///
    /// # Errors
    /// Messages before the turn has ended, or that the template or the tokenizer refuses.
    pub fn went_on(&mut self, dialogue: &Dialogue, messages: Vec<Value>) -> Result<Onward, DialogueError> {
        if self.due == Due::Turn {
            return Err(DialogueError::OutOfOrder("message"));
        }
        let suffix = dialogue.suffix(&messages)?;
        let closing: &[u32] = if self.is_closed { &[] } else { &suffix.closing[..] };
        let given = [closing, &suffix.ids].concat();
        if !self.fits(given.len()) {
            return Ok(self.over(EpisodeEnd::ReplyTooLong));
        }
        self.messages.extend(messages);
        if !closing.is_empty() {
            self.episode.push(Segment::Given { ids: closing, why: Why::Template });
        }
        self.episode.push(Segment::Given { ids: &suffix.ids, why: Why::Reply });
        self.before = Some(suffix.text);
        Ok(self.onward(given))
    }

    /// As [`Conversation::went_on`], of what somebody else has rendered.
    ///
    /// # Errors
    /// Ids before the turn has ended, or that cannot be decoded.
    pub fn went_on_with(&mut self, dialogue: &Dialogue, ids: &[u32]) -> Result<Onward, DialogueError> {
        if self.due == Due::Turn {
            return Err(DialogueError::OutOfOrder("text"));
        }
        let text = dialogue.script.decode_all(ids)?;
        if !self.fits(ids.len()) {
            return Ok(self.over(EpisodeEnd::ReplyTooLong));
        }
        self.messages.push(json!({"role": "user", "content": dialogue.script.tokenizer.decode(ids)?}));
        self.episode.push(Segment::Given { ids, why: Why::Reply });
        self.before = Some(text);
        Ok(self.onward(ids.to_vec()))
    }

    /// What follows ids that were given.
    fn onward(&mut self, given: Vec<u32>) -> Onward {
        let room = self.room();
        if room == 0 {
            // A turn without a token that was cut off: so the episode counts as truncated.
            let finish = FinishReason::Length;
            self.episode.push(Segment::Sampled { ids: &[], logprobs: &[], versions: &[], finish });
            return self.over(EpisodeEnd::Length);
        }
        self.due = Due::Turn;
        Onward::Sample { given, room }
    }

    /// Whether a reply of so many tokens keeps both bounds. It may reach the first; below the second it must stay.
    fn fits(&self, tokens: usize) -> bool {
        let after = self.episode.token_ids().len() + tokens;
        after <= self.limits.max_completion_length && self.prompt_ids.len() + after < self.limits.max_model_len
    }

    fn over(&mut self, end: EpisodeEnd) -> Onward {
        self.due = Due::Over(end);
        Onward::Over(end)
    }

    /// A conversation that goes on in another way after so many of its turns, at least one. All up to there is its
    /// prompt: what was sampled is context here. None where there are fewer turns.
    #[must_use]
    pub fn forked(&self, dialogue: &Dialogue, turns: usize) -> Option<Self> {
        let last = turns.checked_sub(1)?;
        let end = self.episode.sampled_spans().nth(last)?.end;
        let is_turn = |message: &Value| message["role"] == "assistant";
        let said = self.messages.iter().enumerate().filter(|(_, message)| is_turn(message)).nth(last)?.0;
        let prompt_ids: Arc<[u32]> = [&self.prompt_ids[..], &self.episode.token_ids()[..end]].concat().into();
        Some(Self {
            is_closed: prompt_ids.last().is_some_and(|id| dialogue.stop_tokens.contains(id)),
            prompt: [&self.prompt[..], &self.messages[..=said]].concat(),
            prompt_ids,
            before: None,
            episode: Episode::default(),
            messages: Vec::new(),
            iterations: 0,
            due: Due::Over(EpisodeEnd::Stop),
            limits: self.limits,
            tools: self.tools.clone(),
        })
    }

    /// Ends a conversation from outside: a deadline passed, its environment failed, or the run ended. One that is over
    /// already keeps its end.
    pub fn give_up(&mut self, end: EpisodeEnd) {
        if !matches!(self.due, Due::Over(_)) {
            self.due = Due::Over(end);
        }
    }

    /// The tokens, the messages after the prompt as reward functions get them, and the end. A conversation that was not
    /// over is aborted.
    #[must_use]
    pub fn into_parts(self) -> (Episode, Vec<Value>, EpisodeEnd) {
        let end = if let Due::Over(end) = self.due { end } else { EpisodeEnd::Aborted };
        (self.episode, self.messages, end)
    }
}
