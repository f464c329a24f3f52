//! One loop drives whatever generates: elsewhere a step would pass by what a step needs, and cancelling, streaming and
//! new weights would be written again.

use super::sources::{Sources, code};

/// The loop, and the engine's answer to its call.
const ALLOWED: &[&str] = &["rollout/src/generate/drive.rs", "rollout/src/generate/mod.rs"];

pub fn check(sources: &Sources) -> Vec<String> {
    let of_sampler = sources.rust().filter(|source| source.path.starts_with("rollout/"));
    let found = of_sampler.filter(|source| !is_test(&source.path) && !ALLOWED.contains(&source.path.as_str()));
    found.flat_map(|source| calls(&source.path, &source.text)).collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("testing.rs")
}

/// Places where a generator is asked for a step.
fn calls(shown: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let of_generator = |at: usize| code[..at].ends_with(['.', ':']);
    let found = code.match_indices("advance(").filter(|&(at, _)| of_generator(at));
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    found
        .map(|(at, _)| {
            format!("{shown}:{}: a generator is driven by rollout/src/generate/drive.rs only; be its `Work`", line(at))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::sources::testing::one, *};

    #[test]
    fn a_second_loop_is_found_and_the_one_and_tests_are_not() {
        let text = "//! Docs.\nfn run(engine: &mut Engine) {\n    while engine.advance().is_ok() {}\n    \
                    Engine::advance(engine);\n}\n";
        let findings = check(&one("rollout/serve/src/routes.rs", text));
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].starts_with("rollout/serve/src/routes.rs:3: "), "{findings:?}");
        let none = Vec::<String>::new();
        for path in ["rollout/src/generate/drive.rs", "rollout/tests/it/engine/support.rs", "learner/src/pair/mod.rs"] {
            assert_eq!(check(&one(path, text)), none, "{path}");
        }
        let harmless = "//! Docs.\nfn advance() {}\n#[cfg(test)]\nmod tests {\n    fn a() { engine.advance(); }\n}\n";
        assert_eq!(check(&one("rollout/src/engine/step.rs", harmless)), none);
    }
}
