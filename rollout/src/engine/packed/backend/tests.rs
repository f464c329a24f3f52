//! Pages that are shared and come back, memory for the next version, and a version that is packed wrongly.

use exporters::{Adapter, AdapterConfig, ExportOptions, VersionDir, export, fill_adapter, norm};
use ndarray::{Array2, s};
use rollout_kernels::{element::Format, pages::PAGE};
use shared::{Canaries, Dtype, ModelDir, PolicyVersion, config::RolloutDtype};

use super::{super::adapted::adapter_bytes, *};
use crate::engine::session::read_manifest;

/// Places for 17 sequences of up to 64 tokens.
fn options() -> EngineOptions {
    EngineOptions { max_num_batched_tokens: 64, ..EngineOptions::new(16, 64) }
}

/// A tiny model with its export, in a folder that goes with it.
fn exported() -> (tempfile::TempDir, ModelDir, WeightSource, WeightManifest) {
    exported_of("llama")
}

/// The same of one of the golden models.
fn exported_of(name: &str) -> (tempfile::TempDir, ModelDir, WeightSource, WeightManifest) {
    let model = ModelDir::open(harness::golden_model_dir(name)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = WeightSource { dir: folder.path().join("v0"), version: PolicyVersion(0) };
    export(&model, &source.dir, &ExportOptions::default()).unwrap();
    let manifest = read_manifest(&source, model.config()).unwrap();
    (folder, model, source, manifest)
}

/// An adapter on these linear layers, which changes nothing yet.
fn adapter(model: &ModelDir, modules: &[&str]) -> Adapter {
    let dir = tempfile::tempdir().unwrap();
    let config = AdapterConfig {
        base_model_name_or_path: String::new(),
        base_blake3: None,
        r: 2,
        lora_alpha: 2.0,
        lora_dropout: 0.0,
        target_modules: modules.iter().map(|&module| module.to_owned()).collect(),
        use_rslora: false,
        wrapped: false,
    };
    let parameters = || model.config().parameters();
    let mut shapes = config.tensors(parameters()).unwrap().into_iter();
    fill_adapter(dir.path(), &config, parameters(), &mut |_| {
        let (_, shape) = shapes.next().unwrap();
        Ok(vec![0.0; shape.iter().product()].into())
    })
    .unwrap();
    Adapter::open(dir.path(), parameters()).unwrap()
}

#[test]
fn an_adapter_takes_the_memory_that_is_planned_for_it() {
    let (_folder, model, source, manifest) = exported();
    let all = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    for format in [Format::Fp32, Format::Bf16, Format::Int8] {
        let weights = PackedWeights::load(&source, model.config(), &manifest, format, Provided::default(), 1).unwrap();
        let most = adapter_bytes(model.config(), format, None);
        // Queries, keys and values are one product, and gate and up another.
        let planned = [&all[..1], &["k_proj", "v_proj"], &["up_proj", "down_proj"], &all].map(|modules| {
            let adapter = adapter(&model, modules);
            let planned = adapter_bytes(model.config(), format, Some(&adapter));
            let taken = weights.changed(model.config(), &adapter, format, 1).unwrap().words() * size_of::<f32>();
            assert_eq!(planned, taken as u64, "{modules:?} in {format:?}");
            planned
        });
        assert!(planned[0] == planned[1] && planned[1] + planned[2] < planned[3] && planned[3] == most, "{planned:?}");
    }
}

/// A product that an adapter changes is computed once for each run of neighbours that have the adapter.
#[test]
fn sequences_with_one_adapter_are_neighbours_in_a_call_and_among_them_those_with_one_prompt() {
    let (_folder, model, source, manifest) = exported();
    let backend = PackedBackend::open(&source, model.config(), &manifest, &options()).unwrap();
    let loader = backend.adapter_loader(model.config()).unwrap();
    let adapters =
        [None, Some(()), Some(())].map(|some| some.map(|()| loader.load(&adapter(&model, &["q_proj"])).unwrap()));
    let prompts: Vec<Arc<Prefix>> = (0..6)
        .map(|prompt| {
            Arc::new(Prefix {
                pages: vec![prompt as u32],
                len: 1,
                adapter: adapters[prompt % 3].clone(),
                rotary_begin: 0,
            })
        })
        .collect();
    let of = [0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0];
    let slot = |prompt: usize| Some(Slot { prefix: Arc::clone(&prompts[prompt]), own: Own::default(), computed: 1 });
    let slots: Vec<Option<Slot>> = of.iter().map(|&prompt| slot(prompt)).collect();
    let order = in_order(&slots, of.len());
    let parts = |key: &dyn Fn(usize) -> usize| order.chunk_by(|&a, &b| key(of[a]) == key(of[b])).count();
    assert_eq!((parts(&|prompt| prompt % 3), parts(&|prompt| prompt)), (3, 6), "{order:?}");
    assert_eq!(order.iter().collect::<std::collections::BTreeSet<_>>().len(), of.len(), "each sequence is there once");
}

/// Nothing on disk is wrong, so nothing but log-probs can show it.
#[test]
fn a_wrong_scale_of_int8_is_refused() {
    let (_folder, model, source, manifest) = exported();
    let engine = EngineOptions { rollout_dtype: RolloutDtype::Int8, ..options() };
    let golden = &harness::golden("model_numerics.json")["cases"][0];
    assert_eq!(golden["name"], "llama");
    let row = |value: &serde_json::Value| value[2].as_array().unwrap().clone();
    let ids = |key: &str| row(&golden["inputs"][key]).into_iter().map(|id| id.as_u64().unwrap() as u32);
    let stored = VersionDir::open(&source.dir).unwrap();
    let norm_of = |name: String| (name.clone(), norm(&stored.read_f32(&name).unwrap()));
    let canaries = Canaries {
        version: PolicyVersion(0),
        dtype: Dtype::Fp32,
        token_ids: ids("prompt_ids").chain(ids("completion_ids")).collect(),
        logprobs: row(&golden["expected"]["completion_logps"]).iter().map(|l| l.as_f64().unwrap()).collect(),
        norms: manifest.parameters().map(|(name, _)| norm_of(name)).collect(),
    };
    canaries.write(&source.dir).unwrap();
    let options = PackedOptions {
        keeps_choices: false,
        session: SessionOptions::of(&engine),
        pages: page_shape(model.config(), 1, PAGE, engine.kv_format()),
        states: 1,
        format: engine.format(),
    };
    let gate = Gate::of(&engine);
    let passes = |spoil: &dyn Fn(&mut PackedWeights)| {
        let mut weights =
            PackedWeights::load(&source, model.config(), &manifest, Format::Int8, Provided::default(), 1).unwrap();
        spoil(&mut weights);
        let examined = gate.examine(&source, &manifest).unwrap();
        pass(&examined, Arc::new(weights), model.config(), &manifest, options)
    };
    passes(&|_| ()).unwrap();
    for product in [0, 3, 8] {
        let error = passes(&|weights| weights.scale_for_test(product, 4.0)).expect_err(&product.to_string());
        assert!(error.refusal().is_some_and(|reason| reason.contains("packing")), "{product}: {error}");
    }
}

/// Versions of another size would be packed into new memory.
#[test]
fn the_first_swap_finds_the_memory_that_it_needs() {
    let (_folder, model, source, manifest) = exported();
    let open = |hot_swap| {
        let options = EngineOptions { hot_swap, ..options() };
        PackedBackend::open(&source, model.config(), &manifest, &options).unwrap()
    };
    assert!(open(false).spare.is_none(), "without swaps, none is kept");
    let mut swapping = open(true);
    let spare = swapping.spare.take().and_then(Spare::get).unwrap();
    let place = spare.as_ptr();
    swapping.spare = Some(Spare::Old(spare));
    swapping.load(source.clone(), model.config().clone(), manifest.clone())().unwrap();
    let loaded = swapping.loaded.take();
    assert_eq!(loaded.into_memory().as_ptr(), place);
}

#[test]
fn a_prompt_is_held_once_for_its_completions_and_every_page_comes_back() {
    let (_folder, model, source, manifest) = exported();
    let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options()).unwrap();
    let all = backend.cache.pages.free.count();
    let vocab = model.config().vocab_size;
    let mut logits = Array2::zeros((16, vocab));
    // The second one comes with it, in pages of its own, and goes with the next call.
    let prompts = [Prefill::whole(&[7; 40]), Prefill::whole(&[5; 9])];
    backend.prefill(&prompts, logits.slice_mut(s![..2, ..])).unwrap();
    assert_eq!(all - backend.cache.pages.free.count(), 3 + 1, "40 positions in pages of 16, and 9");
    let first = logits.row(0).to_owned();
    backend.start(0, 1).unwrap();
    assert_eq!(all - backend.cache.pages.free.count(), 1, "nothing will start from the first prompt any more");
    backend.release(0);
    backend.prefill(&prompts[..1], logits.slice_mut(s![..1, ..])).unwrap();
    assert_eq!(first, logits.row(0), "a prompt beside it changes no bit");
    (0..16).for_each(|slot| backend.start(slot, 0).unwrap());
    assert_eq!(all - backend.cache.pages.free.count(), 3);
    let position = 2 * model.config().num_hidden_layers * model.config().num_key_value_heads * 4;
    assert_eq!(backend.kv_bytes_in_use(), (3 * PAGE * position * model.config().head_dim) as u64);
    for step in 0..17 {
        let rows = [DecodeRow { token: 9, position: 40 + step }; 16];
        let cost = backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
        assert_eq!(all - backend.cache.pages.free.count(), 3 + 16 * (1 + step / PAGE));
        assert_eq!(cost.kv_bytes_read, backend.kv_bytes_in_use(), "every page is read once");
    }
    // The group's rows are equal, since they hold the same tokens.
    assert!(logits.rows().into_iter().all(|row| row == logits.row(0) && row.iter().all(|x| x.is_finite())));

    let prompt = Prefill::whole(&[8; 16]);
    backend.prefill_piece(prompt, 10).unwrap();
    assert_eq!(all - backend.cache.pages.free.count(), 3 + 32 + 1, "sequences keep the prompt they were started from");
    let rows = [DecodeRow { token: 9, position: 57 }; 16];
    let cost = backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
    assert_eq!(backend.kv_bytes_in_use() - cost.kv_bytes_read, backend.cache.pages.bytes_of(1), "nobody reads a piece");
    backend.prefill(&[Prefill { computed: 10, ..prompt }], logits.slice_mut(s![..1, ..])).unwrap();
    backend.release(3);
    backend.moved(15, 3, 58).unwrap();
    (0..15).for_each(|slot| backend.release(slot));
    assert_eq!(all - backend.cache.pages.free.count(), 1);
    // A piece that nobody goes on with is given up by the next call, and so is a prompt that has no samples left.
    backend.prefill_piece(prompt, 10).unwrap();
    backend.prefill_piece(prompt, 10).unwrap();
    assert_eq!(all - backend.cache.pages.free.count(), 1);
}

