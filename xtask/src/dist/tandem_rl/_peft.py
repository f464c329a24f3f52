"""A configuration of PEFT as the arguments of TRL's scripts, which `tandem import-config` knows."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping

from tandem_rl.config import plain

# Fields of `LoraConfig` by the names that TRL's scripts and the rules of the translation have for them.
_NAMES = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
    "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
    "bias": "lora_bias",
    "init_lora_weights": "init_lora_weights",
    "layers_to_transform": "layers_to_transform",
    "rank_pattern": "rank_pattern",
    "alpha_pattern": "alpha_pattern",
}
# PEFT's defaults, where they are not those of TRL's scripts. A mapping need not have the fields.
_DEFAULTS = {"r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
# Values that say nothing, as PEFT's own defaults.
_NEUTRAL = {"bias": "none", "init_lora_weights": True}
# Fields that say nothing about the adapter itself.
_OF_NO_MATTER = {
    "peft_type",
    "task_type",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "auto_mapping",
    "peft_version",
    "runtime_config",
    "megatron_core",
    "qalora_group_size",
}


def arguments(peft_config: Any) -> Dict[str, Any]:
    """The arguments that a configuration of an adapter stands for.

    Raises:
        ValueError: an adapter of another kind than LoRA, or a field that no rule knows.
        TypeError: no configuration.
    """
    if peft_config is None:
        return {}
    fields = _fields(peft_config)
    kind = plain("`peft_config`", fields.get("peft_type") or "LORA")
    if kind != "LORA":
        raise ValueError(f"`peft_config` is of the kind {kind}: Tandem trains LoRA adapters")
    given: Dict[str, Any] = {"use_peft": True}
    for name, value in {**_DEFAULTS, **fields}.items():
        if name in _OF_NO_MATTER or name in _NEUTRAL and value == _NEUTRAL[name]:
            continue
        if value is None or value is False or value in ({}, [], ()):
            continue
        if name not in _NAMES:
            raise ValueError(f"`peft_config` has `{name}`, which no adapter of Tandem has: leave it out")
        given[_NAMES[name]] = plain(f"`{name}` of `peft_config`", value)
    return given


def _fields(peft_config: Any) -> Mapping[str, Any]:
    if isinstance(peft_config, Mapping):
        return peft_config
    if hasattr(peft_config, "to_dict"):
        return peft_config.to_dict()
    if dataclasses.is_dataclass(peft_config):
        return {field.name: getattr(peft_config, field.name) for field in dataclasses.fields(peft_config)}
    raise TypeError(f"`peft_config` is {type(peft_config).__name__}, and no LoraConfig")
