"""The recorder of a step on a CPU, which sees what a dispatch mode hides there; and what a library
is told there, so that it does what it does on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from qtui_core.training.fake_kernels import IN_PLACE
from qtui_core.training.tracker import Tracker


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
def asked_as_on_a_gpu() -> Iterator[None]:
    """Whether autocast is on is answered for the CPU inside, where no device is named. torch
    answers for CUDA then, and adapters of peft over quantized layers, which ask so (lora/bnb.py),
    would convert under autocast on a CPU what they leave as it is on a GPU."""
    module: Any = torch
    plain = module.is_autocast_enabled

    def answer(*device: str) -> bool:
        return bool(plain(*device or ("cpu",)))

    module.is_autocast_enabled = answer
    try:
        yield
    finally:
        module.is_autocast_enabled = plain
