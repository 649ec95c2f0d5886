"""Gradients under autocast to float16, kept from vanishing: the loss is multiplied by a scale, and
what the backward pass makes of it divided by the same before the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from qtui_core.memory.plan.run_plan import RunPlan


def make_scaler(plan: RunPlan, model: torch.nn.Module, device: torch.device | str) -> Any:
    """A `torch.amp.GradScaler` where the Trainer has one (fp16=True: accelerate's Accelerator makes
    it, and AcceleratedOptimizer steps through it); None where a run needs none.

    It takes no gradients in float16 ("Attempting to unscale FP16 gradients"), so a run that trains
    parameters of that type has none either; `unscaled` says so.
    """
    if not _wants(plan) or _trains_float16(model):
        return None
    return torch.amp.GradScaler(torch.device(device).type)


def unscaled(plan: RunPlan, model: torch.nn.Module) -> str:
    """A sentence where gradients of float16 are left as they are; "" elsewhere."""
    if not plan.trains or not _trains_float16(model):
        return ""
    way = "--adapter-dtype fp32" if plan.adapts else "--dtype fp32"
    return (
        f"Parameters in float16 are trained, whose gradients no scaler takes: small ones become "
        f"0, large ones infinite. {way} with --autocast --autocast-dtype fp16 is what a Trainer "
        f"scales."
    )


def scaler_tensors(scaler: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of the state that a scaler keeps from step to step, from the first backward
    pass on: the scale, float32, and the steps since it was changed, int32."""
    for name in ("_scale", "_growth_tracker"):
        tensor = getattr(scaler, name, None)
        if isinstance(tensor, torch.Tensor):
            yield f"scaler.{name.removeprefix('_')}", tensor


def scale_of(scaler: Any) -> float:
    """The scale now; 1.0 without a scaler. Waits for the device."""
    return 1.0 if scaler is None else float(scaler.get_scale())


def left_out(step: int, before: float, now: float) -> str:
    """What is said of a step that a scaler did not take; "" of one that it did. The scales are
    those before and after it."""
    if now >= before:
        return ""
    return (
        f"Step {step} changed nothing: gradients overflowed float16 at a scale of {before:,.6g}, "
        f"and the next step has {now:,.6g}."
    )


def _wants(plan: RunPlan) -> bool:
    return plan.trains and bool(plan.autocast) and plan.autocast_dtype == "fp16"


def _trains_float16(model: torch.nn.Module) -> bool:
    return any(p.requires_grad and p.dtype == torch.float16 for p in model.parameters())
