//! What has changed since the checkpoint that a run goes on from.

use shared::{
    config::TrainConfig,
    run::{
        checkpoints::CHECKSUMS_FILE,
        notices::{Notice, NoticeKind},
        resume::changed_options,
    },
    system::memory::Size,
};

use crate::checkpoint::{Origin, TrainerState};

/// A notice for each kind of thing that is not as it was when the checkpoint was made.
pub fn since_checkpoint(saved: &TrainerState, config: &TrainConfig, now: &Origin) -> Vec<Notice> {
    let step = saved.step;
    let notice = |kind, what: String, remedy: &str| {
        Notice::new(kind, step, format!("the run goes on from checkpoint-{step} {what}"), remedy)
    };
    let mut list = Vec::new();
    let changes: Vec<String> = changed_options(&saved.config, config).iter().map(ToString::to_string).collect();
    if !changes.is_empty() {
        let what = format!("with other options than it was made with: {}", changes.join(", "));
        list.push(notice(
            NoticeKind::OptionsChanged,
            what,
            "if that is not meant, resume with the options in config.toml of the run as it was",
        ));
    }
    let differs = |before: &Option<String>, now: &Option<String>| before.is_some() && now.is_some() && before != now;
    let before = &saved.origin;
    let is_option = |key: &str| changed_options(&saved.config, config).iter().any(|change| change.key == key);
    if differs(&before.dataset, &now.dataset) && !is_option("dataset") {
        list.push(notice(
            NoticeKind::DataChanged,
            format!("with another content of {}", config.dataset),
            "the position in the data counts rows, so it goes on at the same number of the new ones",
        ));
    }
    if differs(&before.model, &now.model) && !is_option("model") {
        list.push(notice(
            NoticeKind::DataChanged,
            format!("with another content of {}", config.model.display()),
            "the weights go on from the checkpoint; tokenizer, chat template and reference are those of the folder as \
             it is now",
        ));
    }
    let programs = differs(&before.programs, &now.programs).then_some("other builds of the programs");
    let rewards = differs(&before.reward_files, &now.reward_files) && !is_option("reward_funcs");
    let changed: Vec<&str> = programs.into_iter().chain(rewards.then_some("other files of reward functions")).collect();
    if !changed.is_empty() {
        list.push(notice(
            NoticeKind::CodeChanged,
            format!("with {}", changed.join(" and ")),
            "steps before and after it may not be comparable",
        ));
    }
    if let (Some(before), Some(now)) = (&before.instructions, &now.instructions)
        && before != now
        && !is_option("bf16")
    {
        list.push(notice(
            NoticeKind::ProcessorChanged,
            format!("with {now}, where it was made with {before}"),
            "sums are rounded in another order, so steps are not repeated byte for byte; ATEN_CPU_CAPABILITY and \
             TANDEM_CPU_CAPABILITY give a processor the lesser instructions",
        ));
    }
    list
}

/// The notice of a newer checkpoint than that of `step`, which was set aside.
pub fn damaged(step: u64, what: String) -> Notice {
    let text = format!("the run goes on from checkpoint-{step}, since newer ones are damaged: {what}");
    Notice::new(NoticeKind::CheckpointDamaged, step, text, "look at the disk; the steps behind it are made again")
}

/// The notice of a checkpoint that has no list of checksums.
pub fn unchecked(step: u64) -> Notice {
    let text = format!(
        "checkpoint-{step} has no {CHECKSUMS_FILE}, so nothing says that it is as it was written; its files could be \
         read"
    );
    let remedy =
        "that is as it should be for a checkpoint of an earlier version; else go on from one that has its list";
    Notice::new(NoticeKind::CheckpointUnchecked, step, text, remedy)
}

/// The notice of records that are damaged or missing, if any are.
pub fn records_damaged(step: u64, found: &[String]) -> Option<Notice> {
    let text = format!("records of the steps before are not whole: {}", found.join("; "));
    let remedy = "look at the disk; training is not concerned, charts and report go without them";
    (!found.is_empty()).then(|| Notice::new(NoticeKind::RecordsDamaged, step, text, remedy))
}

/// The notice of records that went because they had outgrown their limit; told once for each `subject`.
pub fn records_removed(step: u64, limit: Size, subject: &str, what: &str) -> Notice {
    let text = format!(
        "the records of the run have reached `records_size_limit` ({limit}); from now on the oldest go: {what}"
    );
    let remedy = "raise `records_size_limit` (0 = no limit) to keep more, or copy what is to be kept";
    Notice::new(NoticeKind::RecordsRemoved, step, text, remedy).about(subject)
}

/// The notice of what had to go because the disk was short.
pub fn disk_short(step: u64, gone: &str) -> Notice {
    let text = format!("the next checkpoint would not have fitted on the disk; removed: {gone}");
    Notice::new(NoticeKind::DiskShort, step, text, "free some space, set `save_total_limit`, or raise `save_steps`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(dataset: &str, programs: &str, reward_files: Option<&str>) -> Origin {
        Origin {
            model: Some("m".into()),
            dataset: Some(dataset.into()),
            programs: Some(programs.into()),
            reward_files: reward_files.map(str::to_owned),
            instructions: Some("AVX512".into()),
        }
    }

    #[test]
    fn what_changed_since_a_checkpoint_is_told_and_what_did_not_is_not() {
        let config = TrainConfig::default();
        let now = origin("d", "p", Some("r"));
        let saved = TrainerState { step: 7, origin: now.clone(), ..TrainerState::start(&config, 9) };
        assert_eq!(since_checkpoint(&saved, &config, &now), []);
        let unknown = TrainerState { origin: Origin::default(), ..saved.clone() };
        assert_eq!(since_checkpoint(&unknown, &config, &now), [], "an older checkpoint does not say");
        let told = |config: &TrainConfig, now: &Origin| -> Vec<(NoticeKind, String)> {
            since_checkpoint(&saved, config, now).into_iter().map(|n| (n.kind, n.text)).collect()
        };
        let begin = "the run goes on from checkpoint-7 with ";
        let other = TrainConfig { num_generations: 4, ..config.clone() };
        let options = format!("{begin}other options than it was made with: `num_generations` 8 -> 4");
        assert_eq!(told(&other, &now), [(NoticeKind::OptionsChanged, options)]);
        let elsewhere = TrainConfig { dataset: "data.jsonl".into(), ..config.clone() };
        let kinds: Vec<_> = told(&elsewhere, &origin("e", "p", Some("r"))).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [NoticeKind::OptionsChanged], "another dataset was asked for");
        let found = told(&config, &origin("e", "q", Some("s")));
        assert_eq!(found[0].0, NoticeKind::DataChanged);
        let code = format!("{begin}other builds of the programs and other files of reward functions");
        assert_eq!(found[1], (NoticeKind::CodeChanged, code));
        let lesser = Origin { instructions: Some("AVX2".into()), ..now.clone() };
        let processor = format!("{begin}AVX2, where it was made with AVX512");
        assert_eq!(told(&config, &lesser), [(NoticeKind::ProcessorChanged, processor)]);
    }
}
