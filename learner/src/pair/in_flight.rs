//! What the sampler has in flight: it becomes part of a checkpoint, and a run that goes on from that can use it or not.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use shared::{
    RunDir, Step,
    channel::InFlight,
    config::{TrainConfig, option},
    files::{atomic, run_dir::IN_FLIGHT_FILE},
    run::resume::changed_options,
};

use super::Link;
use crate::{
    checkpoint::{Origin, TrainerState},
    error::LearnerError,
};

/// How long a checkpoint is held up by a sampler that lives and does not answer: it loads a model, or is in a long
/// step.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which it counts as dead or stopped.
const QUIET: Duration = Duration::from_secs(1);
/// How often its answer is looked for.
const POLL: Duration = Duration::from_millis(1);

/// Sections of the options that decide what a completion and its rewards are.
const MADE_BY: [&str; 3] = ["Model and data", "Rewards", "Generation"];
/// Options of other sections that do.
const ALSO_MADE_BY: [&str; 2] = ["seed", "max_model_len"];

/// What the sampler was asked for. It writes while the learner writes its own part.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    learner: u64,
    step: Step,
    since: Instant,
}

impl Request {
    /// Asks the sampler for what it has in flight, for a checkpoint of the step where the run is.
    ///
    /// # Errors
    /// When an answer to an earlier request cannot be removed.
    pub fn make(run_dir: &RunDir, link: &Link) -> Result<Self, LearnerError> {
        atomic::remove_file(&run_dir.in_flight())?;
        link.announce(|status| status.saving = true);
        let status = link.status();
        Ok(Self { learner: status.incarnation, step: status.step, since: Instant::now() })
    }

    /// Moves the answer into the checkpoint in `dir`, if one comes in time; whether it has.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn take(self, run_dir: &RunDir, link: &Link, dir: &Path) -> Result<bool, LearnerError> {
        let problem = match self.answer(link) {
            Ok(Some(hash)) => {
                let path = dir.join(IN_FLIGHT_FILE);
                fs::rename(run_dir.in_flight(), &path)?;
                if *blake3::hash(&fs::read(&path)?).as_bytes() == hash {
                    return Ok(true);
                }
                atomic::remove_file(&path)?;
                "it is not what the sampler wrote"
            }
            Ok(None) => "the sampler could not write it; see logs/rollout.log",
            Err(reason) => reason,
        };
        let step = self.step;
        tracing::warn!(
            "checkpoint-{step} is without what is in flight at the sampler, which a resume samples again: {problem}"
        );
        Ok(false)
    }

    fn answer(&self, link: &Link) -> Result<Option<[u8; 32]>, &'static str> {
        loop {
            let answer = link.sampler().and_then(|sampler| sampler.in_flight);
            if let Some(InFlight { blake3, .. }) = answer.filter(|a| (a.learner, a.step) == (self.learner, self.step)) {
                return Ok(blake3);
            }
            if link.silence() > QUIET {
                return Err("the sampler gives no sign of life");
            }
            if self.since.elapsed() > PATIENCE {
                return Err("the sampler does not answer in time");
            }
            thread::sleep(POLL);
        }
    }
}

/// Whether the checkpoint that a run goes on from has what was in flight, and that is as it would be made now.
pub fn fits(run_dir: &RunDir, checkpoint: &Path, saved: &TrainerState, config: &TrainConfig, now: &Origin) -> bool {
    let own = checkpoint == run_dir.checkpoint(saved.step) && config.max_staleness > 0;
    if !own || !checkpoint.join(IN_FLIGHT_FILE).is_file() {
        return false;
    }
    let reasons = misfits(saved, config, now);
    if !reasons.is_empty() {
        tracing::info!(
            "what was in flight at checkpoint-{} is left aside, since it was made otherwise: {}",
            saved.step,
            reasons.join(", ")
        );
    }
    reasons.is_empty()
}

