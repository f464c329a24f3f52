//! The launcher's messages about the workers of a run: how many are at work, that there are none, and which ones were
//! dropped.

use std::{collections::BTreeSet, time::Instant};

use shared::{
    RunDir,
    config::TrainConfig,
    run::workers::{self, WorkerState, WorkersTable},
};

/// Seconds without a worker after which a run says so.
const PATIENCE: f64 = 60.0;

/// Reasons for refused calls that are told: strangers can cause any number of them.
const MOST_REASONS: usize = 16;

/// Follows the table that the coordinator writes.
#[derive(Debug)]
pub struct WorkersFollower {
    dir: RunDir,
    /// The command that starts a worker.
    join: String,
    looked: Option<Instant>,
    /// The coordinator's table; none before it writes one.
    table: Option<WorkersTable>,
    /// Whether the absence of workers was reported, and not yet their return.
    alone: bool,
    /// Dropped workers that were reported, by number and reason.
    dropped: BTreeSet<(String, String)>,
    /// Reasons for refused calls that were reported.
    refusals: BTreeSet<String>,
    /// Set after a failure of the store was reported, until the store works again: the version that it had then.
    store_fails: Option<Option<u64>>,
    /// Whether it was reported that completions are not checked.
    checks_fail: bool,
}

impl WorkersFollower {
    /// Follows the workers of a run that samples with workers.
    pub fn of(config: &TrainConfig, dir: &RunDir) -> Option<Self> {
        let join = workers::join(config)?;
        let (dropped, refusals) = (BTreeSet::new(), BTreeSet::new());
        Some(Self {
            dir: dir.clone(),
            join,
            looked: None,
            table: None,
            alone: false,
            dropped,
            refusals,
            store_fails: None,
            checks_fail: false,
        })
    }

    /// Reads the table, at most as often as it is written, and returns messages that are due; each comes once.
    pub fn news(&mut self) -> Vec<String> {
        if self.looked.is_some_and(|at| at.elapsed() < workers::INTERVAL) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        self.look(WorkersTable::read(&self.dir).filter(WorkersTable::is_current))
    }

    /// As [`WorkersFollower::news`], whenever that was called last: for the coordinator's final table.
    pub fn last_news(&mut self) -> Vec<String> {
        self.looked = None;
        self.news()
    }

    fn look(&mut self, table: Option<WorkersTable>) -> Vec<String> {
        self.table = table;
        let Some(table) = &self.table else { return Vec::new() };
        let mut news = Vec::new();
        for row in table.workers.iter().filter(|row| row.state == WorkerState::Dropped) {
            let reason = row.reason.clone().unwrap_or_default();
            if self.dropped.insert((row.number.clone(), reason.clone())) {
                let name = if row.name.is_empty() { &row.number } else { &row.name };
                news.push(format!("notice: worker {name} was dropped: {reason}"));
            }
        }
        for reason in table.refusals.keys() {
            if self.refusals.len() < MOST_REASONS && self.refusals.insert(reason.clone()) {
                news.push(format!("notice: somebody who called was refused: {reason}; more is in logs/rollout.log"));
            }
        }
        if let Some(trouble) = table.check_trouble.as_ref().filter(|_| !self.checks_fail) {
            self.checks_fail = true;
            news.push(format!(
                "notice: what a worker made could not be checked beside the learner: {trouble}; more is in \
                 logs/rollout.log"
            ));
        }
        match (&table.store_trouble, self.store_fails) {
            (Some(trouble), None) => {
                self.store_fails = Some(table.version);
                news.push(format!("notice: weights do not get into the store, and are tried again: {trouble}"));
            }
            // A restarted coordinator has not tried the store yet.
            (None, Some(version)) if table.version.is_some() && table.version != version => {
                self.store_fails = None;
                news.push("weights get into the store again".to_owned());
            }
            _ => (),
        }
        let alone = table.at_work() == 0;
        if alone && !self.alone && table.alone_s >= PATIENCE {
            self.alone = true;
            let seconds = table.alone_s;
            news.push(format!(
                "notice: no worker has been at work for {seconds:.0} s, and the run waits; start one on any host: {}",
                self.join
            ));
        }
        if !alone && self.alone {
            self.alone = false;
            news.push("a worker is at work again".to_owned());
        }
        news
    }

    /// The present work of a step, with the number of workers. `waits`: the learner has nothing to do until there are
    /// groups.
    pub fn words(&self, work: String, waits: bool) -> String {
        let Some(table) = &self.table else { return work };
        let coming =
            table.workers.iter().filter(|row| matches!(row.state, WorkerState::Joining | WorkerState::Loading));
        match (table.at_work(), coming.count()) {
            (0, 0) if waits => format!("waiting for a worker: {}", self.join),
            (0, n) if waits => format!("waiting for {}, loading", counted(n)),
            (n, _) => format!("{work}, {}", counted(n)),
        }
    }
}