#[test]
fn prompts_that_go_on_are_computed_together_as_each_is_by_itself() {
    let (_folder, model, source, manifest) = exported();
    let options = EngineOptions { kept_states: 2, ..options() };
    let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options).unwrap();
    let all = backend.cache.pages.free.count();
    let mut logits = Array2::zeros((4, model.config().vocab_size));
    // Two states after one prompt, each with a further token whose keys and values are held.
    backend.prefill(&[Prefill::whole(&[7; 20])], logits.slice_mut(s![..1, ..])).unwrap();
    (0..2).for_each(|slot| backend.start(slot, 0).unwrap());
    let rows = [3, 4].map(|token| DecodeRow { token, position: 20 });
    backend.decode(&rows, &Drafts::default(), logits.slice_mut(s![..2, ..])).unwrap();
    (0..2).for_each(|slot| backend.hold(slot, 21, slot as u64));
    // The newest token of each, and a reply.
    let tokens = [3, 4].map(|token| [&[7; 20][..], &[token, 9], &[5; 6]].concat());
    let after = |state: usize, held| Prefill { prompt: 20, held, ..Prefill::whole(&tokens[state]) };
    let prompts = [after(0, Some(0)), Prefill::whole(&[8; 5]), after(1, Some(1)), after(0, None)];
    backend.prefill(&prompts, logits.view_mut()).unwrap();
    let together = logits.clone();
    assert_eq!(together.row(0), together.row(3), "held or not");
    for (prompt, together) in prompts.iter().zip(together.rows()) {
        backend.prefill(&[*prompt], logits.slice_mut(s![..1, ..])).unwrap();
        assert_eq!(logits.row(0), together);
    }
    (0..2).for_each(|number| backend.drop_held(number));
    backend.prefill(&[Prefill::whole(&[8; 5])], logits.slice_mut(s![..1, ..])).unwrap();
    assert_eq!(all - backend.cache.pages.free.count(), 1);
}