/// What has changed of that by which completions and their rewards are made.
fn misfits(saved: &TrainerState, config: &TrainConfig, now: &Origin) -> Vec<String> {
    let makes =
        |key: &str| ALSO_MADE_BY.contains(&key) || option(key).is_some_and(|option| MADE_BY.contains(&option.section));
    let changes = changed_options(&saved.config, config);
    let mut reasons: Vec<String> =
        changes.iter().filter(|change| makes(&change.key)).map(ToString::to_string).collect();
    let before = &saved.origin;
    for (what, before, now) in [
        ("the dataset", &before.dataset, &now.dataset),
        ("the model's files", &before.model, &now.model),
        ("files of reward functions", &before.reward_files, &now.reward_files),
    ] {
        if before != now {
            reasons.push(format!("another content of {what}"));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use harness::memory;
    use shared::channel::{
        LearnerStatus, SamplerEnd, SamplerStatus,
        in_flight::{read_groups, write_groups},
    };
    use shared::{Group, generation::testing};

    use super::*;

    #[test]
    fn what_was_made_otherwise_is_told_and_left_aside() {
        let origin = Origin { dataset: Some("a".into()), ..Origin::default() };
        let config = TrainConfig { max_staleness: 2, ..TrainConfig::default() };
        let saved = TrainerState { step: 8, origin: origin.clone(), ..TrainerState::start(&config, 9) };
        let told = |change: fn(&mut TrainConfig), dataset: &str| {
            let mut now = config.clone();
            change(&mut now);
            misfits(&saved, &now, &Origin { dataset: Some(dataset.into()), ..Origin::default() })
        };
        assert_eq!(told(|c| (c.learning_rate, c.max_steps, c.max_staleness) = (1.0, Some(99), 1), "a"), [""; 0]);
        assert_eq!(told(|c| c.num_generations = 4, "a"), ["`num_generations` 8 -> 4"]);
        assert_eq!(told(|c| c.seed = 1, "a"), ["`seed` 42 -> 1"]);
        assert_eq!(told(|c| c.reward_funcs = vec!["x".into()], "a"), ["`reward_funcs` [] -> [\"x\"]"]);
        assert_eq!(told(|_| (), "b"), ["another content of the dataset"]);

        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        let checkpoint = run_dir.checkpoint(8);
        fs::create_dir(&checkpoint).unwrap();
        assert!(!fits(&run_dir, &checkpoint, &saved, &config, &origin), "there is nothing");
        write_groups::<Group>(&checkpoint.join(IN_FLIGHT_FILE), []).unwrap();
        assert!(fits(&run_dir, &checkpoint, &saved, &config, &origin));
        assert!(!fits(&run_dir, &checkpoint, &saved, &config, &Origin::default()));
        assert!(!fits(&RunDir::new("elsewhere"), &checkpoint, &saved, &config, &origin), "of another run");
        let synchronous = TrainConfig { max_staleness: 0, ..config };
        assert!(!fits(&run_dir, &checkpoint, &saved, &synchronous, &origin));
    }

    #[test]
    fn an_answer_is_moved_into_the_checkpoint_if_it_is_the_one_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        let checkpoint = dir.path().join("checkpoint");
        fs::create_dir(&checkpoint).unwrap();
        let (mut sampler, end) = memory::pair(1);
        let status = LearnerStatus { incarnation: 3, step: Step(7), ..LearnerStatus::default() };
        let link = Link::start(end, status, 1, Duration::from_secs(60));
        let groups = [testing::group(0, vec![testing::completion(0, vec![1])])];
        let hash = |groups: &[Group]| write_groups(&run_dir.in_flight(), groups).unwrap();
        for (learner, step, changed, taken) in
            [(3, 7, false, true), (3, 6, false, false), (2, 7, false, false), (3, 7, true, false)]
        {
            let request = Request::make(&run_dir, &link).unwrap();
            assert!(link.status().saving && !run_dir.in_flight().exists());
            let answer = InFlight { learner, step: Step(step), blake3: Some(hash(&groups)) };
            if changed {
                hash(&[]);
            }
            let in_flight = Some(answer);
            sampler
                .publish_status(&SamplerStatus { in_flight: in_flight.clone(), ..SamplerStatus::default() })
                .unwrap();
            while link.sampler().is_none_or(|status| status.in_flight != in_flight) {
                thread::sleep(POLL);
            }
            assert_eq!(request.take(&run_dir, &link, &checkpoint).unwrap(), taken);
            let path = checkpoint.join(IN_FLIGHT_FILE);
            assert_eq!(path.exists(), taken);
            if taken {
                assert_eq!(read_groups::<Group>(&path).unwrap(), groups);
                fs::remove_file(&path).unwrap();
            }
            assert!(request.since.elapsed() < PATIENCE, "a sampler that is silent is not waited for so long");
        }
    }
}
