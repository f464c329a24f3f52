//! A run as a row of the table of runs: its state, how it was made, and what came of it.
//!
//! A folder may have hundreds of runs, and each is asked for again and again while a page is open. So files are
//! followed as they grow, and options are read again only when their file changes.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{self, File, Metadata},
    io::{BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use shared::{
    RunDir,
    metrics::{EVAL_ACCURACY, EVAL_REWARD, MetricRecord},
    run::{
        best::Best,
        ended::{Ended, How},
    },
};

use super::{
    lines::{Lines, News},
    run::{config, has_learned_nothing, name_of, options, short_path, short_paths},
};

/// How long after its last sign of life a run counts as running, if the system does not tell.
const FRESH: Duration = Duration::from_secs(60);
/// Steps whose mean is the final reward, and the best one: single steps are noisy.
const WINDOW: usize = 5;

/// A row of the table of runs.
#[derive(Debug, Serialize)]
pub struct Overview {
    /// See [`name_of`].
    pub name: String,
    /// Its whole path.
    pub path: String,
    model: Option<String>,
    dataset: Option<String>,
    state: State,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Completed steps.
    steps: u64,
    /// Steps that it will make.
    total_steps: Option<f64>,
    /// Mean reward of its last five steps.
    reward: Option<f64>,
    /// The highest mean reward of five steps in a row.
    best_reward: Option<f64>,
    /// Of the last evaluation: the share of right answers, else the mean reward.
    evaluation: Option<f64>,
    /// When it began, in seconds since 1970.
    started: Option<f64>,
    /// Seconds of all its steps.
    seconds: f64,
    /// Seconds that the other steps will take, of a run that goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<f64>,
    /// Options that are not the defaults, as in `config.toml`.
    options: BTreeMap<String, String>,
    /// Its best checkpoint by the evaluations, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    Finished,
    LearnedNothing,
    Failed,
    Stopped,
    Removed,
}

impl From<How> for State {
    fn from(how: How) -> Self {
        match how {
            How::Finished => Self::Finished,
            How::LearnedNothing => Self::LearnedNothing,
            How::Failed => Self::Failed,
            How::Stopped => Self::Stopped,
        }
    }
}

impl Overview {
    /// Reads the row of a run once.
    pub fn of(dir: &RunDir) -> Self {
        Followed::new(dir.clone()).overview()
    }
}

/// A run whose row is asked for repeatedly.
#[derive(Debug)]
pub struct Followed {
    dir: RunDir,
    metrics: Lines,
    evaluations: Lines,
    figures: Figures,
    evaluation: Option<f64>,
    made: Known<Made>,
    /// Whether it has learned nothing, as far as nobody has left word of it.
    in_vain: Known<bool>,
}

/// Something read from a file, with the state that the file had then.
type Known<T> = Option<(Stamp, T)>;
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).ok().map(|file| (file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// How a run was made.
#[derive(Debug, Clone, Default)]
struct Made {
    model: Option<String>,
    dataset: Option<String>,
    options: BTreeMap<String, String>,
}

impl Made {
    fn of(dir: &RunDir) -> Self {
        let Some(config) = config(dir).ok().flatten() else { return Self::default() };
        let chosen = options(&config).into_iter().filter(|option| option.chosen);
        Self {
            model: Some(short_path(&config.model)),
            dataset: Some(short_paths(&config.dataset)),
            options: chosen.map(|option| (option.key, option.value)).collect(),
        }
    }
}

/// A step, as far as the table needs it.
#[derive(Deserialize)]
struct Step {
    step: Option<f64>,
    total_steps: Option<f64>,
    reward: Option<f64>,
    step_time: Option<f64>,
}

/// Figures of the steps that have been read.
#[derive(Debug, Default)]
struct Figures {
    steps: u64,
    total_steps: Option<f64>,
    /// Rewards and times of the last steps.
    rewards: VecDeque<f64>,
    times: VecDeque<f64>,
    /// Steps that had a reward.
    rewarded: usize,
    best_reward: Option<f64>,
    seconds: f64,
}

impl Figures {
    fn add(&mut self, step: &Step) {
        self.steps = step.step.unwrap_or(0.0) as u64;
        self.total_steps = step.total_steps;
        if let Some(seconds) = step.step_time {
            self.seconds += seconds;
            push(&mut self.times, seconds);
        }
        if let Some(reward) = step.reward {
            push(&mut self.rewards, reward);
            self.rewarded += 1;
            let now = mean(&self.rewards);
            // Of fewer steps than the window has, only the mean of all of them is compared with nothing.
            let earlier = self.best_reward.filter(|_| self.rewarded > WINDOW);
            self.best_reward = earlier.zip(now).map(|(best, now)| now.max(best)).or(now);
        }
    }

    /// Seconds that the other steps will take.
    fn left(&self) -> Option<f64> {
        let missing = self.total_steps? - self.steps as f64;
        Some(mean(&self.times)? * missing).filter(|_| missing > 0.0)
    }
}

fn push(window: &mut VecDeque<f64>, value: f64) {
    window.push_back(value);
    window.drain(..window.len().saturating_sub(WINDOW));
}

fn mean(values: &VecDeque<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl Followed {
    /// Follows a run.
    pub fn new(dir: RunDir) -> Self {
        let (metrics, evaluations) = (Lines::new(dir.metrics()), Lines::new(dir.eval()));
        let (figures, evaluation, made, in_vain) = Default::default();
        Self { dir, metrics, evaluations, figures, evaluation, made, in_vain }
    }

    /// The run as it is now. What cannot be read is left as it was.
    pub fn overview(&mut self) -> Overview {
        self.look();
        let (state, ended) = self.state();
        let Self { dir, figures, evaluation, made, .. } = self;
        let root = std::path::absolute(dir.root()).unwrap_or_else(|_| dir.root().to_owned());
        let Made { model, dataset, options } = made.as_ref().map(|(_, made)| made.clone()).unwrap_or_default();
        Overview {
            name: name_of(dir),
            path: root.display().to_string(),
            model,
            dataset,
            state,
            error: ended.and_then(|ended| ended.error),
            steps: figures.steps,
            total_steps: figures.total_steps,
            reward: mean(&figures.rewards),
            best_reward: figures.best_reward,
            evaluation: *evaluation,
            started: started(dir),
            seconds: figures.seconds,
            left: figures.left().filter(|_| state == State::Running),
            options,
            best: Best::of(dir).ok().flatten().map(|best| best.to_string()),
        }
    }

    fn look(&mut self) {
        let Self { dir, metrics, evaluations, figures, evaluation, made, .. } = self;
        let read = metrics.refresh(|news| match news {
            News::Anew => *figures = Figures::default(),
            News::Line(line) => {
                if let Ok(step) = serde_json::from_slice(line) {
                    figures.add(&step);
                }
            }
        });
        let evaluated = evaluations.refresh(|news| match news {
            News::Anew => *evaluation = None,
            News::Line(line) => {
                let record = MetricRecord::from_line(line);
                let found = record.and_then(|record| record.get(EVAL_ACCURACY).or_else(|| record.get(EVAL_REWARD)));
                *evaluation = found.or(*evaluation);
            }
        });
        // Whoever looks at the run's curves is told of it.
        let _ = (read, evaluated);
        let now = stamp(&dir.config());
        // Of a run that was removed, what is known is kept.
        if made.as_ref().is_none_or(|(known, _)| now.is_some() && *known != now) {
            *made = Some((now, Made::of(dir)));
        }
    }

    fn state(&mut self) -> (State, Option<Ended>) {
        let dir = &self.dir;
        if !dir.root().is_dir() {
            return (State::Removed, None);
        }
        // The launcher has left word, and may still hold its lock for a moment.
        if let Some(ended) = Ended::of(dir) {
            return (ended.how.into(), Some(ended));
        }
        let finished = stamp(&dir.finished());
        if finished.is_some() {
            // A run of an earlier version, or one whose launcher was killed at its end.
            if self.in_vain.as_ref().is_none_or(|(known, _)| *known != finished) {
                self.in_vain = Some((finished, has_learned_nothing(dir)));
            }
            let in_vain = self.in_vain.as_ref().is_some_and(|(_, in_vain)| *in_vain);
            return (if in_vain { State::LearnedNothing } else { State::Finished }, None);
        }
        let goes_on = is_locked(&dir.lock()) || is_fresh(&dir.metrics());
        (if goes_on { State::Running } else { State::Stopped }, None)
    }
}

fn is_fresh(path: &PathBuf) -> bool {
    fs::metadata(path).and_then(|file| file.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age < FRESH))
}

/// Whether a process holds a lock on a file. It does not take the lock, which a launcher may want at this moment.
fn is_locked(path: &Path) -> bool {
    let (Ok(file), Ok(locks)) = (fs::metadata(path), File::open("/proc/locks")) else { return false };
    let (major, minor) = (rustix::fs::major(file.dev()), rustix::fs::minor(file.dev()));
    let id = format!(" {major:02x}:{minor:02x}:{} ", file.ino());
    BufReader::new(locks).lines().map_while(Result::ok).any(|line| line.contains(&id))
}

/// When a run began: a new run makes its folder of completions anew. Where the file system does not keep that time, or
/// the folder is a copy, it is the time at which the options were written.
fn started(dir: &RunDir) -> Option<f64> {
    let seconds = |at: SystemTime| at.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64());
    let made = fs::metadata(dir.completions()).ok().and_then(|folder| folder.created().ok()).and_then(seconds);
    let written = fs::metadata(dir.config()).ok().and_then(|file: Metadata| file.modified().ok()).and_then(seconds);
    [made, written].into_iter().flatten().reduce(f64::min)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use shared::{
        channel::RunId,
        config::{TrainConfig, layers},
    };

    use super::*;

    fn run(name: &str) -> (tempfile::TempDir, RunDir) {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path().join(name));
        dir.create().unwrap();
        (root, dir)
    }

    #[test]
    fn a_run_is_running_while_its_lock_is_held_and_finished_when_it_says_so() {
        let (_root, dir) = run("runs/one");
        fs::write(dir.config(), layers::to_toml(&TrainConfig { model: "/models/a/b".into(), ..Default::default() }))
            .unwrap();
        let state = || Overview::of(&dir).state;
        let lock = File::create(dir.lock()).unwrap();
        assert_eq!(state(), State::Stopped);
        lock.lock().unwrap();
        assert_eq!(state(), State::Running);
        lock.unlock().unwrap();
        assert_eq!(state(), State::Stopped);
        fs::write(dir.finished(), "{}").unwrap();
        let overview = Overview::of(&dir);
        assert_eq!(
            (overview.state, overview.name.as_str(), overview.model.as_deref()),
            (State::Finished, "runs/one", Some("a/b"))
        );
    }

    #[test]
    fn a_run_is_what_its_launcher_has_left_word_of_until_it_is_started_again() {
        let (_root, dir) = run("one");
        let id = RunId::draw();
        id.leave(&dir).unwrap();
        fs::write(dir.finished(), "{}").unwrap();
        for (how, state) in [
            (How::Finished, State::Finished),
            (How::LearnedNothing, State::LearnedNothing),
            (How::Failed, State::Failed),
            (How::Stopped, State::Stopped),
        ] {
            Ended::new(id, how, Some("why")).leave(&dir).unwrap();
            let overview = Overview::of(&dir);
            assert_eq!((overview.state, overview.error.as_deref()), (state, Some("why")));
        }
        fs::remove_file(dir.finished()).unwrap();
        RunId::draw().leave(&dir).unwrap();
        assert_eq!(Overview::of(&dir).state, State::Stopped);
    }

    #[test]
    fn figures_follow_the_files_and_are_means_of_five_steps() {
        let (_root, dir) = run("one");
        let mut followed = Followed::new(dir.clone());
        assert_eq!(followed.overview().reward, None);
        let line = |step: u64, reward: f64| {
            format!("{{\"step\":{step},\"total_steps\":20,\"reward\":{reward},\"step_time\":2.0,\"kl\":null}}\n")
        };
        let mut file = File::create(dir.metrics()).unwrap();
        (1..=5).for_each(|step| file.write_all(line(step, 1.0).as_bytes()).unwrap());
        let overview = followed.overview();
        assert_eq!((overview.steps, overview.reward, overview.best_reward), (5, Some(1.0), Some(1.0)));
        assert_eq!((overview.seconds, overview.left), (10.0, Some(30.0)));
        (6..=10).for_each(|step| file.write_all(line(step, 0.5).as_bytes()).unwrap());
        fs::write(dir.eval(), "{\"eval_accuracy\":0.25}\n{\"eval_accuracy\":0.75}\n").unwrap();
        let overview = followed.overview();
        assert_eq!((overview.reward, overview.best_reward, overview.evaluation), (Some(0.5), Some(1.0), Some(0.75)));
        assert_eq!(overview.left, Some(20.0));
        // A restarted learner writes the file anew.
        shared::files::atomic::write(&dir.metrics(), line(1, 0.25).as_bytes()).unwrap();
        let overview = followed.overview();
        assert_eq!((overview.steps, overview.reward, overview.best_reward), (1, Some(0.25), Some(0.25)));
        assert_eq!(overview.seconds, 2.0);
    }

    #[test]
    fn options_are_those_that_were_chosen_and_follow_their_file() {
        let (_root, dir) = run("one");
        let mut followed = Followed::new(dir.clone());
        assert!(followed.overview().options.is_empty());
        for rate in [0.25, 0.125] {
            let config = TrainConfig { learning_rate: rate, ..Default::default() };
            shared::files::atomic::write(&dir.config(), layers::to_toml(&config).as_bytes()).unwrap();
            assert_eq!(followed.overview().options, BTreeMap::from([("learning_rate".into(), rate.to_string())]));
        }
        assert!(followed.overview().started.is_some());
    }
}
