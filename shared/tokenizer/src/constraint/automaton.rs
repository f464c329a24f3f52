//! A regular expression as an automaton over bytes, from which every way that cannot end in a match is taken out.

use std::collections::HashMap;

use regex_automata::{
    Anchored, MatchKind,
    dfa::{Automaton as _, StartKind, dense},
    nfa::thompson::{self, WhichCaptures},
    util::{primitives::StateID, start},
};
use regex_syntax::hir::Hir;

use super::ConstraintError;

/// Most bytes of an expression.
const MOST_BYTES: usize = 256 << 10;
/// Memory for the expression as states without a decision between them.
const MOST_NFA: usize = 8 << 20;
/// Memory for the automaton: some 100 000 states of an expression over few kinds of characters.
const MOST_DFA: usize = 16 << 20;
/// Memory for making it.
const MOST_DETERMINIZE: usize = 64 << 20;

/// The library's automaton.
type Dfa = dense::DFA<Vec<u32>>;

/// The number of a state.
pub type State = u32;

/// The state of a completion that is empty.
pub const START: State = 0;
/// No state: no match can come any more.
const DEAD: State = State::MAX;

/// What matches from beginning to end.
#[derive(Debug)]
pub struct Automaton {
    /// The class of each byte. Bytes of one class lead to the same states.
    classes: Box<[u8; 256]>,
    /// Number of classes.
    width: usize,
    /// The state after each class, for each state.
    next: Vec<State>,
    /// Whether what led to a state is a match.
    accepts: Vec<bool>,
}

impl Automaton {
    /// Of a regular expression in the syntax of the crate `regex`.
    ///
    /// # Errors
    /// An expression that is none, that is too large, or that matches nothing but the empty text.
    pub fn new(regex: &str) -> Result<Self, ConstraintError> {
        if regex.len() > MOST_BYTES {
            return Err(ConstraintError::TooLarge);
        }
        let expression = regex_syntax::parse(regex).map_err(|error| ConstraintError::Syntax(reason(&error)))?;
        let found = Self::of_dfa(&dfa(&expression)?)?;
        if found.next[..found.width].iter().all(|&state| state == DEAD) {
            return Err(if found.accepts(START) { ConstraintError::OnlyEmpty } else { ConstraintError::Nothing });
        }
        Ok(found)
    }

    /// The states that can be reached, in the order in which they are found.
    fn of_dfa(dfa: &Dfa) -> Result<Self, ConstraintError> {
        let first = dfa
            .start_state(&start::Config::new().anchored(Anchored::Yes))
            .map_err(|error| ConstraintError::Syntax(error.to_string()))?;
        let of_byte = dfa.byte_classes();
        let mut classes = Box::new([0; 256]);
        (0..=u8::MAX).for_each(|byte| classes[usize::from(byte)] = of_byte.get(byte));
        let width = classes.iter().max().map_or(0, |&class| usize::from(class) + 1);
        let mut bytes = vec![0; width];
        (0..=u8::MAX).for_each(|byte| bytes[usize::from(of_byte.get(byte))] = byte);

        let (mut order, mut numbers, mut next) = (vec![first], HashMap::from([(first, START)]), Vec::new());
        let mut at = 0;
        while let Some(&state) = order.get(at) {
            for &byte in &bytes {
                let to = dfa.next_state(state, byte);
                let number = if dfa.is_dead_state(to) || dfa.is_quit_state(to) {
                    DEAD
                } else {
                    *numbers.entry(to).or_insert_with(|| {
                        order.push(to);
                        order.len() as State - 1
                    })
                };
                next.push(number);
            }
            at += 1;
        }
        let accepts = |&state: &StateID| dfa.is_match_state(dfa.next_eoi_state(state));
        let mut found = Self { classes, width, next, accepts: order.iter().map(accepts).collect() };
        found.take_out_dead_ends();
        Ok(found)
    }

    /// Takes out the ways to states from which no match can be reached.
    fn take_out_dead_ends(&mut self) {
        let ways = self.next.iter().enumerate().filter(|(_, to)| **to != DEAD);
        let edges = ways.map(|(at, &to)| ((at / self.width) as State, to)).collect();
        let ends_well = reaching(&self.accepts, edges);
        self.next.iter_mut().filter(|to| **to != DEAD && !ends_well[**to as usize]).for_each(|to| *to = DEAD);
    }

