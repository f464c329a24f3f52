//! State and records of a run: ledger, notices and tables for people, checkpoints and resumption, the best
//! checkpoint, the place of its versions, and its bounds of memory and disk.

pub mod best;
pub mod checkpoints;
pub mod disk_room;
pub mod ended;
pub mod ledger;
pub mod memory_plan;
pub mod notices;
pub mod prompts;
pub mod records;
pub mod resume;
pub mod versions;
pub mod workers;
