//! Names of weights that a wrapper, another class or another layout has given.

use std::collections::{HashMap, HashSet};

/// Parts that wrappers put into the names of transformers, with their origin and the way to save such weights without
/// them. Only the first part that a name has is reported.
const WRAPPERS: [(&str, &str); 9] = [
    (
        "base_layer.",
        "is of a model with an adapter of PEFT in it: merge the adapter, `model.merge_and_unload().save_pretrained(…)`",
    ),
    (
        "base_model.model.",
        "is PEFT's: merge the adapter and save the model, `model.merge_and_unload().save_pretrained(…)`",
    ),
    ("_orig_mod.", "is that of torch.compile: save the model within, `model._orig_mod.save_pretrained(…)`"),
    (
        "_fsdp_wrapped_module.",
        "is that of FSDP: save the full state, `accelerator.get_state_dict(model)` or `accelerate merge-weights`",
    ),
    (
        "_checkpoint_wrapped_module.",
        "is that of activation checkpointing: take it out of the names, or save the model that is wrapped",
    ),
    ("module.", "is that of DataParallel, DDP or DeepSpeed: save the model within, `model.module.save_pretrained(…)`"),
    (
        "language_model.",
        "is of a model of images and text: save its text model alone, with a config.json of its own, by \
         `save_pretrained`",
    ),
    ("default.", "is the name of an adapter within PEFT: save the adapter by `save_pretrained`"),
    ("pretrained_model.", "is of TRL's model with a value head: save `model.pretrained_model` by `save_pretrained`"),
];

/// Parts of names by which other layouts are known, with the origin of the layout and its converter.
const LAYOUTS: [(&str, &str); 9] = [
    (
        ".attention.wq.",
        "these are the names of Meta's own files: take the repository's files for transformers (`-hf`), or \
                        convert them with transformers' convert_llama_weights_to_hf.py",
    ),
    (
        "blk.",
        "these are the names of GGUF: take the model's own repository, or load it with transformers' `gguf_file` and \
              save_pretrained",
    ),
    (
        ".self_attention.linear_qkv.",
        "these are Megatron's names: convert the checkpoint to Hugging Face's with Megatron Bridge or \
                                     verl's model_merger",
    ),
    (".self_attn.qkv_proj.", "q, k and v are one tensor, as in Phi-3 or inside vLLM: save the model from transformers"),
    (".mlp.gate_up_proj.", "gate and up are one tensor, as in Phi-3 or inside vLLM: save the model from transformers"),
    (".attn.c_attn.", "these are the names of GPT-2's family, which is another model"),
    ("gpt_neox.", "these are the names of GPT-NeoX, which is another model"),
    (
        ".lora_A.",
        "these are tensors of an adapter: put its adapter_config.json beside them, which makes the folder an adapter, \
                  or merge it with PEFT's merge_and_unload",
    ),
    ("flat_param", "these are FSDP's flat parameters: save the full state dictionary"),
];

/// Says what is wrong with the names of a model's weights, if the names are at fault. A wrapped name is shown with the
/// missing one of the `asked` names that it should be; otherwise, the layout of the `found` names is named.
pub(crate) fn foreign<'a>(
    found: impl Iterator<Item = &'a str>,
    asked: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let names = Names::of(found, asked)?;
    names.wrapped().or_else(|| names.of_another_layout())
}

/// As [`foreign`], for wrappers alone: an adapter may have other layers than the `asked` ones, which is not another
/// layout.
pub(crate) fn wrapped<'a>(
    found: impl Iterator<Item = &'a str>,
    asked: impl Iterator<Item = &'a str>,
) -> Option<String> {
    Names::of(found, asked)?.wrapped()
}

/// Names of weights, of which some are missing and others unknown.
struct Names<'a> {
    /// Names that are found and not asked for, sorted.
    unknown: Vec<&'a str>,
    /// Names that are asked for and not found, sorted.
    missing: Vec<&'a str>,
    /// Whether no name that is asked for is found.
    none_is_known: bool,
}

impl<'a> Names<'a> {
    /// Absent if every name that is asked for is found, or no other name is.
    fn of(found: impl Iterator<Item = &'a str>, asked: impl Iterator<Item = &'a str>) -> Option<Self> {
        let found: HashSet<&str> = found.collect();
        let asked: HashSet<&str> = asked.collect();
        let mut unknown: Vec<&str> = found.difference(&asked).copied().collect();
        let mut missing: Vec<&str> = asked.difference(&found).copied().collect();
        unknown.sort_unstable();
        missing.sort_unstable();
        let both = !unknown.is_empty() && !missing.is_empty();
        both.then(|| Self { unknown, missing, none_is_known: asked.is_disjoint(&found) })
    }

