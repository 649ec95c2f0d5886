"""Makes visible what GPU kernels allocate for themselves, over fake tensors.

A fake operation only returns its results. If the GPU's kernel allocates further memory while it
works, this mode allocates that memory, too, between the operation and the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._meta_registrations import _create_grouped_mm_output_tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from qtui_core.memory.tape.operations import up

#: A question, not an operation, and asked more often than all operations together: torch asks
#: every mode that is entered for the device of a fake tensor.
_DEVICE = torch.ops.prim.device.default


class FakeKernels(TorchDispatchMode):
    """A dispatch mode that is entered after (around) the recorder, so that the recorder sees what
    it allocates."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return args[0].fake_device
        kernel = _KERNELS.get(str(func))
        run = func if kernel is None else partial(kernel, func)
        return run(*args, **(kwargs or {}))


def _empty(like: torch.Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device)


def _flash_backward(func: Any, grad: Any, query: Any, key: Any, *rest: Any, **named: Any) -> Any:
    """The softmax's row sums, float32 sums of the gradient of the queries, and for grouped heads
    the gradients of keys and values for every head before they are added up. The number of rows is
    rounded up to 128, that of a head's elements to 32, or to 64 above 128 (mha_bwd in
    flash_attn/flash_api.cpp)."""
    result = func(grad, query, key, *rest, **named)
    batch, heads, rows, size = query.shape
    long = up(rows, 128)
    held = [
        _empty(query, batch, heads, long),
        _empty(query, batch, long, heads, up(size, 32 if size <= 128 else 64)),
    ]
    if key.shape[1] != heads:
        held += [_empty(key, batch, key.shape[2], heads, size, dtype=key.dtype) for _ in range(2)]
    del held
    return result


def _efficient_backward(
    func: Any, grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, *rest: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """The row sums of gradient times output, and for 16-bit tensors a float32 workspace for the
    gradient of the queries, with rows and elements rounded up to 64 (attention_backward.cu)."""
    result = func(grad, query, key, value, bias, out, *rest, **named)
    batch, heads, rows, size = query.shape
    if query.dtype == torch.float32:
        held = (grad * out).sum(-1)
        if heads > 1 and rows > 1:  # a copy: the kernel has rows before heads
            held = torch.empty_like(held)
    else:
        delta = _empty(query, batch, heads, rows)
        held = _empty(query, batch * heads * up(rows, 64) * up(size, 64))
        del delta
    del held
    return result


def _softmax_backward(func: Any, grad: Any, output: Any, dim: int, dtype: Any) -> Any:
    """The gradient times the result, before the operation (softmax_backward_cuda_out in
    SoftMax.cu)."""
    result = func(grad, output, dim, dtype)
    held = torch.empty_like(output)
    del held
    return result


def _gemm_4bit(
    func: Any, inputs: Any, packed: Any, shape: Any, absmax: Any, blocksize: int, quant_type: str,
    bias: Any = None, absmax_8bit: Any = None, absmax_code: Any = None, absmax_offset: Any = None,
) -> Any:  # fmt: skip
    """If there are more than a few hundred rows, bitsandbytes 0.50 dequantizes the weight and
    multiplies (_dequant_linear_fallback in backends/cuda/ops.py). This allocates float32 block
    maxima, twice under double quantization, and the weight in the dtype of the input."""
    if absmax_8bit is not None:
        maxima = torch.empty_like(absmax_8bit, dtype=torch.float32)
        absmax = maxima + absmax_offset
    held = (absmax, _empty(inputs, *shape, dtype=inputs.dtype))
    return functional.linear(inputs, held[1], bias)


def _int8_vectorwise_quant(func: Any, inputs: Any, threshold: float = 0.0) -> Any:
    """The rows of LLM.int8 (backends/cuda/ops.py of bitsandbytes), without outlier columns: all
    elements are compared with the threshold to find out that there are none."""
    scales = _empty(inputs, inputs.numel() // inputs.shape[-1])
    codes = torch.empty_like(inputs, dtype=torch.int8)
    if threshold == 0.0:
        return codes, scales, None
    outliers = inputs.abs() >= threshold
    outliers.any()
    return codes, scales, _empty(inputs, 0, dtype=torch.int64)


def _int8_mixed_scaled_mm(
    func: Any, inputs: Any, codes: Any, weight: Any, scales: Any, of_weight: Any, columns: Any,
    bias: Any = None,
) -> Any:  # fmt: skip
    """Products in int32, converted to float16 and then to the dtype of the input (int8_scaled_mm
    and int8_mm_dequant of bitsandbytes)."""
    products = _empty(codes, codes.shape[0], weight.shape[0], dtype=torch.int32)
    result = torch.empty_like(products, dtype=torch.float16)
    if bias is not None and bias.dtype != torch.float16:
        result.add_(bias)
    return result.to(inputs.dtype), _empty(inputs, 0, dtype=inputs.dtype)


def _grouped_mm(func: Any, first: Any, second: Any, offsets: Any = None, *rest: Any) -> Any:
    """A grouped product of any floating dtype. The fake operation accepts only bfloat16; the
    kernels of torch 2.10 and later also accept float32 and float16 (_grouped_mm_validate_inputs in
    GroupedMMUtils.h), with an output of the same layout."""
    if first.dtype == torch.bfloat16:
        return func(first, second, offsets, *rest)
    return _create_grouped_mm_output_tensor(first, second, offsets, first.dtype)


_KERNELS: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_backward.default": _flash_backward,
    "aten._scaled_dot_product_efficient_attention_backward.default": _efficient_backward,
    "aten._softmax_backward_data.default": _softmax_backward,
    "bitsandbytes.gemm_4bit.default": _gemm_4bit,
    "bitsandbytes.int8_vectorwise_quant.default": _int8_vectorwise_quant,
    "bitsandbytes.int8_mixed_scaled_mm.default": _int8_mixed_scaled_mm,
    "aten._grouped_mm.default": _grouped_mm,
}
