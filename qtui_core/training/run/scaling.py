"""Loss scaling under autocast to float16, so that gradients do not underflow: the loss is
multiplied by a scale, and the gradients are divided by it before the optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qtui_core.memory.plan.run_plan import RunPlan


def make_scaler(plan: RunPlan, model: torch.nn.Module, device: torch.device | str) -> Any:
    """A `torch.amp.GradScaler` if the Trainer uses one (fp16=True: accelerate's Accelerator makes
    it, and AcceleratedOptimizer steps through it); None if the run needs none.

    A GradScaler refuses float16 gradients ("Attempting to unscale FP16 gradients"), so a run that
    trains float16 parameters has none either; `unscaled` says so.
    """
    wanted = plan.trains and plan.autocast and plan.autocast_dtype == "fp16"
    if not wanted or _trains_float16(model):
        return None
    return torch.amp.GradScaler(torch.device(device).type)


def unscaled(plan: RunPlan, model: torch.nn.Module) -> str:
    """A sentence if float16 gradients are not scaled; otherwise empty."""
    if not plan.trains or not _trains_float16(model):
        return ""
    way = "--adapter-dtype fp32" if plan.adapts else "--dtype fp32"
    return (
        f"Parameters in float16 are trained, whose gradients no scaler takes: small ones become "
        f"0, large ones infinite. {way} with --autocast --autocast-dtype fp16 is what a Trainer "
        f"scales."
    )


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


def _trains_float16(model: torch.nn.Module) -> bool:
    return any(p.requires_grad and p.dtype == torch.float16 for p in model.parameters())
