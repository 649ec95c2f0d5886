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
        options: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
        if query.device.type != "cuda":
            return _composed(query, key, value, attn_mask, enable_gqa=enable_gqa, **options)
        # Casts by autocast live until attention returns.
        query, key, value = cast = tuple(map(self._lowered, (query, key, value)))
        attn_mask = mask = None if attn_mask is None else self._lowered(attn_mask)
        alike = key.shape[1] == query.shape[1]
        # 16 bits, one head dimension (check_head_dim_size_flash).
        same = query.dtype in _HALF and key.shape[-1] == value.shape[-1] == query.shape[-1]
        fits = same and query.shape[-1] <= _FLASH_HEAD and attn_mask is None
        if fits and self.kernel != "efficient" and (enable_gqa or alike):
            return _flash(query, key, value, **options)
        if enable_gqa and not alike:
            # The memory-efficient kernel requires as many heads of keys as of queries.
            groups = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        # Heads have a multiple of 16 bytes (check_head_dim_size_mem_efficient).
        step = 16 // query.element_size()
        ragged = query.shape[-1] % step or value.shape[-1] % step
        if key.shape[1] != query.shape[1] or ragged:
            return _composed(query, key, value, attn_mask, **options)
        out = _efficient(query, key, value, attn_mask, **options)
        del cast, mask
        return out

    def _lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Under autocast, attention casts its arguments to the lower precision. Casts of float32
        leaves that need a gradient are kept until autocast ends (cached_cast in
        autocast_mode.cpp)."""
        if not torch.is_autocast_enabled("cuda") or not tensor.is_floating_point():
            return tensor
        dtype = torch.get_autocast_dtype("cuda")
        trained = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf
        if not trained or tensor._is_view():
            return tensor.to(dtype)
        if tensor not in self._casts:
            self._casts[tensor] = tensor.to(dtype)
        return self._casts[tensor]

    def forget(self) -> None:
        """Replaces torch.clear_autocast_cache."""
        self._casts.clear()
        _clear_autocast_cache()


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float | None, **how: Any
) -> torch.Tensor:
    size = query.shape[-1]
    padding = -size % 8  # the kernel reads eight elements at a time
    if padding:
        query, key, value = (functional.pad(t, (0, padding)) for t in (query, key, value))
        scale = size**-0.5 if scale is None else scale
    attend = _aten._scaled_dot_product_flash_attention
    out: torch.Tensor = attend(query, key, value, return_debug_mask=False, scale=scale, **how)[0]
    return out[..., :size] if padding else out


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **how: Any
) -> torch.Tensor:
    """The kernel requires a mask that is added to the scores, for all heads, with rows of a
    multiple of 16 elements."""
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.where(mask, query.new_zeros(()), float("-inf"))
        columns = mask.shape[-1]
        if columns % 16:
            mask = functional.pad(mask, (0, -columns % 16))[..., :columns]
        mask = mask.expand(*query.shape[:3], key.shape[2])
    attend = _aten._scaled_dot_product_efficient_attention
    out: torch.Tensor = attend(query, key, value, mask, gradients, **how)[0]
    return out
