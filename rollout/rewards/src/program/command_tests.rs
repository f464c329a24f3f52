//! Programs that answer well, badly, late and never.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use harness::processes;
use shared::{RewardOutcome, StepScore, config::RewardHost};

use crate::{Registry, RewardCompletion, RewardFunction, RewardInput, RewardPool, testing};

/// The functions, in processes that may write to a folder.
fn writing_to(folder: &Path) -> Registry {
    let mut host = testing::host();
    host.bounds.writable = vec![folder.to_owned()];
    Registry::default().on(host)
}

/// A shell program that runs `answer` for each line that it reads, which is in `$line`.
fn program(answer: &str) -> String {
    format!("command:run=while read -r line; do {answer}; done")
}

fn pool(specs: &[String], deadline: f64) -> RewardPool {
    pool_of(&Registry::default(), specs, deadline)
}

fn pool_of(registry: &Registry, specs: &[String], deadline: f64) -> RewardPool {
    let functions = registry.functions(specs).unwrap();
    RewardPool::new(functions, 1, Duration::from_secs_f64(deadline), |_| {}).unwrap()
}

fn input(texts: &[&str]) -> RewardInput {
    let mut completions = testing::completions(texts);
    completions.iter_mut().for_each(|completion| completion.token_ids = vec![1, 2, 3]);
    RewardInput { prompt: "p".into(), completions, ..RewardInput::default() }
}

/// The outcomes of the first function for a group of two; the second function, always asked too, must be untouched.
fn scored(pool: &mut RewardPool) -> Vec<RewardOutcome> {
    pool.submit(0, input(&["a", "b"]));
    let group = pool.recv().unwrap();
    assert!(group.outcomes.iter().all(|outcomes| outcomes[1] == RewardOutcome::Score(1.0)), "{group:?}");
    group.outcomes.into_iter().map(|mut outcomes| outcomes.remove(0)).collect()
}

/// The outcomes of a call with this deadline, without a pool that might give the call up first.
fn called(function: &RewardFunction, input: RewardInput, seconds: f64) -> Vec<RewardOutcome> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    function.reward().score(&RewardInput { deadline: Some(deadline), ..input })
}

fn answer(answer: &str) -> Vec<RewardOutcome> {
    let answer = answer.replace(':', r"\:");
    scored(&mut pool(&[program(&format!("echo '{answer}'")), "finished".into()], 10.0))
}

fn failed(reason: &str) -> RewardOutcome {
    RewardOutcome::Failed(reason.into())
}

#[test]
fn numbers_nulls_and_steps_are_outcomes() {
    assert_eq!(answer("[1, -0.5]"), [RewardOutcome::Score(1.0), RewardOutcome::Score(-0.5)]);
    let step = |end, score| StepScore { end, score };
    let steps = RewardOutcome::Steps(vec![step(0, 1.0), step(2, 0.5)]);
    assert_eq!(answer("[null, [[0, 1], [2, 0.5]]]"), [RewardOutcome::NotApplicable, steps]);
}

#[test]
fn what_is_no_score_fails_where_it_stands() {
    let one = RewardOutcome::Score(1.0);
    for (line, reason) in [
        ("[\"x\", 1]", "answered the text \"x\" and not a number"),
        ("[NaN, 1]", "answered the text \"NaN\" and not a number"),
        ("[-Infinity, 1]", "answered the text \"-inf\" and not a number"),
        ("[true, 1]", "answered the truth value true and not a number"),
        ("[[[0]], 1]", "answered the list [[0]]; a step is [end, score]"),
        ("[[[3, 1]], 1]", "returned a step that ends with token 3 of a completion of 3 tokens"),
        ("[[[1, 1], [1, 1]], 1]", "returned steps whose ends do not ascend"),
        ("[{\"error\": \"no such word\"}, 1]", "no such word"),
        ("[{\"score\": 1}, 1]", "answered the object {\"score\":1} and not a number"),
    ] {
        assert_eq!(answer(line), [failed(reason), one.clone()], "{line}");
    }
}

#[test]
fn a_line_that_is_no_list_of_that_length_fails_the_group() {
    for (line, reason) in [
        ("[1]", "answered 1 entries for 2 completions"),
        ("[1, 2, 3]", "answered 3 entries for 2 completions"),
        ("1", "answered the number 1 and not a list"),
        ("oops", "answered `oops`, which is no JSON: expected value at line 1 column 1"),
    ] {
        assert_eq!(answer(line), [failed(reason), failed(reason)], "{line}");
    }
    let missing = scored(&mut pool(&["command:run=exit 3".into(), "finished".into()], 10.0));
    assert_eq!(missing[0], failed("the process ended without an answer (exit status: 3)"));
}

