//! What runs left behind whose processes were all killed.

use shared::{
    leftovers::{self, Leftover},
    memory::Size,
};

use super::Finding;

const SUBJECT: &str = "leftovers";
const REMEDY: &str = "`tandem doctor --remove-leftovers` removes them";

/// Looks for them, and removes them if that is asked for.
pub fn examine(remove: bool) -> Finding {
    let found = leftovers::find();
    if found.is_empty() {
        return Finding::ok(SUBJECT, "none of dead runs");
    }
    let detail = describe(&found);
    if !remove {
        return Finding::warn(SUBJECT, detail, REMEDY);
    }
    let failed: Vec<String> = found.iter().filter_map(|left| left.remove().err()).map(|e| e.to_string()).collect();
    if failed.is_empty() {
        Finding::ok(SUBJECT, format!("removed: {detail}"))
    } else {
        Finding::warn(
            SUBJECT,
            format!("cannot be removed: {}", failed.join(", ")),
            "remove them as the user who ran them",
        )
    }
}

fn describe(found: &[Leftover]) -> String {
    let bytes = Size(found.iter().map(|left| left.bytes).sum());
    let paths: Vec<String> = found.iter().map(|left| left.path.display().to_string()).collect();
    format!("{bytes} of dead runs: {}", paths.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_listed_with_what_they_take() {
        let of = |path: &str, bytes| Leftover { path: path.into(), bytes };
        let found = [of("/dev/shm/tandem-weights-1", 3 << 20), of("/tmp/tandem_2", 1 << 20)];
        assert_eq!(describe(&found), "4.0 MiB of dead runs: /dev/shm/tandem-weights-1, /tmp/tandem_2");
    }
}
