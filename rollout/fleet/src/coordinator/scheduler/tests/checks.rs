//! Completions that are made again: who makes them, what is compared, and who is dropped.

use super::*;

/// Two workers, the second of which may lie, make some groups, all of which are checked.
fn checked(lies: bool) -> (Scheduler, [Fake; 2]) {
    let mut scheduler = scheduler(1.0);
    let now = Instant::now();
    scheduler.announce(edition(3));
    let mut fakes = [Fake::new(1), Fake::new(2)];
    fakes[1].lies = lies;
    for _ in 0..2 {
        fakes.iter_mut().for_each(|fake| drop(fake.call(&mut scheduler, now, true)));
    }
    (0..4).for_each(|tag| scheduler.add(request(tag, 4), PolicyVersion(3), None));
    for _ in 0..100 {
        for fake in &mut fakes {
            fake.call(&mut scheduler, now, true);
            fake.work();
        }
        for case in scheduler.take_cases(now) {
            let version = case.version;
            let truth =
                case.request.samples.iter().map(|&sample| completion(0, case.request.prompt_id, sample, version));
            scheduler.decide(&case, Ok(Found::Made(truth.collect())));
        }
    }
    (scheduler, fakes)
}

#[test]
fn honest_workers_agree() {
    let (mut scheduler, _) = checked(false);
    assert_eq!(scheduler.take_finished().len(), 16);
    assert!(scheduler.checks().agreed >= 4 && scheduler.checks().disputes == 0, "{}", scheduler.checks().agreed);
    assert!(scheduler.take_distrusted().is_empty());
}

#[test]
fn a_worker_that_gives_other_log_probs_is_found_and_the_honest_one_stays() {
    let (mut scheduler, mut fakes) = checked(true);
    assert_eq!(scheduler.take_finished().len(), 16, "some of them wrong");
    assert!(scheduler.checks().disputes > 0);
    let now = Instant::now();
    let reason = fakes[1].call(&mut scheduler, now, true).refused.unwrap();
    assert!(reason.contains("another log-prob at token 0"), "{reason}");
    assert_eq!(fakes[0].call(&mut scheduler, now, true).refused, None);
    let distrusted = scheduler.take_distrusted();
    assert!(!distrusted.is_empty() && distrusted.len() < 4, "{distrusted:?}");
    assert!(scheduler.take_distrusted().is_empty(), "once");
}

/// Two workers, the first of which has made completions that are to be made again.
fn with_a_check() -> (Scheduler, [Fake; 2], Instant) {
    let mut scheduler = scheduler(1.0);
    let now = Instant::now();
    scheduler.announce(edition(3));
    let mut fakes = [Fake::new(1), Fake::new(2)];
    (0..2).for_each(|_| drop(fakes[0].call(&mut scheduler, now, true)));
    scheduler.add(request(0, 2), PolicyVersion(3), None);
    fakes[0].call(&mut scheduler, now, true);
    (0..2).for_each(|_| fakes[0].work());
    fakes[0].call(&mut scheduler, now, true);
    assert_eq!(scheduler.take_finished().len(), 2);
    (scheduler, fakes, now)
}

#[test]
fn a_worker_that_goes_over_to_newer_weights_while_it_makes_something_again_is_not_wrong() {
    let (before, after) = (PolicyVersion(3), PolicyVersion(4));
    for versions in [vec![(0, before), (1, after)], vec![(0, after)]] {
        let (mut scheduler, mut fakes, now) = with_a_check();
        (0..2).for_each(|_| drop(fakes[1].call(&mut scheduler, now, true)));
        assert_eq!(fakes[1].held.len(), 1, "it is to make it again");
        scheduler.announce(edition(4));
        (0..2).for_each(|_| fakes[1].work());
        for made in &mut fakes[1].report.made {
            let logprobs = vec![TokenLogprob::default(); 3];
            *made = Made { token_ids: vec![1; 3], logprobs, versions: versions.clone(), ..made.clone() };
        }
        assert_eq!(fakes[1].call(&mut scheduler, now, true).refused, None);
        assert_eq!((scheduler.checks().agreed, scheduler.checks().disputes), (0, 0), "{versions:?}");
        assert!(scheduler.take_cases(now + seconds(61)).is_empty(), "nobody has the weights any more");
    }
}

#[test]
fn what_was_made_before_its_version_was_made_anew_is_not_compared_with_it() {
    for leased in [false, true] {
        let (mut scheduler, mut fakes, now) = with_a_check();
        if leased {
            (0..2).for_each(|_| drop(fakes[1].call(&mut scheduler, now, true)));
            fakes[1].lies = true;
            (0..2).for_each(|_| fakes[1].work());
        }
        scheduler.announce(Edition { blake3: [9; 32], publication: 4, ..edition(3) });
        (0..3).for_each(|_| drop(fakes[1].call(&mut scheduler, now, true)));
        assert!(fakes[1].held.is_empty() && scheduler.take_cases(now + seconds(61)).is_empty());
        assert_eq!((scheduler.checks().agreed, scheduler.checks().disputes), (0, 0));
    }
}

