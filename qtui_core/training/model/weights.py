"""A model of transformers on the CPU, on its way to a run: with the weights of a source, or, of a
bare configuration, with random ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtui_core.activations.load import check_plain, with_weights
from qtui_core.errors import ModelError
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.allocator import warm_up_bytes
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource
from qtui_core.training.model.build import DTYPES, Built, attention_of
from qtui_core.training.model.configuration import class_of, configuration_of
from qtui_core.training.model.stacks import stacks_of

#: Elements of the random numbers that all random weights are cut from.
_RANDOM = 1 << 24


def load_weights(source: ModelSource, plan: RunPlan) -> Built:
    """The model of a source on the CPU, its weights in the dtype of the plan, mapped from their
    files where they are stored in it. Without weights they are random (`is_random`).

    `plan` is resolved. Raises ModelError for what cannot be built or loaded.
    """
    if source.config is None:
        raise ModelError(
            f"{quoted(source.id)} has no config.json beside it, so it is unknown which layers "
            f"its tensors belong to."
        )
    configuration = configuration_of(source.config)
    configuration.use_cache = plan.loop != "trainer"  # which asks for none
    model_class = class_of(configuration)
    implementation = attention_of(plan)
    if not getattr(model_class, "_supports_sdpa", True):
        implementation = "eager"  # the plain form only, which runs whatever is asked for
    dtype = DTYPES[plan.dtype or "fp32"]
    if is_random(source):
        model = _with_random_weights(model_class, configuration, dtype, implementation)
    else:
        check_plain(source, "A run starts from")
        model = with_weights(
            source, model_class, configuration, dtype, attn_implementation=implementation
        )
    return Built(model, configuration, stacks_of(model))


def is_random(source: ModelSource) -> bool:
    """Whether a source is a configuration alone, whose model gets random weights."""
    return source.origin == "config"


def _with_random_weights(
    model_class: Any, configuration: Any, dtype: torch.dtype, implementation: str
) -> Any:
    """Matrices of normal numbers with the deviation that the configuration names, vectors of ones
    (norms) and, as biases, zeros.

    All are cut from one row of random numbers, so that a model of any size is made at once and
    takes no memory of the host before it goes to a device; `settle` makes them tensors of their
    own on a CPU.
    """
    with torch.device("meta"):
        shapes = model_class._from_config(configuration, dtype=dtype).state_dict()
    deviation = getattr(configuration, "initializer_range", None) or 0.02
    largest = max((tensor.numel() for tensor in shapes.values()), default=1)
    row = torch.empty(min(largest, _RANDOM), dtype=dtype).normal_(0.0, deviation)
    if largest > row.numel():
        row = row.repeat(-(-largest // row.numel()))
    weights = {}
    for number, (name, tensor) in enumerate(shapes.items()):
        if tensor.dim() > 1 and tensor.is_floating_point():
            start = (number * 7919) % (row.numel() - tensor.numel() + 1)
            weights[name] = row[start : start + tensor.numel()].view(tensor.shape)
        elif name.endswith("bias"):
            weights[name] = torch.zeros(tensor.shape, dtype=tensor.dtype)
        else:
            weights[name] = torch.ones(tensor.shape, dtype=tensor.dtype)
    return model_class.from_pretrained(
        None,
        config=configuration,
        state_dict=weights,
        dtype=dtype,
        attn_implementation=implementation,
        local_files_only=True,
    )


def settle(model: nn.Module, device: torch.device | str) -> None:
    """Moves a model to a device, one tensor after the other. On a CPU, parameters that share their
    memory with others, as random ones do, get memory of their own."""
    seen: set[int] = set()
    for parameter in model.parameters():
        data = parameter.data
        if data.device.type != torch.device(device).type:
            parameter.data = data.to(device)
        elif _is_shared(data, seen):
            parameter.data = data.clone()
        seen.add(parameter.data.untyped_storage()._cdata)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def warm_up(weight_bytes: int, device: torch.device | str, device_bytes: int | None) -> None:
    """Allocates one tensor as large as all weights on a GPU and frees it, as from_pretrained does
    before it loads (caching_allocator_warmup), so that the weights share one segment."""
    nbytes = warm_up_bytes(weight_bytes, device_bytes)
    if nbytes:
        torch.empty(nbytes, dtype=torch.uint8, device=device)


def _is_shared(data: torch.Tensor, seen: set[int]) -> bool:
    storage = data.untyped_storage()
    return storage._cdata in seen or storage.nbytes() != data.nbytes
