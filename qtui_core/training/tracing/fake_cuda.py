"""A CUDA device of fake tensors: shapes, types and devices without data, and without a GPU.

What cannot work over fake tensors is replaced for the whole process: a trace runs in one of its
own (qtui_core.training.tracing.trace).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn import functional

from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.tracing import fake_guard
from qtui_core.training.tracing.fake_attention import FakeAttention

#: Of the GPU that is meant: Ampere, the oldest with bfloat16, flash attention and grouped products.
_CAPABILITY = (8, 0)

_library: torch.library.Library | None = None
#: One for the process: libraries keep tables in their modules, and tensors of two modes do not mix.
_mode = FakeTensorMode()


@contextmanager
def fake_cuda(plan: RunPlan) -> Iterator[None]:
    """New tensors are fake, and "cuda" is a device, inside.

    Raises QtuiError where this system or this torch cannot have it (see fake_guard).
    """
    fake_guard.install()
    _patch_torch()
    _patch_libraries()
    if plan.attention != "eager":
        functional.scaled_dot_product_attention = FakeAttention(plan.attention)
    with ExitStack() as stack:
        if plan.quantized or plan.optimizer.endswith(("8bit", "paged-adamw")):
            stack.enter_context(_tables_of_bitsandbytes())
        stack.enter_context(_mode)
        yield


def _patch_torch() -> None:
    global _library
    if _library is not None:
        return
    # Tensor.copy_ takes a device guard of its own before it is dispatched.
    torch.Tensor.copy_ = _copy  # type: ignore[method-assign, assignment]
    # These have a CUDA kernel beside a composed form. Without the kernel they would be composed.
    _library = torch.library.Library("aten", "IMPL")
    for name in ("silu_backward",):
        _library.impl(name, _no_kernel, "CUDA")
    import torch.cuda.amp.common as amp
    from torch.optim import adam

    amp.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda including_emulation=True: True
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.get_device_capability = lambda device=None: _CAPABILITY
    # The step counts of foreach AdamW are read from tensors on the CPU.
    adam._get_value = lambda value: 1.0 if isinstance(value, torch.Tensor) else value
    nn.Module._apply = _apply  # type: ignore[method-assign]


def _patch_libraries() -> None:
    from transformers import masking_utils

    # Asks the values of positions whether sequences are packed, which fake ones have not.
    masking_utils.find_packed_sequence_indices = _not_packed


@contextmanager
def _tables_of_bitsandbytes() -> Iterator[None]:
    """Tables of quantization levels are computed number by number, and kept by the library: fake
    ones inside, and afterwards those that were there."""
    from bitsandbytes import functional as bnb

    create, kept = bnb.create_dynamic_map, dict(bnb.name2qmap)

    def create_fake(*args: Any, **kwargs: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            table = create(*args, **kwargs)
        return torch.empty(table.shape, dtype=table.dtype)

    bnb.name2qmap.clear()
    bnb.create_dynamic_map = create_fake
    try:
        yield
    finally:
        bnb.create_dynamic_map = create
        bnb.name2qmap.clear()
        bnb.name2qmap.update(kept)


def _not_packed(position_ids: torch.Tensor) -> None:
    """Positions of sequences that are not packed; what is allocated to find out is."""
    first = position_ids[:, :1] - 1
    difference = torch.diff(position_ids, prepend=first, dim=-1)
    packed = (difference != 1).cumsum(-1)
    _ = (packed[:, -1] == 0).all()


def _copy(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    copied: torch.Tensor = torch.ops.aten.copy_.default(self, source, non_blocking)
    return copied


def _no_kernel(*_: Any, **__: Any) -> None:
    raise RuntimeError("a CUDA kernel was called over tensors with data")


def _apply(
    self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> Any:
    """nn.Module._apply, which swaps fake tensors and finds that something refers to them."""
    if recurse:
        for child in self.children():
            child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            applied = fn(parameter)
        if applied is not parameter:
            self._parameters[name] = nn.Parameter(applied, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
