"""What AdamW wants to change after a few real batches, and how much of it a format lets through."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from qtui_core.errors import ModelError
from qtui_core.lab.numerics.rounding import Storage
from qtui_core.lab.training.tasks import LabSubject, loss_of
from qtui_core.lab.training.twins import Recipe, See, first_not_finite

#: The number of batches from which u is computed, and eps of AdamW.
UPDATE_STEPS: Final = 10
EPSILON: Final = 1e-8
#: (Number of elements with a wanted update, number of those that do not change, sum of
#: (w'-w)·delta, sum of delta²).
Sums = tuple[int, int, float, float]


def wanted_updates(
    subject: LabSubject,
    see: See,
    chosen: Callable[[str], bool] = lambda name: True,
    most: int | None = None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(weight, u) of every chosen parameter, float32, where u = m^/(sqrt(v^) + eps) of AdamW after
    ten batches. The weights are not changed, so that one u serves all rates and formats.

    With `most`, both are one-dimensional: of a tensor with more elements than that, every k-th
    element, k whole, at least `most` of them.
    """
    model = subject.start()
    first, second = subject.task.betas
    trained = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(chosen(name))
        if parameter.requires_grad:
            trained[name] = parameter

    def sampled(tensor: torch.Tensor) -> torch.Tensor:
        """A float32 copy of the elements that are examined."""
        if most is None:
            return tensor.detach().to(torch.float32, copy=True)
        every = max(1, tensor.numel() // most)
        return tensor.detach().reshape(-1)[::every].to(torch.float32, copy=True)

    weights = {name: sampled(p) for name, p in trained.items()}
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    batches = subject.batches(0)
    for step in range(UPDATE_STEPS):
        see(step, UPDATE_STEPS, None)
        ids = next(batches)
        loss = loss_of(model, ids)
        if not math.isfinite(float(loss.detach())):
            ill = first_not_finite(model, ids, Recipe())
            raise ModelError(f"The model's loss is not finite ({ill}), so updates say nothing.")
        loss.backward()
        for name, parameter in trained.items():
            if parameter.grad is None:
                continue
            m, v = moments[name]
            gradient = sampled(parameter.grad)
            m.mul_(first).add_(gradient, alpha=1 - first)
            v.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            parameter.grad = None
    found = {}
    for name, weight in weights.items():
        m, v = moments[name]
        u = (m / (1 - first**UPDATE_STEPS)) / ((v / (1 - second**UPDATE_STEPS)).sqrt() + EPSILON)
        found[name] = weight, u
    return found


def reach(
    storage: Storage,
    weight: torch.Tensor,
    update: torch.Tensor,
    scale: torch.Tensor | None = None,
) -> Sums:
    """How much of one tensor's update arrives, with the weight first rounded to the format: by its
    own scale, or by the one given for a part of a tensor."""
    scale = storage.scale_of(weight) if scale is None else scale
    stored = storage.nearest(weight, scale)
    arrived = (storage.nearest(stored + update, scale) - stored).double()
    wanted = update != 0
    lost = wanted & (arrived == 0)
    delta = update.double()
    return (
        int(wanted.sum()),
        int(lost.sum()),
        float((arrived * delta).sum()),
        float((delta * delta).sum()),
    )
