//! Completions as JSONL rows.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};
use shared::{Completion, Episode, RewardOutcome, Scored, TokenLogprob, config::RewardFailure, files::atomic};

/// One line for environments, and one per reward function, that failed somewhere: how often, and the reason of the
/// first failure. Where an environment has failed, no function was asked.
#[must_use]
pub fn failures(groups: &[Scored]) -> Vec<String> {
    let names = groups.first().map(|group| group.reward_names.as_slice()).unwrap_or_default();
    let all = || groups.iter().flat_map(|group| &group.completions);
    let lost: Vec<&str> = all().filter_map(|completion| completion.exchange.as_ref()?.reason()).collect();
    let of_environments =
        lost.first().map(|first| format!("the environments of {} conversations failed, first: {first}", lost.len()));
    let completions = || all().filter(|completion| !completion.environment_failed());
    let of_function = |(index, (name, _)): (usize, &(String, f64))| {
        let mut reasons = completions().filter_map(|completion| match &completion.rewards[index] {
            RewardOutcome::Failed(reason) => Some(reason),
            _ => None,
        });
        let first = reasons.next()?;
        Some(format!("reward function `{name}` failed {} times, first: {first}", 1 + reasons.count()))
    };
    of_environments.into_iter().chain(names.iter().enumerate().filter_map(of_function)).collect()
}

/// The error of completions of which none has a score.
#[must_use]
pub fn nothing_scored(failures: &[String]) -> anyhow::Error {
    let reason = failures.first().map_or("every reward function abstained from every one of them", String::as_str);
    anyhow::anyhow!("no completion could be scored: {reason}")
}

/// The error of completions that nothing says to be right or wrong: their first function has failed on them or
/// abstained from them.
#[must_use]
pub fn nothing_judged(groups: &[Scored], failures: &[String]) -> anyhow::Error {
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let is_scored = |completion: &Completion| completion.rewards.iter().any(|outcome| outcome.score().is_some());
    match groups.first().and_then(|group| group.reward_names.first()) {
        Some((name, _)) if failures.is_empty() && completions().any(is_scored) => anyhow::anyhow!(
            "no completion is right or wrong: `{name}`, the first reward function, abstained from every one of them; \
             name the function first that says which answers are right"
        ),
        _ => nothing_scored(failures),
    }
}

