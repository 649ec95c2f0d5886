"""A CUDA device for fake tensors, which have shapes, dtypes and devices but no data. It needs no
GPU.

Operations that cannot work on fake tensors are replaced in the whole process meanwhile, so a trace
runs in a process of its own (qtui_core.training.tracing.trace).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn import functional

from qtui_core.memory.plan.optimizers import OPTIMIZERS
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.tracing import fake_guard
from qtui_core.training.tracing.fake_attention import FakeAttention

#: The compute capability of the fake GPU: Ampere, the oldest with bfloat16, flash attention and
#: grouped products.
_CAPABILITY = (8, 0)

#: There is one mode in the process, because libraries keep tensors in their modules, and tensors of
#: two modes cannot be mixed.
_mode = FakeTensorMode()


@contextmanager
def fake_cuda(plan: RunPlan) -> Iterator[None]:
    """A context in which new tensors are fake and "cuda" is a device. Afterwards torch and
    transformers are as before: a model that is built later has its values.

    Raises QtuiError if this system or this torch cannot have it (see fake_guard).
    """
    fake_guard.install()
    _without_kernels()
    with ExitStack() as stack:
        for owner, name, instead in _replacements(plan):
            stack.enter_context(patch.object(owner, name, instead))
        if plan.quantized or OPTIMIZERS[plan.optimizer].library == "bitsandbytes":
            stack.enter_context(_tables_of_bitsandbytes())
        stack.enter_context(_mode)
        yield


@cache
def _without_kernels() -> torch.library.Library:
    """These have a CUDA kernel and a composed form. Without the kernel they would be composed."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu_backward", _no_kernel, "CUDA")
    return library


def _replacements(plan: RunPlan) -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, what it is meanwhile) of what cannot work on fake tensors."""
    import torch.cuda.amp.common as amp
    from torch.optim import adam
    from transformers import PreTrainedModel, masking_utils

    copy = torch.ops.aten.copy_.default  # Tensor.copy_ uses a device guard before it is dispatched
    yield torch.Tensor, "copy_", lambda *these, **named: copy(*these, **named)
    yield nn.Module, "_apply", _apply
    yield amp, "amp_definitely_not_available", lambda: False
    yield torch.cuda, "is_bf16_supported", lambda including_emulation=True: True
    yield torch.cuda, "synchronize", lambda device=None: None
    yield torch.cuda, "get_device_capability", lambda device=None: _CAPABILITY
    # foreach AdamW reads its step counts from tensors on the CPU.
    yield adam, "_get_value", lambda value: 1.0 if isinstance(value, torch.Tensor) else value
    # There are no values to initialize, and some classes draw values until these fit.
    yield PreTrainedModel, "initialize_weights", lambda self: None
    # This reads the values of positions to see whether sequences are packed.
    yield masking_utils, "find_packed_sequence_indices", _not_packed
    if plan.attention != "eager":
        attention = FakeAttention(plan.attention)
        yield functional, "scaled_dot_product_attention", attention
        yield torch, "clear_autocast_cache", attention.forget


@contextmanager
def _tables_of_bitsandbytes() -> Iterator[None]:
    """A context in which bitsandbytes uses fake tables of quantization levels, which it otherwise
    computes value by value and keeps. Afterwards its own tables are restored."""
    from bitsandbytes import functional as bnb

    create = bnb.create_dynamic_map

    def create_fake(*args: Any, **kwargs: Any) -> torch.Tensor:
        with unset_fake_temporarily():
            table = create(*args, **kwargs)
        return torch.empty(table.shape, dtype=table.dtype)

    with (
        patch.dict(bnb.name2qmap, clear=True),
        patch.object(bnb, "create_dynamic_map", create_fake),
    ):
        yield


def _not_packed(position_ids: torch.Tensor) -> None:
    """Replaces the check whether sequences are packed: they are not. It allocates what that check
    allocates."""
    first = position_ids[:, :1] - 1
    difference = torch.diff(position_ids, prepend=first, dim=-1)
    packed = (difference != 1).cumsum(-1)
    _ = (packed[:, -1] == 0).all()


def _no_kernel(*_: Any, **__: Any) -> None:
    raise RuntimeError("a CUDA kernel was called over tensors with data")


def _apply(
    self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> Any:
    """Replaces nn.Module._apply, which would swap fake tensors and fail because something refers to
    them."""
    for child in self.children() if recurse else ():
        child._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                applied = fn(parameter)
            if applied is not parameter:
                self._parameters[name] = nn.Parameter(applied, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self
