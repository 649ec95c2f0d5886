"""The optimizers that a plan can name, made by their own libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from qtui_core.errors import UsageError
from qtui_core.memory.plan.run_plan import RunPlan

_RATE = 1e-4


def make_optimizer(plan: RunPlan, model: torch.nn.Module, rate: float = _RATE) -> Any:
    """The optimizer of a plan over the trainable parameters of a model, with a learning rate.

    Raises UsageError if its library is not installed.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    match plan.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, lr=rate, foreach=True)
        case "adamw-fused":
            return torch.optim.AdamW(parameters, lr=rate, fused=True)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, foreach=True)
        case "adamw4bit":
            return _adamw4bit(parameters, rate)
    from bitsandbytes import optim

    kinds = {
        "adamw8bit": optim.AdamW8bit,
        "paged-adamw8bit": optim.PagedAdamW8bit,
        "paged-adamw": optim.PagedAdamW32bit,
    }
    _spare_embeddings(model if plan.loop == "trainer" else None)
    return kinds[plan.optimizer](parameters, lr=rate)


def _spare_embeddings(model: torch.nn.Module | None) -> None:
    """Requests 32-bit states for all embeddings, as the Trainer does from bitsandbytes (trainer.py,
    create_optimizer). Registrations for earlier models are cleared."""
    from bitsandbytes.optim import GlobalOptimManager

    manager = GlobalOptimManager.get_instance()
    manager.initialize()
    for module in model.modules() if model is not None else ():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _adamw4bit(parameters: Sequence[torch.nn.Parameter], rate: float) -> Any:
    try:
        from torchao.optim import AdamW4bit
    except ImportError as error:
        raise UsageError(
            "adamw4bit is torchao's optimizer, which is not installed; "
            "`pip install torchao`, or use adamw8bit."
        ) from error
    return AdamW4bit(parameters, lr=rate)


def optimizer_tensors(
    optimizer: Any, named: Iterable[tuple[str, torch.nn.Parameter]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of an optimizer's states, such as "lm_head.weight.exp_avg", without
    `host_tensors`. Tables that 8-bit states share belong to no weight."""
    tables = {id(table): name for name, table in shared_tables(optimizer)}
    counts = {id(count) for count in host_tensors(optimizer)}
    for parameter_name, parameter in named:
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor) and id(value) not in counts:
                yield from tensor_parts(tables.get(id(value)) or f"{parameter_name}.{name}", value)


def tensor_parts(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor itself, or the tensors that a tensor subclass of torchao wraps. The storage of
    such a subclass only describes the dtype that it represents and takes no memory."""
    if not hasattr(type(tensor), "__tensor_flatten__"):
        yield name, tensor
        return
    for part in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from tensor_parts(f"{name}.{part}", getattr(tensor, part))


def shared_tables(optimizer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the tables of levels of 8-bit states, which are created with the
    optimizer."""
    yield from getattr(optimizer, "name2qmap", {}).items()


def host_tensors(optimizer: Any) -> Iterator[torch.Tensor]:
    """States that are on the host even in a run on a GPU: the step counts of torch's optimizers,
    unless these are fused or capturable (_init_group in torch/optim/adam.py)."""
    for group in getattr(optimizer, "param_groups", ()):
        if group.get("fused") or group.get("capturable"):
            continue
        for parameter in group["params"]:
            count = optimizer.state.get(parameter, {}).get("step")
            if isinstance(count, torch.Tensor):
                yield count