    /// A name that a wrapper has given, with the one that it should be.
    fn wrapped(&self) -> Option<String> {
        let missing: HashMap<String, &str> = self.missing.iter().map(|name| (bare(name), *name)).collect();
        let (name, meant) = self.unknown.iter().find_map(|name| Some((*name, meant(name, &missing)?)))?;
        Some(format!("the weights have a tensor {name}, which should be {meant}: {}", reason(name, meant)))
    }

    /// A name of another layout. A model of the right family that lacks a tensor has most of the names.
    fn of_another_layout(&self) -> Option<String> {
        let layout = |name: &&'a str| Some((*name, LAYOUTS.iter().find(|(part, _)| name.contains(part))?.1));
        let (name, words) = self.unknown.iter().find_map(layout).or_else(|| {
            let words = "these are names of another model or layout than config.json's; save the model with \
                transformers' save_pretrained";
            self.none_is_known.then(|| (self.unknown[0], words))
        })?;
        Some(format!("the weights have no tensor {}, but {name}: {words}", self.missing[0]))
    }
}

/// A name without wrappers.
fn bare(name: &str) -> String {
    let mut bare = format!(".{name}");
    for (wrapper, _) in &WRAPPERS {
        while let Some(at) = bare.find(&format!(".{wrapper}")) {
            bare.replace_range(at + 1..at + 1 + wrapper.len(), "");
        }
    }
    bare.split_off(1)
}

/// The `missing` name that a tensor should have. `missing` maps bare names to full ones. They match without wrappers,
/// without a prefix before the model, or with `model.`.
fn meant<'a>(name: &str, missing: &HashMap<String, &'a str>) -> Option<&'a str> {
    let bare = bare(name);
    let mut ends = std::iter::once(&*bare).chain(bare.match_indices('.').map(|(at, _)| &bare[at + 1..]));
    ends.find_map(|end| missing.get(end).or_else(|| missing.get(&format!("model.{end}"))).copied())
}

