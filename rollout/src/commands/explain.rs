//! `rollout explain`: what became of a completion of a run, and why.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use serde_json::{Map, Value};
use shared::{
    LedgerGroup, LedgerState, ModelDir, RunDir,
    config::layers,
    files::journal::{self, Entry},
    metrics::Figure,
    run::ledger::{LedgerEvent, LedgerLine, TokenRecord, states_now},
};
use shared_bounds::OneLine;

use crate::data::Tokenizer;

/// Flags of `rollout explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run directory
    #[arg(value_name = "RUN_DIR")]
    pub run_dir: PathBuf,
    /// The step, the group within its batch and the completion within its group, as in 12.3.5; 12.3 is a whole group,
    /// 12 a step, and @37.5 a completion by the position of its prompt, for groups that were dropped
    #[arg(value_name = "ID")]
    pub id: String,
}

/// The part of a run that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Id {
    Step(u64),
    Group(u64, u32, Option<usize>),
    Position(u64, Option<usize>),
}

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let number = |part: &str| part.parse::<u64>().ok();
        if let Some(text) = text.strip_prefix('@') {
            let (position, sample) = text.split_once('.').map_or((text, None), |(p, s)| (p, Some(s)));
            let sample = sample.map(|sample| number(sample).ok_or(())).transpose().ok()?;
            return Some(Self::Position(number(position)?, sample.map(|n| n as usize)));
        }
        let parts: Vec<u64> = text.split('.').map(number).collect::<Option<_>>()?;
        match parts[..] {
            [step] => Some(Self::Step(step)),
            [step, group] => Some(Self::Group(step, u32::try_from(group).ok()?, None)),
            [step, group, sample] => Some(Self::Group(step, u32::try_from(group).ok()?, Some(sample as usize))),
            _ => None,
        }
    }

    fn finds(self, group: &LedgerGroup) -> bool {
        match self {
            Self::Step(step) => group.step == step,
            Self::Group(step, index, _) => group.step == step && group.group == Some(index),
            Self::Position(position, _) => group.position == position,
        }
    }

    fn sample(self) -> Option<usize> {
        match self {
            Self::Step(_) => None,
            Self::Group(_, _, sample) | Self::Position(_, sample) => sample,
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A folder that is no run, or an id that its ledger does not have.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let run_dir = RunDir::new(&args.run_dir);
    let id = Id::parse(&args.id).with_context(|| {
        format!("{} is no id: an id is STEP.GROUP.COMPLETION as in 12.3.5, or @POSITION.COMPLETION", args.id)
    })?;
    let path = run_dir.ledger();
    if !path.is_file() {
        bail!("{} has no ledger.jsonl: is it the directory of a run, and has it made a step?", args.run_dir.display());
    }
    let (lines, skipped) = journal::read::<LedgerLine>(&path)?;
    if !skipped.is_empty() {
        shared::tell!("warning: ledger.jsonl: {skipped}; what they say is left out");
    }
    let groups: Vec<&LedgerGroup> = lines
        .iter()
        .filter_map(|line| match line {
            LedgerLine::Group(group) if id.finds(group) => Some(group),
            _ => None,
        })
        .collect();
    if groups.is_empty() {
        let steps = |line: &LedgerLine| if let LedgerLine::Group(group) = line { Some(group.step) } else { None };
        let first = lines.iter().filter_map(steps).min().filter(|first| *first > 1);
        let last = lines.iter().map(LedgerLine::step).max().unwrap_or(0);
        let first = first.map_or_else(String::new, |first| {
            format!(", its first {first}: older ones are removed where records reach `records_size_limit`")
        });
        bail!("the ledger of {} has nothing under {}; its last step is {last}{first}", args.run_dir.display(), args.id);
    }
    let mut text = String::new();
    match id.sample() {
        None => groups.iter().for_each(|group| overview(&mut text, group, &lines)),
        Some(sample) => explain(&mut text, &run_dir, groups[0], sample, &lines)?,
    }
    io::stdout().write_all(text.as_bytes()).context("stdout")
}

/// `12.3`, or `@37` of a group without a place.
fn name(group: &LedgerGroup) -> String {
    group.group.map_or_else(|| format!("@{}", group.position), |index| format!("{}.{index}", group.step))
}

fn overview(text: &mut String, group: &LedgerGroup, lines: &[LedgerLine]) {
    let states: Vec<String> = states_now(group, lines).iter().map(ToString::to_string).collect();
    let filler = if group.filler { ", without contrast" } else { "" };
    let LedgerGroup { position, prompt_id, epoch, .. } = group;
    let _ = writeln!(text, "{} (prompt {prompt_id}, epoch {epoch}, position {position}{filler})", name(group));
    for (sample, state) in states.iter().enumerate() {
        let _ = writeln!(text, "  {}.{sample}  {state}", name(group));
    }
}

fn explain(
    text: &mut String,
    run_dir: &RunDir,
    group: &LedgerGroup,
    sample: usize,
    lines: &[LedgerLine],
) -> anyhow::Result<()> {
    let states = states_now(group, lines);
    let Some(state) = states.get(sample) else {
        bail!("{} has {} completions, counted from 0", name(group), states.len());
    };
    let LedgerGroup { step, position, prompt_id, epoch, .. } = group;
    let _ = writeln!(text, "{}.{sample}: {state}, {}", name(group), meaning(*state));
    let _ = writeln!(text, "step {step}, prompt {prompt_id} of the dataset, epoch {epoch}, position {position}");
    if let Some(survival) = survival(group, sample, lines) {
        let _ = writeln!(text, "{survival}");
    }
    if group.filler {
        text.push_str("its group has no contrast; it is there because dynamic sampling had spent its attempts\n");
    }
    let tokenizer = tokenizer(run_dir);
    let file = run_dir.step_completions(*step);
    match row_of(&file, group, sample)? {
        Some(row) => completion(text, &row, &|ids| tokenizer.as_ref()?.text_tokenizer().decode_all(ids).ok()),
        None if run_dir.logged_steps()?.first().is_some_and(|first| step < first) => {
            let why = "it was removed with the oldest completions, when the records had reached `records_size_limit`";
            let _ = writeln!(text, "{} is gone: {why}", file.display());
        }
        None => {
            let _ = writeln!(text, "{} does not have it (`log_completions`)", file.display());
        }
    }
    let file = run_dir.step_tokens(*step);
    match tokens_of(&file, group, sample)? {
        Some(record) => tokens(text, &record, tokenizer.as_ref(), *state, moves_all(run_dir)),
        None => {
            let _ = writeln!(text, "\n{} is not kept (`token_records`)", file.display());
        }
    }
    Ok(())
}

/// How a completion survived a death of the sampler, or whether it was drawn again.
fn survival(group: &LedgerGroup, sample: usize, lines: &[LedgerLine]) -> Option<&'static str> {
    lines.iter().find_map(|line| {
        let LedgerLine::Event { step, event } = line else { return None };
        let (completions, meaning) = match event {
            LedgerEvent::CarriedOver(completions) => {
                (completions, "carried over: a checkpoint kept it when both processes, or the sampler, died")
            }
            LedgerEvent::MadeAgain(completions) => {
                (completions, "made again: it had been begun when both processes, or the sampler, died")
            }
            LedgerEvent::DrawnAgain(completions) => {
                (completions, "drawn again: its group was dropped before for its stragglers (`stragglers`)")
            }
            LedgerEvent::Resumed | LedgerEvent::RolledBack { .. } => return None,
        };
        let is_of = *step == group.step && completions.position == group.position;
        (is_of && completions.samples.iter().any(|known| *known as usize == sample)).then_some(meaning)
    })
}

