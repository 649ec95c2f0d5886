"""What the tensors that a model, its optimizer and its inputs hold are for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from qtui_core.memory.record import Component, rounded
from qtui_core.training.build import Built
from qtui_core.training.optimizers import optimizer_tensors
from qtui_core.training.quantized import quantized_tensors


def component_of_state(built: Built) -> Callable[[str], Component]:
    """What each of the tensors that stand is for, by its name."""
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
    built: Built, optimizer: Any, inputs: Mapping[str, torch.Tensor], device_type: str
) -> dict[str, int]:
    """Bytes on a device by component, each storage once and rounded as the allocator of CUDA
    does: of parameters, buffers, quantization constants, gradients, optimizer states, inputs."""
    seen: set[int] = set()
    found: dict[str, int] = {}
    for component, tensor in _named(built, optimizer, inputs):
        if tensor.device.type != device_type:
            continue
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage._cdata not in seen:
            seen.add(storage._cdata)
            found[component.value] = found.get(component.value, 0) + rounded(storage.nbytes())
    return found


def _named(
    built: Built, optimizer: Any, inputs: Mapping[str, torch.Tensor]
) -> Iterator[tuple[Component, torch.Tensor]]:
    of = component_of_state(built)
    for name, tensor in built.state():
        yield of(name), tensor
    for parameter in built.model.parameters():
        if parameter.grad is not None:
            yield Component.GRADIENTS, parameter.grad
    if optimizer is not None:
        for _, tensor in optimizer_tensors(optimizer, built.model.named_parameters()):
            yield Component.OPTIMIZER, tensor
    for tensor in inputs.values():
        yield Component.INPUTS, tensor