#[test]
fn who_says_that_newer_weights_came_although_none_were_announced_is_compared() {
    let (mut scheduler, mut fakes, now) = with_a_check();
    // The learner had come to v4 before it began anew with v3.
    scheduler.newest = PolicyVersion(4);
    fakes[1].lies = true;
    (0..2).for_each(|_| drop(fakes[1].call(&mut scheduler, now, true)));
    (0..2).for_each(|_| fakes[1].work());
    fakes[1].report.made.iter_mut().for_each(|made| made.versions = vec![(0, PolicyVersion(4))]);
    assert_eq!(fakes[1].call(&mut scheduler, now, true).refused, None);
    assert_eq!((scheduler.checks().agreed, scheduler.checks().disputes), (0, 1));
}

#[test]
fn a_check_is_given_only_to_a_worker_with_the_same_weights_of_that_number() {
    let (mut scheduler, mut fakes, now) = with_a_check();
    fakes[1].call(&mut scheduler, now, true);
    fakes[1].report.edition = Some(Edition { blake3: [9; 32], ..edition(3) });
    for (is_given, why) in [(false, "its weights are others"), (true, "it has gone over")] {
        fakes[1].call(&mut scheduler, now, true);
        assert_eq!(!fakes[1].held.is_empty(), is_given, "{why}");
    }
}

#[test]
fn what_may_be_of_other_weights_of_the_same_number_is_not_checked() {
    let anew = Edition { blake3: [9; 32], publication: 4, ..edition(3) };
    // The version that the worker has when it is given the lease, before or after v3 is announced anew, and the edition
    // that it has at the end.
    let cases = [(3, true, &anew), (3, false, &anew), (2, false, &edition(3))];
    for (version, is_before, last) in cases {
        let mut scheduler = scheduler(1.0);
        let now = Instant::now();
        scheduler.announce(edition(version));
        let mut fakes = [Fake::new(1), Fake::new(2)];
        (0..2).for_each(|_| drop(fakes[0].call(&mut scheduler, now, true)));
        scheduler.add(request(0, 2), PolicyVersion(version), None);
        if is_before {
            fakes[0].call(&mut scheduler, now, true);
        }
        scheduler.announce(anew.clone());
        if !is_before {
            fakes[0].call(&mut scheduler, now, true);
        }
        (0..2).for_each(|_| fakes[0].work());
        fakes[0].report.edition = Some(last.clone());
        fakes[0].call(&mut scheduler, now, true);
        assert_eq!(scheduler.take_finished().len(), 2);
        (0..3).for_each(|_| drop(fakes[1].call(&mut scheduler, now, true)));
        let cases = scheduler.take_cases(now + seconds(61));
        assert!(fakes[1].held.is_empty() && cases.is_empty(), "v{version}, {is_before}");
    }
}

#[test]
fn what_comes_after_newer_weights_were_announced_is_not_checked() {
    let (mut scheduler, mut fakes, now) = with_a_check();
    scheduler.add(request(1, 2), PolicyVersion(3), None);
    fakes[0].call(&mut scheduler, now, true);
    (0..2).for_each(|_| fakes[0].work());
    scheduler.announce(edition(4));
    fakes[0].report.edition = Some(edition(4));
    fakes[0].call(&mut scheduler, now, true);
    assert_eq!(scheduler.take_finished().len(), 2);
    assert!(scheduler.take_cases(now + seconds(61)).is_empty());
}

#[test]
fn a_worker_with_other_kernels_is_held_to_its_log_probs() {
    for (distance, is_near) in [(1e-4, true), (0.3, false)] {
        let mut scheduler = scheduler(1.0);
        scheduler.options.accept_other_kernels = true;
        let now = Instant::now();
        scheduler.announce(edition(3));
        let (mut stock, mut packed) = (Fake::new(1), Fake::new(2));
        stock.report.class = Some(KernelClass { kernels: Kernels::Stock, ..class() });
        (0..2).for_each(|_| drop(stock.call(&mut scheduler, now, true)));
        scheduler.add(request(0, 4), PolicyVersion(3), None);
        stock.call(&mut scheduler, now, true);
        (0..4).for_each(|_| stock.work());
        stock.call(&mut scheduler, now, true);
        (0..3).for_each(|_| drop(packed.call(&mut scheduler, now, true)));
        assert!(packed.held.is_empty(), "what others make of it tells nothing");
        let cases = scheduler.take_cases(now);
        assert_eq!(cases.len(), 1);
        assert!(cases[0].tolerance.is_some_and(|tolerance| tolerance < 0.01), "{:?}", cases[0].tolerance);
        scheduler.decide(&cases[0], Ok(Found::Late));
        assert_eq!(scheduler.checks().trouble, None);
        scheduler.decide(&cases[0], Err("no room".into()));
        assert_eq!(scheduler.checks().trouble.as_deref(), Some("no room"));
        scheduler.decide(&cases[0], Ok(Found::Apart(distance)));
        assert_eq!(scheduler.checks().trouble, None);
        let refused = stock.call(&mut scheduler, now, true).refused;
        assert_eq!(refused.is_none(), is_near, "{refused:?}");
        assert!(refused.is_none_or(|reason| reason.contains("3.0e-1 from those beside the learner")));
        assert_eq!((scheduler.checks().agreed, scheduler.checks().disputes), (u64::from(is_near), u64::from(!is_near)));
    }
}
