//! The episode: the tokens that were generated after a prompt, and the owner of each token.
//!
//! An episode is a list of [`Segment`]s. The policy samples some, and others are given to it: the reply of a tool or an
//! environment, or what a chat template writes between two turns. One turn is the special case of one sampled segment.
//!
//! An episode may have several **paths**: conversations of one agent with the policy, which are branches of one sample.
//! Each path follows the prompt by itself. Their segments lie one path after the other.
//!
//! The **owner mask** says of each token whether it was sampled. It follows from the segments, as all counts do, and is
//! stored nowhere. Only sampled tokens have log-probs and versions. Code that trains on an episode, or measures its
//! length, looks at sampled tokens alone. Given tokens are context.

use std::{iter, ops::Range};

use serde::{Deserialize, Serialize};

use crate::generation::ids::PolicyVersion;

/// Why a turn of the policy ended, or the completion with its last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence token (the last sampled one) or a stop string.
    Stop,
    /// `max_completion_length` or the model's maximum length was reached.
    Length,
    /// Given up: the run ended, or the engine refused the sequence. Never trained on.
    Aborted,
}

impl FinishReason {
    /// The word used in JSONL outputs: `stop`, `length` or `aborted`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Aborted => "aborted",
        }
    }
}

/// The engine's figures about the probability of one sampled token. All natural logarithms.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Under the full distribution at temperature 1, before any penalty.
    pub logprob: f32,
    /// Under the full (untruncated) distribution at the sampling temperature, after the repetition penalty. Equal to
    /// `logprob` at temperature 1 without a penalty; 0 for greedy sampling, where it does not apply (with a constraint,
    /// `logprob`).
    pub logprob_at_temperature: f32,
    /// Log of the probability mass that truncation and a constraint kept; the token's log-prob under the distribution
    /// it was drawn from is `logprob_at_temperature - log_kept_mass`. 0 without both.
    pub log_kept_mass: f32,
    /// Number of tokens that truncation and a constraint kept; 0 without both.
    pub kept_count: u32,
}

impl TokenLogprob {
    /// Log-prob under the distribution that the token was drawn from.
    #[must_use]
    pub fn sampling_logprob(&self) -> f32 {
        self.logprob_at_temperature - self.log_kept_mass
    }
}

/// Origin of tokens that the policy did not sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// The reply of a tool or an environment.
    Reply,
    /// What the chat template writes between turns.
    Template,
}

/// Consecutive tokens of one owner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Segment<'a> {
    /// A turn of the policy.
    Sampled {
        /// The tokens as they were drawn, including one end-of-sequence token if there is one. Never re-tokenised.
        ids: &'a [u32],
        /// One entry per token.
        logprobs: &'a [TokenLogprob],
        /// Runs of weight versions: `(first token index within the segment, version)`, ascending from token 0.
        versions: &'a [(u32, PolicyVersion)],
        /// Why the turn ended.
        finish: FinishReason,
    },
    /// Context that the policy did not write.
    Given {
        /// The tokens.
        ids: &'a [u32],
        /// Their origin.
        why: Why,
    },
}

/// A segment without its tokens, which the episode holds end to end. A sampled one has as many tokens as log-probs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Part {
    Sampled {
        logprobs: Vec<TokenLogprob>,
        versions: Vec<(u32, PolicyVersion)>,
        finish: FinishReason,
    },
    Given {
        tokens: u32,
        why: Why,
    },
    /// No token: the next path begins.
    Branch,
}

impl Part {
    fn tokens(&self) -> usize {
        match self {
            Self::Sampled { logprobs, .. } => logprobs.len(),
            Self::Given { tokens, .. } => *tokens as usize,
            Self::Branch => 0,
        }
    }
}

/// The tokens that were generated after a prompt.
///
/// The tokens lie end to end, so that reward functions and passes of a model read them without a copy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    ids: Vec<u32>,
    parts: Vec<Part>,
}

impl Episode {
    /// One turn: `logprobs` has an entry for each token, and `versions` the runs of weight versions.
    #[must_use]
    pub fn of_one_turn(
        ids: Vec<u32>,
        logprobs: Vec<TokenLogprob>,
        versions: Vec<(u32, PolicyVersion)>,
        finish: FinishReason,
    ) -> Self {
        Self { ids, parts: vec![Part::Sampled { logprobs, versions, finish }] }
    }

    /// Appends a segment.
    ///
    /// # Panics
    /// When a segment has more than `u32::MAX` tokens.
    pub fn push(&mut self, segment: Segment<'_>) {
        let (ids, part) = match segment {
            Segment::Sampled { ids, logprobs, versions, finish } => {
                (ids, Part::Sampled { logprobs: logprobs.to_vec(), versions: versions.to_vec(), finish })
            }
            Segment::Given { ids, why } => {
                (ids, Part::Given { tokens: ids.len().try_into().expect("a model reads fewer tokens"), why })
            }
        };
        self.ids.extend_from_slice(ids);
        self.parts.push(part);
    }

