"""The recorder of a step on a CPU, which sees what a dispatch mode hides there; and what has to be
other there for libraries to do what they do on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch.nn import functional

from qtui_core.training.tracing.fake_kernels import IN_PLACE
from qtui_core.training.tracing.tracker import Tracker


class CpuTracker(Tracker):
    """A Tracker of CPU tensors.

    - A product with 4-bit weights is one operation to a dispatch mode. On a CPU bitsandbytes
      composes it of others (backends/default/ops.py), whose tensors are recorded as they come and
      go.
    - The backward pass of a lookup writes into the zeros it has just made, as it does where no mode
      is entered.
    """

    def __init__(self) -> None:
        super().__init__("cpu")
        self._product: Any = None
        self._composed: Callable[..., Any] | None = None

    def __enter__(self) -> Self:
        if self._product is None:
            self._product, self._composed = _product_of_4_bits()
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._product and self._composed is not None:
            with self:
                return self._composed(*args, **(kwargs or {}))
        in_place = IN_PLACE.get(func)
        if (
            in_place is not None
            and not torch.is_grad_enabled()
            and torch._C._current_autograd_node() is not None
        ):
            in_place(*args, **(kwargs or {}))
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def _product_of_4_bits() -> tuple[Any, Callable[..., Any] | None]:
    """The operation of bitsandbytes and what it is composed of on a CPU; (None, None) while the
    library is not imported, or where it is another version without them."""
    if "bitsandbytes" not in sys.modules:
        return None, None
    from bitsandbytes.backends.default import ops

    packet = getattr(torch.ops.bitsandbytes, "gemm_4bit", None)
    return getattr(packet, "default", None), getattr(ops, "_gemm_4bit_default_impl", None)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """What libraries do otherwise on a CPU for no reason of its kernels is done as on a GPU inside:

    - Whether autocast is on is answered for the CPU where no device is named. torch answers for
      CUDA then, and adapters of peft over quantized layers, which ask so (lora/bnb.py), would
      convert under autocast what they leave as it is on a GPU.
    - Dropout is one operation, which keeps a mask of a byte an element. On a CPU it is composed of
      others (Dropout.cpp), which keep noise of the input's type.
    """
    module: Any = torch
    enabled, dropout = module.is_autocast_enabled, functional.dropout

    def answer(*device: str) -> bool:
        return bool(enabled(*device or ("cpu",)))

    def drop(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if inplace or not training or not 0.0 < p < 1.0:
            return dropout(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    module.is_autocast_enabled, functional.dropout = answer, drop
    try:
        yield
    finally:
        module.is_autocast_enabled, functional.dropout = enabled, dropout
