"""Whether a configuration and a set of tensors belong to the same model. Needs torch."""

from __future__ import annotations

from typing import Any

import torch

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource

#: A configuration with more layers per stored tensor than this is refused, also where layers share
#: tensors.
_LAYERS_A_TENSOR = 10
#: A configuration with more than this many times the stored parameters is that of another model.
#: Tied weights and shared layers account for a few times.
_FAR_LARGER = 16


def check_belonging(source: ModelSource, model_class: Any, config: Any) -> None:
    """Refuses the configuration of a far larger model than the tensors, before it takes time and
    memory. Raises ModelError, and whatever the constructor of the model raises."""
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > _LAYERS_A_TENSOR * len(source.tensors):
        raise ModelError(
            f"The config.json of {quoted(source.id)} says {layers:,} layers and there are "
            f"{len(source.tensors):,} tensors: they do not belong together."
        )
    described = sum(p.numel() for p in _empty(model_class, config).parameters())
    if described > _FAR_LARGER * source.parameters + 10**8:
        raise ModelError(
            f"The config.json of {quoted(source.id)} describes {described:,} parameters and its "
            f"tensors hold {source.parameters:,}: they do not belong together."
        )


def differing_shapes(source: ModelSource, model_class: Any, config: Any) -> str:
    """Names the tensors whose shape differs from the configuration; empty if there are none."""
    try:
        built = _empty(model_class, config)
    except Exception:
        return ""  # the constructor failed; the caller has its message
    for name, parameter in built.named_parameters():
        for stored in spellings(built, name):
            info = source.tensors.get(stored)
            if info is not None and info.shape != tuple(parameter.shape):
                return (
                    f"{quoted(stored)} is {info.shape} in the checkpoint and "
                    f"{tuple(parameter.shape)} by its config.json."
                )
    return ""


def spellings(model: Any, name: str) -> tuple[str, ...]:
    """The names that a checkpoint may have for a parameter: a base model and a model with a head
    name it with and without a prefix, and transformers 5 calls the head of GPT-NeoX otherwise than
    its checkpoints do."""
    prefix = f"{model.base_model_prefix}."
    head = ("embed_out.weight",) if name == "lm_head.weight" else ()
    return name, prefix + name, name.removeprefix(prefix), *head


def has_own_names(source: ModelSource, model_class: Any, config: Any) -> bool:
    """Whether every parameter of the class is stored as a tensor of its own name and shape. Then
    loading only maps the files. A head that is tied to the embedding need not be stored."""
    try:
        built = _empty(model_class, config)
    except Exception:
        return False  # the constructor failed; loading has the message
    others = {
        name: tuple(parameter.shape)
        for name, parameter in built.named_parameters()
        if not any(
            stored in source.tensors and source.tensors[stored].shape == tuple(parameter.shape)
            for stored in spellings(built, name)
        )
    }
    embedding = tuple(built.get_input_embeddings().weight.shape)
    tied = bool(getattr(config, "tie_word_embeddings", False))
    return not others or (tied and list(others.values()) == [embedding])


def _empty(model_class: Any, config: Any) -> Any:
    """The model on the meta device, without memory for its weights."""
    with torch.device("meta"):
        return model_class(config)
