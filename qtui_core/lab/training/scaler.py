"""Steps under PyTorch's GradScaler, and why it skips some of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.results import See
from qtui_core.lab.training.tasks import LabTask, loss_of, subject_of
from qtui_core.lab.training.twins import adamw, gradient_not_finite
from qtui_core.models.opening import DEMO

#: The first step, from 0, whose gradient is spoilt in the run that shows a NaN that comes from the
#: model.
_SPOILT: Final = 10


@dataclass(frozen=True)
class ScalerRun:
    """Steps under a GradScaler.

    Attributes:
        scales: the scale before the first step, and after each.
        overflows, upstream: skipped steps whose gradient is finite in float32, so that the scale
            was too large; and those where it is not finite there either.
        first: the first tensor that was not finite then.
        spoilt: whether the gradient was spoilt on purpose.
        trained: the model that was trained.
    """

    scales: tuple[float, ...]
    overflows: int
    upstream: int
    first: str = ""
    spoilt: bool = False
    trained: str = ""


def scaler_run(
    settings: Mapping[str, Any], model: str, start: float, spoilt: bool, see: See
) -> ScalerRun:
    """Steps of AdamW under autocast to float16 and torch.amp.GradScaler. They train the model, or
    `nano` in place of the demo, whose steps take long in float16 on a CPU. A skipped step is
    repeated in float32 without a scale, which tells an overflow from a gradient that no scale
    helps."""
    trained, steps = ("nano" if model == DEMO else model), settings["steps"]
    task = LabTask("nano" if model == DEMO else "prose", 4, 64, 1.0, False, ramp=0)
    subject = subject_of(task, model, settings["text"])
    net = subject.fresh(0)
    optimizer = adamw(net, settings["lr"], task.betas)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=settings["interval"])
    batches, scales = subject.batches(0), [start]
    overflows, upstream, first = 0, 0, ""

    def loss(ids: torch.Tensor, step: int, half: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16) if half else nullcontext():
            found = loss_of(net, ids)
        # The square root of zero is finite but its derivative is not, so the loss shows nothing.
        # The same happens where the norm of a zero vector is differentiated.
        weight = next(net.parameters())
        return found + (weight.sum() * 0).sqrt() if spoilt and step >= _SPOILT else found

    for step in range(steps):
        see(step, steps, scales[-1])
        ids = next(batches)
        scaler.scale(loss(ids, step, True)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(float(scaler.get_scale()))
        optimizer.zero_grad(set_to_none=True)
        if scales[-1] < scales[-2]:
            loss(ids, step, False).backward()
            bad = gradient_not_finite(net)
            overflows, upstream, first = overflows + (not bad), upstream + bool(bad), first or bad
            optimizer.zero_grad(set_to_none=True)
    see(steps, steps, scales[-1])
    return ScalerRun(tuple(scales), overflows, upstream, first, spoilt, trained)
