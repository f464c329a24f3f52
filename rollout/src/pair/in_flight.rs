//! The groups in flight when the learner writes a checkpoint. [`Keeper`] writes them for the checkpoint. A sampler of a
//! run that goes on from there takes them up again ([`Kept`]).
//!
//! Groups are kept by position, that is, by prompt, and without a place in the run. The plan begins positions and gives
//! them their places as always. Completions that are kept of a position need not be sampled again. So no guarantee of
//! the plan, `max_staleness` above all, depends on the content of a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread::{self, JoinHandle},
};

use shared::{
    Completion, Group, PolicyVersion, Provenance, RunDir, Step,
    channel::{
        InFlight, LearnerStatus,
        in_flight::{read_groups, write_groups},
    },
    files::run_dir::IN_FLIGHT_FILE,
};

use super::{link::Link, plan::size};
use crate::data::PromptRow;

/// Memory of the groups that are written for a checkpoint. Groups that do not fit are sampled again if the run goes on
/// from there.
const MOST_BYTES: usize = 256 << 20;

/// Answers the learner's requests, on a thread of its own.
#[derive(Debug)]
pub struct Keeper {
    run_dir: RunDir,
    /// The learner's incarnation and the step of the last request.
    asked: Option<(u64, Step)>,
    writer: Option<JoinHandle<InFlight>>,
}

impl Keeper {
    /// A keeper that writes into a run directory.
    #[must_use]
    pub fn new(run_dir: RunDir) -> Self {
        Self { run_dir, asked: None, writer: None }
    }

    /// Whether the learner asks for the groups in flight, and nobody has begun to write them.
    #[must_use]
    pub fn is_wanted(&self, learner: &LearnerStatus) -> bool {
        learner.saving && self.writer.is_none() && self.asked != Some((learner.incarnation, learner.step))
    }

    /// Begins to write the groups that are in flight now.
    pub fn write(&mut self, learner: &LearnerStatus, groups: Vec<Group>) {
        let (learner, step) = (learner.incarnation, learner.step);
        self.asked = Some((learner, step));
        let path = self.run_dir.in_flight();
        let write = move || {
            let groups = first_that_fit(groups, MOST_BYTES);
            let result = write_groups(&path, &groups);
            let blake3 = result.inspect_err(|e| tracing::warn!("what is in flight is not kept: {e}")).ok();
            InFlight { learner, step, blake3 }
        };
        self.writer = thread::Builder::new().name("in flight".into()).spawn(write).ok();
    }

    /// Tells the learner when they are written.
    pub fn answer(&mut self, link: &Link) {
        if let Some(writer) = self.writer.take_if(|writer| writer.is_finished())
            && let Ok(answer) = writer.join()
        {
            link.announce(|status| status.in_flight = Some(answer));
        }
    }

    /// Whether something is being written.
    #[must_use]
    pub fn at_work(&self) -> bool {
        self.writer.is_some()
    }
}

/// The first groups in the order of their prompts, as many as have room.
fn first_that_fit(mut groups: Vec<Group>, bytes: usize) -> Vec<Group> {
    groups.sort_unstable_by_key(|group| group.position);
    let mut room = bytes;
    let fit = groups.iter().take_while(|group| {
        let rest = room.checked_sub(size(group));
        room = rest.unwrap_or(0);
        rest.is_some()
    });
    let fit = fit.count();
    if fit < groups.len() {
        tracing::info!("{} of {} groups in flight are kept: more have no room", fit, groups.len());
    }
    groups.truncate(fit);
    groups
}

/// The groups that were in flight at the checkpoint from which the learner has gone on, by position.
#[derive(Debug, Default)]
pub struct Kept {
    groups: BTreeMap<u64, Group>,
}

impl Kept {
    /// The groups of the learner's newest checkpoint, if the learner says that they are of use. A file that cannot be
    /// read counts as none.
    #[must_use]
    pub fn open(run_dir: &RunDir, learner: &LearnerStatus, num_generations: u32) -> Self {
        let step = learner.durable_step;
        if !learner.in_flight || learner.finished {
            return Self::default();
        }
        let path = run_dir.checkpoint(step.0).join(IN_FLIGHT_FILE);
        let groups = match read_groups(&path) {
            Ok(groups) => groups,
            Err(problem) => {
                tracing::warn!("{} {problem}: what was in flight is sampled again", path.display());
                return Self::default();
            }
        };
        let kept = Self::new(groups, learner, num_generations);
        let useful = || kept.groups.range(learner.next_cursor..).map(|(_, group)| group.completions.len());
        let (groups, completions) = (useful().filter(|&count| count > 0).count(), useful().sum::<usize>());
        let whole = useful().filter(|&count| count == num_generations as usize).count();
        tracing::info!(
            "{completions} completions of {groups} groups are kept from checkpoint-{step}; {whole} groups are whole"
        );
        kept
    }

