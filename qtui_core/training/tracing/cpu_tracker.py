"""Records a step on a CPU, including operations that a dispatch mode does not see there, and makes
libraries behave on a CPU as they do on a GPU."""

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
    """A Tracker of CPU tensors. It corrects two differences to a CPU run without a tracker:

    - A dispatch mode sees a product with 4-bit weights as one operation. On a CPU bitsandbytes
      composes it of several (backends/default/ops.py); they are run one by one, so that their
      tensors are recorded.
    - Without a dispatch mode, the backward pass of a lookup writes into the zeros that it has just
      created. Under a mode it would create another tensor, so it is made to write in place.
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
    """The 4-bit product of bitsandbytes, and the function that composes it on a CPU. (None, None)
    if the library is not imported or its version does not have them."""
    if "bitsandbytes" not in sys.modules:
        return None, None
    from bitsandbytes.backends.default import ops

    packet = getattr(torch.ops.bitsandbytes, "gemm_4bit", None)
    return getattr(packet, "default", None), getattr(ops, "_gemm_4bit_default_impl", None)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A context in which libraries behave as on a GPU, where a CPU run differs for reasons other
    than its kernels:

    - Whether autocast is on is answered for the CPU if no device is named. torch would answer for
      CUDA. peft's adapters over quantized layers ask this way (lora/bnb.py), and under autocast
      they would convert what they leave as it is on a GPU.
    - Dropout is one operation that keeps a mask of one byte per element. On a CPU torch composes it
      of several (Dropout.cpp), which keep noise in the dtype of the input.
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
