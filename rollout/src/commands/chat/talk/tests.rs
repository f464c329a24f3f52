//! Talks with a script in place of a model.

use std::{io::Cursor, sync::Mutex};

use super::*;
use crate::{
    data::testing::byte_tokenizer,
    generate::{self, testing::Scripted},
};

/// The template refuses messages of the user that are `refuse`, and any system prompt that is `no`.
const TEMPLATE: &str = "{% for m in messages %}\
    {% if m.content == 'refuse' or (m.role == 'system' and m.content == 'no') %}\
    {{ raise_exception('I take no ' ~ m.role ~ ' like that') }}{% endif %}\
    {{ m.role[:1] }}:{{ m.content }};{% endfor %}a:";

/// An output that tests can read while a talk has it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// A talk with these lines in `room` tokens, what is said in it, and its Ctrl-C.
fn talk(lines: &str, room: usize) -> (Talk<Shared>, Shared, Arc<AtomicBool>) {
    let conversation = Conversation::new(byte_tokenizer(Some(TEMPLATE)), None);
    let (said, interrupted) = (Shared::default(), Arc::new(AtomicBool::new(false)));
    let lines = Lines::of(Cursor::new(lines.to_owned())).unwrap();
    let out = Out::new(said.clone(), false);
    let sampling = SamplingParams::default();
    (Talk::new(conversation, lines, out, sampling, room, 2 * room, interrupted.clone(), false), said, interrupted)
}

/// Says what it was asked, after `=`.
fn echo(prompt: &[u32], _: u32) -> Vec<u32> {
    [byte_tokenizer(None).encode("=", false).unwrap(), prompt.to_vec()].concat()
}

/// What is said when these lines are talked to the end.
fn said(lines: &str, room: usize) -> String {
    let (mut talk, said, _) = talk(lines, room);
    generate::drive(&mut Scripted::new(1, echo), &mut talk).unwrap();
    said.text()
}

#[test]
fn a_question_is_asked_with_all_that_was_said_before() {
    assert_eq!(said("one\ntwo\n", 999), "=u:one;a:\n=u:one;a:=u:one;a:;u:two;a:\n");
    assert_eq!(said("one\n/reset\n\n  \ntwo", 999), "=u:one;a:\n=u:two;a:\n", "empty lines are no questions");
    assert_eq!(said(" /one\n", 999), "=u: /one;a:\n");
}

#[test]
fn commands_change_the_conversation_and_are_not_asked() {
    let lines = "/system be short\none\n/reset\n/system\n/help\n/nonsense\ntwo\n/exit\nthree\n";
    assert_eq!(said(lines, 999), "=s:be short;u:one;a:\n=u:two;a:\n");
}

#[test]
fn what_the_template_refuses_is_taken_back() {
    assert_eq!(said("refuse\none\n", 999), "=u:one;a:\n");
    assert_eq!(said("/system no\none\n/system\ntwo\n", 999), "=u:two;a:\n");
    let mut conversation = Conversation::new(byte_tokenizer(Some(TEMPLATE)), Some("no".into()));
    conversation.ask("one");
    let refused = conversation.ids().unwrap_err();
    assert!(refused.contains("I take no system like that") && refused.contains("`/system` alone"), "{refused}");
    conversation.take_back();
    conversation.ask("refuse");
    let refused = conversation.ids().unwrap_err();
    assert!(!refused.contains("/system"), "{refused}");
}

#[test]
fn a_conversation_that_is_full_says_so_and_goes_on_after_a_reset() {
    let long = "x".repeat(20);
    assert_eq!(said(&format!("one\n{long}\n/reset\ntwo\n"), 25), "=u:one;a:\n=u:two;a:\n");
    let (talk, ..) = talk("", 25);
    assert_eq!(
        talk.way_out(),
        "there is room for 25; /reset makes room, or begin with a larger --max-model-len (the model takes 50)"
    );
}

/// Interrupts a talk before some of its steps.
struct Interrupting<'a> {
    talk: Talk<Shared>,
    interrupted: &'a AtomicBool,
    /// Calls of `feed` that still come before the next interruption.
    after: Vec<usize>,
    feeds: usize,
}

impl Work<Scripted> for Interrupting<'_> {
    type End = ();

    fn feed(&mut self, generator: &mut Scripted) -> anyhow::Result<Next<()>> {
        // Time that passes while nothing comes counts for nothing.
        if self.talk.answer.is_some() || self.talk.line.is_some() {
            self.feeds += 1;
            self.interrupted.fetch_or(self.after.contains(&self.feeds), Ordering::Relaxed);
        }
        self.talk.feed(generator)
    }

    fn take(&mut self, generator: &mut Scripted, outputs: Vec<Output>, begun: Instant) -> anyhow::Result<()> {
        self.talk.take(generator, outputs, begun)
    }

    fn idle(&mut self, generator: &mut Scripted) -> anyhow::Result<()> {
        self.talk.idle(generator)
    }
}

#[test]
fn ctrl_c_breaks_an_answer_off_and_keeps_the_conversation() {
    let (talk, said, interrupted) = talk("one\ntwo\n", 999);
    let mut generator = Scripted::new(1, echo);
    // The first call hears the line, the next three see `=`, `u` and `:` made.
    let mut work = Interrupting { talk, interrupted: &interrupted, after: vec![4], feeds: 0 };
    generate::drive(&mut generator, &mut work).unwrap();
    assert_eq!(said.text(), "=u:\n=u:one;a:=u:;u:two;a:\n");
    assert!(generator.is_idle());
}

#[test]
fn a_question_whose_answer_never_began_is_taken_back() {
    let (talk, said, interrupted) = talk("one\ntwo\n", 999);
    let mut work = Interrupting { talk, interrupted: &interrupted, after: vec![2], feeds: 0 };
    // The first step makes nothing of the text: half of a character.
    let silent = |prompt: &[u32], _: u32| [&byte_tokenizer(None).encode("é", false).unwrap()[..1], prompt].concat();
    generate::drive(&mut Scripted::new(1, silent), &mut work).unwrap();
    assert_eq!(said.text().matches("u:one").count(), 0, "{}", said.text());
    assert!(said.text().contains("u:two"), "{}", said.text());
}

#[test]
fn twice_without_an_answer_ctrl_c_ends_and_a_line_between_forgives() {
    let (mut talk, said, interrupted) = talk("one\n", 999);
    let mut generator = Scripted::new(1, echo);
    let mut press = |talk: &mut Talk<Shared>| {
        interrupted.store(true, Ordering::Relaxed);
        talk.feed(&mut generator).unwrap()
    };
    assert_eq!(press(&mut talk), Next::Idle);
    talk.line = Some(Line::Text("/reset".into()));
    talk.feed(&mut Scripted::new(1, echo)).unwrap();
    assert_eq!(press(&mut talk), Next::Idle);
    assert_eq!(press(&mut talk), Next::End(()));
    assert_eq!(said.text(), "");
}