fn meaning(state: LedgerState) -> &'static str {
    match state {
        LedgerState::Trained => "it was in the loss of an update that was made",
        LedgerState::Truncated => {
            "it was cut off, and `mask_truncated_completions` leaves such completions out of the loss"
        }
        LedgerState::OffPolicy => "the correction for the mismatch gave all of its tokens the weight 0",
        LedgerState::OffPolicyMasked => {
            "the policy had moved away from it, and `off_policy_mask_threshold` left it out of the policy term"
        }
        LedgerState::LowEntropy => {
            "all of its tokens were of low entropy, and `top_entropy_quantile` left them out of the policy term"
        }
        LedgerState::EarlyStopped => "`early_stop_imp_ratio` left out its minibatch, whose mean ratio was too large",
        LedgerState::CriticWarmup => "only the critic learnt from it (`critic_warmup_steps`)",
        LedgerState::EnvironmentFailed => "its environment failed, or it took too long, and it has no reward",
        LedgerState::Straggler => {
            "it took much longer than others of its group (`straggler_after`), and `stragglers` left it out"
        }
        LedgerState::RewardFailed => "a reward function failed on it, and it has no reward that counts",
        LedgerState::Abstained => "no reward function had anything to say of it, so that its advantage is 0",
        LedgerState::Stale => "its group was sampled from weights older than `max_staleness` allows",
        LedgerState::NoContrast => {
            "dynamic sampling replaced its group, in which nothing says which completion is better"
        }
        LedgerState::StepSkipped => {
            "every update that it was in was left out: by the guard, or because loss or gradient was not finite"
        }
        LedgerState::RolledBack => "it was in the loss of a step that a roll-back has given up",
        LedgerState::Aborted => "the sampler gave it up",
        LedgerState::InFlight => "it was made, or in the making, when the run ended before its step",
    }
}

