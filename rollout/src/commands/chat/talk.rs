//! The talk: lines become questions and commands, and answers are printed as they are made.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::bail;
use shared::{FinishReason, PromptId, SamplingParams, tell};

use super::{
    super::printed::Out,
    conversation::Conversation,
    lines::{Line, Lines},
};
use crate::{
    data::{Detokenizer, stop::StopCriterionFactory},
    engine::{FinishedSequence, GroupRequest, Output, Request, State},
    generate::{Generate, Next, Work},
};

/// How long nothing is looked at but stdin.
const PAUSE: Duration = Duration::from_millis(50);

const HELP: &str = "\
/system TEXT  set the system prompt; without TEXT, take it away
/reset        forget the conversation; the system prompt stays
/exit         end, as Ctrl-D does
/help         this list
Ctrl-C breaks an answer off; twice without an answer, it ends. A message that begins with `/` goes behind a blank.";

/// A conversation that goes on until its lines end.
pub struct Talk<W> {
    conversation: Conversation,
    lines: Lines,
    out: Out<W>,
    sampling: Arc<SamplingParams>,
    stop: Option<StopCriterionFactory>,
    /// Tokens of a whole conversation, and those that the model would take.
    room: usize,
    limit: usize,
    interrupted: Arc<AtomicBool>,
    /// Whether somebody types, to whom a prompt is shown.
    is_terminal: bool,
    /// Whether the prompt is shown.
    is_prompted: bool,
    /// Whether the last thing that came was Ctrl-C.
    is_warned: bool,
    /// A line that is not dealt with yet.
    line: Option<Line>,
    /// The answer that is being made.
    answer: Option<Answer>,
    /// What the last answer has left.
    state: Option<State>,
    /// Questions so far.
    questions: u64,
}

struct Answer {
    tag: u64,
    /// Tokens before it.
    begins_at: usize,
    text: Detokenizer,
    /// What is printed of it.
    said: String,
}

impl<W: Write> Talk<W> {
    /// A talk in `room` tokens, with a model that takes `limit`.
    #[expect(clippy::too_many_arguments, reason = "each is of a kind of its own")]
    pub fn new(
        conversation: Conversation,
        lines: Lines,
        out: Out<W>,
        sampling: SamplingParams,
        room: usize,
        limit: usize,
        interrupted: Arc<AtomicBool>,
        is_terminal: bool,
    ) -> Self {
        let stop = conversation.tokenizer().stop_criterion(&sampling.stop);
        if is_terminal {
            tell!("/help lists the commands");
        }
        let talk = Self {
            conversation,
            lines,
            out,
            sampling: sampling.into(),
            stop,
            room,
            limit,
            interrupted,
            is_terminal,
            is_prompted: false,
            is_warned: false,
            line: None,
            answer: None,
            state: None,
            questions: 0,
        };
        talk.tell_of_lost_system();
        talk
    }

    fn tell_of_lost_system(&self) {
        if self.conversation.loses_system() {
            tell!("warning: the chat template leaves the system prompt out");
        }
    }

    /// Asks the question of a line, or does what a command says. Returns whether the talk is over.
    ///
    /// # Errors
    /// When nothing can be read any more.
    fn hear<G: Generate + ?Sized>(&mut self, generator: &mut G, line: Line) -> anyhow::Result<bool> {
        self.is_prompted = false;
        self.is_warned = false;
        let text = match line {
            Line::Text(text) => text,
            Line::Bad(reason) => {
                tell!("{reason}");
                return Ok(false);
            }
            Line::Failed(reason) => bail!("stdin cannot be read any more: {reason}"),
            Line::End => return Ok(true),
        };
        match text.strip_prefix('/') {
            Some(command) => {
                let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
                return Ok(self.obey(name, rest.trim()));
            }
            None if text.trim().is_empty() => {}
            None => self.ask(generator, &text),
        }
        Ok(false)
    }

    /// Carries out a command. Returns whether the talk is over.
    fn obey(&mut self, name: &str, rest: &str) -> bool {
        match name {
            "exit" => return true,
            "help" => tell!("{HELP}"),
            "reset" => {
                self.conversation.reset();
                self.state = None;
                tell!("the conversation begins anew");
            }
            "system" => {
                self.conversation.set_system((!rest.is_empty()).then(|| rest.to_owned()));
                tell!("{}", if rest.is_empty() { "no system prompt any more" } else { "the system prompt is set" });
                self.tell_of_lost_system();
            }
            _ => {
                tell!("/{name} is no command; /help lists them, and a message that begins with `/` goes behind a blank")
            }
        }
        false
    }

    /// Begins an answer. A question that cannot be asked is named and taken back, and the conversation goes on.
    fn ask<G: Generate + ?Sized>(&mut self, generator: &mut G, question: &str) {
        self.conversation.ask(question);
        if let Err(reason) = self.begin(generator) {
            tell!("not asked: {reason}");
            self.conversation.take_back();
        }
    }

