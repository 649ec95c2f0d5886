"""The stacks of layers of a model: which layers are alike, what they are called, and how a model is
shortened to the fewest layers that show the pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.memory.replay.folding import Fold, pattern_of
from qtui_core.memory.replay.record import OUTSIDE


@dataclass(eq=False)
class Stack:
    """A stack of layers; each receives the output of the one before.

    Attributes:
        name: of the stack in the model of transformers, such as "model.layers".
        layers: in order.
        start: the number of the first layer; the layers of an encoder come before those of a
            decoder.
    """

    name: str
    layers: nn.ModuleList
    start: int


def stacks_of(model: nn.Module) -> list[Stack]:
    """The stacks of layers of a model, in the order they run."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    stacks: list[Stack] = []
    start = 0
    for name, module in model.named_modules():
        if (
            isinstance(module, nn.ModuleList)
            and len(module) > 0
            and all(isinstance(layer, GradientCheckpointingLayer) for layer in module)
        ):
            stacks.append(Stack(name, module, start))
            start += len(module)
    return stacks


def place_in(stacks: Sequence[Stack], name: str) -> tuple[int, str]:
    """(layer, name within the layer) for the full name of a module or parameter, even if peft has
    wrapped the model; (OUTSIDE, name) if it belongs to no layer."""
    plain = name.removeprefix("base_model.model.")
    for stack in stacks:
        if plain.startswith(f"{stack.name}."):
            number, _, rest = plain.removeprefix(f"{stack.name}.").partition(".")
            return stack.start + int(number), rest
    return OUTSIDE, plain


def fold_layers(model: nn.Module, configuration: Any, margin: int) -> tuple[Fold, ...]:
    """Shortens a model to the fewest layers that show which ones are alike, and returns how.
    `margin` is as in qtui_core.memory.replay.folding. Lists in the configuration with an entry for
    each layer are shortened, too."""
    folds = []
    start = 0
    for stack in stacks_of(model):
        total = len(stack.layers)
        template, period, copies = pattern_of(layer_kinds(list(stack.layers)), margin)
        fold = Fold(start, total - copies * period, template, period, copies)
        folds.append(fold)
        start += fold.built
        if not copies:
            continue
        kept = [*range(template + period), *range(template + period * (1 + copies), total)]
        chosen = [stack.layers[index] for index in kept]
        del stack.layers[len(chosen) :]
        for number, layer in enumerate(chosen):
            stack.layers[number] = layer
            for module in layer.modules():
                if isinstance(vars(module).get("layer_idx"), int):
                    vars(module)["layer_idx"] = number
        for part in (configuration, configuration.get_text_config()):
            for key, value in vars(part).items():
                if isinstance(value, list) and len(value) == total:
                    setattr(part, key, [value[index] for index in kept])
    return tuple(folds)


def layer_kinds(layers: Sequence[nn.Module]) -> list[int]:
    """A number for each layer; layers that are alike have the same number. They have the same
    modules with the same parameters and settings. The index of a layer and settings that are
    fractions do not count, because they do not change what the layer allocates."""
    described = [_description(layer) for layer in layers]
    keys = {key for description in described for key in description}
    positions = {  # in layers of mixed kinds, only some have it
        key for key in keys if all(d.get(key, i) == i for i, d in enumerate(described))
    }
    known: dict[frozenset[tuple[str, str]], int] = {}
    return [
        known.setdefault(
            frozenset((k, str(v)) for k, v in d.items() if k not in positions), len(known)
        )
        for d in described
    ]


def _description(layer: nn.Module) -> dict[str, Any]:
    """Everything about a layer that may change what it allocates."""
    described: dict[str, Any] = {}
    for name, module in layer.named_modules():
        described[f"{name}:"] = type(module).__name__
        for key, value in vars(module).items():
            if not key.startswith("_") and isinstance(value, int | str | None):
                described[f"{name}.{key}"] = value
    for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
        described[f"{name}="] = (tuple(tensor.shape), tensor.dtype)
    return described
