"""A model of transformers on the CPU, ready to be moved to a device: with the weights of its
source, or with random weights if there is only a configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qtui_core.errors import ModelError
from qtui_core.loading.model import check_memory, check_plain, with_weights
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.allocator import warm_up_bytes
from qtui_core.models.quoting import quoted
from qtui_core.models.source import ModelSource
from qtui_core.training.model.build import DTYPES, Built, attention_of, class_of, configuration_of
from qtui_core.training.model.stacks import stacks_of

#: The number of random values that all random weights are cut from.
_RANDOM = 1 << 24


def load_weights(source: ModelSource, plan: RunPlan) -> Built:
    """The model of a source on the CPU, with weights in the dtype of the plan. Weights that are
    stored in that dtype are mapped from their files. Without weights they are random.

    `plan` is resolved. Raises ModelError for a model that cannot be built or loaded.
    """
    if source.config is None:
        raise ModelError(
            f"{quoted(source.id)} has no config.json beside it, so it is unknown which layers "
            f"its tensors belong to."
        )
    configuration = configuration_of(source.config, plan)
    model_class = class_of(configuration)
    implementation = attention_of(plan, model_class)
    dtype = DTYPES[plan.dtype or "fp32"]
    if source.is_configuration:
        model = _with_random_weights(model_class, configuration, dtype, implementation)
    else:
        check_plain(source, "A run starts from")
        check_memory(source)
        model = with_weights(
            source, model_class, configuration, dtype, attn_implementation=implementation
        )
    return Built(model, configuration, stacks_of(model))


def _with_random_weights(
    model_class: Any, configuration: Any, dtype: torch.dtype, implementation: str
) -> Any:
    """A model whose matrices are normal numbers with the standard deviation of the configuration,
    and whose vectors are ones (norms) or zeros (biases). All are cut from one row of random
    numbers, so that it is made at once; on a CPU, `settle` gives each tensor its own memory."""
    with torch.device("meta"):
        empty = model_class._from_config(configuration, dtype=dtype)
    # A tied weight is there once, as in a checkpoint: two that differ would not be tied.
    once = dict(empty.named_parameters()) | dict(empty.named_buffers())
    shapes = {name: tensor for name, tensor in empty.state_dict().items() if name in once}
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
        else:
            value = 0.0 if name.endswith("bias") else 1.0
            weights[name] = torch.full(tensor.shape, value, dtype=tensor.dtype)
    how = {"attn_implementation": implementation, "local_files_only": True}
    return model_class.from_pretrained(
        None, config=configuration, state_dict=weights, dtype=dtype, **how
    )


def settle(model: nn.Module, device: torch.device | str) -> None:
    """Moves a model to a device, one tensor after the other. On a CPU, parameters that share
    memory, as random ones do, get memory of their own."""
    seen: set[int] = set()
    for parameter in model.parameters():
        data, storage = parameter.data, parameter.data.untyped_storage()
        if data.device.type != torch.device(device).type:
            parameter.data = data.to(device)
        elif storage._cdata in seen or storage.nbytes() != data.nbytes:
            parameter.data = data.clone()
        seen.add(parameter.data.untyped_storage()._cdata)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(device)


def warm_up(weight_bytes: int, device: torch.device | str, device_bytes: int | None) -> None:
    """Allocates one tensor as large as all weights on a GPU and frees it, as from_pretrained does
    before it loads (caching_allocator_warmup). The weights then share one segment."""
    nbytes = warm_up_bytes(weight_bytes, device_bytes)
    if nbytes:
        torch.empty(nbytes, dtype=torch.uint8, device=device)