/// The line of `completions/step-N.jsonl` about a completion.
fn row_of(path: &Path, group: &LedgerGroup, sample: usize) -> anyhow::Result<Option<Map<String, Value>>> {
    let is = |row: &Map<String, Value>, key: &str, value: u64| row.get(key).and_then(Value::as_u64) == Some(value);
    let rows = whole_lines::<Map<String, Value>>(path)?;
    Ok(rows.into_iter().find(|row| is(row, "position", group.position) && is(row, "sample", sample as u64)))
}

fn tokens_of(path: &Path, group: &LedgerGroup, sample: usize) -> anyhow::Result<Option<TokenRecord>> {
    let Some(index) = group.group else { return Ok(None) };
    let records = whole_lines::<TokenRecord>(path)?;
    Ok(records.into_iter().find(|record| record.group == index && record.sample as usize == sample))
}

/// The lines of a file of completions, which is always written as a whole. The number of unreadable lines, which are
/// left out, is told.
fn whole_lines<T: Entry>(path: &Path) -> anyhow::Result<Vec<T>> {
    let (lines, skipped) = journal::read(path)?;
    let skipped = skipped.of_a_whole_file();
    if !skipped.is_empty() {
        shared::tell!("warning: {}: {skipped}; what they say is left out", path.display());
    }
    Ok(lines)
}

