//! New weights between two steps.

use exporters::{Checkpoint, ExportOptions, export};
use rollout::engine::{Engine, EngineError, EngineOptions, WeightSource};
use shared::{ModelDir, PolicyVersion};

use super::support::{
    MODES, Steps, exported, finish, golden_model, greedy, group, options, outcome, trained, wait_swap, write,
};

#[test]
fn new_weights_are_taken_up_between_steps() {
    let model = golden_model("qwen2");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let v1 = trained("qwen2", &v0, folder.path());
    for (kernels, rollout_dtype, kv_dtype) in MODES {
        let options = |max_num_seqs| EngineOptions {
            kernels,
            rollout_dtype,
            kv_dtype,
            hot_swap: true,
            ..options(max_num_seqs, 1)
        };
        check_swaps(&model, [&v0, &v1], options);
    }
}

fn check_swaps(model: &ModelDir, [v0, v1]: [&WeightSource; 2], options: impl Fn(usize) -> EngineOptions) {
    let request = |tag| group(tag, &[1, 200, 69, 238], 3, greedy(20));
    let alone = |weights: &WeightSource| {
        let mut engine = Engine::new(weights.clone(), model, options(4)).unwrap();
        engine.add_group(request(0)).unwrap();
        outcome(finish(&mut engine).swap_remove(0)).1
    };
    let (old, new) = (alone(v0), alone(v1));
    assert_ne!(old.1, new.1, "the versions must differ to test anything");

    // Two slots for three samples: the third starts after the swap.
    let mut engine = Engine::new(v0.clone(), model, options(2)).unwrap();
    // There and back and there again: retired memory is used anew.
    for (after, [before, expected]) in [(v1, [&old, &new]), (v0, [&new, &old]), (v1, [&old, &new])] {
        let was = engine.version();
        engine.add_group(request(0)).unwrap();
        assert!(engine.try_swap().unwrap().is_none());
        for _ in 0..5 {
            engine.step().unwrap();
        }
        engine.begin_swap(after.clone()).unwrap();
        assert!(engine.begin_swap(after.clone()).is_err(), "one is pending");
        let report = wait_swap(&mut engine).unwrap();
        assert_eq!((report.version, engine.version()), (after.version, after.version));
        assert!(report.seconds >= report.stall_seconds && report.stall_seconds >= 0.0);
        for sequence in finish(&mut engine) {
            if sequence.sample < 2 {
                // The prefill's token and five more.
                assert_eq!(sequence.versions, [(0, was), (6, after.version)]);
                assert_eq!(sequence.token_ids[..6], before.0[..6]);
            } else {
                assert_eq!(sequence.versions, [(0, after.version)]);
                assert!(outcome(sequence).1 == *expected, "a sample that starts after the swap knows only its weights");
            }
        }
    }
}

#[test]
fn bad_weights_are_refused_and_the_old_ones_go_on() {
    let model = golden_model("llama");
    let folder = tempfile::tempdir().unwrap();
    let v0 = exported(&model, folder.path());
    let checkpoint = Checkpoint::open(&model).unwrap();
    let nan = write(&v0, folder.path(), 2, |name| {
        let mut values = checkpoint.read_f32(name).unwrap();
        values[0] = if name == "model.norm.weight" { f32::NAN } else { values[0] };
        values
    });
    let mut engine = Engine::new(v0.clone(), &model, options(2, 1)).unwrap();
    let expect = |error: EngineError, part: &str| assert!(error.to_string().contains(part), "{error}");

    engine.begin_swap(nan).unwrap();
    expect(wait_swap(&mut engine).unwrap_err(), "not finite");
    let mislabelled = WeightSource { version: PolicyVersion(7), ..v0.clone() };
    expect(engine.begin_swap(mislabelled).unwrap_err(), "holds v0");
    let missing = WeightSource { dir: folder.path().join("none"), version: PolicyVersion(1) };
    expect(engine.begin_swap(missing).unwrap_err(), "manifest");
    let short = WeightSource { dir: folder.path().join("short"), version: PolicyVersion(0) };
    export(&model, &short.dir, &ExportOptions { max_positions: Some(95), ..ExportOptions::default() }).unwrap();
    expect(engine.begin_swap(short).unwrap_err(), "95 positions, and max_model_len is 96");
    assert!(engine.try_swap().unwrap().is_none(), "nothing is pending");
    engine.add_group(group(0, &[5, 6], 1, greedy(4))).unwrap();
    assert_eq!(finish(&mut engine)[0].versions, [(0, PolicyVersion(0))]);

    expect(Engine::new(v0, &golden_model("qwen3"), options(2, 1)).err().unwrap(), "config.json");
}