/// Models with layers that keep a state, of those that are there.
fn with_states() -> Vec<String> {
    let names = harness::golden_models().into_iter();
    names.filter(|name| ModelDir::open(harness::golden_model_dir(name)).unwrap().config().has_states()).collect()
}

#[test]
fn a_state_is_computed_once_for_a_prompt_and_every_completion_has_a_copy() {
    for name in &with_states() {
        let (_folder, model, source, manifest) = exported_of(name);
        let options = EngineOptions { kept_states: 2, ..options() };
        let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options).unwrap();
        let all = backend.cache.states.free.count();
        assert_eq!(all, 16 + 1 + 2, "{name}: the sequences, a prompt, and two that are held");
        let taken = |backend: &PackedBackend| all - backend.cache.states.free.count();
        let mut logits = Array2::zeros((16, model.config().vocab_size));
        let prompts = [Prefill::whole(&[7; 20]), Prefill::whole(&[5; 9])];
        backend.prefill(&prompts, logits.slice_mut(s![..2, ..])).unwrap();
        assert_eq!(taken(&backend), 2, "{name}");
        let alone = logits.row(0).to_owned();
        backend.start(0, 1).unwrap();
        assert_eq!(taken(&backend), 2, "{name}: nothing will start from the first prompt any more");
        backend.release(0);
        backend.prefill(&prompts[..1], logits.slice_mut(s![..1, ..])).unwrap();
        assert_eq!(logits.row(0), alone, "{name}: a prompt beside it changes no bit");
        (0..16).for_each(|slot| backend.start(slot, 0).unwrap());
        assert_eq!(taken(&backend), 1 + 16, "{name}");
        for step in 0..3 {
            // The last sequence goes another way.
            let rows: Vec<DecodeRow> = (0..16)
                .map(|slot| DecodeRow { token: if slot == 15 { 30 + step } else { 9 }, position: 20 + step as usize })
                .collect();
            let cost = backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
            let read = cost.kv_bytes_read + backend.cache.states.bytes_of(1);
            assert_eq!(read, backend.kv_bytes_in_use(), "{name}: all is read once but the state behind the prompt");
            let is_same = |slot: usize| logits.row(slot) == logits.row(0);
            assert!((0..15).all(is_same) && !is_same(15), "{name}, step {step}");
        }
        let beside = logits.row(15).to_owned();
        // Alone, it is what it was beside the others.
        (0..16).for_each(|slot| backend.release(slot));
        backend.start(0, 0).unwrap();
        for step in 0..3 {
            let rows = [DecodeRow { token: 30 + step, position: 20 + step as usize }];
            backend.decode(&rows, &Drafts::default(), logits.slice_mut(s![..1, ..])).unwrap();
        }
        assert_eq!(logits.row(0), beside, "{name}");
        backend.hold(0, 23, 0);
        assert_eq!(taken(&backend), 2, "{name}: the prompt's, and what is held");
        backend.drop_held(0);
        backend.give_up(0);
        assert_eq!(taken(&backend), 0, "{name}");
    }
}

