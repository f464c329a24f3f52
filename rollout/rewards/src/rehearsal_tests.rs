//! Rehearsals of functions that work, cannot work, and are odd.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::{Reward, Scope, testing};

/// A function of a completion's text, as the user's own.
struct Own<F>(F);

impl<F: Fn(&str) -> RewardOutcome + Send + Sync> Reward for Own<F> {
    fn score(&self, input: &RewardInput) -> Vec<RewardOutcome> {
        input.completions.iter().map(|completion| (self.0)(&completion.text)).collect()
    }

    fn scope(&self) -> Scope {
        Scope::Group
    }
}

fn own(score: impl Fn(&str) -> RewardOutcome + Send + Sync + 'static) -> RewardFunction {
    RewardFunction { name: "own".into(), columns: &[], own: true, is_rater: false, reward: Arc::new(Own(score)) }
}

fn number(score: impl Fn(&str) -> f64 + Send + Sync + 'static) -> RewardFunction {
    own(move |text| RewardOutcome::Score(score(text)))
}

/// Three groups of every kind of sample.
fn trials() -> Vec<Trial> {
    let samples = vec![Sample::Empty, Sample::Plain, Sample::Overlong, Sample::Right];
    let long = "x".repeat(40);
    let texts = ["", "plain", &long, "right"];
    let input = RewardInput { completions: testing::completions(&texts), ..RewardInput::default() };
    vec![Trial { input, samples }; 3]
}

fn rehearse(function: &RewardFunction, trials: &[Trial]) -> Rehearsed {
    let demand = Demand { timeout: Duration::from_secs(10), completions_per_step: 8 };
    let mut rehearsal = Rehearsal::new(function, demand);
    rehearsal.ask(trials);
    rehearsal.found()
}

fn tried(function: &RewardFunction) -> Rehearsed {
    rehearse(function, &trials())
}

fn only_warning(function: &RewardFunction) -> String {
    let found = tried(function);
    assert_eq!((found.warnings.len(), &found.refusal), (1, &None), "{found:?}");
    found.warnings[0].clone()
}

#[test]
fn a_function_that_knows_right_from_wrong_is_left_alone() {
    let found = tried(&number(|text| f64::from(u8::from(text == "right"))));
    assert_eq!((found.samples, found.failed, found.abstained), (12, 0, 0));
    assert_eq!((found.range, found.right), (Some((0.0, 1.0)), Some(1.0)));
    assert_eq!((found.refusal, found.warnings), (None, Vec::<String>::new()));
}

#[test]
fn what_fails_everywhere_is_refused_and_what_fails_somewhere_is_remarked_on() {
    let found = tried(&own(|_| RewardOutcome::Failed("KeyError: 'answer'".into())));
    assert_eq!(found.refusal.as_deref(), Some("failed on all 12 sample completions: KeyError: 'answer'"));
    assert_eq!(found.warnings, Vec::<String>::new());
    let empty = own(|text| match text {
        "" => RewardOutcome::Failed("IndexError".into()),
        text => RewardOutcome::Score(f64::from(u8::from(text == "right"))),
    });
    assert_eq!(only_warning(&empty), "failed on 3 of 12 sample completions (empty): IndexError");
    let found = tried(&number(|_| f64::NAN));
    assert!(found.refusal.unwrap().ends_with("returned NaN"));
}

#[test]
fn constants_silence_and_length_are_remarked_on() {
    assert!(
        only_warning(&number(|_| 0.25))
            .starts_with("gives 0.25 to each of 12 sample completions, right answers included")
    );
    let silent = only_warning(&own(|_| RewardOutcome::NotApplicable));
    assert_eq!(silent, "has no score for any of 12 sample completions, right answers included");
    assert!(only_warning(&number(|text| text.len() as f64)).contains("would teach to be long"));
    assert!(only_warning(&number(|text| -(text.len() as f64))).contains("would teach to be short"));
}

