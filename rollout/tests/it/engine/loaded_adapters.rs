//! Adapters beside the weights in use. A completion has the bits of an engine that has its adapter's weights alone,
//! whatever runs beside it.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use exporters::{Adapter, VersionDir};
use proptest::prelude::*;
use rollout::engine::{
    AdapterLoader, Engine, EngineError, EngineOptions, GroupRequest, Kernels, LoadedAdapter, Output, Request,
    WeightSource,
};
use shared::{FinishReason, ModelDir, SamplingParams};

use super::{
    adapters::{ALL, adapter},
    support::{
        MODES, Outcome, Steps, exported, finish, golden_model, greedy, group, mixed_groups, options, outcome, trained,
    },
};

fn opened(version: &WeightSource) -> Adapter {
    let parameters = VersionDir::open(&version.dir).unwrap().manifest().parameters().collect::<Vec<_>>();
    Adapter::open(&version.dir, parameters).unwrap()
}

/// A base and two adapters on it, which have some of their products in common with it.
fn versions(model: &ModelDir, folder: &Path) -> [WeightSource; 3] {
    let base = exported(model, folder);
    let [all, some] = [(1, &ALL[..]), (2, &["q_proj", "up_proj"])]
        .map(|(version, modules)| adapter(&base, folder, version, modules, 0.1));
    [base, all, some]
}

/// The adapters as an engine of the base has them; the base is none.
fn loaded(loader: &AdapterLoader, versions: &[WeightSource; 3]) -> [Option<LoadedAdapter>; 3] {
    let [_, all, some] = versions;
    let load = |version| Some(loader.load(&opened(version)).unwrap());
    [None, load(all), load(some)]
}

/// Each group's completions by an engine that has its weights alone.
fn alone(
    model: &ModelDir,
    versions: &[WeightSource; 3],
    groups: &[(usize, GroupRequest)],
    options: &EngineOptions,
) -> BTreeMap<(u64, u32), Outcome> {
    let of_version = |number: usize| {
        let mut engine = Engine::new(versions[number].clone(), model, options.clone()).unwrap();
        let own = groups.iter().filter(|(of, _)| *of == number);
        own.for_each(|(_, group)| engine.add_group(group.clone()).unwrap());
        finish(&mut engine)
    };
    (0..versions.len()).flat_map(of_version).map(outcome).collect()
}

#[test]
fn several_adapters_at_once_are_each_its_merged_model_bit_for_bit() {
    for name in &harness::golden_models() {
        let (model, folder) = (golden_model(name), tempfile::tempdir().unwrap());
        let versions = versions(&model, folder.path());
        for (kernels, rollout_dtype, kv_dtype) in MODES.into_iter().filter(|mode| mode.0 == Kernels::Packed) {
            let options = EngineOptions { kernels, rollout_dtype, kv_dtype, ..options(8, 2) };
            let groups: Vec<(usize, GroupRequest)> =
                mixed_groups().into_iter().enumerate().map(|(at, group)| (at % versions.len(), group)).collect();
            let expected = alone(&model, &versions, &groups, &EngineOptions { max_num_seqs: 1, ..options.clone() });
            let mut engine = Engine::new(versions[0].clone(), &model, options).unwrap();
            let adapters = loaded(&engine.adapter_loader().unwrap(), &versions);
            for (of, group) in &groups {
                engine.begin_with(group.clone().into(), adapters[*of].clone()).unwrap();
            }
            let got: BTreeMap<_, _> = finish(&mut engine).into_iter().map(outcome).collect();
            assert!(got == expected, "{name}, {rollout_dtype}, {kv_dtype}");
            // They must differ to test anything.
            let mut first = |adapter: &Option<LoadedAdapter>| {
                let group = group(0, &[1, 200, 69, 238], 1, greedy(20));
                engine.begin_with(group.into(), adapter.clone()).unwrap();
                outcome(finish(&mut engine).remove(0)).1
            };
            let [base, all, some] = adapters.each_ref().map(&mut first);
            assert!(base != all && all != some && some != base, "{name}");
        }
    }
}