#[test]
fn a_prompt_in_pieces_has_the_bits_of_a_whole_one_beside_sequences_that_go_on() {
    for name in &with_states() {
        let (_folder, model, source, manifest) = exported_of(name);
        let mut backend = PackedBackend::open(&source, model.config(), &manifest, &options()).unwrap();
        let mut logits = Array2::zeros((2, model.config().vocab_size));
        let tokens: Vec<u32> = (0..50).map(|i| 3 + i * 37 % 240).collect();
        let prompt = Prefill::whole(&tokens);
        backend.prefill(&[prompt], logits.slice_mut(s![..1, ..])).unwrap();
        let whole = logits.row(0).to_owned();
        backend.start(0, 0).unwrap();
        let mut computed = 0;
        for (step, piece) in [1, 2, 17, 9].into_iter().enumerate() {
            backend.prefill_piece(Prefill { computed, ..prompt }, piece).unwrap();
            computed += piece;
            let rows = [DecodeRow { token: 9, position: 50 + step }];
            backend.decode(&rows, &Drafts::default(), logits.slice_mut(s![..1, ..])).unwrap();
        }
        backend.prefill(&[Prefill { computed, ..prompt }], logits.slice_mut(s![..1, ..])).unwrap();
        assert_eq!(logits.row(0), whole, "{name}");
        backend.score(model.config(), &tokens, 1, None, &mut |_| ()).unwrap();
        backend.start(1, 0).unwrap();
        let rows = [DecodeRow { token: 9, position: 54 }, DecodeRow { token: 9, position: 50 }];
        backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
        backend.release(1);
        let after = logits.row(1).to_owned();
        backend.prefill(&[prompt], logits.slice_mut(s![..1, ..])).unwrap();
        backend.start(1, 0).unwrap();
        let rows = [DecodeRow { token: 9, position: 55 }, DecodeRow { token: 9, position: 50 }];
        backend.decode(&rows, &Drafts::default(), logits.view_mut()).unwrap();
        assert_eq!(logits.row(1), after, "{name}: the state behind the pieces");
    }
}