/// What is recorded of a completion, with the ids of a prompt made a text by `decode`.
fn completion(text: &mut String, row: &Map<String, Value>, decode: &dyn Fn(&[u32]) -> Option<String>) {
    let shown = |key: &str| row.get(key).filter(|value| !value.is_null()).map_or("none".to_owned(), Value::to_string);
    let pairs = |key: &str| -> Vec<String> {
        let list = row.get(key).and_then(Value::as_object);
        list.into_iter().flatten().map(|(name, value)| format!("{name} {value}")).collect()
    };
    let _ = writeln!(text, "rewards: {}; together {}", pairs("rewards").join(", "), shown("reward"));
    for error in pairs("reward_errors") {
        let _ = writeln!(text, "reward error: {}", OneLine(&error));
    }
    let finish = row.get("finish_reason").and_then(Value::as_str).unwrap_or_default();
    let given = row.get("given_tokens").map_or(String::new(), |tokens| format!(" and {tokens} given"));
    let _ = writeln!(text, "advantage: {}; {} tokens{given}, ended by {finish}", shown("advantage"), shown("tokens"));
    for (title, key) in [("row", "columns"), ("logged by reward functions", "extra")] {
        for column in pairs(key) {
            let _ = writeln!(text, "{title}: {}", OneLine(&column));
        }
    }
    let words = |key: &str| row.get(key).and_then(Value::as_str);
    let shared: Vec<u32> = list(row, "shared_prompt_ids").filter_map(|id| id.as_u64()?.try_into().ok()).collect();
    match decode(&shared).filter(|_| !shared.is_empty()) {
        // An agent may ask with a prompt of its own in the place of the row's.
        Some(shared) => {
            said(text, "prompt of the row, which the agent was given", words("prompt").unwrap_or_default());
            said(text, "what the policy read before all else, in all completions of the group", &shared);
        }
        None => said(text, "prompt", words("prompt").unwrap_or_default()),
    }
    let Some(messages) = row.get("messages").and_then(Value::as_array) else {
        return said(text, "completion", words("completion").unwrap_or_default());
    };
    if let Some(opening) = words("opening") {
        said(text, "environment, in the prompt", opening);
    }
    let lengths: Vec<u64> = list(row, "branch_messages").filter_map(Value::as_u64).collect();
    if let Some(others) = row.get("branches").filter(|_| lengths.is_empty()) {
        let _ = writeln!(text, "\nbranches beside the first: {others}; where each begins is not recorded");
    }
    let (mut rest, mut earned) = (messages.as_slice(), list(row, "turn_rewards"));
    for (index, length) in lengths.iter().enumerate() {
        let (own, others) = rest.split_at(rest.len().min(*length as usize));
        let (branch, of, reward) = (index + 1, lengths.len(), shown("reward"));
        let _ = writeln!(text, "\nbranch {branch} of {of}, with the reward {reward} that all of them share");
        conversation(text, own, &mut earned);
        rest = others;
    }
    conversation(text, rest, &mut earned);
    if let Some(reward) = row.get("end_reward") {
        let _ = writeln!(text, "\nreward at the end: {reward}");
    }
    let _ = writeln!(text, "\n{}", end_of(row));
}

/// The values of a list.
fn list<'a>(row: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    row.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn said(text: &mut String, title: &str, words: &str) {
    let _ = writeln!(text, "\n{title}:");
    for line in words.lines() {
        let _ = writeln!(text, "  {}", OneLine(line));
    }
}

/// The messages of a conversation; the policy's own have the next rewards of those that turns `earned`.
fn conversation<'a>(text: &mut String, messages: &[Value], earned: &mut impl Iterator<Item = &'a Value>) {
    for message in messages {
        let of_turn = (message["role"] == "assistant").then(|| earned.next()).flatten().filter(|one| !one.is_null());
        let reward = of_turn.map(|reward| format!(", reward {reward}")).unwrap_or_default();
        said(text, &format!("{}{reward}", speaker(message)), &words_of(message));
    }
}

/// Who has written a message.
fn speaker(message: &Value) -> String {
    match (message["role"].as_str(), message["name"].as_str()) {
        (Some("assistant"), _) => "policy".to_owned(),
        (Some(role), Some(name)) => format!("{role} {name}"),
        (role, _) => role.unwrap_or("unknown").to_owned(),
    }
}

/// The text of a message, and its calls.
fn words_of(message: &Value) -> String {
    let content = shared_chat::text_of(&message["content"]).unwrap_or_default();
    let call = |call: &Value| {
        let function = &call["function"];
        format!("calls {} {}", function["name"].as_str().unwrap_or_default(), function["arguments"])
    };
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(call);
    std::iter::once(content.into_owned()).filter(|text| !text.is_empty()).chain(calls).collect::<Vec<_>>().join("\n")
}

/// How a conversation ended, in a line.
fn end_of(row: &Map<String, Value>) -> String {
    let number = |key: &str| row.get(key).and_then(Value::as_u64).unwrap_or(0);
    let end = row.get("end").and_then(Value::as_str).unwrap_or_default();
    let failure = row.get("failure").and_then(Value::as_str).map(|reason| format!(": {}", OneLine(reason)));
    let (turns, calls, failed) = (number("turns"), number("calls"), number("failed_calls"));
    let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    format!(
        "conversation: {}, {}, of which {failed} failed; ended by {end}{}",
        counted(turns, "turn"),
        counted(calls, "call"),
        failure.unwrap_or_default()
    )
}

fn tokenizer(run_dir: &RunDir) -> Option<Tokenizer> {
    let config = layers::load(Some(&run_dir.config()), &Vec::new()).ok()?;
    Tokenizer::open(&ModelDir::of_run(&config).ok()?).ok()
}

