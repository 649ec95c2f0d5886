"""Finds the family of a config.json and makes the shape of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.shape.config_reader import Config, UnknownFamily
from qtui_core.memory.shape.heads import of_named_class
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packed import packing_of
from qtui_core.memory.shape.packed_modules import packed
from qtui_core.models.tensors import DESCRIBED_IN

#: model_type of config.json -> the module of `families` that has it in its FAMILIES. The module is
#: imported when a model of the family is opened.
_MODULES: Final[dict[str, str]] = {
    "llama": "llama",
    "mistral": "llama",
    "phi3": "llama",
    "granite": "llama",
    "stablelm": "llama",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gemma3_text": "gemma",
    "qwen": "qwen",
    "qwen2": "qwen",
    "qwen3": "qwen",
    "qwen2_moe": "qwen",
    "qwen3_moe": "qwen",
    "mixtral": "mixture",
    "granitemoe": "mixture",
    "llama4": "mixture",
    "llama4_text": "mixture",
    "olmo": "olmo",
    "olmo2": "olmo",
    "cohere": "cohere",
    "cohere2": "cohere",
    "gpt2": "gpt",
    "gpt_bigcode": "gpt",
    "gpt_neox": "gpt",
    "phi": "gpt",
    "opt": "gpt",
    "bloom": "gpt",
    "falcon": "gpt",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "bert": "bert",
    "roberta": "bert",
    "t5": "t5",
}


def shape_from_config(config: object) -> ModelShape:
    """The shape of the model that a parsed config.json describes.

    Raises:
        UnknownFamily: a family that is not built in.
        UsageError: a configuration that lacks what is needed or contradicts itself.
    """
    if not isinstance(config, Mapping):
        raise UsageError(
            f"A config.json is an object in braces; this one is {type(config).__name__}."
        )
    reader = Config(config, str(config.get(DESCRIBED_IN) or "config.json"))
    family = reader.text("model_type", "")
    if family not in _MODULES:
        raise _unknown(reader, family)
    module = import_module(f"qtui_core.memory.shape.families.{_MODULES[family]}")
    shape = of_named_class(module.FAMILIES[family](reader), reader)
    if reader.where != "config.json":
        shape = replace(shape, described_in=reader.where)
    packing = packing_of(config)
    return shape if packing is None else packed(shape, packing)


def families() -> tuple[str, ...]:
    """The model types that have a shape, in alphabetical order."""
    return tuple(sorted(_MODULES))


def _unknown(config: Config, family: str) -> UnknownFamily:
    if not family:
        return UnknownFamily(
            "config.json does not say model_type, so the family of the model is unknown. Take the "
            "config.json that belongs to the weights."
        )
    if config.values.get("auto_map"):
        return UnknownFamily(
            f"Models of type {family!r} bring their own code (auto_map in config.json), which is "
            "never executed here, and no shape of them is built in. If a later transformers has "
            "their class, remove auto_map and use --trace."
        )
    return UnknownFamily(
        f"No shape of models of type {family!r} is built in, and none is guessed. Use --trace, "
        "which builds the class of transformers without weights and records a step of it."
    )