/// A function may look for something that only the model writes.
#[test]
fn completions_of_the_model_settle_a_doubt() {
    let of_the_model = |texts: [&str; 2]| Trial {
        input: RewardInput { completions: testing::completions(&texts), ..RewardInput::default() },
        samples: vec![Sample::Model; 2],
    };
    let function = number(|text| f64::from(u8::from(text.contains("<<"))));
    let mut rehearsal = Rehearsal::new(&function, Demand { timeout: Duration::from_secs(10), completions_per_step: 8 });
    rehearsal.ask(&trials());
    let before = rehearsal.found();
    assert!(before.in_doubt && before.warnings.len() == 1 && before.of_model.is_none(), "{before:?}");
    rehearsal.ask(&[of_the_model(["<<3>>", "3"])]);
    let after = rehearsal.found();
    assert_eq!((after.samples, after.of_model, after.in_doubt), (14, Some(0.5), false));
    assert_eq!(after.warnings, Vec::<String>::new());

    let mut rehearsal = Rehearsal::new(&function, rehearsal.demand);
    rehearsal.ask(&trials());
    rehearsal.ask(&[of_the_model(["3", "4"])]);
    let found = rehearsal.found();
    let told = "gives 0 to each of 14 sample completions, right answers and 2 of the model's own included; ";
    assert!(found.warnings[0].starts_with(told) && !found.in_doubt, "{found:?}");
    assert!(!tried(&number(|text| text.len() as f64 % 7.0)).in_doubt);
}

#[test]
fn rules_that_come_with_the_sampler_are_only_odd_where_they_judge() {
    let rule =
        |columns: &'static [&'static str], score: f64| RewardFunction { own: false, columns, ..number(move |_| score) };
    assert_eq!(tried(&rule(&[], 0.0)).warnings, Vec::<String>::new());
    assert!(only_warning(&rule(&["answer"], 0.0)).contains("right answers included"));
}

#[test]
fn a_tag_that_the_prompt_opens_is_told_to_functions_that_want_it() {
    let told = |function: &RewardFunction, prompt: &str| {
        let with_prompt = |trial: Trial| Trial { input: RewardInput { prompt: prompt.into(), ..trial.input }, ..trial };
        let trials: Vec<Trial> = trials().into_iter().map(with_prompt).collect();
        let warnings = rehearse(function, &trials).warnings;
        warnings.into_iter().find(|warning| warning.contains("the chat template puts"))
    };
    let opens = "[assistant] <think>\n";
    let wants = number(|text| f64::from(u8::from(text.starts_with("<think>") && text.contains("</think>"))));
    let warning = told(&wants, opens).unwrap();
    assert!(warning.starts_with("wants `<think>` in completions") && warning.contains("`chat_template`"), "{warning}");
    assert_eq!(told(&wants, "[assistant] "), None);
    assert_eq!(told(&number(|text| text.len() as f64 % 2.0), "[assistant] "), None);
    assert_eq!(told(&number(|text| f64::from(u8::from(text.contains("</think>")))), opens), None);
    let rule = |name: &str| crate::Registry::default().function(name).unwrap();
    assert!(told(&rule("think_format"), opens).unwrap().starts_with("counts `<think>`, which the chat template"));
    assert_eq!(told(&rule("finished"), opens), None);
    let answers = "[assistant] <answer>\n";
    let wants = number(|text| f64::from(u8::from(text.contains("<answer>") && text.contains("</answer>"))));
    assert!(told(&wants, answers).unwrap().starts_with("wants `<answer>` in completions"));
    assert!(told(&rule("format"), answers).unwrap().starts_with("counts `<answer>`, which"));
}

/// Calls may be dear: the prompt's tag costs two of them, for the first group that has one.
#[test]
fn a_function_is_asked_about_the_tag_of_a_prompt_once_and_not_where_it_fails() {
    let calls = |outcome: RewardOutcome| {
        let count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&count);
        let function = own(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            outcome.clone()
        });
        let mut trials = trials();
        trials[1..].iter_mut().for_each(|trial| trial.input.prompt = "[assistant] <think>\n".into());
        let mut rehearsal = Rehearsal::new(&function, Demand { timeout: Duration::MAX, completions_per_step: 8 });
        rehearsal.ask(&trials);
        rehearsal.ask(&trials[1..]);
        count.load(Ordering::Relaxed)
    };
    let of_trials = 5 * 4;
    // A right answer and one made by hand, with and without the tag.
    assert_eq!(calls(RewardOutcome::Score(1.0)), of_trials + 2 * 2);
    assert_eq!(calls(RewardOutcome::Failed("no".into())), of_trials);
}

#[test]
fn slow_functions_are_told_with_what_they_cost() {
    let found = |seconds: f64, completions_per_step| {
        let mut found = Rehearsed { seconds: Some(seconds), ..Rehearsed::default() };
        found.warnings.extend(slowness(
            &found,
            4,
            Demand { timeout: Duration::from_secs(10), completions_per_step },
            2,
        ));
        found.warnings
    };
    assert_eq!(found(0.01, 64), Vec::<String>::new());
    assert_eq!(found(2.0, 4), ["takes 8.0 s for 4 completions, and fails after `reward_timeout`, 10 s"]);
    assert!(found(0.5, 64)[0].starts_with("takes 0.50 s for a completion, 16 s for a step; `reward_processes`"));
}