/// Whether the loss of a run may move tokens that have no advantage: by a KL term, an entropy bonus, or a penalty of
/// its own.
fn moves_all(run_dir: &RunDir) -> bool {
    let config = layers::load(Some(&run_dir.config()), &Vec::new());
    config.is_ok_and(|config| {
        let in_loss = config.beta != 0.0 && !config.use_kl_in_reward;
        let has_bonus = config.entropy_coef != 0.0 || config.use_adaptive_entropy;
        in_loss || has_bonus || config.old_policy_kl_coef != 0.0 || config.loss_type.spec().moves_without_advantage
    })
}

fn tokens(text: &mut String, record: &TokenRecord, tokenizer: Option<&Tokenizer>, state: LedgerState, moves_all: bool) {
    let versions: Vec<String> =
        record.versions.iter().map(|(first, version)| format!("v{version} from token {first}")).collect();
    let _ = writeln!(text, "\nsampled from {}", versions.join(", "));
    if tokenizer.is_none() {
        text.push_str("the run's model is gone, and with it the texts of tokens\n");
    }
    text.push_str(
        "\n    #  token               sampler    learner  difference  entropy  advantage   weight  what the loss did\n",
    );
    let begins = |at: usize| record.branches.iter().position(|first| *first as usize == at).map(|index| index + 2);
    for (at, &token) in record.tokens.iter().enumerate() {
        if let Some(branch) = begins(at).or((at == 0 && !record.branches.is_empty()).then_some(1)) {
            let _ = writeln!(text, "branch {branch} of {}", record.branches.len() + 1);
        }
        let shown = match tokenizer.map(|tokenizer| piece(tokenizer, token)) {
            Some(piece) => format!("{token} {}", OneLine(format!("{piece:?}"))),
            None => token.to_string(),
        };
        if record.is_given(at) {
            let _ = writeln!(text, "{at:>5}  {shown:<18} given to the policy, not sampled");
            continue;
        }
        let of = |values: &[f32]| values.get(at).copied().unwrap_or(f32::NAN);
        let figure = |value: f32| Figure(value.into());
        let (sampler, learner) = (of(&record.sampler), of(&record.learner));
        let weight = if record.weights.len() == 1 { record.weights[0] } else { of(&record.weights) };
        let marks: Vec<&str> = record
            .marks
            .iter()
            .filter(|(_, at_all)| at_all.contains(&(at as u32)))
            .map(|(key, _)| key.as_str())
            .collect();
        let done = what_the_loss_did(state, of(&record.advantages), weight, &marks, moves_all);
        let weight = if weight.is_nan() { "-".to_owned() } else { format!("{:.4}", figure(weight)) };
        let _ = writeln!(
            text,
            "{at:>5}  {shown:<18} {sampler:>8.4}  {learner:>9.4}  {:>10.1e}  {:>7.3}  {:>9.4}  {weight:>7}  {done}",
            learner - sampler,
            of(&record.entropy),
            figure(of(&record.advantages)),
        );
    }
}

/// The text of a token; of a special one its name.
fn piece(tokenizer: &Tokenizer, token: u32) -> String {
    tokenizer.special_text(token).or_else(|| tokenizer.decode(&[token]).ok()).unwrap_or_default()
}