#[test]
fn tokens_are_scored_by_the_adapter_that_is_asked() {
    let (model, folder) = (golden_model("qwen3"), tempfile::tempdir().unwrap());
    let versions = versions(&model, folder.path());
    let mut engine = Engine::new(versions[0].clone(), &model, options(1, 1)).unwrap();
    let adapters = loaded(&engine.adapter_loader().unwrap(), &versions);
    let (prompt, completion): (&[u32], &[u32]) = (&[1, 200, 69], &[238, 7, 22]);
    let mut all = Vec::new();
    for (version, adapter) in versions.iter().zip(&adapters) {
        let mut own = Engine::new(version.clone(), &model, options(1, 1)).unwrap();
        let expected = own.given_logprobs(prompt, completion, 3, None).unwrap();
        assert_eq!(engine.given_logprobs(prompt, completion, 3, adapter.as_ref()).unwrap(), expected);
        all.push(expected);
    }
    assert!(all[0] != all[1] && all[1] != all[2]);
}

#[test]
fn what_cannot_be_had_with_adapters_is_refused() {
    let (model, folder) = (golden_model("llama"), tempfile::tempdir().unwrap());
    let versions = versions(&model, folder.path());
    let open = |version: &WeightSource, kernels| {
        let options = EngineOptions { kernels, hot_swap: true, ..options(2, 1) };
        Engine::new(version.clone(), &model, options).unwrap()
    };
    let refused = |mut engine: Engine| engine.adapter_loader().err().unwrap().to_string();
    for engine in [open(&versions[0], Kernels::Stock), open(&versions[1], Kernels::Packed)] {
        assert!(refused(engine).contains("need the packed kernels, and weights that are no adapter and stay"));
    }
    let next = trained("llama", &versions[0], folder.path());
    let mut loading = open(&versions[0], Kernels::Packed);
    loading.begin_swap(next.clone()).unwrap();
    assert!(refused(loading).contains("stay"));

    let mut engine = open(&versions[0], Kernels::Packed);
    let loader = engine.adapter_loader().unwrap();
    let own = loader.load(&opened(&versions[1])).unwrap();
    let error = engine.begin_swap(next).unwrap_err().to_string();
    assert!(error.contains("adapters are loaded for the weights in use"), "{error}");
    let request = |keep| Request { keep, ..group(7, &[1, 2], 1, greedy(3)).into() };
    let mut other = open(&versions[0], Kernels::Packed);
    let foreign = other.adapter_loader().unwrap().load(&opened(&versions[1])).unwrap();
    let error = engine.begin_with(request(false), Some(foreign.clone())).unwrap_err().to_string();
    assert!(error.contains("other weights than those in use"), "{error}");
    let error = engine.given_logprobs(&[1], &[2], 0, Some(&foreign)).unwrap_err().to_string();
    assert!(error.contains("other weights than those in use"), "{error}");

    engine.begin(request(true)).unwrap();
    let mut state = None;
    while !engine.is_idle() {
        let ended = engine.advance().unwrap().into_iter().find(|output| matches!(output, Output::Ended { .. }));
        if let Some(Output::Ended { state: left, .. }) = ended {
            state = left;
        }
    }
    let after = Request { from: Some(state.unwrap()), ..request(false) };
    for request in [request(true), after.clone()] {
        let error = engine.begin_with(request, Some(own.clone())).unwrap_err();
        assert!(matches!(error, EngineError::Request { prompt: 7, .. }), "{error}");
    }
    assert!(engine.is_idle(), "nothing was queued");
    engine.begin(after).unwrap();
    finish(&mut engine);

    let huge = adapter(&versions[0], folder.path(), 9, &ALL, 1e30);
    let error = loader.load(&opened(&huge)).unwrap_err().to_string();
    assert!(error.contains("logits of a fixed prompt are not finite"), "{error}");
    assert_eq!(loader.in_memory(), 1);
}

