"""Makes F.scaled_dot_product_attention behave as on a GPU, for fake tensors in a torch without
CUDA.

Such a torch has no CUDA kernels to choose from and would take the composed ("math") form. So the
choice that torch makes on a GPU is repeated here, and torch's fused operations are called; their
gradients are torch's own.

Source: aten/src/ATen/native/transformers/attention.cpp, cuda/sdp_utils.cpp of torch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from qtui_core.memory.plan.options import AttentionKernel

_HALF = (torch.float16, torch.bfloat16)
#: The largest head dimension of the flash kernel.
_FLASH_HEAD = 256
_clear_autocast_cache = torch.clear_autocast_cache
_composed = functional.scaled_dot_product_attention
_aten = torch.ops.aten


class FakeAttention:
    """Replaces F.scaled_dot_product_attention, with the kernel that a plan names."""

    def __init__(self, kernel: AttentionKernel) -> None:
        self.kernel = kernel
        self._casts: dict[torch.Tensor, torch.Tensor] = {}

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """The attention `[batch, heads, queries, head_dim]`. The arguments are those of torch's
        function."""
        if query.device.type != "cuda":
            return _composed(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                enable_gqa=enable_gqa,
            )  # fmt: skip
        # Casts by autocast live until attention returns.
        query, key, value, attn_mask = cast = self._autocast(query, key, value, attn_mask)
        same = enable_gqa or key.shape[1] == query.shape[1]
        if (
            same
            and self.kernel != "efficient"
            and attn_mask is None
            and _flash_takes(query, key, value)
        ):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if enable_gqa and key.shape[1] != query.shape[1]:
            # The memory-efficient kernel requires as many heads of keys as of queries.
            groups = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        if key.shape[1] != query.shape[1] or not _efficient_takes(query, value):
            return _composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        out = _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        del cast
        return out

    def _autocast(self, *tensors: Any) -> tuple[Any, ...]:
        """Under autocast, attention casts its arguments to the lower precision. Casts of float32
        leaves that need a gradient are kept until autocast ends (cached_cast in
        autocast_mode.cpp)."""
        if not torch.is_autocast_enabled("cuda"):
            return tensors
        return tuple(
            self._lowered(t) if t is not None and t.is_floating_point() else t for t in tensors
        )

    def _lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = torch.get_autocast_dtype("cuda")
        kept = (
            tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        )
        if not kept:
            return tensor.to(dtype)
        if tensor not in self._casts:
            self._casts[tensor] = tensor.to(dtype)
        return self._casts[tensor]

    def forget(self) -> None:
        """Replaces torch.clear_autocast_cache."""
        self._casts.clear()
        _clear_autocast_cache()


def _flash_takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the flash kernel accepts these tensors: 16-bit, with the same head dimension for
    queries, keys and values (check_head_dim_size_flash)."""
    size = query.shape[-1]
    same = key.shape[-1] == value.shape[-1] == size
    return query.dtype in _HALF and same and size <= _FLASH_HEAD


def _efficient_takes(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the memory-efficient kernel accepts these tensors: heads whose size is a multiple of
    16 bytes (check_head_dim_size_mem_efficient)."""
    step = 16 // query.element_size()
    return query.shape[-1] % step == 0 and value.shape[-1] % step == 0


def _flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    size = query.shape[-1]
    padding = -size % 8  # the kernel reads eight elements at a time
    if padding:
        query, key, value = (functional.pad(t, (0, padding)) for t in (query, key, value))
        scale = size**-0.5 if scale is None else scale
    out: torch.Tensor = _aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return out[..., :size] if padding else out


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if mask is not None:
        mask = _additive(mask, query, key)
    out: torch.Tensor = _aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, gradients, dropout, causal, scale=scale
    )[0]
    return out


def _additive(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask as the kernel requires it: added to the scores, for all heads, with rows of a multiple
    of 16 elements."""
    if mask.dtype == torch.bool:
        zero = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, zero, float("-inf"))
        del zero
    padding = -mask.shape[-1] % 16
    if padding:
        columns = mask.shape[-1]
        mask = functional.pad(mask, (0, padding))[..., :columns]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