    /// The sound completions of some groups: of versions that the learner has, and complete in themselves.
    pub(super) fn new(groups: Vec<Group>, learner: &LearnerStatus, num_generations: u32) -> Self {
        let newest = PolicyVersion(learner.durable_step.0);
        let given_up = |version: PolicyVersion| {
            learner.given_up.is_some_and(|(after, through)| version > after && version <= through)
        };
        let mut kept = BTreeMap::new();
        for mut group in groups {
            let mut samples = BTreeSet::new();
            group.completions.retain(|completion| {
                let episode = &completion.episode;
                completion.sample < num_generations
                    && episode.oldest().is_some()
                    && !completion.environment_failed()
                    && episode.is_sound()
                    && episode.versions().all(|(_, version)| version <= newest && !given_up(version))
                    && samples.insert(completion.sample)
            });
            group.completions.iter_mut().for_each(|completion| completion.provenance = Provenance::CarriedOver);
            kept.insert(group.position, group);
        }
        Self { groups: kept }
    }

    /// Forgets completions that were sampled from versions after `newest`, which are lost.
    pub fn forget(&mut self, newest: PolicyVersion) {
        for group in self.groups.values_mut() {
            group.completions.retain(|completion| completion.episode.newest() <= Some(newest));
        }
    }

    /// The completions that are kept of a position that is begun now, as far as their weights are `oldest` or newer.
    pub fn take(&mut self, position: u64, oldest: PolicyVersion) -> Option<Group> {
        let mut group = self.groups.remove(&position)?;
        group.completions.retain(|completion| completion.episode.oldest() >= Some(oldest));
        group.completions.sort_unstable_by_key(|completion| completion.sample);
        Some(group)
    }

    /// Forgets positions before this one, which are used up.
    pub fn release(&mut self, cursor: u64) {
        self.groups = self.groups.split_off(&cursor);
    }

    /// The groups that have not been taken.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }
}

/// Whether a group is of the prompt that its position has now.
#[must_use]
pub fn is_of(group: &Group, row: &PromptRow, epoch: u32) -> bool {
    (group.prompt_id, group.epoch, &group.prompt_text) == (row.prompt_id, epoch, &row.prompt_text)
}

