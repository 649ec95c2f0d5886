"""The gradient of a model with some linear layers quantized, as one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtui_core.errors import UsageError
from qtui_core.lab.numerics.products import Products, QuantizedLinear, convert, linears
from qtui_core.lab.training.tasks import loss_of
from qtui_core.loading.hooks import hooked


def gradients_of(model: Any, ids: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, float]:
    """(the gradient over all trainable parameters, float32 `[parameters]`; the loss in nats per
    token) for token ids int64 `[batch, length]`. The loss is multiplied by `scale` and the gradient
    divided by it, as with loss scaling.

    Raises UsageError for a gradient that is not finite, with which nothing can be compared.
    """
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, ids)
    (loss * scale).backward()
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).float()
        for p in model.parameters()
        if p.requires_grad
    ]
    model.zero_grad(set_to_none=True)
    found = torch.cat(parts) / scale
    check_finite(loss, [found])
    return found, float(loss.detach())


def check_finite(loss: torch.Tensor, gradients: Iterable[torch.Tensor]) -> None:
    """Raises UsageError for gradients that are not finite."""
    if not all(bool(torch.isfinite(gradient).all()) for gradient in gradients):
        raise UsageError(
            f"The gradient is not finite at a loss of {float(loss.detach()):.4g}, so nothing can "
            f"be compared with it; look for weights that are not finite."
        )


@contextmanager
def quantized(
    model: nn.Module, schemes: Mapping[str, Products], random: torch.Generator | None = None
) -> Iterator[None]:
    """Within the block, the linear layers named in `schemes` have quantized products."""
    kept = {name: module for name, module in linears(model).items() if name in schemes}
    convert(model, {n: QuantizedLinear(one, schemes[n], random) for n, one in kept.items()})
    try:
        yield
    finally:
        convert(model, kept)


@contextmanager
def gradients_seen(
    modules: Mapping[str, nn.Module], tell: Callable[[str, torch.Tensor, torch.Tensor], None]
) -> Iterator[None]:
    """Within the block, `tell(name, x, gradient)` is called in each backward pass with the input of
    a module and the gradient of its output."""

    def after(name: str, x: torch.Tensor, output: torch.Tensor) -> None:
        def backward(gradient: torch.Tensor) -> None:
            tell(name, x, gradient)

        if output.requires_grad:
            output.register_hook(backward)

    with hooked(modules, after):
        yield


def relative(made: torch.Tensor, exact: torch.Tensor) -> float:
    """|made - exact| / |exact| in the Frobenius norm; 0 if both are zero."""
    norm = float(exact.double().norm())
    off = float((made.double() - exact.double()).norm())
    return off / norm if norm else (0.0 if not off else float("inf"))