    /// Episodes that follow the same prompt, each as a path of one.
    #[must_use]
    pub fn of_paths(paths: impl IntoIterator<Item = Self>) -> Self {
        let all = |mut all: Self, path: Self| {
            all.parts.push(Part::Branch);
            all.parts.extend(path.parts);
            all.ids.extend(path.ids);
            all
        };
        paths.into_iter().reduce(all).unwrap_or_default()
    }

    /// Ranges of the paths among all tokens, in order. Without branches there is one path.
    pub fn paths(&self) -> impl Iterator<Item = Range<usize>> {
        let branches = || self.placed().filter(|(_, part)| **part == Part::Branch).map(|(span, _)| span.start);
        iter::once(0).chain(branches()).zip(branches().chain([self.ids.len()])).map(|(begin, end)| begin..end)
    }

    /// Each path as an episode.
    fn split(&self) -> Vec<Self> {
        let mut paths = vec![Self::default()];
        for (span, part) in self.placed() {
            let last = paths.last_mut().expect("there is a first one");
            if *part == Part::Branch {
                paths.push(Self::default());
            } else {
                last.ids.extend_from_slice(self.ids.get(span).unwrap_or_default());
                last.parts.push(part.clone());
            }
        }
        paths
    }

    /// The same episode after `head`, tokens of the prompt that were shared before and are not any more. They are given
    /// by the template before each path, in one segment with earlier ones of that kind. An episode without tokens stays
    /// as it is.
    #[must_use]
    pub fn behind(&self, head: &[u32]) -> Self {
        if self.parts.contains(&Part::Branch) {
            return Self::of_paths(self.split().iter().map(|path| path.behind(head)));
        }
        if head.is_empty() || self.ids.is_empty() {
            return self.clone();
        }
        let mut segments = self.segments().peekable();
        let before = match segments.peek() {
            Some(&Segment::Given { ids, why: Why::Template }) => {
                segments.next();
                ids
            }
            _ => &[],
        };
        let mut behind = Self::default();
        behind.push(Segment::Given { ids: &[head, before].concat(), why: Why::Template });
        segments.for_each(|segment| behind.push(segment));
        behind
    }

