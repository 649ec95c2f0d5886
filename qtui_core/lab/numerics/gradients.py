"""The gradient of a model with some linear layers quantized, as one vector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from qtui_core.lab.numerics.products import Products, QuantizedLinear, linears
from qtui_core.lab.training.tasks import loss_of


def gradients_of(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
    """(gradient over all trainable parameters, float32 `[parameters]`; loss, nats per token) on
    token ids int64 `[batch, length]`."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, ids)
    loss.backward()
    parts = [
        (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1).float()
        for p in model.parameters()
        if p.requires_grad
    ]
    model.zero_grad(set_to_none=True)
    return torch.cat(parts), float(loss.detach())


@contextmanager
def quantized(
    model: nn.Module, schemes: Mapping[str, Products], random: torch.Generator | None = None
) -> Iterator[None]:
    """Within the block the named linear layers have quantized products; after it they are as
    before."""
    kept = {name: module for name, module in linears(model).items() if name in schemes}
    for name, linear in kept.items():
        _put(model, name, QuantizedLinear(linear, schemes[name], random))
    try:
        yield
    finally:
        for name, linear in kept.items():
            _put(model, name, linear)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)
