//! The samplers of a run on other hosts.

use serde::Serialize;
use shared::{RunDir, run::workers::WorkersTable};

/// The coordinator's last table, with an addition for readers.
#[derive(Debug, Serialize)]
pub struct WorkersView {
    #[serde(flatten)]
    table: WorkersTable,
    /// Whether it still describes the present.
    current: bool,
}

/// The workers of a run; none if the run has no such table.
pub fn of(dir: &RunDir) -> Option<WorkersView> {
    let table = WorkersTable::read(dir)?;
    Some(WorkersView { current: table.is_current(), table })
}

#[cfg(test)]
mod tests {
    use shared::run::workers::{WorkerRow, now};

    use super::*;

    #[test]
    fn a_table_is_shown_with_its_age() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path());
        assert!(of(&dir).is_none());
        let row = WorkerRow { name: "node-1".into(), ..WorkerRow::default() };
        let join = "tandem worker --join tls/HOST:7447 --token-file FILE".to_owned();
        for (written, current) in [(now(), true), (now() - 60.0, false)] {
            let table = WorkersTable { written, join: join.clone(), workers: vec![row.clone()], ..Default::default() };
            table.write(&dir).unwrap();
            let shown = serde_json::to_value(of(&dir)).unwrap();
            assert_eq!(shown["current"], current);
            assert_eq!((&shown["workers"][0]["name"], &shown["join"]), (&"node-1".into(), &join.clone().into()));
        }
    }
}
