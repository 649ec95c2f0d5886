"""Where the numbers of a step lie: the inputs of each linear layer, the gradients of its outputs,
its weights and their gradients, each as a histogram of powers of two (formats/magnitudes.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from qtui_core.formats.magnitudes import FIELDS, Magnitudes
from qtui_core.live.snapshot import RangeKind, TensorRange
from qtui_core.loading.hooks import hooked
from qtui_core.training.model.quantized import is_linear

#: Elements that are counted at a time, which bounds the memory that counting takes.
_AT_ONCE: Final = 1 << 22


def magnitudes(x: torch.Tensor) -> Magnitudes:
    """The magnitudes of a tensor of any shape, read as float32."""
    counts = torch.zeros(FIELDS, dtype=torch.int64, device=x.device)
    zeros, largest = 0, 0.0
    for part in x.detach().reshape(-1).split(_AT_ONCE):
        flat = part.float().contiguous()
        counts += torch.bincount((flat.view(torch.int32) >> 23) & (FIELDS - 1), minlength=FIELDS)
        zeros += int((flat == 0).sum())
        if flat.numel():
            largest = max(largest, float(flat.abs().nan_to_num(0.0, 0.0).max()))
    counts[0] -= zeros
    return Magnitudes(tuple(counts.tolist()), zeros, largest)


@contextmanager
def ranges_of_step(
    model: nn.Module,
    scale: float = 1.0,
    aside: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[list[TensorRange]]:
    """A context in which steps fill the returned list; a later pass over a tensor replaces the
    earlier one.

    Args:
        model: the model that takes the steps.
        scale: the factor of the loss; gradients are reported without it.
        aside: makes a context in which a reading is no part of the step.

    Memory that the readings use is hidden from meters that count live tensors.
    """
    seen: dict[tuple[RangeKind, str], Magnitudes] = {}
    ranges: list[TensorRange] = []

    def see(kind: RangeKind, name: str, tensor: Any, divisor: float = 1.0) -> None:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return
        with aside(), torch.no_grad(), _disable_current_modes():
            whole = tensor.detach()
            seen[kind, name] = magnitudes(whole if divisor == 1.0 else whole.float() / divisor)

    def forward(name: str, x: Any, output: Any) -> None:
        see("activations", name, x)
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: see("output gradients", name, gradient, scale))

    def backward(name: str, weight: torch.Tensor) -> None:
        see("weight gradients", name, weight.grad, scale)

    linear = {
        name: module
        for name, module in model.named_modules()
        if is_linear(module) and isinstance(getattr(module, "weight", None), torch.Tensor)
    }
    with hooked(linear, forward), ExitStack() as stack:
        for name, module in linear.items():
            weight: Any = module.weight
            see("weights", name, weight)
            if weight.requires_grad:
                hook = weight.register_post_accumulate_grad_hook(partial(backward, name))
                stack.callback(hook.remove)
        try:
            yield ranges
        finally:
            ranges += [TensorRange(kind, name, what) for (kind, name), what in seen.items()]