#[test]
fn the_request_has_prompt_completions_and_columns() {
    let folder = tempfile::tempdir().unwrap();
    let seen = folder.path().join("seen");
    let spec = program(&format!("printf \"%s\\n\" \"$line\" > {}; echo [0]", seen.display()));
    let mut pool = pool_of(&writing_to(folder.path()), &[spec], 10.0);
    let columns = serde_json::json!({"answer": "4"}).as_object().unwrap().clone();
    let completion = |text: &str| RewardCompletion::of_one_turn(text, vec![5, 6], shared::FinishReason::Length);
    let completions = vec![completion("2+2\n\"=\" 4 \\")];
    pool.submit(0, RewardInput { prompt: "é?".into(), columns: columns.into(), completions, ..RewardInput::default() });
    assert_eq!(pool.recv().unwrap().outcomes, [[RewardOutcome::Score(0.0)]]);
    let request: serde_json::Value = serde_json::from_str(&fs::read_to_string(seen).unwrap()).unwrap();
    let expected = serde_json::json!({
        "id": 1,
        "prompt": "é?",
        "completions": [{"text": "2+2\n\"=\" 4 \\", "token_ids": [5, 6], "finish_reason": "length"}],
        "columns": {"answer": "4"},
    });
    assert_eq!(request, expected);
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[test]
fn a_program_that_hangs_is_killed_with_its_children_and_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, hung) = (folder.path().join("begun"), folder.path().join("hung"));
    // The first process hangs in a child of its own; the next ones answer.
    let run = format!(
        "command:run=echo $$ >> {begun}; while read -r line; do if [ -e {hung} ]; then echo [1, 2]; \
         else touch {hung}; sleep 1000 & wait; fi; done",
        begun = begun.display(),
        hung = hung.display()
    );
    let function = writing_to(folder.path()).function(&run).unwrap();
    let late = failed(
        "no answer within the deadline; the process was killed and is started again for the next call; a call has 5 s \
         (`reward_timeout`)",
    );
    assert_eq!(called(&function, input(&["a", "b"]), 5.0), [late.clone(), late]);
    assert_eq!(lines(&begun), 1);
    for _ in 0..2 {
        let scores = called(&function, input(&["a", "b"]), 60.0);
        assert_eq!(scores, [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
    }
    assert_eq!(lines(&begun), 2, "the second process is kept");
    drop(function);
    processes::wait_for(0, "", &hung);
}

#[test]
fn what_a_program_left_behind_is_killed_though_the_program_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let run = format!("command:run=setsid tail -f {} & read -r line; echo [1, 2]", folder.path().display());
    let mut pool = pool(&[run, "finished".into()], 10.0);
    for _ in 0..2 {
        assert_eq!(scored(&mut pool), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
        // The shell ends after its answer; its child has the pipes and stays.
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(pool);
    processes::wait_for(0, "", folder.path());
}

#[test]
fn what_is_no_text_may_be_said_to_the_log() {
    let program = program("printf '\\377\\n' >&2; sleep 0.1; echo more >&2; echo [1, 2]");
    let mut pool = pool(&[program, "finished".into()], 10.0);
    for _ in 0..2 {
        assert_eq!(scored(&mut pool), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
    }
}

#[test]
fn a_program_that_ended_is_started_again_and_one_out_of_step_replaced() {
    // Each process answers once.
    let mut once = pool(&["command:run=read -r line; echo [1, 2]".into(), "finished".into()], 10.0);
    for _ in 0..3 {
        assert_eq!(scored(&mut once), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The second answer may come at once, while the next request is on its way, or while the process works on that.
#[test]
fn a_second_answer_is_never_a_score_of_the_next_group() {
    for pause in ["0", "0.0005", "0.002", "0.01", "0.1", "0.3"] {
        let program = program(&format!("n=$((n + 1)); echo [$n, $n]; sleep {pause}; echo [$n.5, 99]"));
        let mut twice = pool(&[program, "finished".into()], 10.0);
        for _ in 0..4 {
            for outcome in scored(&mut twice) {
                match outcome {
                    RewardOutcome::Failed(reason) => {
                        assert!(reason.contains("behind its answer") && reason.contains("`id`"), "{reason}");
                    }
                    // The answer to a process's first request, or to its second where the late line came before that
                    // was sent.
                    score => assert!([1.0, 2.0].map(RewardOutcome::Score).contains(&score), "{pause}: {score:?}"),
                }
            }
        }
    }
}

/// The program answers rightly for a while. Then it writes a second list some time after each answer, while it works on
/// the next one.
#[test]
fn second_answers_that_come_while_the_next_one_is_made_are_no_scores() {
    // Long enough that a busy machine does not put the lines into another order.
    for late in ["0.012", "0.06", "0.135", "0.21", "0.39"] {
        // An answer that a busy machine holds up for milliseconds looks like a late one, so a case has three tries.
        let tries: Vec<String> = (0..3).map_while(|_| second_answers(late).err()).collect();
        assert!(tries.len() < 3, "{late}: {tries:?}");
    }
}

/// A run of that program, whose second lists come `late` seconds after the answers; the error says what was taken for a
/// score.
fn second_answers(late: &str) -> Result<(), String> {
    let run =
        format!("n=$((n + 1)); sleep 0.15; echo [$n, $n]; if [ $n -gt 4 ]; then (sleep {late}; echo [99, 99]) & fi");
    let mut pool = pool(&[program(&run), "finished".into()], 10.0);
    let (mut expected, mut wrong, mut failures) = (1.0, 0, 0);
    for _ in 0..14 {
        let outcomes = scored(&mut pool);
        if let RewardOutcome::Failed(reason) = &outcomes[0] {
            assert!(reason.contains("behind its answer") && reason.contains("`id`"), "{reason}");
            (expected, wrong, failures) = (1.0, 0, failures + 1);
            continue;
        }
        // A late line may pass for an answer until the next line is seen.
        wrong += usize::from(outcomes != [RewardOutcome::Score(expected), RewardOutcome::Score(expected)]);
        if wrong > 1 {
            return Err(format!("{outcomes:?} in the place of {expected}"));
        }
        expected += 1.0;
    }
    if failures == 0 { Err("no second list was noticed".into()) } else { Ok(()) }
}

/// Scores that take unequal times are those of their groups.
#[test]
fn answers_of_unequal_times_are_kept_back_and_not_lost() {
    let run = "n=$((n + 1)); if [ $((n % 3)) = 0 ]; then sleep 0.1; fi; echo [$n, $n]";
    let mut pool = pool(&[program(run), "finished".into()], 10.0);
    for group in 1..=9 {
        let score = RewardOutcome::Score(f64::from(group));
        assert_eq!(scored(&mut pool), [score.clone(), score]);
    }
}

#[test]
fn a_list_that_was_printed_before_anything_was_asked_is_no_answer() {
    for begin in ["echo [7, 7];", "sleep 0.1; echo [7, 7];"] {
        let run = format!("command:run={begin} while read -r line; do echo [1, 2]; done");
        let mut pool = pool(&[run, "finished".into()], 10.0);
        for _ in 0..2 {
            for outcome in scored(&mut pool) {
                let RewardOutcome::Failed(reason) = outcome else { panic!("{begin}: {outcome:?}") };
                assert!(reason.contains("before it was asked") || reason.contains("behind its answer"), "{reason}");
            }
        }
    }
}

/// However slowly a program starts: the line that is no answer is named, and not the answer behind it.
#[test]
fn a_line_that_is_no_answer_is_named_whenever_the_program_prints_it() {
    for begin in ["", "sleep 0.5;"] {
        let run = format!("command:run={begin} echo loaded; while read -r line; do echo [1, 2]; done");
        let mut pool = pool(&[run, "finished".into()], 10.0);
        let RewardOutcome::Failed(reason) = &scored(&mut pool)[0] else { panic!("{begin}") };
        assert!(reason.contains("wrote `loaded` to its standard output before it was asked"), "{begin}: {reason}");
    }
}

/// A program that puts the request's number into its answers may be late as often as it likes.
#[test]
fn answers_with_the_number_of_their_request_are_told_from_late_ones() {
    let number = r#"n=${line#*\"id\"\:}; n=${n%%,*}; "#;
    let answers = r#"echo "{\"id\"\: $n, \"scores\"\: [$n, 0]}"; "#;
    for late in ["", "sleep 0.001; ", "sleep 0.02; "] {
        let mut pool =
            pool(&[program(&format!("{number}{answers}{late}{answers}echo [9, 9]")), "finished".into()], 10.0);
        for group in 1..=5 {
            assert_eq!(
                scored(&mut pool),
                [RewardOutcome::Score(f64::from(group)), RewardOutcome::Score(0.0)],
                "{late}"
            );
        }
    }
}

/// A program that numbers its answers is not waited for when it has answered the request in another form.
#[test]
fn a_numbered_answer_that_cannot_be_read_fails_the_group_at_once() {
    for (second, reason) in [
        (r#"{\"id\"\: 2, \"scores\"\: [1, }"#, "answered `{\"id\": 2, \"scores\": [1, }`, which is no JSON"),
        (r#"{\"id\"\: 2, \"error\"\: \"no\"}"#, "answered the object {\"id\":2,\"error\":\"no\"} and not a list"),
    ] {
        let answers = format!(
            r#"case "$line" in *\"id\"\:1,*) echo "{{\"id\"\: 1, \"scores\"\: [1, 2]}}";; *) echo "{second}";; esac"#
        );
        let function = Registry::default().function(&program(&answers)).unwrap();
        assert_eq!(called(&function, input(&["a", "b"]), 60.0), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
        let begun = Instant::now();
        let outcomes = called(&function, input(&["a", "b"]), 60.0);
        assert!(matches!(&outcomes[1], RewardOutcome::Failed(found) if found.starts_with(reason)), "{outcomes:?}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_program_that_closes_its_output_is_not_waited_for() {
    let function = Registry::default().function("command:run=exec >&-; sleep 1000").unwrap();
    let begun = Instant::now();
    assert_eq!(called(&function, input(&["a"]), 60.0), [failed("the process ended without an answer")]);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_program_that_does_not_read_blocks_nobody() {
    let long = "x".repeat(1 << 20);
    let function = Registry::default().function("command:run=sleep 1000").unwrap();
    let outcomes = called(&function, input(&[&long, "b"]), 0.5);
    assert!(matches!(&outcomes[0], RewardOutcome::Failed(reason) if reason.contains("within the deadline")));
}

#[test]
fn a_program_runs_in_the_folder_of_the_file_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("reward.sh"), "while read -r line; do echo '[1, 2]'; done").unwrap();
    let spec = "command:run=sh reward.sh";
    let host = |dir: &Path| RewardHost { dir: dir.to_owned(), ..testing::host() };
    let function = Registry::default().on(host(folder.path())).function(spec).unwrap();
    assert_eq!(called(&function, input(&["a", "b"]), 60.0), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
    let elsewhere = Registry::default().on(host(Path::new("/"))).function(spec).unwrap();
    assert!(called(&elsewhere, input(&["a", "b"]), 60.0)[0].has_failed());
    assert!(elsewhere.reward().last_words().iter().any(|line| line.contains("reward.sh")), "{elsewhere:?}");
    let error = Registry::default().on(host(Path::new("/no/such"))).function(spec).unwrap_err().to_string();
    assert!(error.contains("/no/such is no folder"), "{error}");
}

#[test]
fn as_many_calls_run_at_once_as_there_are_processes() {
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let spec = format!("command:run=echo $$ >> {}; while read -r line; do echo [1, 2]; done", pids.display());
    let mut host = RewardHost { processes: 3, ..testing::host() };
    host.bounds.writable = vec![folder.path().to_owned()];
    let function = Registry::default().on(host).function(&spec).unwrap();
    assert_eq!(function.reward().concurrency(), 3);
    for _ in 0..4 {
        assert_eq!(called(&function, input(&["a", "b"]), 60.0).len(), 2);
    }
    let begun = Instant::now();
    while lines(&pids) < 3 && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(lines(&pids), 3);
}

/// After a wrong answer to a request, the right one may still come. It is no answer to the next request.
#[test]
fn a_program_that_answers_wrongly_is_not_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    let run = format!(
        "command:run=while read -r line; do if [ -e {said} ]; then echo [1, 2]; else touch {said}; echo loaded; \
         sleep 0.2; echo [3, 4]; fi; done",
        said = said.display()
    );
    let function = writing_to(folder.path()).function(&run).unwrap();
    assert!(called(&function, input(&["a", "b"]), 60.0)[0].has_failed());
    assert_eq!(called(&function, input(&["a", "b"]), 60.0), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
}

/// The first call of a rehearsal, for programs that do not answer at once.
#[test]
fn a_program_that_does_not_flush_is_told_from_one_that_loads() {
    let first = |program: &str| {
        let function = Registry::default().function(&format!("command:run={program}")).unwrap();
        function.reward().score_first(&input(&["a", "b"]))
    };
    let held = "answers=''; while read -r line; do answers='[1, 2]'; done; echo \"$answers\"";
    let outcomes = first(held);
    assert!(
        matches!(&outcomes[0], RewardOutcome::Failed(reason) if reason.contains("flush its standard output")),
        "{outcomes:?}"
    );
    let slow = "sleep 6; while read -r line; do echo '[1, 2]'; done";
    assert_eq!(first(slow), [RewardOutcome::Score(1.0), RewardOutcome::Score(2.0)]);
}
