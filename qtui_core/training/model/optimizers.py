"""The optimizers that a plan can name, made by their own libraries; and loss scaling under autocast
to float16, so that gradients do not underflow: the loss is multiplied by a scale, and the gradients
are divided by it before the optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from qtui_core.extras import importing
from qtui_core.memory.plan.run_plan import RunPlan

_RATE = 1e-4


def make_optimizer(plan: RunPlan, model: torch.nn.Module, rate: float = _RATE) -> Any:
    """The optimizer of a plan over the trainable parameters of a model, with a learning rate.

    Raises MissingLibrary if its library is not installed.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    match plan.optimizer:
        case "adamw" | "adamw-fused":
            fused = plan.optimizer == "adamw-fused"
            return torch.optim.AdamW(parameters, lr=rate, foreach=not fused, fused=fused)
        case "sgd":
            return torch.optim.SGD(parameters, lr=rate, foreach=True)
        case "adamw4bit":
            with importing("adamw4bit", "torchao"):
                from torchao.optim import AdamW4bit
            return AdamW4bit(parameters, lr=rate)
    from bitsandbytes import optim

    kinds = {
        "adamw8bit": optim.AdamW8bit,
        "paged-adamw8bit": optim.PagedAdamW8bit,
        "paged-adamw": optim.PagedAdamW32bit,
    }
    # The Trainer requests 32-bit states for all embeddings (trainer.py, create_optimizer).
    manager = optim.GlobalOptimManager.get_instance()
    manager.initialize()
    for module in model.modules() if plan.loop == "trainer" else ():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return kinds[plan.optimizer](parameters, lr=rate)


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


def make_scaler(plan: RunPlan, model: torch.nn.Module, device: torch.device | str) -> Any:
    """A `torch.amp.GradScaler` if the Trainer uses one (fp16=True: accelerate's Accelerator makes
    it, and AcceleratedOptimizer steps through it); None if the run needs none.

    A GradScaler refuses float16 gradients ("Attempting to unscale FP16 gradients"), so a run that
    trains float16 parameters has none either.
    """
    wanted = plan.trains and plan.autocast and plan.autocast_dtype == "fp16"
    if not wanted or any(p.requires_grad and p.dtype == torch.float16 for p in model.parameters()):
        return None
    return torch.amp.GradScaler(torch.device(device).type)


def scaler_tensors(scaler: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the state that a scaler keeps between steps, from the first backward pass
    on: the scale, float32, and the number of steps since it changed, int32."""
    for name in ("_scale", "_growth_tracker"):
        tensor = getattr(scaler, name, None)
        if isinstance(tensor, torch.Tensor):
            yield f"scaler.{name.removeprefix('_')}", tensor


def scale_of(scaler: Any) -> float:
    """The current scale; 1.0 without a scaler. Waits for the device."""
    return 1.0 if scaler is None else float(scaler.get_scale())


def left_out(step: int, before: float, now: float) -> str:
    """The sentence about a step that the scaler skipped; empty for a step that was taken. `before`
    and `now` are the scales before and after it."""
    if now >= before:
        return ""
    return (
        f"Step {step} changed nothing: gradients overflowed float16 at a scale of {before:,.6g}, "
        f"and the next step has {now:,.6g}."
    )
