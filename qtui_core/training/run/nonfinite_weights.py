"""Finds the weights of a model that are not finite, if its loss is not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import numpy as np
import torch
from torch import nn

from qtui_core.training.model.quantized import quantized_tensors

#: The exponent bits of bfloat16, which are all set in infinities and NaN.
_EXPONENT: Final = 0x7F80
#: Elements that are examined at a time.
_AT_ONCE: Final = 1 << 22


def not_finite(model: nn.Module, most: int = 3) -> tuple[str, ...]:
    """The names of up to `most` frozen parameters, or constants of quantized ones, that contain an
    infinity or NaN. Trainable parameters are not examined, because one step spoils all of them.

    Reads copies on the host, so that it allocates no bytes on the device, which would be counted.
    """
    return tuple(islice((name for name, tensor in _frozen(model) if not _finite(tensor)), most))


def _frozen(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    for name, tensor in chain(parameters, quantized_tensors(model)):
        if tensor.is_floating_point():
            yield name.removeprefix("base_model.model."), tensor


def _finite(tensor: torch.Tensor) -> bool:
    flat = tensor.detach().cpu().reshape(-1)
    if flat.dtype is torch.bfloat16:
        bits = flat.view(torch.int16).numpy()
        parts = (bits[i : i + _AT_ONCE] for i in range(0, bits.size, _AT_ONCE))
        return not any(((part & _EXPONENT) == _EXPONENT).any() for part in parts)
    values = flat.numpy()
    parts = (values[i : i + _AT_ONCE] for i in range(0, values.size, _AT_ONCE))
    return all(np.isfinite(part).all() for part in parts)
