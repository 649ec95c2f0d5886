"""config.json -> ModelShape, one small function for each family of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qtui_core.errors import UsageError
from qtui_core.memory.families import (
    bloom,
    cohere,
    deepseek,
    encoders,
    falcon,
    gemma,
    gpt,
    llama,
    mixture,
    neox,
    olmo,
    opt,
    qwen,
    t5,
)
from qtui_core.memory.families.reading import Config, UnknownFamily
from qtui_core.memory.shape import ModelShape

#: model_type of config.json -> its function. Each module of this package adds its own.
_FAMILIES: Final[dict[str, Callable[[Config], ModelShape]]] = {
    **llama.FAMILIES,
    **gemma.FAMILIES,
    **qwen.FAMILIES,
    **mixture.FAMILIES,
    **olmo.FAMILIES,
    **cohere.FAMILIES,
    **gpt.FAMILIES,
    **neox.FAMILIES,
    **opt.FAMILIES,
    **bloom.FAMILIES,
    **falcon.FAMILIES,
    **deepseek.FAMILIES,
    **encoders.FAMILIES,
    **t5.FAMILIES,
}


def shape_of(config: object) -> ModelShape:
    """The shape of the model that a parsed config.json describes.

    Raises:
        UnknownFamily: a family that has no function here.
        UsageError: a configuration that lacks what is needed or contradicts itself.
    """
    if not isinstance(config, Mapping):
        raise UsageError(
            f"A config.json is an object in braces; this one is {type(config).__name__}."
        )
    reader = Config(config)
    family = reader.text("model_type", "")
    if family not in _FAMILIES:
        raise _unknown(reader, family)
    return _FAMILIES[family](reader)


def families() -> tuple[str, ...]:
    """The model types that have a shape, in alphabetical order."""
    return tuple(sorted(_FAMILIES))


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


__all__ = ["UnknownFamily", "families", "shape_of"]