/// The next event.
#[derive(Debug, Clone)]
enum Event {
    /// A group arrives: its weights, tokens of its prompt, completions, and their longest.
    Group {
        of: usize,
        prompt: usize,
        samples: u32,
        most: u32,
    },
    Steps(usize),
    Cancel(usize),
    /// An adapter is replaced by one with the same weights.
    Replace(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let group = (0_usize..3, 1_usize..70, 1_u32..5, 1_u32..26);
    prop_oneof![
        8 => group.prop_map(|(of, prompt, samples, most)| Event::Group { of, prompt, samples, most }),
        8 => (1_usize..12).prop_map(Event::Steps),
        2 => any::<usize>().prop_map(Event::Cancel),
        2 => (1_usize..3).prop_map(Event::Replace),
    ]
}

struct World {
    _folder: tempfile::TempDir,
    model: ModelDir,
    versions: [WeightSource; 3],
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let (folder, model) = (tempfile::tempdir().unwrap(), golden_model("llama"));
    let versions = versions(&model, folder.path());
    World { _folder: folder, model, versions }
});

fn request(tag: u64, prompt: usize, samples: u32, most: u32) -> GroupRequest {
    let mut stream = shared::generation::rng::Stream::new(&[tag]);
    let prompt: Vec<u32> = (0..prompt).map(|_| stream.below(250) as u32 + 3).collect();
    let sampling = SamplingParams { max_completion_length: most, ..SamplingParams::default() };
    group(tag, &prompt, samples, sampling)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_runs_together_a_completion_is_that_of_its_own_weights(
        slots in 1_usize..7,
        batched in 8_usize..80,
        drafts in 0_usize..4,
        events in prop::collection::vec(event(), 1..40),
    ) {
        let World { model, versions, .. } = &*WORLD;
        let own = EngineOptions { max_num_batched_tokens: batched, speculative_tokens: drafts, ..options(slots, 1) };
        let mut engine = Engine::new(versions[0].clone(), model, own).unwrap();
        let loader = engine.adapter_loader().unwrap();
        let mut adapters = loaded(&loader, versions);
        let (mut groups, mut ended, mut aborted) = (Vec::new(), Vec::new(), Vec::new());
        for event in events {
            match event {
                Event::Group { of, prompt, samples, most } => {
                    let group = request(groups.len() as u64, prompt, samples, most);
                    engine.begin_with(group.clone().into(), adapters[of].clone()).unwrap();
                    groups.push((of, group));
                }
                Event::Steps(steps) => (0..steps).for_each(|_| ended.extend(engine.step().unwrap())),
                Event::Cancel(group) if !groups.is_empty() => {
                    aborted.extend(engine.cancel((group % groups.len()) as u64, None));
                }
                Event::Cancel(_) => (),
                Event::Replace(of) => adapters[of] = Some(loader.load(&opened(&versions[of])).unwrap()),
            }
        }
        // Those that run keep theirs.
        drop(adapters);
        ended.extend(finish(&mut engine));

        let expected = alone(model, versions, &groups, &options(8, 1));
        prop_assert_eq!(ended.len() + aborted.len(), expected.len());
        for sequence in aborted {
            let (id, (tokens, logprobs, reason)) = outcome(sequence);
            let (whole, whole_logprobs, _) = &expected[&id];
            prop_assert!(whole.starts_with(&tokens) && whole_logprobs.starts_with(&logprobs));
            prop_assert_eq!(reason, FinishReason::Aborted);
        }
        for sequence in ended {
            let (id, outcome) = outcome(sequence);
            prop_assert!(outcome == expected[&id], "{:?} is another one than alone", id);
        }
        prop_assert_eq!(loader.in_memory(), 0, "nobody wants any of them any more");
        let mut fresh = Engine::new(versions[0].clone(), model, options(slots, 1)).unwrap();
        for engine in [&mut engine, &mut fresh] {
            engine.add_group(request(1000, 20, 1, 1)).unwrap();
            finish(engine);
        }
        prop_assert_eq!(engine.kv_bytes_in_use(), fresh.kv_bytes_in_use(), "every page comes back");
    }
}