    /// The segments of all paths in order. Where tokens and log-probs do not fit together ([`Self::is_sound`]), tokens
    /// are missing.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'_>> {
        self.placed().filter_map(|(span, part)| {
            let ids = self.ids.get(span).unwrap_or_default();
            match part {
                Part::Sampled { logprobs, versions, finish } => {
                    Some(Segment::Sampled { ids, logprobs, versions, finish: *finish })
                }
                Part::Given { why, .. } => Some(Segment::Given { ids, why: *why }),
                Part::Branch => None,
            }
        })
    }

    /// Where no token was sampled: given tokens, and the empty places between paths.
    pub fn between_turns(&self) -> impl Iterator<Item = Range<usize>> {
        let between = self.placed().filter(|(_, part)| !matches!(part, Part::Sampled { .. }));
        between.map(|(span, _)| span)
    }

    /// Each part, with the range of its tokens.
    fn placed(&self) -> impl Iterator<Item = (Range<usize>, &Part)> {
        self.parts.iter().scan(0, |end: &mut usize, part| {
            let start = *end;
            *end = start.saturating_add(part.tokens());
            Some((start..*end, part))
        })
    }

    /// Whether each sampled token has a log-prob and a version, and each log-prob a token.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let has_versions = |part: &Part| match part {
            Part::Sampled { logprobs, versions, .. } => {
                let begins = versions.first().is_some_and(|(first, _)| *first == 0);
                let ascends = versions.windows(2).all(|pair| pair[0].0 < pair[1].0);
                let within = versions.iter().all(|(first, _)| (*first as usize) < logprobs.len());
                logprobs.is_empty() || begins && ascends && within
            }
            Part::Given { .. } | Part::Branch => true,
        };
        self.sampled() + self.given() == self.ids.len() && self.parts.iter().all(has_versions)
    }

    /// All tokens, sampled and given.
    #[must_use]
    pub fn token_ids(&self) -> &[u32] {
        &self.ids
    }

    /// Ranges of the sampled segments among all tokens, in order.
    pub fn sampled_spans(&self) -> impl Iterator<Item = Range<usize>> {
        self.placed().filter(|(_, part)| matches!(part, Part::Sampled { .. })).map(|(span, _)| span)
    }

    /// Ranges of the given segments among all tokens, in order.
    pub fn given_spans(&self) -> impl Iterator<Item = Range<usize>> {
        self.placed().filter(|(_, part)| matches!(part, Part::Given { .. })).map(|(span, _)| span)
    }

    /// The owner mask: for each token, whether the policy sampled it.
    pub fn owner_mask(&self) -> impl Iterator<Item = bool> {
        let of_part = |part: &Part| std::iter::repeat_n(matches!(part, Part::Sampled { .. }), part.tokens());
        self.parts.iter().flat_map(of_part)
    }

    /// Number of turns: sampled segments that have a token.
    #[must_use]
    pub fn turns(&self) -> usize {
        self.sampled_spans().filter(|span| !span.is_empty()).count()
    }

    /// Number of sampled tokens.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.sampled_spans().map(|span| span.len()).sum()
    }

    /// Number of given tokens.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given_spans().map(|span| span.len()).sum()
    }

    /// Number of sampled tokens among the first `tokens`.
    #[must_use]
    pub fn sampled_before(&self, tokens: usize) -> usize {
        self.sampled_spans().map(|span| span.end.min(tokens).saturating_sub(span.start)).sum()
    }

    /// Log-probs of the sampled tokens, in order.
    pub fn logprobs(&self) -> impl Iterator<Item = &TokenLogprob> + Clone {
        self.parts.iter().flat_map(|part| if let Part::Sampled { logprobs, .. } = part { &logprobs[..] } else { &[] })
    }

    /// Runs of weight versions: `(first token, counted over all tokens, version)`.
    pub fn versions(&self) -> impl Iterator<Item = (u32, PolicyVersion)> {
        self.placed().flat_map(|(span, part)| {
            let versions: &[_] = if let Part::Sampled { versions, .. } = part { versions } else { &[] };
            versions.iter().map(move |&(first, version)| (first.saturating_add(span.start as u32), version))
        })
    }

    /// The oldest version that any token was sampled from.
    #[must_use]
    pub fn oldest(&self) -> Option<PolicyVersion> {
        self.versions().map(|(_, version)| version).min()
    }

    /// The newest version that any token was sampled from.
    #[must_use]
    pub fn newest(&self) -> Option<PolicyVersion> {
        self.versions().map(|(_, version)| version).max()
    }

    /// Why the last turn ended, and the episode with it. It is [`Length`](FinishReason::Length) where the last turn of
    /// any path was cut off. An episode without a turn was given up before one ended.
    #[must_use]
    pub fn finish_reason(&self) -> FinishReason {
        let of_part = |part: &Part| if let Part::Sampled { finish, .. } = part { Some(*finish) } else { None };
        let of_path = |path: &[Part]| path.iter().rev().find_map(of_part);
        let ends = || self.parts.split(|part| *part == Part::Branch).filter_map(of_path);
        let cut = ends().find(|end| *end == FinishReason::Length);
        cut.or(ends().next_back()).unwrap_or(FinishReason::Aborted)
    }

    /// Whether the last turn of a path was cut off at a bound: `mask_truncated_completions` then leaves out all
    /// segments.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.finish_reason() == FinishReason::Length
    }

    /// Memory of tokens and log-probs, close enough for a budget.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.ids.as_slice()) + self.sampled() * size_of::<TokenLogprob>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logprob(logprob: f32) -> TokenLogprob {
        TokenLogprob { logprob, ..TokenLogprob::default() }
    }

    /// Two turns with a reply and the opening of the second turn between them.
    fn two_turns() -> Episode {
        let versions = vec![(0, PolicyVersion(4)), (1, PolicyVersion(5))];
        let mut episode =
            Episode::of_one_turn(vec![10, 11, 12], [1.0, 2.0, 3.0].map(logprob).to_vec(), versions, FinishReason::Stop);
        episode.push(Segment::Given { ids: &[20, 21], why: Why::Reply });
        episode.push(Segment::Given { ids: &[22], why: Why::Template });
        let (ids, logprobs, versions) = ([30, 31], [4.0, 5.0].map(logprob), [(0, PolicyVersion(6))]);
        let finish = FinishReason::Length;
        episode.push(Segment::Sampled { ids: &ids, logprobs: &logprobs, versions: &versions, finish });
        episode
    }

    #[test]
    fn everything_follows_from_the_segments() {
        let episode = two_turns();
        assert!(episode.is_sound() && episode.is_truncated());
        assert_eq!(episode.token_ids(), [10, 11, 12, 20, 21, 22, 30, 31]);
        assert_eq!(episode.owner_mask().map(u8::from).collect::<Vec<_>>(), [1, 1, 1, 0, 0, 0, 1, 1]);
        assert_eq!(episode.sampled_spans().collect::<Vec<_>>(), [0..3, 6..8]);
        assert_eq!(episode.given_spans().collect::<Vec<_>>(), [3..5, 5..6]);
        assert_eq!((episode.sampled(), episode.given(), episode.turns()), (5, 3, 2));
        assert_eq!((0..=9).map(|n| episode.sampled_before(n)).collect::<Vec<_>>(), [0, 1, 2, 3, 3, 3, 3, 4, 5, 5]);
        assert_eq!(episode.logprobs().map(|l| l.logprob).collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        let versions = [(0, PolicyVersion(4)), (1, PolicyVersion(5)), (6, PolicyVersion(6))];
        assert_eq!(episode.versions().collect::<Vec<_>>(), versions);
        assert_eq!((episode.oldest(), episode.newest()), (Some(PolicyVersion(4)), Some(PolicyVersion(6))));
        let ids = |segment: Segment<'_>| match segment {
            Segment::Sampled { ids, .. } | Segment::Given { ids, .. } => ids.to_vec(),
        };
        assert_eq!(episode.segments().map(ids).collect::<Vec<_>>(), [&[10, 11, 12][..], &[20, 21], &[22], &[30, 31]]);
        let mut again = Episode::default();
        episode.segments().for_each(|segment| again.push(segment));
        assert_eq!(again, episode);
    }

    #[test]
    fn what_a_prompt_gives_up_comes_before_the_episode_in_one_segment() {
        let episode = two_turns();
        let once = episode.behind(&[1, 2, 3]);
        assert_eq!(once, episode.behind(&[3]).behind(&[1, 2]));
        assert_eq!(once.token_ids()[..4], [1, 2, 3, 10]);
        assert_eq!((once.sampled(), once.given(), once.is_sound()), (5, 6, true));
        assert_eq!(once.given_spans().next(), Some(0..3));
        assert_eq!(episode.behind(&[]), episode);
        assert_eq!(Episode::default().behind(&[1]), Episode::default());
    }

    #[test]
    fn each_path_follows_the_prompt_and_any_that_is_cut_off_cuts_the_episode() {
        let end = |finish| Episode::of_one_turn(vec![40], vec![logprob(6.0)], vec![(0, PolicyVersion(3))], finish);
        let all = Episode::of_paths([two_turns(), end(FinishReason::Stop), two_turns()]);
        assert_eq!(all.paths().collect::<Vec<_>>(), [0..8, 8..9, 9..17]);
        assert_eq!((all.sampled(), all.given(), all.turns(), all.segments().count()), (11, 6, 5, 9));
        assert_eq!(all.owner_mask().count(), all.token_ids().len());
        assert!(all.is_sound());
        let alone = Episode::of_paths([two_turns()]);
        assert_eq!((&alone, alone.paths().next(), alone.paths().count()), (&two_turns(), Some(0..8), 1));
        assert_eq!((Episode::default().paths().next(), Episode::default().paths().count()), (Some(0..0), 1));
        let [cut, whole] = [FinishReason::Length, FinishReason::Stop].map(end);
        assert!(Episode::of_paths([cut.clone(), whole.clone()]).is_truncated());
        assert_eq!(Episode::of_paths([whole.clone(), whole]).finish_reason(), FinishReason::Stop);
        // Each path gets what the prompt gives up.
        let behind = Episode::of_paths([two_turns(), cut]).behind(&[1, 2]);
        assert_eq!(
            behind.paths().map(|path| behind.token_ids()[path][..3].to_vec()).collect::<Vec<_>>(),
            [[1, 2, 10], [1, 2, 40]]
        );
    }

    #[test]
    fn an_episode_without_a_turn_is_given_up_and_has_nothing_of_the_policys() {
        let mut episode = Episode::default();
        episode.push(Segment::Given { ids: &[7], why: Why::Template });
        assert_eq!((episode.finish_reason(), episode.sampled(), episode.oldest()), (FinishReason::Aborted, 0, None));
        let cut = Segment::Sampled { ids: &[], logprobs: &[], versions: &[], finish: FinishReason::Length };
        episode.push(cut);
        assert_eq!(episode.turns(), 0, "a turn without a token is none");
        assert!(episode.is_sound());
    }

    #[test]
    fn a_token_without_a_log_prob_is_noticed_and_nothing_panics() {
        for (ids, logprobs) in [(vec![1, 2], 1), (vec![1], 2), (Vec::new(), 1)] {
            let crooked = Episode::of_one_turn(ids, vec![logprob(0.0); logprobs], Vec::new(), FinishReason::Stop);
            assert!(!crooked.is_sound());
            assert_eq!(crooked.segments().count(), 1);
        }
    }
}