/// The effect of the loss on a token of a completion in this state. The weight is that of the correction for the
/// mismatch, NaN without one. The marks are metrics that count the token as clipped or masked. [`moves_all`] says
/// whether a token without an advantage may be moved.
fn what_the_loss_did(state: LedgerState, advantage: f32, weight: f32, marks: &[&str], moves_all: bool) -> String {
    let was_in_loss = matches!(state, LedgerState::Trained | LedgerState::RolledBack) && weight != 0.0;
    match marks {
        [] if was_in_loss && advantage > 0.0 => "pushed up".to_owned(),
        [] if was_in_loss && advantage < 0.0 => "pushed down".to_owned(),
        [] if was_in_loss && moves_all => "no advantage: a penalty or bonus at most".to_owned(),
        [] => "nothing".to_owned(),
        marks => format!("counted in {}", marks.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use shared::run::ledger::Completions;

    use super::*;

    #[test]
    fn ids_are_steps_groups_completions_or_positions() {
        for (text, id) in [
            ("12", Some(Id::Step(12))),
            ("12.3", Some(Id::Group(12, 3, None))),
            ("12.3.5", Some(Id::Group(12, 3, Some(5)))),
            ("@37", Some(Id::Position(37, None))),
            ("@37.5", Some(Id::Position(37, Some(5)))),
            ("", None),
            ("a", None),
            ("1.2.3.4", None),
            ("@37.x", None),
        ] {
            assert_eq!(Id::parse(text), id, "{text}");
        }
    }

    #[test]
    fn a_completion_that_was_not_trained_was_pushed_nowhere() {
        for &state in <LedgerState as shared::config::Choice>::ALL {
            let pushed = matches!(state, LedgerState::Trained | LedgerState::RolledBack);
            let of = |advantage, weight| what_the_loss_did(state, advantage, weight, &[], false);
            assert_eq!(of(1.0, f32::NAN) == "pushed up", pushed, "{state}");
            assert_eq!(of(-1.0, 0.5) == "pushed down", pushed, "{state}");
            assert_eq!([of(0.0, 1.0), of(1.0, 0.0)], ["nothing"; 2], "{state}");
            let penalised = what_the_loss_did(state, 0.0, f32::NAN, &[], true);
            assert_eq!(penalised == "no advantage: a penalty or bonus at most", pushed, "{state}");
            assert_eq!(
                what_the_loss_did(state, 1.0, 1.0, &["clip_ratio/high_mean"], true),
                "counted in clip_ratio/high_mean"
            );
        }
    }

    #[test]
    fn a_conversation_is_shown_message_by_message_with_its_calls() {
        let call = serde_json::json!({ "function": { "name": "add", "arguments": { "a": 2 } } });
        let row = serde_json::json!({
            "prompt": "2+3?", "completion": "all in one", "opening": "Room 1",
            "messages": [
                { "role": "assistant", "content": "", "tool_calls": [call] },
                { "role": "tool", "name": "add", "content": "5" },
                { "role": "assistant", "content": "It is 5." },
            ],
            "turns": 2, "calls": 1, "failed_calls": 0, "end": "deadline", "failure": "late\nvery",
            "turn_rewards": [0.5, null], "end_reward": 1.0,
        });
        let mut text = String::new();
        completion(&mut text, row.as_object().unwrap(), &|_| None);
        let expected = "\nprompt:\n  2+3?\n\nenvironment, in the prompt:\n  Room 1\n\npolicy, reward \
                        0.5:\n  calls add {\"a\":2}\n\ntool add:\n  5\n\npolicy:\n  It is 5.\n\nreward at the \
                        end: 1.0\n\nconversation: 2 turns, 1 \
                        call, of which 0 failed; ended by deadline: late";
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("all in one"), "{text}");
    }

    #[test]
    fn of_an_agent_the_prompt_is_shown_that_the_policy_read() {
        let row = serde_json::json!({ "prompt": "2+3?", "completion": "5", "shared_prompt_ids": [4, 7] });
        let of = |decode: &dyn Fn(&[u32]) -> Option<String>| {
            let mut text = String::new();
            completion(&mut text, row.as_object().unwrap(), decode);
            text
        };
        let shown = of(&|ids| Some(format!("You add.\n{ids:?}")));
        let expected = "\nprompt of the row, which the agent was given:\n  2+3?\n\nwhat the policy read before all \
                        else, in all completions of the group:\n  You add.\n  [4, 7]\n";
        assert!(shown.contains(expected), "{shown}");
        assert!(of(&|_| None).contains("\nprompt:\n  2+3?\n"), "without the model's tokenizer");
    }

    #[test]
    fn each_branch_of_an_agent_is_shown_on_its_own_with_the_reward_of_all() {
        let message = |role: &str, content: &str| serde_json::json!({ "role": role, "content": content });
        let mut row = serde_json::json!({
            "prompt": "2+3?", "completion": "all in one", "reward": 0.5, "branches": 1, "branch_messages": [1, 2],
            "messages": [message("assistant", "5"), message("user", "Plan."), message("assistant", "Add.")],
            "turns": 2, "calls": 0, "failed_calls": 0, "end": "stop",
        });
        let explained = |row: &Value| {
            let mut text = String::new();
            completion(&mut text, row.as_object().unwrap(), &|_| None);
            text.split_once("2+3?\n\n").unwrap().1.to_owned()
        };
        let messages = ["policy:\n  5\n\n", "user:\n  Plan.\n\npolicy:\n  Add.\n\n", "conversation: 2 turns"];
        let shared = "with the reward 0.5 that all of them share\n\n";
        let expected =
            format!("branch 1 of 2, {shared}{}branch 2 of 2, {shared}{}{}", messages[0], messages[1], messages[2]);
        assert!(explained(&row).starts_with(&expected), "{}", explained(&row));
        // A run of an earlier version.
        row.as_object_mut().unwrap().remove("branch_messages");
        let expected =
            format!("branches beside the first: 1; where each begins is not recorded\n\n{}", messages.concat());
        assert!(explained(&row).starts_with(&expected), "{}", explained(&row));
    }

    #[test]
    fn what_outlived_a_crash_is_said() {
        let group = LedgerGroup {
            step: 4,
            group: Some(1),
            position: 10,
            prompt_id: 3,
            epoch: 0,
            states: vec![LedgerState::Trained; 3],
            filler: false,
        };
        let of = |samples| Completions { position: 10, group: Some(1), samples };
        let lines = [
            LedgerLine::Event { step: 4, event: LedgerEvent::CarriedOver(of(vec![2])) },
            LedgerLine::Event { step: 4, event: LedgerEvent::MadeAgain(of(vec![0])) },
            LedgerLine::Event { step: 4, event: LedgerEvent::DrawnAgain(of(vec![1])) },
        ];
        let said = |group: &LedgerGroup| {
            [0, 1, 2].map(|sample| survival(group, sample, &lines).map(|text| text.split_once(':').unwrap().0))
        };
        assert_eq!(said(&group), [Some("made again"), Some("drawn again"), Some("carried over")]);
        assert_eq!(said(&LedgerGroup { position: 11, ..group }), [None; 3]);
    }

    #[test]
    fn a_given_token_is_shown_as_such_and_has_no_figures() {
        let record = TokenRecord {
            group: 0,
            sample: 0,
            tokens: vec![5, 6, 7],
            owner: vec![1, 0, 1],
            branches: Vec::new(),
            versions: vec![(0, 3), (2, 4)],
            sampler: vec![-1.5, f32::NAN, -0.5],
            learner: vec![-1.5, f32::NAN, -0.5],
            entropy: Vec::new(),
            advantages: vec![1.0, f32::NAN, 1.0],
            weights: Vec::new(),
            marks: std::collections::BTreeMap::new(),
        };
        let shown = |record: &TokenRecord| {
            let mut text = String::new();
            tokens(&mut text, record, None, LedgerState::Trained, false);
            assert_eq!(text.lines().nth(2), Some("the run's model is gone, and with it the texts of tokens"));
            text.lines().skip(5).map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
        };
        let lines = shown(&record);
        assert_eq!(lines[1], "    1  6                  given to the policy, not sampled");
        assert!(lines[0].contains("-1.5000") && lines[2].ends_with("pushed up"), "{lines:?}");
        let extreme = shown(&TokenRecord { advantages: vec![1e30; 3], weights: vec![1e30], ..record.clone() });
        assert!(extreme[0].contains("  1.0000e30  1.0000e30  pushed up"), "{extreme:?}");
        let branched = shown(&TokenRecord { branches: vec![1], ..record.clone() });
        assert_eq!((branched[0].as_str(), branched[2].as_str()), ("branch 1 of 2", "branch 2 of 2"));
        assert_eq!([&branched[1], &branched[3], &branched[4]], [&lines[0], &lines[1], &lines[2]]);
        let all_sampled = shown(&TokenRecord { owner: Vec::new(), ..record });
        assert!(all_sampled.iter().all(|line| !line.contains("given")) && all_sampled[2] == lines[2]);
    }
}