/// `1 worker`.
fn counted(workers: usize) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use shared::run::workers::WorkerRow;

    use super::*;

    fn workers(dir: &RunDir) -> WorkersFollower {
        let config = TrainConfig { listen: Some("tls/0.0.0.0:7447".into()), ..TrainConfig::default() };
        WorkersFollower::of(&config, dir).unwrap()
    }

    fn table(states: &[WorkerState], alone_s: f64) -> WorkersTable {
        let row = |(at, state): (usize, &WorkerState)| WorkerRow {
            number: format!("{at:016x}"),
            name: format!("node-{at}"),
            state: *state,
            reason: (*state == WorkerState::Dropped).then(|| "its log-probs differ".into()),
            ..WorkerRow::default()
        };
        let workers = states.iter().enumerate().map(row).collect();
        WorkersTable { written: workers::now(), alone_s, workers, ..WorkersTable::default() }
    }

    #[test]
    fn the_command_that_joins_names_the_files_that_the_run_wants() {
        let config = TrainConfig {
            listen: Some("tls/0.0.0.0:7447".into()),
            token_file: Some("token".into()),
            tls_certificate: Some("own.pem".into()),
            ..TrainConfig::default()
        };
        let workers = WorkersFollower::of(&config, &RunDir::new("run")).unwrap();
        assert_eq!(workers.join, "tandem worker --join tls/HOST:7447 --token-file FILE --tls-ca FILE");
    }

    #[test]
    fn a_step_says_how_many_are_at_it_and_what_it_waits_for() {
        use WorkerState::{Dropped, Gone, Joining, Loading, Sampling, Silent, Waiting};
        let mut workers = workers(&RunDir::new("run"));
        assert_eq!(workers.words("sampling 1/8 groups".into(), true), "sampling 1/8 groups");
        for (states, waits, expected) in [
            (&[Sampling, Waiting, Loading, Dropped][..], true, "sampling 1/8 groups, 2 workers"),
            (&[Waiting], false, "sampling 1/8 groups, 1 worker"),
            (&[Gone, Silent], false, "sampling 1/8 groups, 0 workers"),
            (&[Gone, Dropped, Silent], true, "waiting for a worker: tandem worker --join tls/HOST:7447"),
            (&[Loading, Joining], true, "waiting for 2 workers, loading"),
        ] {
            workers.look(Some(table(states, 0.0)));
            assert_eq!(workers.words("sampling 1/8 groups".into(), waits), expected);
        }
    }

    #[test]
    fn that_nobody_is_there_is_said_once_and_so_is_who_was_dropped() {
        let mut workers = workers(&RunDir::new("run"));
        assert_eq!(workers.look(Some(table(&[], 59.0))), [""; 0]);
        let said = workers.look(Some(table(&[WorkerState::Silent], 60.0)));
        assert!(said.len() == 1 && said[0].contains("60 s") && said[0].ends_with("--join tls/HOST:7447"), "{said:?}");
        assert_eq!(workers.look(Some(table(&[], 61.0))), [""; 0]);
        assert_eq!(workers.look(None), [""; 0], "a coordinator that starts again");
        assert_eq!(workers.look(Some(table(&[WorkerState::Sampling], 0.0))), ["a worker is at work again"]);
        let dropped = [WorkerState::Sampling, WorkerState::Dropped];
        assert_eq!(
            workers.look(Some(table(&dropped, 0.0))),
            ["notice: worker node-1 was dropped: its log-probs differ"]
        );
        assert_eq!(workers.look(Some(table(&dropped, 0.0))), [""; 0]);
    }

    #[test]
    fn that_nothing_is_checked_is_said_once() {
        let mut workers = workers(&RunDir::new("run"));
        let failing = || WorkersTable { check_trouble: Some("no room".into()), ..table(&[WorkerState::Sampling], 0.0) };
        let said = workers.look(Some(failing()));
        assert!(said.len() == 1 && said[0].contains("could not be checked beside the learner: no room"), "{said:?}");
        assert_eq!(workers.look(Some(failing())), [""; 0]);
    }

    #[test]
    fn why_calls_are_refused_and_that_the_store_fails_is_said_once() {
        let mut workers = workers(&RunDir::new("run"));
        let with = |reasons: &[&str], trouble: Option<&str>| WorkersTable {
            refusals: reasons.iter().map(|&reason| (reason.to_owned(), 2)).collect(),
            store_trouble: trouble.map(str::to_owned),
            ..table(&[WorkerState::Sampling], 0.0)
        };
        let said = workers.look(Some(with(&["it has no token"], Some("no room"))));
        assert!(said.len() == 2 && said[0].contains("it has no token") && said[1].ends_with(": no room"), "{said:?}");
        assert_eq!(workers.look(Some(with(&["it has no token"], Some("still none")))), [""; 0]);
        assert_eq!(workers.look(Some(with(&["it has no token"], None))), [""; 0], "a coordinator that starts again");
        let next = WorkersTable { version: Some(3), ..with(&["it has no token"], None) };
        assert_eq!(workers.look(Some(next)), ["weights get into the store again"]);
        let many: Vec<String> = (0..2 * MOST_REASONS).map(|number| format!("reason {number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(workers.look(Some(with(&many, None))).len(), MOST_REASONS - 1);
    }

    #[test]
    fn the_table_is_read_from_the_run_while_somebody_writes_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        assert!(WorkersFollower::of(&TrainConfig::default(), &dir).is_none());
        let old = WorkersTable { written: workers::now() - 3600.0, ..table(&[], 100.0) };
        old.write(&dir).unwrap();
        let mut follower = workers(&dir);
        assert_eq!(follower.news(), [""; 0]);
        table(&[], 100.0).write(&dir).unwrap();
        assert_eq!(follower.news(), [""; 0], "it was looked at a moment ago");
        assert_eq!(follower.last_news().len(), 1);
    }
}