/// The origin of the difference between two names, and the way out.
fn reason(name: &str, meant: &str) -> String {
    let is_in = |part: &str| name.starts_with(part) || name.contains(&format!(".{part}"));
    if let Some((part, words)) = WRAPPERS.iter().find(|(part, _)| is_in(part) && !meant.contains(part)) {
        return format!("`{part}` {words}");
    }
    match meant.strip_suffix(name) {
        Some("model.") => {
            return "`model.` is missing, as in what AutoModel saves: load it with AutoModelForCausalLM and save it \
                again"
                .into();
        }
        Some(missing) => return format!("`{missing}` is missing: save it again by `save_pretrained`"),
        None => (),
    }
    let end = meant.strip_prefix("model.").unwrap_or(meant);
    let before = name.strip_suffix(meant).or_else(|| name.strip_suffix(end)).unwrap_or(name);
    format!(
        "`{before}` is no part of the model's names: save the model that is within what wrote it, by `save_pretrained`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: [&str; 5] = [
        "lm_head.weight",
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.norm.weight",
    ];

    fn told(names: &[String]) -> Option<String> {
        foreign(names.iter().map(String::as_str), ASKED.into_iter())
    }

    /// Names that are made from those that are asked for.
    fn renamed(rename: impl Fn(&str) -> String) -> Vec<String> {
        ASKED.into_iter().map(rename).collect()
    }

    #[test]
    fn a_prefix_is_told_with_a_tensor_as_it_is_and_as_it_should_be() {
        for (prefix, words) in [
            ("base_model.model.", "`base_model.model.` is PEFT's: merge the adapter"),
            ("_orig_mod.", "torch.compile: save the model within, `model._orig_mod.save_pretrained"),
            ("module.", "DataParallel, DDP or DeepSpeed"),
            ("_fsdp_wrapped_module.", "FSDP"),
            ("module._orig_mod.", "torch.compile"),
            ("_orig_mod.module.", "torch.compile"),
            ("language_model.", "images and text"),
            ("default.", "is the name of an adapter within PEFT: save the adapter by `save_pretrained`"),
            ("pretrained_model.", "value head"),
            ("transformer.", "`transformer.` is no part of the model's names"),
            ("actor.", "`actor.` is no part of the model's names"),
            ("student.backbone.", "`student.backbone.` is no part of the model's names"),
        ] {
            let text = told(&renamed(|name| format!("{prefix}{name}"))).unwrap();
            let begin = format!("the weights have a tensor {prefix}lm_head.weight, which should be lm_head.weight: ");
            assert!(text.starts_with(&begin) && text.contains(words), "{text}");
        }
    }

    #[test]
    fn wrappers_within_names_and_missing_beginnings_are_told() {
        let within = renamed(|name| name.replace("layers.0.", "layers.0._checkpoint_wrapped_module."));
        let text = told(&within).unwrap();
        assert!(
            text.contains(
                "_checkpoint_wrapped_module.input_layernorm.weight, which should be \
                           model.layers.0.input_layernorm.weight: "
            ) && text.contains("activation checkpointing"),
            "{text}"
        );
        let fsdp = renamed(|name| name.replace("layers.0.", "layers.0._fsdp_wrapped_module."));
        assert!(told(&fsdp).unwrap().contains("FSDP"));
        let text = told(&renamed(|name| name.trim_start_matches("model.").to_owned())).unwrap();
        assert!(
            text.contains("tensor embed_tokens.weight, which should be model.embed_tokens.weight: `model.` is missing")
                && text.contains("AutoModelForCausalLM"),
            "{text}"
        );
        let text = told(&renamed(|name| name.replace("q_proj.weight", "q_proj.base_layer.weight"))).unwrap();
        assert!(text.contains("q_proj.weight: `base_layer.` is of a model with an adapter of PEFT"), "{text}");
        let images = renamed(|name| name.replace("model.", "model.language_model."));
        assert!(told(&images).unwrap().contains("images and text"));
        let text = told(&renamed(|name| format!("transformer.{}", name.trim_start_matches("model.")))).unwrap();
        assert!(text.contains("`transformer.` is no part"), "{text}");
    }

    #[test]
    fn names_of_adapters_are_told_likewise() {
        let asked = ["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"];
        for (name, words) in [
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight", "`default.` is the name"),
            ("model.layers.0.self_attn.q_proj.lora_A.weight", "`base_model.model.` is missing"),
            ("module.base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "DDP"),
        ] {
            let text = wrapped([name].into_iter(), asked.into_iter()).unwrap();
            assert!(
                text.contains(&format!("{name}, which should be {}: ", asked[0])) && text.contains(words),
                "{text}"
            );
        }
    }

    #[test]
    fn an_adapter_of_other_layers_is_no_matter_of_names() {
        let of =
            |layers: [&str; 2]| layers.map(|layer| format!("base_model.model.model.layers.0.{layer}.lora_A.weight"));
        for (found, asked) in [
            (["self_attn.q_proj", "self_attn.v_proj"], ["self_attn.q_proj", "self_attn.k_proj"]),
            (["mlp.up_proj", "mlp.down_proj"], ["self_attn.q_proj", "self_attn.v_proj"]),
            (["self_attn.qkv_proj", "mlp.gate_up_proj"], ["self_attn.q_proj", "mlp.up_proj"]),
        ] {
            let (found, asked) = (of(found), of(asked));
            assert_eq!(wrapped(found.iter().map(String::as_str), asked.iter().map(String::as_str)), None, "{found:?}");
        }
    }

    #[test]
    fn other_layouts_are_known_by_their_names() {
        for (name, words) in [
            ("layers.0.attention.wq.weight", "Meta's own files"),
            ("blk.0.attn_q.weight", "GGUF"),
            ("decoder.layers.0.self_attention.linear_qkv.weight", "Megatron"),
            ("model.layers.0.self_attn.qkv_proj.weight", "one tensor"),
            ("transformer.h.0.attn.c_attn.weight", "GPT-2"),
            ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "adapter_config.json"),
            ("encoder.block.0.weight", "another model or layout"),
        ] {
            let text = told(&[name.to_owned()]).unwrap();
            assert!(text.starts_with(&format!("the weights have no tensor lm_head.weight, but {name}: ")), "{text}");
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn right_names_and_single_tensors_too_few_or_too_many_are_no_matter_of_names() {
        assert_eq!(told(&renamed(str::to_owned)), None);
        assert_eq!(told(&renamed(str::to_owned)[1..]), None, "one is missing");
        let mut more = renamed(str::to_owned);
        more.push("model.layers.7.input_layernorm.weight".into());
        more.push("module.model.norm.weight".into());
        assert_eq!(told(&more), None, "everything that is asked for is there");
        more.remove(0);
        assert_eq!(told(&more), None, "what is there by its name is not there by another");
    }
}