/// Refuses, before any work is done, an output that could not be written after it.
///
/// # Errors
/// The flag and the path, and what is wrong with it.
pub fn check_writable(flag: &str, path: &Path) -> anyhow::Result<()> {
    ensure!(!path.is_dir(), "{flag} {}: is a folder; name a file", path.display());
    if atomic::is_special(path) {
        return Ok(());
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(parent.is_dir(), "{flag} {}: no such folder: {}", path.display(), parent.display());
    let probe = parent.join(format!(".tmp-{}-probe", std::process::id()));
    File::create(&probe)
        .and_then(|_| fs::remove_file(&probe))
        .with_context(|| format!("{flag} {}: cannot be written", path.display()))
}

/// As [`check_writable`], for `--output`. Refuses also to write over the file that is read.
///
/// # Errors
/// As [`check_writable`], and when both paths lead to one file.
pub fn check_output(written: &Path, read_flag: &str, read: &Path) -> anyhow::Result<()> {
    check_writable("--output", written)?;
    let same = matches!((read.canonicalize(), written.canonicalize()), (Ok(a), Ok(b)) if a == b && b.is_file());
    ensure!(!same, "--output {}: is the file of {read_flag}; name another one", written.display());
    Ok(())
}

/// Writes one row per completion, ordered by prompt and sample; the file appears whole.
///
/// # Errors
/// Any error of the file system.
pub fn write(path: &Path, groups: &[Scored]) -> anyhow::Result<()> {
    atomic::write_output_with(path, |file| groups.iter().try_for_each(|group| write_group(file, group)))
        .context("--output")
}

/// Writes the rows of a group.
///
/// # Errors
/// Those of the writer.
pub fn write_group(to: &mut (impl Write + ?Sized), group: &Scored) -> io::Result<()> {
    for completion in &group.completions {
        serde_json::to_writer(&mut *to, &row(group, completion))?;
        to.write_all(b"\n")?;
    }
    Ok(())
}

/// One completion. `logprobs` are those of the full distribution at temperature 1; with truncated sampling there are
/// also those under the distribution that the tokens were drawn from, and the sizes of its support. Where tokens were
/// given, `owner` has 1 for each that was sampled and 0 for the others, of which nothing else is known. A conversation
/// has its messages, calls and end, as in the `completions/` of a run.
fn row(group: &Scored, completion: &Completion) -> Value {
    let episode = &completion.episode;
    let logprobs = of_sampled(episode, |token| token.logprob.into());
    let mut row = json!({
        "prompt_id": group.prompt_id,
        "sample": completion.sample,
        "prompt": group.prompt_text,
        "prompt_ids": group.prompt_ids,
        "token_ids": completion.token_ids(),
        "text": completion.text,
        "finish_reason": completion.finish_reason().as_str(),
        "logprobs": logprobs,
    });
    if episode.logprobs().any(|l| l.kept_count > 0) {
        row["sampling_logprobs"] = of_sampled(episode, |token| token.sampling_logprob().into());
        row["kept_counts"] = of_sampled(episode, |token| token.kept_count.into());
    }
    if episode.given() > 0 {
        row["owner"] = episode.owner_mask().map(u8::from).collect();
    }
    if let Some(exchange) = &completion.exchange {
        row["messages"] = exchange.messages.values().into();
        row["turns"] = episode.turns().into();
        row["calls"] = exchange.calls.into();
        row["failed_calls"] = exchange.failed_calls.into();
        row["end"] = exchange.end.to_string().into();
        for (key, words) in [("opening", &exchange.opening), ("failure", &exchange.failure)] {
            if let Some(words) = words {
                row[key] = words.as_str().into();
            }
        }
    }
    if group.reward_names.is_empty() {
        return row;
    }
    let weights = group.reward_names.iter().map(|(_, weight)| *weight);
    // A completion on which a function failed earns nothing, as in training by default.
    row["reward"] = RewardFailure::Exclude.reward(&completion.rewards, weights).into();
    let named = group.reward_names.iter().map(|(name, _)| name).zip(&completion.rewards);
    let mut rewards = [("rewards", Map::new()), ("reward_steps", Map::new()), ("reward_errors", Map::new())];
    let [(_, scores), (_, steps), (_, errors)] = &mut rewards;
    for (name, outcome) in named {
        scores.insert(name.clone(), outcome.score().into());
        match outcome {
            RewardOutcome::Steps(found) => {
                steps.insert(name.clone(), found.iter().map(|s| json!([s.end, s.score])).collect());
            }
            RewardOutcome::Failed(reason) => {
                errors.insert(name.clone(), reason.clone().into());
            }
            RewardOutcome::Score(_) | RewardOutcome::NotApplicable => {}
        }
    }
    for (key, by_function) in rewards.into_iter().filter(|(_, by_function)| !by_function.is_empty()) {
        row[key] = by_function.into();
    }
    row
}

/// A value for each sampled token; null for given ones.
fn of_sampled(episode: &Episode, of: impl Fn(&TokenLogprob) -> Value) -> Value {
    let mut logprobs = episode.logprobs();
    episode.owner_mask().map(|sampled| if sampled { logprobs.next().map(&of) } else { None }).collect()
}

#[cfg(test)]
mod tests {
    use shared::{Group, Segment, Why, generation::testing};

    use super::*;

    #[test]
    fn a_first_function_that_says_nothing_is_named_where_others_gave_scores() {
        let of = |outcomes: Vec<RewardOutcome>| {
            let completion = Completion { rewards: outcomes, ..testing::completion(0, vec![1]) };
            let reward_names = vec![("answers".into(), 1.0), ("form".into(), 1.0)];
            let groups = [Group { reward_names, ..testing::group(0, vec![completion]) }.into()];
            nothing_judged(&groups, &[]).to_string()
        };
        let silent = RewardOutcome::NotApplicable;
        assert!(of(vec![silent.clone(), RewardOutcome::Score(1.0)]).contains("`answers`, the first reward function,"));
        assert!(of(vec![silent.clone(), silent]).contains("every reward function abstained"));
    }

    #[test]
    fn given_tokens_are_named_and_have_no_log_probs() {
        let mut two_turns = testing::completion(0, vec![5, 6]);
        let one_turn = two_turns.clone();
        two_turns.episode.push(Segment::Given { ids: &[7], why: Why::Reply });
        let group = Scored::from(testing::group(0, Vec::new()));
        let plain = row(&group, &one_turn);
        assert_eq!((&plain["logprobs"], plain.get("owner")), (&json!([0.0, 0.0]), None));
        let found = row(&group, &two_turns);
        assert_eq!(found["token_ids"], json!([5, 6, 7]));
        assert_eq!((&found["logprobs"], &found["owner"]), (&json!([0.0, 0.0, null]), &json!([1, 1, 0])));
    }
}