    /// Number of states.
    pub fn len(&self) -> usize {
        self.accepts.len()
    }

    /// The state after a byte; none if no match can come any more.
    pub fn after(&self, state: State, byte: u8) -> Option<State> {
        let class = usize::from(self.classes[usize::from(byte)]);
        Some(self.next[state as usize * self.width + class]).filter(|&next| next != DEAD)
    }

    /// The state after some bytes; none if no match can come any more.
    pub fn after_all(&self, state: State, bytes: &[u8]) -> Option<State> {
        bytes.iter().try_fold(state, |state, &byte| self.after(state, byte))
    }

    /// Whether what led to a state is a match.
    pub fn accepts(&self, state: State) -> bool {
        self.accepts[state as usize]
    }

    /// Which states match.
    pub fn accepting(&self) -> &[bool] {
        &self.accepts
    }

    /// The bytes that a match can go on with in some place.
    pub fn bytes_in_use(&self) -> impl Iterator<Item = u8> {
        let mut used = vec![false; self.width];
        let ways = self.next.iter().enumerate().filter(|(_, to)| **to != DEAD);
        ways.for_each(|(at, _)| used[at % self.width] = true);
        (0..=u8::MAX).filter(move |byte| used[usize::from(self.classes[usize::from(*byte)])])
    }
}

/// The states from which one of the `goals` can be reached over `edges`, goals included.
pub fn reaching(goals: &[bool], mut edges: Vec<(State, State)>) -> Vec<bool> {
    edges.sort_unstable_by_key(|&(_, to)| to);
    let mut found = goals.to_vec();
    let mut open: Vec<State> = (0..).zip(goals).filter(|(_, is_goal)| **is_goal).map(|(state, _)| state).collect();
    while let Some(state) = open.pop() {
        let begin = edges.partition_point(|&(_, to)| to < state);
        for &(from, _) in edges[begin..].iter().take_while(|(_, to)| *to == state) {
            if !std::mem::replace(&mut found[from as usize], true) {
                open.push(from);
            }
        }
    }
    found
}

fn dfa(expression: &Hir) -> Result<Dfa, ConstraintError> {
    let limits = thompson::Config::new().nfa_size_limit(Some(MOST_NFA)).which_captures(WhichCaptures::None);
    let nfa = thompson::Compiler::new()
        .configure(limits)
        .build_from_hir(expression)
        .map_err(|error| error.size_limit().map_or_else(|| unfit(&error), |_| ConstraintError::TooLarge))?;
    // All matches, not the first one alone: what comes later decides between alternatives.
    let config = dense::Config::new()
        .start_kind(StartKind::Anchored)
        .match_kind(MatchKind::All)
        .accelerate(false)
        .dfa_size_limit(Some(MOST_DFA))
        .determinize_size_limit(Some(MOST_DETERMINIZE));
    dense::Builder::new()
        .configure(config)
        .build_from_nfa(&nfa)
        .map_err(|error| if error.is_size_limit_exceeded() { ConstraintError::TooLarge } else { unfit(&error) })
}

fn unfit(error: &dyn std::error::Error) -> ConstraintError {
    let text = error.to_string();
    // The library recommends its own other engines.
    ConstraintError::Syntax(if text.contains("word boundaries") {
        "`\\b`, `\\B`, `\\<` and `\\>` look at letters of all scripts; write `(?-u:\\b)`, or `<` for a plain `<`".into()
    } else {
        text
    })
}

/// What is wrong with an expression, on one line.
fn reason(error: &regex_syntax::Error) -> String {
    let at = |offset: usize, text: &str, kind: &dyn std::fmt::Display| {
        let column = text.get(..offset).map_or(0, |before| before.chars().count()) + 1;
        format!("{kind}, at character {column}")
    };
    match error {
        regex_syntax::Error::Parse(error) => at(error.span().start.offset, error.pattern(), error.kind()),
        regex_syntax::Error::Translate(error) => at(error.span().start.offset, error.pattern(), error.kind()),
        other => other.to_string().lines().last().unwrap_or_default().to_owned(),
    }
}