/// Whether nothing of a group is missing, rewards included.
#[must_use]
pub fn is_whole(group: &Group, num_generations: u32) -> bool {
    let scored = |completion: &Completion| completion.rewards.len() == group.reward_names.len();
    group.completions.len() == num_generations as usize
        && !group.reward_names.is_empty()
        && group.completions.iter().all(scored)
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use harness::memory;
    use shared::{
        Episode, FinishReason, RewardOutcome, Scored,
        channel::{LearnerEnd, RunId, SamplerStatus},
        generation::testing,
    };

    use super::*;

    /// A completion that was sampled from these versions.
    fn completion(sample: u32, versions: &[u64]) -> Completion {
        let runs: Vec<(u32, u64)> = (0..).zip(versions.iter().copied()).collect();
        let episode = testing::episode(vec![1; versions.len()], &runs, FinishReason::Stop);
        Completion { episode, ..testing::completion(sample, Vec::new()) }
    }

    use testing::group;

    fn learner() -> LearnerStatus {
        LearnerStatus {
            incarnation: 3,
            step: Step(8),
            durable_step: Step(8),
            in_flight: true,
            ..LearnerStatus::default()
        }
    }

    fn samples(group: &Group) -> Vec<u32> {
        group.completions.iter().map(|completion| completion.sample).collect()
    }

    #[test]
    fn what_is_unsound_lost_or_given_up_is_not_taken_up() {
        let episode = Episode::of_one_turn(vec![1], Vec::new(), vec![(0, PolicyVersion(8))], FinishReason::Stop);
        let crooked = Completion { episode, ..completion(3, &[8]) };
        let groups = vec![
            group(4, vec![completion(1, &[8]), completion(0, &[6, 7])]),
            group(
                5,
                vec![completion(0, &[8, 9]), completion(1, &[8]), completion(1, &[7]), completion(4, &[8]), crooked],
            ),
            group(6, vec![completion(0, &[5, 6]), completion(1, &[4, 8]), completion(2, &[])]),
        ];
        let status = LearnerStatus { given_up: Some((PolicyVersion(4), PolicyVersion(5))), ..learner() };
        let mut kept = Kept::new(groups, &status, 4);
        let whole = kept.take(4, PolicyVersion(6)).unwrap();
        assert_eq!(samples(&whole), [0, 1]);
        assert_eq!(Scored::from(whole.clone()).policy_version, PolicyVersion(6));
        assert!(whole.completions.iter().all(|completion| completion.provenance == Provenance::CarriedOver));
        assert!(kept.take(4, PolicyVersion(6)).is_none(), "once");
        assert_eq!(kept.groups().map(samples).collect::<Vec<_>>(), [vec![1], vec![1]]);
        assert_eq!(samples(&kept.take(6, PolicyVersion(5)).unwrap()), [0; 0], "too old");
        kept.release(5);
        kept.forget(PolicyVersion(7));
        assert_eq!(kept.groups().map(samples).collect::<Vec<_>>(), [[0; 0]]);
        kept.release(6);
        assert!(kept.take(5, PolicyVersion(0)).is_none(), "used up");
    }

    #[test]
    fn a_group_is_whole_with_all_its_rewards() {
        let scored = |sample| Completion { rewards: vec![RewardOutcome::NotApplicable], ..completion(sample, &[1]) };
        let names = vec![("a".to_owned(), 1.0)];
        let whole = Group { reward_names: names.clone(), ..group(0, vec![scored(0), scored(1)]) };
        assert!(is_whole(&whole, 2) && !is_whole(&whole, 3));
        let unscored = Group { reward_names: names, ..group(0, vec![scored(0), completion(1, &[1])]) };
        assert!(!is_whole(&unscored, 2) && !is_whole(&group(0, vec![completion(0, &[1])]), 1));
    }

    #[test]
    fn a_file_that_is_damaged_missing_or_of_no_use_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        fs::create_dir(run_dir.checkpoint(8)).unwrap();
        let path = run_dir.checkpoint(8).join(IN_FLIGHT_FILE);
        let found = |status: &LearnerStatus| Kept::open(&run_dir, status, 4).groups().count();
        assert_eq!(found(&learner()), 0, "missing");
        write_groups(&path, &[group(2, vec![completion(0, &[8])])]).unwrap();
        assert_eq!(found(&learner()), 1);
        assert_eq!(found(&LearnerStatus { in_flight: false, ..learner() }), 0, "of no use");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(found(&learner()), 0, "damaged");
        fs::write(&path, "of something else").unwrap();
        assert_eq!(found(&learner()), 0, "foreign");
    }

    #[test]
    fn what_has_no_room_is_that_of_later_prompts() {
        let groups = || [7, 2, 5].map(|position| group(position, vec![completion(0, &[1; 9])])).to_vec();
        let one = size(&groups()[0]);
        let positions = |bytes| first_that_fit(groups(), bytes).iter().map(|group| group.position).collect::<Vec<_>>();
        assert_eq!(positions(3 * one), [2, 5, 7]);
        assert_eq!(positions(3 * one - 1), [2, 5]);
        assert_eq!(positions(0), [0; 0]);
    }

    #[test]
    fn each_request_is_answered_once() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::new(dir.path());
        let (end, mut learner_end) = memory::pair(1);
        let link = Link::start(end, SamplerStatus::default(), Duration::from_secs(60), (run_dir.clone(), RunId::NONE))
            .unwrap();
        let mut keeper = Keeper::new(run_dir.clone());
        let asks = LearnerStatus { saving: true, ..learner() };
        assert!(!keeper.is_wanted(&learner()));
        for asks in [asks.clone(), LearnerStatus { incarnation: 4, ..asks }] {
            assert!(keeper.is_wanted(&asks));
            keeper.write(&asks, vec![group(2, vec![completion(0, &[8])])]);
            assert!(keeper.at_work() && !keeper.is_wanted(&asks));
            let answer = loop {
                keeper.answer(&link);
                let heard = learner_end.sampler_status().unwrap().and_then(|status| status.in_flight);
                if let Some(answer) = heard.filter(|answer| answer.learner == asks.incarnation) {
                    break answer;
                }
                thread::sleep(Duration::from_millis(1));
            };
            assert!(!keeper.is_wanted(&asks) && !keeper.at_work());
            let hash = *blake3::hash(&fs::read(run_dir.in_flight()).unwrap()).as_bytes();
            assert_eq!(answer, InFlight { learner: asks.incarnation, step: Step(8), blake3: Some(hash) });
        }
    }
}
