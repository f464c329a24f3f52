//! Groups as small as the channel carries them, for tests, examples and benchmarks of all crates. A test sets the
//! fields that it is about by struct update: `Group { epoch: 5, ..group(position, completions) }`.

use crate::{
    Completion, Episode, FinishReason, Group, GroupId, Placed, PolicyVersion, PromptId, Provenance, Segment,
    TokenLogprob,
};

/// A group with a prompt of one token and no reward functions.
#[must_use]
pub fn group(position: u64, completions: Vec<Completion>) -> Group {
    Group {
        position,
        prompt_id: PromptId(0),
        epoch: 0,
        prompt_ids: vec![1],
        prompt_text: String::new(),
        completions,
        reward_names: Vec::new(),
        generation_seconds: 0.0,
        notes: Box::default(),
    }
}

/// A whole group with its place in the run, and no dropped groups.
#[must_use]
pub fn placed(id: GroupId, group: Group) -> Placed {
    Placed { id, scored: group.into(), dropped: Vec::new(), filler: false }
}

/// A completion of one turn and of version 0 that has ended by itself. Its tokens were certain (log-prob 0), and nobody
/// has scored it.
#[must_use]
pub fn completion(sample: u32, token_ids: Vec<u32>) -> Completion {
    let episode = episode(token_ids, &[(0, 0)], FinishReason::Stop);
    Completion {
        sample,
        episode,
        text: String::new(),
        rewards: Vec::new(),
        provenance: Provenance::New,
        exchange: None,
        routing: None,
    }
}

/// An episode of one turn with these runs of versions, whose tokens were certain.
#[must_use]
pub fn episode(token_ids: Vec<u32>, versions: &[(u32, u64)], finish: FinishReason) -> Episode {
    let versions = versions.iter().map(|&(first, version)| (first, PolicyVersion(version))).collect();
    let logprobs = vec![TokenLogprob::default(); token_ids.len()];
    Episode::of_one_turn(token_ids, logprobs, versions, finish)
}

/// The fields of a completion's only turn, to be changed.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// One entry for each token.
    pub logprobs: Vec<TokenLogprob>,
    /// Runs of versions.
    pub versions: Vec<(u32, PolicyVersion)>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// Changes the turn of a completion of one turn.
///
/// # Panics
/// When the completion has another number of segments.
pub fn change(completion: &mut Completion, change: impl FnOnce(&mut Turn)) {
    let mut segments = completion.episode.segments();
    let (Some(Segment::Sampled { ids, logprobs, versions, finish }), None) = (segments.next(), segments.next()) else {
        panic!("{:?} is not of one turn", completion.episode);
    };
    let mut turn = Turn {
        token_ids: ids.to_vec(),
        logprobs: logprobs.to_vec(),
        versions: versions.to_vec(),
        finish_reason: finish,
    };
    drop(segments);
    change(&mut turn);
    completion.episode = Episode::of_one_turn(turn.token_ids, turn.logprobs, turn.versions, turn.finish_reason);
}

/// A group in its place as frame version 8 has it, as hexadecimal digits.
pub const GROUP_OF_8: &str = "\
    544e444d08000100b0000000000000003a7953955b0d8ce0ac020207010201dba00904322b323d01000213dda00\
    902000000bf000080be000000be03000000000000000000000000000200ab0201ac0201340004000000000000000\
    04002030774696d656f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f066\
    66f726d6174000000000000e03f066c656e677468000000000000f03fab02e31201080104332b333d00010000000\
    00000f03fac020001000000000000e83f";
/// The same in frame version 9.
pub const GROUP_OF_9: &str = "\
    544e444d09000100b0000000000000000000000000000000481056e20d7516e3ac020207010201dba00904322b323d01\
    000213dda00902000000bf000080be000000be03000000000000000000000000000200ab0201ac020134000400000000\
    000000004002030774696d656f7574010101000000000000e03f01030b636f72726563746e657373000000000000f03f\
    06666f726d6174000000000000e03f066c656e677468000000000000f03fab02e31201080104332b333d000100000000\
    0000f03fac020001000000000000e83f";

/// Decodes hexadecimal digits.
///
/// # Panics
/// On any other character.
#[must_use]
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}
