//! A single loop drives all generators: a second one would miss what a step needs, and would implement cancelling,
//! streaming and new weights again.

use super::sources::{Source, Sources, code};

/// The file with the loop.
const LOOP: &str = "rollout/src/generate/drive.rs";
/// The file in which the engine implements the loop's call by its own method.
const SEAM: &str = "rollout/src/generate/mod.rs";
/// The file in which a generator answers the loop's call by that of the generator within it.
const AROUND: &str = "rollout/src/turns/generator/mod.rs";
/// The same of the generator whose completions are those of agents.
const AGENTS: &str = "rollout/serve/src/agent/generator.rs";
/// The measurement whose generator is that of a run and adds a constraint to each request.
const MEASURED: &str = "rollout/examples/conversations.rs";
/// The forms of these calls, each in its file.
const ANSWERS: [(&str, &str, &str); 4] = [
    (SEAM, "Self::", "advance(self)"),
    (AROUND, "in self.inner.", "advance()? {"),
    (AGENTS, "let outputs = self.inner.", "advance()?;"),
    (MEASURED, "EngineError> {\n        self.inner.", "advance()\n    }"),
];

pub fn check(sources: &Sources) -> Vec<String> {
    let of_sampler = sources.rust().filter(|source| source.path.starts_with("rollout/") && !is_test(&source.path));
    of_sampler.flat_map(|source| if source.path == LOOP { blind(source) } else { second_loops(source) }).collect()
}

/// A finding if this rule does not see the one loop, since it would not see a second one either.
fn blind(drive: &Source) -> Vec<String> {
    let sees = !calls(&code(&drive.text)).is_empty();
    let finding = "no call of a generator's step is found in the loop: this rule looks for another name";
    if sees { Vec::new() } else { vec![format!("{LOOP}:1: {finding}")] }
}

/// Calls outside of the loop.
fn second_loops(source: &Source) -> Vec<String> {
    let code = code(&source.text);
    let is_answer = |at: usize| {
        let is_form = |before: &str, after: &str| code[..at].ends_with(before) && code[at..].starts_with(after);
        ANSWERS.iter().any(|(path, before, after)| source.path == *path && is_form(before, after))
    };
    let mut found = calls(&code);
    found.retain(|&at| !is_answer(at));
    let line = |at: usize| code[..at].matches('\n').count() + 1;
    let finding = |at| format!("{}:{}: a generator is driven by {LOOP} only; be its `Work`", source.path, line(at));
    found.into_iter().map(finding).collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs") || path.ends_with("testing.rs")
}

/// Places where a step of a generator is called.
fn calls(code: &str) -> Vec<usize> {
    let of_generator = |at: &usize| code[..*at].ends_with(['.', ':']);
    code.match_indices("advance(").map(|(at, _)| at).filter(of_generator).collect()
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

    #[test]
    fn a_loop_without_a_call_that_the_rule_knows_is_found() {
        let text = "//! Docs. `generator.advance()` is below.\nfn drive() {\n    generator.step();\n}\n";
        let findings = check(&one(LOOP, text));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("rollout/src/generate/drive.rs:1: no call "), "{findings:?}");
    }

    #[test]
    fn the_engine_may_answer_in_one_place_and_drive_nothing_there() {
        let text = "//! Docs.\nfn advance(&mut self) {\n    Self::advance(self)\n}\n";
        assert_eq!(check(&one(SEAM, text)), Vec::<String>::new());
        assert_eq!(check(&one("rollout/src/generate/pair.rs", text)).len(), 1, "anywhere else it is a call");
        for call in ["self.engine.advance()", "Engine::advance(self)", "Self::advance(self.engine)"] {
            let findings = check(&one(SEAM, &text.replace("Self::advance(self)", call)));
            assert_eq!(findings.len(), 1, "{call}");
            assert!(findings[0].starts_with("rollout/src/generate/mod.rs:3: "), "{findings:?}");
        }
    }

    #[test]
    fn a_generator_around_another_answers_by_that_one_in_one_place() {
        let text = "//! Docs.\nfn advance(&mut self) {\n    for output in self.inner.advance()? {}\n}\n";
        assert_eq!(check(&one(AROUND, text)), Vec::<String>::new());
        assert_eq!(check(&one("rollout/src/turns/live.rs", text)).len(), 1, "anywhere else it is a call");
        assert_eq!(check(&one(AROUND, &text.replace("self.inner", "engine"))).len(), 1);
        let text = "//! Docs.\nfn advance(&mut self) {\n    let outputs = self.inner.advance()?;\n}\n";
        assert_eq!(check(&one(AGENTS, text)), Vec::<String>::new());
        assert_eq!(check(&one(AROUND, text)).len(), 1, "its form is another");
        let answer = "fn advance(&mut self) -> Result<(), EngineError> {\n        self.inner.advance()\n    }\n";
        assert_eq!(check(&one(MEASURED, answer)), Vec::<String>::new());
        assert_eq!(check(&one(MEASURED, &answer.replace("self.inner.advance()", "self.inner.advance()?"))).len(), 1);
        assert_eq!(check(&one(AROUND, answer)).len(), 1);
    }
}
