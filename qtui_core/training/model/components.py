"""The component that each tensor of a model, its optimizer or its inputs belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import torch

from qtui_core.memory.replay.record import Component, rounded
from qtui_core.training.measuring.meter import HeldByName
from qtui_core.training.model.build import Built
from qtui_core.training.model.optimizers import optimizer_tensors
from qtui_core.training.model.quantized import quantized_tensors
from qtui_core.training.run.scaling import scaler_tensors


def component_of_state(built: Built) -> Callable[[str], Component]:
    """A function that tells the component of a lasting tensor from its name."""
    constants = {name for name, _ in quantized_tensors(built.model)}
    buffers = {name for name, _ in built.model.named_buffers()}

    def component(name: str) -> Component:
        if name in constants:
            return Component.QUANTIZATION
        if name in buffers:
            return Component.BUFFERS
        return Component.ADAPTERS if ".lora_" in name else Component.WEIGHTS

    return component


def held(
    standing: HeldByName, device_type: str, cache: Iterable[torch.Tensor] = ()
) -> dict[str, int]:
    """The bytes on a device by component: parameters, buffers, quantization constants, gradients,
    optimizer states, inputs, and the keys and values in `cache`. Each storage counts once, rounded
    as CUDA's allocator rounds it."""
    seen: set[int] = set()
    found: dict[str, int] = {}
    keys_and_values = ((Component.CACHE, tensor) for tensor in cache)
    for component, tensor in chain(_named(standing), keys_and_values):
        if tensor.device.type != device_type:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage._cdata not in seen:
            seen.add(storage._cdata)
            found[component.value] = found.get(component.value, 0) + rounded(storage.nbytes())
    return found


def _named(standing: HeldByName) -> Iterator[tuple[Component, torch.Tensor]]:
    built = standing.built
    if built is not None:
        of = component_of_state(built)
        for name, tensor in built.state():
            yield of(name), tensor
        for parameter in built.model.parameters():
            if parameter.grad is not None:
                yield Component.GRADIENTS, parameter.grad
        if standing.optimizer is not None:
            states = optimizer_tensors(standing.optimizer, built.model.named_parameters())
            for _, tensor in chain(states, scaler_tensors(standing.scaler)):
                yield Component.OPTIMIZER, tensor
    for tensor in standing.inputs.values():
        yield Component.INPUTS, tensor
