//! Structure and bytes of the export.

use std::{collections::BTreeMap, fs};

use exporters::{
    ExportOptions, ROTARY_COS, ROTARY_SIN, export, export_values,
    onnx::proto::{GraphProto, ModelProto, NodeProto},
};
use prost::Message;
use safetensors::Dtype;
use serde_json::{Value, json};
use shared::{ModelConfig, PolicyVersion, Rotary, TensorRole, WeightManifest};

use crate::support::{TestModel, assert_well_formed, described, files, graph, values};

const FP16: ExportOptions = ExportOptions { dtype: shared::Dtype::Fp16, max_positions: None, base: None };

fn exported(changes: &Value, options: &ExportOptions) -> (GraphProto, WeightManifest) {
    let model = TestModel::new(changes, Dtype::F32);
    let out = model.path().join("onnx");
    let manifest = export(&model.open(), &out, options).unwrap();
    (graph(&out), manifest)
}

fn nodes<'a>(graph: &'a GraphProto, op: &str) -> Vec<&'a NodeProto> {
    graph.node.iter().filter(|n| n.op_type == op).collect()
}

fn attribute(node: &NodeProto, name: &str) -> i64 {
    node.attribute.iter().find(|a| a.name == name).and_then(|a| a.i).unwrap()
}

fn inputs(graph: &GraphProto) -> Vec<&str> {
    graph.input.iter().map(|i| i.name.as_str()).collect()
}

#[test]
fn the_same_model_gives_the_same_bytes_in_any_folder() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let elsewhere = tempfile::tempdir().unwrap();
    for options in [ExportOptions::default(), FP16] {
        let (first, second) = (model.path().join("a"), elsewhere.path().join("b/c"));
        fs::create_dir_all(second.parent().unwrap()).unwrap();
        export(&model.open(), &first, &options).unwrap();
        export(&model.open(), &second, &options).unwrap();
        assert_eq!(files(&first), files(&second));
        assert_eq!(files(&first).into_keys().collect::<Vec<_>>(), ["manifest.json", "model.onnx", "weights.data"]);
        export(&model.open(), &first, &options).unwrap();
        assert_eq!(files(&first), files(&second), "an export over an export");
    }
}

#[test]
fn the_manifest_says_what_lies_where() {
    let model = TestModel::new(&json!({"model_type": "qwen3"}), Dtype::BF16);
    let out = model.path().join("onnx");
    let manifest = export(&model.open(), &out, &ExportOptions::default()).unwrap();
    assert_eq!(WeightManifest::read(&out).unwrap(), manifest);
    assert_eq!(manifest.version, PolicyVersion(0));
    assert!(manifest.is_of(&model.config()));

    let data = fs::read(out.join("weights.data")).unwrap();
    assert_eq!(manifest.data_blake3, shared::model::manifest::hash_of(&manifest.tensors));
    assert_eq!(manifest.model_blake3, blake3::hash(&fs::read(out.join("model.onnx")).unwrap()).to_hex().as_str());
    let (cos, sin) = model.config().rotary_tables(Rotary::Global, 64);
    for tensor in &manifest.tensors {
        assert_eq!(tensor.offset % 4096, 0, "{}", tensor.name);
        let bytes = &data[tensor.offset as usize..][..tensor.length as usize];
        assert_eq!(tensor.blake3, blake3::hash(bytes).to_hex().as_str(), "{}", tensor.name);
        let shape: Vec<usize> = tensor.shape.iter().map(|&n| n as usize).collect();
        let expected = match tensor.name.as_str() {
            ROTARY_COS => cos.clone(),
            ROTARY_SIN => sin.clone(),
            name => values(name, &shape),
        };
        let bytes = &data[tensor.offset as usize..(tensor.offset + tensor.length) as usize];
        assert_eq!(bytes, bytemuck::cast_slice::<f32, u8>(&expected), "{}", tensor.name);
    }
    let constants: Vec<_> = manifest.tensors.iter().filter(|t| t.role == TensorRole::Constant).collect();
    assert_eq!(constants.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), [ROTARY_COS, ROTARY_SIN]);
    assert_eq!(constants[0].shape, [64, 8]);
}

