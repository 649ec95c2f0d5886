"""Quantization kernels compiled by torch: the same bytes as the plain path.

They exist for the most common cases: the 4-bit codebooks, symmetric integers and scaled floats,
rounding to nearest, scales of consecutive elements or of the whole tensor, values in memory in
float32 or bfloat16. Compiling needs torch and a C++ compiler and takes seconds, so it is done on
request only. torch is imported when the first kernel is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.errors import QtuiError
from qtui_core.extras import require
from qtui_core.formats import FloatFormat, get_format
from qtui_core.quant.coding.codebook import LEVELS, SMALLEST_ABSMAX, CodebookCoder
from qtui_core.quant.coding.coder import SMALLEST_NORMAL, Codes
from qtui_core.quant.coding.double_quant import quantize_scales
from qtui_core.quant.coding.scale_rules import (
    FLOAT32_BIAS,
    FLOAT32_MANTISSA,
    integer_range,
)
from qtui_core.quant.quantized import QuantizedTensor, quantize
from qtui_core.quant.segments.elements import Float32, TensorLike, elements_of
from qtui_core.quant.segments.layout import Runs, Whole, layout_of, scale_shape
from qtui_core.quant.segments.parallel import thread_count
from qtui_core.quant.segments.tensor_plan import make_plan
from qtui_core.schemes.scheme import SCHEME_FORMATS, Family, Scheme

Tensor = Any  # torch.Tensor; this module can be imported without torch
Kernel = Callable[..., Any]

#: Elements of bfloat16 that are widened per chunk: 4 MB of float32.
PIECE = 1 << 20
#: Elements per call of a kernel, about. It makes a byte for each on the way, and its next call has
#: that memory again. From 32 MB on the allocator would give it back to the system, and for 4096 x
#: 14336 elements the page faults would take a fifth of the time.
CALL = 1 << 24

_FAMILIES = (Family.CODEBOOK, Family.INTEGER, Family.FLOAT)


def quantize_compiled(x: TensorLike, scheme: Scheme) -> QuantizedTensor:
    """The result of `quantize`, bit for bit, from a compiled kernel if there is one for the case,
    else from `quantize` itself.

    Raises MissingLibrary without torch, QtuiError if the kernel cannot be compiled, and what
    `quantize` raises.
    """
    elements = elements_of(x)
    values = elements.in_memory
    found = None if values is None else compiled_codes(values, scheme, elements.shape)
    if found is None:
        return quantize(x, scheme)
    codes, scale = found
    nested = None
    if scheme.double_quantization:
        plan = make_plan(elements, scheme, threads=thread_count(elements.count, None))
        nested = quantize_scales(scale, plan.offset or 0.0, scheme.nested_block)
        scale = nested.dequantize()
    packed = scheme.family is Family.CODEBOOK
    return QuantizedTensor(
        scheme=scheme,
        shape=elements.shape,
        codes=codes.reshape(-1, 1) if packed else codes.reshape(elements.shape),
        scales=scale.reshape(scale_shape(scheme.granularity, elements.shape)),
        zero_points=None,
        nested=nested,
        nonfinite=0,
    )


def compiled_codes(
    values: npt.NDArray[Any], scheme: Scheme, shape: tuple[int, ...]
) -> tuple[Codes, Float32] | None:
    """Codes and scales (absmax for a codebook) of a flat tensor; None if there is no kernel for the
    case, which the plain path then handles.

    Args:
        values: float32 `[n]`, or uint16 `[n]`, which are the words of bfloat16.
        scheme: the scheme; double quantization of the scales is left to the caller.
        shape: of the tensor.

    Raises MissingLibrary without torch, QtuiError if the kernel cannot be compiled.
    """
    size = _group_size(scheme, shape, values.size)
    if size is None or values.dtype not in (np.float32, np.uint16):
        return None
    require("A compiled kernel", "torch")
    import torch

    flat = torch.from_numpy(values.view(np.int16) if values.dtype == np.uint16 else values)
    groups = (flat.view(torch.bfloat16) if values.dtype == np.uint16 else flat).view(-1, size)
    try:
        with torch.no_grad():
            if scheme.family is Family.FLOAT:
                codes, scales = _float_codes(scheme, _any_size(groups))
            else:
                make = _codebook if scheme.family is Family.CODEBOOK else _symmetric
                codes, scales = _in_calls(make, scheme, groups)
    except Exception as error:  # a compiler may raise anything
        raise QtuiError(
            f"The kernel of {scheme} could not be compiled ({_first_line(error)}). It takes a C++ "
            f"compiler; without compiling the result is the same."
        ) from error
    # An infinity or a NaN shows in the scale of its group; the plain path handles it.
    if not bool(torch.isfinite(scales).all()):
        return None
    return codes.numpy().reshape(-1), scales.numpy()


def _any_size(groups: Tensor) -> Tensor:
    """The same tensor, for a kernel of any sizes."""
    import torch

    # Only the sizes are dynamic. With dynamic=True the constants of the formats would be dynamic
    # too, and torch 2.13 would then take the kernel of one format from its cache for another.
    for axis in (0, 1):
        torch._dynamo.maybe_mark_dynamic(groups, axis)
    return groups


def _in_calls(
    make: Callable[[Scheme], Kernel], scheme: Scheme, groups: Tensor
) -> tuple[Tensor, Tensor]:
    """Codes and scales of `[groups, size]`, about CALL elements at a time."""
    import torch

    kernel = _kernel(make, scheme.format, scheme.scale_rule)
    count = len(groups)
    # Parts are equal but for one group, and have two at least: torch compiles anew for a single.
    parts = groups.tensor_split(max(1, min(count // 2, groups.numel() // CALL)))
    if len(parts) == 1:
        whole: tuple[Tensor, Tensor] = kernel(_any_size(groups))
        return whole
    packed = 2 if make is _codebook else 1
    dtype = np.uint8 if make is _codebook else np.int8
    # Of numpy, which asks for large pages; torch does not.
    codes = torch.from_numpy(np.empty((count, groups.shape[1] // packed), dtype))
    scales = torch.from_numpy(np.empty(count, np.float32))
    first = 0
    for part in parts:
        here = slice(first, first := first + len(part))
        codes[here], scales[here] = kernel(_any_size(part))
    return codes, scales


def _float_codes(scheme: Scheme, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and scales of `[groups, size]`. bfloat16 is first widened chunk by chunk: for bit
    operations on bfloat16 the compiler generates scalar code, which is four times slower."""
    import torch

    scales = _kernel(_scales_of_floats, scheme.format, scheme.scale_rule)(groups)
    encode = _kernel(_scaled_floats, scheme.format, scheme.scale_rule)
    if groups.dtype == torch.float32:
        return encode(groups, scales[:, None]), scales
    count, size = groups.shape
    codes = torch.empty(count, size, dtype=torch.uint8)
    rows = max(1, PIECE // size)
    columns = min(size, PIECE)
    wide = torch.empty(rows * columns)
    for row in range(0, count, rows):
        for column in range(0, size, columns):
            here = slice(row, row + rows), slice(column, column + columns)
            part = groups[here]
            piece = wide[: part.numel()].view(part.shape).copy_(part)
            codes[here] = encode(_any_size(piece), scales[here[0], None])
    return codes, scales


def _group_size(scheme: Scheme, shape: tuple[int, ...], count: int) -> int | None:
    """Elements that share a scale, if every group is whole and there is a kernel; else None."""
    ordinary = scheme.rounding == "nearest" and scheme.saturate and scheme.symmetric
    if not ordinary or scheme.family not in _FAMILIES or scheme.outlier_threshold is not None:
        return None
    if scheme.scale_rule == "signed" or count == 0:
        return None
    layout = layout_of(scheme.granularity, shape)
    size = layout.size if isinstance(layout, Runs) else count if isinstance(layout, Whole) else 0
    # Two codebook codes share a byte, so groups must have an even size. The scale of a whole model
    # is not that of the tensor.
    if not size or count % size or (scheme.family is Family.CODEBOOK and size % 2):
        return None
    return None if str(scheme.granularity) == "model" else size


@cache
def _kernel(make: Callable[[Scheme], Kernel], format: str, scale_rule: str) -> Kernel:
    import torch

    scheme = Scheme(format, scale_rule=scale_rule)
    function = _with_own_code(make(scheme), f"{make.__name__} {scheme}")
    kernel: Kernel = torch.compile(function, fullgraph=True)
    return kernel


def _with_own_code(function: Any, name: str) -> Kernel:
    """The function with its own code object: torch counts the kernels per code object, and refuses
    the ninth."""
    code = function.__code__.replace(co_name=f"kernel of {name}")
    kernel: Kernel = FunctionType(code, function.__globals__, closure=function.__closure__)
    return kernel


def _codebook(scheme: Scheme) -> Kernel:
    import torch

    coder = CodebookCoder(LEVELS[scheme.format], 2)
    thresholds = [float(t) for t in coder.thresholds]
    ranks = coder.code_of_rank
    smallest = float(SMALLEST_ABSMAX)

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.float()
        absmax = x.abs().amax(1)
        scaled = x * (1.0 / absmax.clamp(min=smallest))[:, None]
        above = torch.zeros_like(scaled)
        for threshold in thresholds:
            above = above + (scaled > threshold)
        codes = above.to(torch.uint8)
        if ranks is not None:
            codes = torch.from_numpy(ranks)[codes.to(torch.int32)]
        # Two codes as one word: the first, in the low byte, becomes the high nibble.
        words = codes.view(torch.int16)
        return ((words << 4) | (words >> 8)).to(torch.uint8), absmax

    return kernel


def _symmetric(scheme: Scheme) -> Kernel:
    import torch

    codes = integer_range(scheme.scale_rule, scheme.bits)
    lowest, highest, half_range = codes.lowest, codes.highest, codes.steps
    smallest = float(SMALLEST_NORMAL)

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.float()
        scale = (x.abs().amax(1) / half_range).clamp(min=smallest)
        level = torch.round(x * (1.0 / scale)[:, None]).clamp(lowest, highest)
        return level.to(torch.int8), scale

    return kernel


def _scales_of_floats(scheme: Scheme) -> Kernel:
    largest, smallest = float(_element(scheme).max), float(SMALLEST_NORMAL)

    def kernel(x: Tensor) -> Tensor:
        return (x.float().abs().amax(1) / largest).clamp(min=smallest)

    return kernel


def _scaled_floats(scheme: Scheme) -> Kernel:
    """The arithmetic of `floats.NarrowRounder`."""
    import torch

    fmt = _element(scheme)
    largest = float(fmt.max)
    dropped = FLOAT32_MANTISSA - fmt.mantissa_bits
    lowest = (fmt.min_exponent + FLOAT32_BIAS) << FLOAT32_MANTISSA
    lifted = dropped << FLOAT32_MANTISSA
    sign_shift, sign = 32 - fmt.bits, 1 << (fmt.bits - 1)

    def kernel(x: Tensor, scale: Tensor) -> Tensor:
        scaled = x / scale
        magnitude = scaled.abs().clamp(max=largest)
        exponent = magnitude.view(torch.int32) & 0x7F80_0000
        addend = exponent.clamp(min=lowest) + lifted
        total = (magnitude + addend.view(torch.float32)).view(torch.int32)
        codes = total - addend + ((addend - (lowest + lifted)) >> dropped)
        codes = codes | ((scaled.view(torch.int32) >> sign_shift) & sign)
        return codes.to(torch.uint8)

    return kernel


def _element(scheme: Scheme) -> FloatFormat:
    fmt = get_format(SCHEME_FORMATS[scheme.format].element or scheme.format)
    assert isinstance(fmt, FloatFormat)
    return fmt


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