    fn begin<G: Generate + ?Sized>(&mut self, generator: &mut G) -> Result<(), String> {
        let ids = self.conversation.ids()?;
        let length = ids.len();
        if length >= self.room {
            return Err(format!("with it the conversation has {length} tokens; {}", self.way_out()));
        }
        // Text that was drawn may be cut into tokens in another way when it is read again; then nothing is kept.
        let from = self.state.take().filter(|state| ids.len() > state.ids().len() && ids.starts_with(state.ids()));
        let held = from.as_ref().map_or(0, |state| state.ids().len());
        let tag = self.questions;
        let group = GroupRequest {
            tag,
            prompt_id: PromptId(tag),
            epoch: 0,
            prompt_ids: ids[held..].into(),
            samples: [0].into(),
            sampling: self.sampling.clone(),
            lengths: None,
            stop_criterion: self.stop.clone(),
            constraint: None,
        };
        generator
            .begin(Request { from, stream: true, keep: true, ..group.into() })
            .map_err(|error| error.to_string())?;
        self.questions += 1;
        let text = Detokenizer::new(self.conversation.tokenizer(), &self.sampling.stop);
        self.answer = Some(Answer { tag, begins_at: length, text, said: String::new() });
        Ok(())
    }

    /// What to do when the room is used up.
    fn way_out(&self) -> String {
        let Self { room, limit, .. } = self;
        let raise = match room < limit {
            true => format!(", or begin with a larger --max-model-len (the model takes {limit})"),
            false => String::new(),
        };
        format!("there is room for {room}; /reset makes room{raise}")
    }

    /// Prints a piece of the answer.
    fn say(&mut self, piece: &str) -> anyhow::Result<()> {
        if let Some(answer) = self.answer.as_mut().filter(|_| !piece.is_empty()) {
            answer.said += piece;
            self.out.text(piece)?;
        }
        Ok(())
    }

    /// Ends the answer, and puts it into the conversation.
    fn end(&mut self, sequence: &FinishedSequence, state: Option<State>) -> anyhow::Result<()> {
        let Some(Answer { begins_at, text, mut said, .. }) = self.answer.take() else { return Ok(()) };
        let is_broken_off = sequence.finish_reason == FinishReason::Aborted;
        // Of a character that was only begun, nothing is said.
        let rest = if is_broken_off { String::new() } else { text.end() };
        said += &rest;
        self.out.text(&format!("{rest}{}", if said.ends_with('\n') { "" } else { "\n" }))?;
        let length = sequence.token_ids.len();
        if is_broken_off && said.is_empty() {
            self.conversation.take_back();
        } else {
            self.conversation.answer(&said);
            self.state = state;
        }
        match sequence.finish_reason {
            FinishReason::Length if begins_at + length >= self.room => {
                tell!("the answer was cut off: the conversation has used its tokens up; {}", self.way_out());
            }
            FinishReason::Length => {
                tell!("the answer was cut off after {length} tokens; --max-completion-length allows more");
            }
            FinishReason::Aborted => tell!("the answer was broken off"),
            FinishReason::Stop => {}
        }
        Ok(())
    }
}

impl<W: Write, G: Generate + ?Sized> Work<G> for Talk<W> {
    type End = ();

    fn feed(&mut self, generator: &mut G) -> anyhow::Result<Next<()>> {
        let interrupted = self.interrupted.swap(false, Ordering::Relaxed);
        if let Some(Answer { tag, .. }) = &self.answer {
            if !interrupted {
                return Ok(Next::Advance);
            }
            for sequence in generator.cancel(*tag, None) {
                self.end(&sequence, None)?;
            }
        } else if interrupted {
            if self.is_warned {
                return Ok(Next::End(()));
            }
            tell!("once more ends; so do /exit and Ctrl-D");
            (self.is_warned, self.is_prompted) = (true, false);
        }
        if let Some(line) = self.line.take()
            && self.hear(generator, line)?
        {
            return Ok(Next::End(()));
        }
        Ok(if self.answer.is_some() { Next::Advance } else { Next::Idle })
    }

    fn take(&mut self, _: &mut G, outputs: Vec<Output>, _: Instant) -> anyhow::Result<()> {
        for output in outputs {
            match output {
                Output::Token { id, .. } => {
                    let piece = self.answer.as_mut().map(|answer| answer.text.push(id)).unwrap_or_default();
                    self.say(&piece)?;
                }
                Output::Ended { sequence, state } => self.end(&sequence, state)?,
            }
        }
        Ok(())
    }

    fn idle(&mut self, _: &mut G) -> anyhow::Result<()> {
        if self.is_terminal && !mem::replace(&mut self.is_prompted, true) {
            let _ = io::stderr().write_all(b"> ");
        }
        self.line = self.lines.next_within(PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