#[test]
fn the_graph_points_to_the_manifests_tensors() {
    let (graph, manifest) = exported(&json!({}), &ExportOptions::default());
    let external: Vec<_> = graph.initializer.iter().filter(|t| !t.external_data.is_empty()).collect();
    assert_eq!(external.len(), manifest.tensors.len());
    for (initializer, tensor) in external.iter().zip(&manifest.tensors) {
        assert_eq!(initializer.name, tensor.name);
        let shape: Vec<u64> = initializer.dims.iter().map(|&n| n as u64).collect();
        assert_eq!(shape, tensor.shape);
        let of = |key: &str| initializer.external_data.iter().find(|e| e.key == key).unwrap().value.clone();
        assert_eq!(
            [of("location"), of("offset"), of("length")],
            ["weights.data".into(), tensor.offset.to_string(), tensor.length.to_string()]
        );
    }
}

#[test]
fn every_value_is_made_before_it_is_read_and_every_weight_is_read() {
    let all = [
        json!({}),
        json!({"model_type": "qwen2", "tie_word_embeddings": true}),
        json!({"model_type": "qwen3", "head_dim": 8, "attention_bias": true}),
        json!({"attention_bias": true, "mlp_bias": true}),
        json!({"model_type": "gemma3_text", "head_dim": 16, "sliding_window_pattern": 2}),
        json!({"model_type": "gemma3_text", "head_dim": 8, "sliding_window_pattern": 2}),
        json!({"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8}),
        json!({"model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
            "norm_topk_prob": true, "mlp_only_layers": [0]}),
    ];
    for (changes, options) in all.iter().flat_map(|c| [(c, ExportOptions::default()), (c, FP16)]) {
        let (graph, _) = exported(changes, &options);
        assert_well_formed(&graph, &changes.to_string());
    }
}

#[test]
fn inputs_and_outputs_are_as_documented() {
    let (graph, _) = exported(&json!({"num_hidden_layers": 1}), &FP16);
    assert_eq!(
        graph.input.iter().map(described).collect::<Vec<_>>(),
        [
            "input_ids: Int64 [batch, sequence]",
            "seqlens_k: Int32 [batch]",
            "total_sequence_length: Int32 []",
            "last_index: Int64 [batch]",
            "past_key_values.0.key: Float16 [batch, 2, max_sequence, 16]",
            "past_key_values.0.value: Float16 [batch, 2, max_sequence, 16]",
        ]
    );
    assert_eq!(
        graph.output.iter().map(described).collect::<Vec<_>>(),
        [
            "logits: Float [batch, 32]",
            "present.0.key: Float16 [batch, 2, max_sequence, 16]",
            "present.0.value: Float16 [batch, 2, max_sequence, 16]",
        ]
    );
}

#[test]
fn operator_sets_are_stated() {
    let model = TestModel::new(&json!({}), Dtype::F32);
    let out = model.path().join("onnx");
    export(&model.open(), &out, &ExportOptions::default()).unwrap();
    let onnx = ModelProto::decode(fs::read(out.join("model.onnx")).unwrap().as_slice()).unwrap();
    let sets: Vec<_> = onnx.opset_import.iter().map(|s| (s.domain.as_str(), s.version)).collect();
    assert_eq!((onnx.ir_version, sets), (10, vec![("", 21), ("com.microsoft", 1)]));
}

#[test]
fn the_attention_rotates_itself_where_its_kernel_can() {
    for (head_dim, fused) in [(8, false), (16, true), (24, false), (40, false), (64, true)] {
        let (graph, _) = exported(&json!({"head_dim": head_dim}), &ExportOptions::default());
        let attention = nodes(&graph, "GroupQueryAttention");
        assert_eq!(attention.len(), 2);
        for node in attention {
            assert_eq!(node.domain, "com.microsoft");
            assert_eq!(attribute(node, "do_rotary"), i64::from(fused), "head_dim {head_dim}");
            assert_eq!((attribute(node, "num_heads"), attribute(node, "kv_num_heads")), (4, 2));
            assert_eq!(node.input.len(), if fused { 9 } else { 7 });
        }
        assert_eq!(nodes(&graph, "RotaryEmbedding").len(), if fused { 0 } else { 2 * 2 });
        assert_eq!(inputs(&graph).contains(&"position_ids"), !fused);
    }
}

#[test]
fn layers_without_rotary_positions_and_with_windows_say_so() {
    for (head_dim, fused) in [(8, false), (16, true)] {
        let changes = json!({"model_type": "smollm3", "head_dim": head_dim, "num_hidden_layers": 3,
            "no_rope_layers": [0, 1, 1], "use_sliding_window": true, "sliding_window": 5,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"]});
        let (graph, _) = exported(&changes, &ExportOptions::default());
        let attention = nodes(&graph, "GroupQueryAttention");
        let rotated: Vec<i64> = attention.iter().map(|node| attribute(node, "do_rotary")).collect();
        assert_eq!(rotated, if fused { [0, 1, 1] } else { [0; 3] });
        let tables: Vec<bool> = attention.iter().map(|node| node.input.iter().any(|i| i == ROTARY_COS)).collect();
        assert_eq!(tables, [false, fused, fused]);
        assert_eq!(nodes(&graph, "RotaryEmbedding").len(), if fused { 0 } else { 2 * 2 });
        let windows: Vec<Option<i64>> = attention
            .iter()
            .map(|node| node.attribute.iter().find(|a| a.name == "local_window_size").and_then(|a| a.i))
            .collect();
        assert_eq!(windows, [None, Some(5), None]);
    }
    let nowhere = json!({"model_type": "smollm3", "head_dim": 8, "no_rope_layers": [0, 0]});
    assert!(!inputs(&exported(&nowhere, &ExportOptions::default()).0).contains(&"position_ids"));
}

#[test]
fn gemma_3_has_two_tables_and_four_norms_in_a_layer() {
    let changes = json!({"model_type": "gemma3_text", "head_dim": 16, "sliding_window_pattern": 2});
    let (graph, manifest) = exported(&changes, &FP16);
    let tables: Vec<&str> =
        nodes(&graph, "GroupQueryAttention").iter().map(|node| node.input.last().unwrap().as_str()).collect();
    assert_eq!(tables, ["rotary.local.sin", "rotary.sin"]);
    assert_eq!(manifest.tensors.iter().filter(|t| t.role == TensorRole::Constant).count(), 4);
    let norms = nodes(&graph, "SimplifiedLayerNormalization").into_iter().map(|n| &n.input[1]);
    let norms: Vec<_> =
        norms.chain(nodes(&graph, "SkipSimplifiedLayerNormalization").into_iter().map(|n| &n.input[2])).collect();
    assert_eq!(norms.len(), 2 * (4 + 2) + 1);
    assert!(norms.iter().all(|gamma| gamma.ends_with(".factors")), "1 is added to every weight: {norms:?}");
}

#[test]
fn qwen3_norms_every_head_of_q_and_k() {
    let (graph, _) = exported(&json!({"model_type": "qwen3"}), &ExportOptions::default());
    let gammas: Vec<&str> = nodes(&graph, "SimplifiedLayerNormalization").iter().map(|n| n.input[1].as_str()).collect();
    let head_norms: Vec<&&str> = gammas.iter().filter(|g| g.contains("self_attn")).collect();
    assert_eq!(
        head_norms,
        [
            &"model.layers.0.self_attn.q_norm.weight",
            &"model.layers.0.self_attn.k_norm.weight",
            &"model.layers.1.self_attn.q_norm.weight",
            &"model.layers.1.self_attn.k_norm.weight",
        ]
    );
}

#[test]
fn a_tied_head_reads_the_embedding() {
    let head = |changes: &Value| {
        let (graph, _) = exported(changes, &ExportOptions::default());
        graph.node.iter().find(|n| n.name == "logits").unwrap().input[1].clone()
    };
    assert_eq!(head(&json!({"tie_word_embeddings": true})), "model.embed_tokens.weight");
    assert_eq!(head(&json!({"tie_word_embeddings": false})), "lm_head.weight");
}

#[test]
fn biases_enter_their_projections() {
    let with_bias = |changes: &Value| {
        let (graph, _) = exported(changes, &ExportOptions::default());
        nodes(&graph, "Gemm").iter().filter(|n| n.input.len() == 3).count()
    };
    assert_eq!(with_bias(&json!({})), 0);
    assert_eq!(with_bias(&json!({"model_type": "qwen2"})), 2 * 3);
    assert_eq!(with_bias(&json!({"attention_bias": true, "mlp_bias": true})), 2 * 7);
}

#[test]
fn positions_are_the_models_unless_fewer_are_asked_for() {
    let rows = |max: usize, asked: Option<usize>| {
        let options = ExportOptions { max_positions: asked, ..ExportOptions::default() };
        let (_, manifest) = exported(&json!({"max_position_embeddings": max}), &options);
        manifest.tensor(ROTARY_COS).unwrap().shape[0]
    };
    assert_eq!(rows(64, None), 64);
    assert_eq!(rows(64, Some(48)), 48);
    assert_eq!(rows(131_072, None), 32_768);
    assert_eq!(rows(131_072, Some(40_000)), 40_000);
}

#[test]
fn what_the_graph_cannot_express_is_refused_with_key_and_value() {
    let refusal = |changes: &Value, options: &ExportOptions| {
        let model = TestModel::new(changes, Dtype::F32);
        let out = model.path().join("onnx");
        let error = export(&model.open(), &out, options).unwrap_err().to_string();
        assert!(!out.exists());
        error
    };
    for head_dim in [4, 12, 20, 100] {
        let error = refusal(&json!({"head_dim": head_dim}), &ExportOptions::default());
        assert!(error.starts_with(&format!("`head_dim` = {head_dim} cannot be exported")), "{error}");
    }
    let bf16 = ExportOptions { dtype: shared::Dtype::Bf16, ..ExportOptions::default() };
    assert!(refusal(&json!({}), &bf16).starts_with("`dtype` = bf16 cannot be exported"));
    for n in [0, 65] {
        let options = ExportOptions { max_positions: Some(n), ..ExportOptions::default() };
        let error = refusal(&json!({}), &options);
        assert!(error.contains(&format!("`max_positions` = {n}")) && error.contains("64"), "{error}");
    }
}

#[test]
fn golden_models_are_exported() {
    for case in harness::golden_numerics() {
        let folder = harness::golden_dir().join(case["params"]["model_dir"].as_str().unwrap());
        let model = shared::ModelDir::open(&folder).unwrap();
        assert_eq!(model.config().parameter_count(), case["params"]["n_params"].as_u64().unwrap());
        let out = tempfile::tempdir().unwrap();
        let manifest = export(&model, &out.path().join("onnx"), &ExportOptions::default()).unwrap();
        assert!(manifest.is_of(model.config()));
        let (graph, layers) = (graph(&out.path().join("onnx")), model.config().num_hidden_layers);
        let attention = model.config().attention_layers().count();
        assert_eq!(nodes(&graph, "GroupQueryAttention").len(), attention);
        assert_eq!(nodes(&graph, "CausalConvWithState").len(), layers - attention);
    }
}

/// A layer with a short convolution, and one with attention.
fn lfm2() -> Value {
    json!({"model_type": "lfm2", "block_auto_adjust_ff_dim": false, "conv_bias": true,
        "layer_types": ["conv", "full_attention"], "conv_L_cache": 4})
}

/// Two layers with a delta rule, whose value heads share key heads, and one with attention that has a gate.
fn qwen3_5() -> Value {
    json!({"model_type": "qwen3_5_text", "num_hidden_layers": 3, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_num_value_heads": 4, "linear_value_head_dim": 24, "full_attention_interval": 3})
}

/// A convolution, attention to all positions and attention to a window, with gates of heads and norms on both sides.
fn lfm3() -> Value {
    json!({"model_type": "lfm3", "num_hidden_layers": 3, "sliding_window": 6, "conv_L_cache": 7,
        "layer_types": ["conv", "full_attention", "sliding_attention"]})
}

/// Two layers of Mamba-2 with two groups of heads, and one with attention.
fn granite_h() -> Value {
    json!({"model_type": "granitemoehybrid", "num_hidden_layers": 3, "num_local_experts": 0,
        "shared_intermediate_size": 24, "mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 6,
        "mamba_proj_bias": true, "position_embedding_type": "rope", "layer_types": ["mamba", "mamba", "attention"]})
}

/// As [`exported`], of a family with states.
fn with_states(changes: &Value, options: &ExportOptions) -> GraphProto {
    let dir = tempfile::tempdir().unwrap();
    let config = ModelConfig::from_json(&TestModel::config_json(changes)).unwrap();
    let out = dir.path().join("onnx");
    let shapes: BTreeMap<_, _> = config.parameters().into_iter().collect();
    export_values(&config, &out, options, &mut |name| Ok(values(name, &shapes[name]).into())).unwrap();
    graph(&out)
}

#[test]
fn a_layer_with_a_state_has_it_as_input_and_output_in_float32() {
    for options in [ExportOptions::default(), FP16] {
        let graph = with_states(&lfm2(), &options);
        let ends = |list: &[exporters::onnx::proto::ValueInfoProto]| -> Vec<String> {
            list.iter().map(described).filter(|text| text.contains("key") || text.contains("state")).collect()
        };
        let element = if options == FP16 { "Float16" } else { "Float" };
        assert_eq!(
            ends(&graph.input),
            [
                "past_key_values.0.conv_state: Float [batch, 3, 16]".to_owned(),
                format!("past_key_values.1.key: {element} [batch, 2, max_sequence, 16]"),
                format!("past_key_values.1.value: {element} [batch, 2, max_sequence, 16]"),
            ]
        );
        assert_eq!(ends(&graph.output)[0], "present.0.conv_state: Float [batch, 3, 16]");
        let conv = nodes(&graph, "CausalConvWithState");
        assert_eq!((conv.len(), attribute(conv[0], "channels_last")), (1, 1));
        assert_eq!(conv[0].input[3], "past_key_values.0.conv_state");
    }
}

#[test]
fn a_delta_rule_has_a_window_of_all_its_inputs_and_a_matrix_for_each_value_head() {
    let graph = with_states(&qwen3_5(), &ExportOptions::default());
    let states: Vec<String> = graph.input.iter().map(described).filter(|text| text.contains("state")).collect();
    assert_eq!(
        states,
        [
            "past_key_values.0.conv_state: Float [batch, 3, 128]",
            "past_key_values.0.recurrent_state: Float [batch, 4, 8, 24]",
            "past_key_values.1.conv_state: Float [batch, 3, 128]",
            "past_key_values.1.recurrent_state: Float [batch, 4, 8, 24]",
        ]
    );
    for rule in nodes(&graph, "LinearAttention") {
        assert_eq!((attribute(rule, "q_num_heads"), attribute(rule, "kv_num_heads")), (2, 4));
    }
    let gates: Vec<&str> = nodes(&graph, "Sigmoid").into_iter().map(|node| node.name.as_str()).collect();
    assert!(gates.contains(&"layers.2.gate.sigmoid") && !gates.contains(&"layers.0.gate.sigmoid"), "{gates:?}");
    let norms = nodes(&graph, "GatedRMSNorm").into_iter().map(|node| node.input[1].as_str());
    assert!(norms.into_iter().all(|gamma| gamma.ends_with("linear_attn.norm.weight")), "nothing is added to it");
}

#[test]
fn a_state_space_is_read_as_it_is_written_and_normed_by_group_behind_its_gate() {
    let graph = with_states(&granite_h(), &ExportOptions::default());
    let states: Vec<String> = graph.input.iter().map(described).filter(|text| text.contains("state")).collect();
    assert_eq!(
        states,
        [
            "past_key_values.0.conv_state: Float [batch, 3, 56]",
            "past_key_values.0.recurrent_state: Float [batch, 4, 6, 8]",
            "past_key_values.1.conv_state: Float [batch, 3, 56]",
            "past_key_values.1.recurrent_state: Float [batch, 4, 6, 8]",
        ]
    );
    let rules = nodes(&graph, "LinearAttention");
    assert_eq!(rules.len(), 2);
    for rule in rules {
        assert_eq!((attribute(rule, "q_num_heads"), attribute(rule, "kv_num_heads")), (2, 4));
        let scale = rule.attribute.iter().find(|a| a.name == "scale").unwrap();
        assert_eq!(scale.f, Some(1.0), "the operator's own factor is another one");
    }
    let convolutions = nodes(&graph, "CausalConvWithState");
    assert!(convolutions.iter().all(|node| node.input[2].ends_with("mamba.conv1d.bias")));
    let norms: Vec<&str> = nodes(&graph, "SimplifiedLayerNormalization")
        .into_iter()
        .filter(|node| node.name.contains("mamba"))
        .map(|node| node.input[1].as_str())
        .collect();
    assert_eq!(norms, ["mamba.groups"; 2], "the weight follows behind the norm of the groups");
}

#[test]
fn a_gate_of_heads_and_two_tables_are_those_of_lfm3() {
    let graph = with_states(&lfm3(), &ExportOptions::default());
    let gates = nodes(&graph, "Gemm").into_iter().filter(|node| node.name.ends_with("gate_proj")).count();
    assert_eq!((gates, nodes(&graph, "CausalConvWithState").len()), (2, 1));
    let attention = nodes(&graph, "GroupQueryAttention");
    let tables: Vec<&str> = attention.iter().map(|node| node.input.last().unwrap().as_str()).collect();
    assert_eq!(tables, [ROTARY_SIN, "rotary.local.sin"]);
    assert_eq!(attribute(attention[1], "local_window_size"), 6);
    let norms: Vec<_> = nodes(&graph, "SimplifiedLayerNormalization");
    let behind = norms.iter().filter(|node| node.input[1].contains("post_")).count();
    assert_eq!(behind, 2 * 3, "a norm behind every operator and MLP");
}

/// Two layers with keys of their own, of both kinds, and one of each kind that reads them.
fn gemma4() -> Value {
    json!({"model_type": "gemma4_text", "num_hidden_layers": 4, "sliding_window": 6, "global_head_dim": 32,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": true, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 40, "final_logit_softcapping": 5.0, "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})
}

#[test]
fn layers_of_gemma_4_read_the_keys_of_earlier_ones_and_have_inputs_of_their_own() {
    let graph = with_states(&gemma4(), &ExportOptions::default());
    let caches: Vec<String> = graph.input.iter().map(described).filter(|text| text.contains("key:")).collect();
    assert_eq!(
        caches,
        [
            "past_key_values.0.key: Float [batch, 2, max_sequence, 16]",
            "past_key_values.1.key: Float [batch, 2, max_sequence, 32]",
        ]
    );
    let attention = nodes(&graph, "GroupQueryAttention");
    let of_cache: Vec<(&str, usize)> =
        attention.iter().map(|node| (node.input[3].as_str(), node.output.len())).collect();
    assert_eq!(
        of_cache,
        [("past_key_values.0.key", 3), ("past_key_values.1.key", 3), ("present.0.key", 1), ("present.1.key", 1)]
    );
    assert_eq!((attention[2].input[1].as_str(), attention[2].input[2].as_str()), ("layers.2.none", "layers.2.none"));
    assert_eq!(nodes(&graph, "Split")[0].output.len(), 4, "an input for every layer");
    let factors = nodes(&graph, "Mul").into_iter().filter(|node| node.input[1].ends_with("layer_scalar")).count();
    assert_eq!((factors, nodes(&graph, "Tanh").len()), (4, 1));
    let values = nodes(&graph, "SimplifiedLayerNormalization").into_iter().filter(|n| n.name.ends_with("v_norm"));
    let weights: Vec<&str> = values.map(|node| node.input[1].as_str()).collect();
    assert_eq!(weights, ["ones.16", "ones.32"]);
}

#[test]
fn a_width_of_heads_that_the_attention_does_not_know_is_named() {
    let mut changes = gemma4();
    changes["global_head_dim"] = json!(36);
    let config = ModelConfig::from_json(&TestModel::config_json(&changes)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = export_values(&config, &dir.path().join("onnx"), &ExportOptions::default(), &mut |_| {
        unreachable!("refused before anything is read")
    });
    assert!(error.unwrap_err().to_string().contains("`global_head_dim` = 36"));
}

#[test]
fn graphs_with_states_are_well_formed() {
    for (changes, options) in [lfm2(), lfm3(), qwen3_5(), granite_h(), gemma4()]
        .iter()
        .flat_map(|c| [(c, ExportOptions::default()), (c, FP16)])
    {
        assert_well_formed(&with_states(changes, &options), &changes.to_string());
    }
}

#[test]
fn a_score_head_reads_no_state() {
    let mut changes = lfm2();
    changes["architectures"] = json!(["Lfm2ForSequenceClassification"]);
    changes["num_labels"] = json!(1);
    let graph = with_states(&changes, &ExportOptions::default());
    assert_eq!(inputs(&graph), ["input_ids", "seqlens_k", "total_sequence_length", "score_index"]);
    assert_eq!(nodes(&graph, "CausalConvWithState")[0].input[3], "");
    assert_well_formed(&graph, "a scorer");
}

#[test]
fn a_score_head_gives_scores_of_any_token_and_keeps_no_cache() {
    let changes = json!({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1, "num_hidden_layers": 1});
    let (graph, manifest) = exported(&changes, &ExportOptions::default());
    assert_eq!(manifest.tensor("score.weight").unwrap().shape, [1, 16]);
    assert!(manifest.tensor("lm_head.weight").is_none());
    assert_eq!(inputs(&graph), ["input_ids", "seqlens_k", "total_sequence_length", "score_index"]);
    assert_eq!(graph.output.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["scores"]);
    let attention = nodes(&graph, "GroupQueryAttention");
    assert_eq!(attention[0].input[3..5], ["", ""]);
}
