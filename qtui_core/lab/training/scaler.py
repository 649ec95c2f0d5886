"""Steps under the GradScaler of PyTorch, and why it leaves steps out."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.training.tasks import LabTask, loss_of, subject_of
from qtui_core.lab.training.twins import See, adamw, set_rate
from qtui_core.models.opening import DEMO

#: The first step, from 0, whose gradient is spoilt in the run that shows a NaN from upstream.
_SPOILT: Final = 10


@dataclass(frozen=True)
class ScalerRun:
    """Steps under a GradScaler.

    Attributes:
        scales: before the first step, and after each.
        overflows: steps left out whose gradient is finite in float32: the scale was too large.
        upstream: steps left out whose gradient is not finite there either.
        first: the first tensor that was not finite then.
        spoilt: whether the gradient was spoilt on purpose.
        trained: the model that was.
    """

    scales: tuple[float, ...]
    overflows: int
    upstream: int
    first: str = ""
    spoilt: bool = False
    trained: str = ""


def scaler_run(
    see: See,
    *,
    model: str,
    text: str | None,
    steps: int,
    lr: float,
    interval: int,
    start: float,
    spoilt: bool = False,
) -> ScalerRun:
    """Steps of AdamW under autocast to float16 and torch.amp.GradScaler: of the model, or of `nano`
    in the place of the demo, whose steps are dear in float16 on a CPU. A step that is left out is
    done again in float32 without a scale, which tells an overflow from what no scale cures."""
    own = model != DEMO
    task = LabTask("prose" if own else "nano", 4, 64, 1.0, False, ramp=0)
    subject = subject_of(task, model, text)
    net = subject.fresh(0)
    optimizer = adamw(net, lr, subject)
    set_rate(optimizer, lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=interval)
    batches = subject.batches(0)
    scales = [start]
    overflows, upstream, first = 0, 0, ""

    def loss(ids: torch.Tensor, step: int, half: bool) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16) if half else nullcontext():
            found = loss_of(net, ids)
        # The root of zero has a derivative that is not finite, and a finite value: so the loss
        # shows nothing, as where the norm of a vector of zeros is differentiated.
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
            bad = _not_finite(net)
            overflows, upstream, first = overflows + (not bad), upstream + bool(bad), first or bad
            optimizer.zero_grad(set_to_none=True)
    see(steps, steps, scales[-1])
    trained = model if own else "nano"
    return ScalerRun(tuple(scales), overflows, upstream, first, spoilt, trained)


def _not_finite(net: Any) -> str:
    """The name of the first gradient that is not finite; "" where all are."""
    for name, parameter in net.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return str(name)
    return ""
