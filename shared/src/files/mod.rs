//! Names and writers of files. [`atomic`] writes a file whole or not at all, and through no link;
//! [`atomic::write_output`] is for files that the user names, [`output_dir`] for such folders, and [`leftovers`]
//! removes what was interrupted of either. A [`journal`] grows line by line. [`run_dir`] names every file of a run.

pub mod atomic;
pub mod journal;
pub mod leftovers;
pub mod output_dir;
pub mod run_dir;
