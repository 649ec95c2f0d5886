"""compressed-tensors, the format of the checkpoints of vLLM and llm-compressor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle import forward
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import numbers, quantized, refusals, side_of
from qtui_core.conformance.compare import Array, ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.formats import FloatFormat, get_format
from qtui_core.formats.array import encode_array
from qtui_core.quant import Scheme
from qtui_core.schemes.granularity import PerGroup, PerRow
from qtui_core.schemes.scheme import SCHEME_FORMATS, Family


def _arguments(scheme: Scheme) -> QuantizationArgs:
    """The scheme as quantization arguments of this library."""
    given: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": "int" if scheme.family is Family.INTEGER else "float",
        "symmetric": scheme.symmetric,
        "strategy": "tensor",
    }
    match scheme.granularity:
        case PerGroup(size):
            given |= {"strategy": "group", "group_size": size}
        case PerRow():
            given |= {"strategy": "channel"}
    if scheme.family is Family.MICROSCALING:
        given |= {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    if scheme.family is Family.TWO_LEVEL:
        given |= {"strategy": "tensor_group", "scale_dtype": torch.float8_e4m3fn}
    return QuantizationArgs(**given)


def _extents(x: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    match scheme.granularity:
        case PerGroup(size):
            groups = x.reshape(x.shape[0], -1, size)
            return groups.amin(-1), groups.amax(-1)
        case PerRow():
            return x.amin(1, keepdim=True), x.amax(1, keepdim=True)
        case _:
            return x.min(), x.max()


def _sample(text: str, name: str, x: Array) -> ConformanceSample:
    scheme = Scheme.parse(text)
    tensor, arguments = torch.from_numpy(x), _arguments(scheme)
    low, high = _extents(tensor, scheme)
    two_level = scheme.family is Family.TWO_LEVEL
    whole = generate_gparam(tensor.min(), tensor.max()) if two_level else None
    scale, zero = calculate_qparams(low, high, arguments, whole)
    codes = forward.quantize(tensor, scale, zero, arguments, global_scale=whole)
    values = forward.dequantize(
        codes, scale, zero, arguments, dtype=torch.float32, global_scale=whole
    )
    q = quantized(text, x)
    ours, theirs = Side(q.codes, q.dequantize()), Side(numbers(codes), numbers(values))
    if scheme.family is Family.INTEGER:
        shift = 0 if scheme.symmetric else 2 ** (scheme.bits - 1)
        kept: tuple[dict[str, Array], dict[str, Array]]
        kept = {"scale": q.scales}, {"scale": numbers(scale)}
        if q.zero_points is not None:
            kept[0]["zero point"] = q.zero_points
            kept[1]["zero point"] = numbers(zero).astype(np.int16) + shift
        ours = Side(q.codes, ours.values, kept[0])
        theirs = Side(theirs.codes.astype(np.int16) + shift, theirs.values, kept[1])
    else:
        element = get_format(SCHEME_FORMATS[scheme.format].element or "")
        assert isinstance(element, FloatFormat)
        theirs = Side(encode_array(element, theirs.codes.astype(np.float32)), theirs.values)
    return ConformanceSample(name, x, ours, theirs)


def nonfinite(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.with_holes().items():
        yield _sample(convention.ours, name, x)


def packing(convention: Convention) -> Iterator[ConformanceSample]:
    """Eight 4-bit codes, less 8, in an int32, the first in the lowest bits."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    x = data.matrices()["normal"]
    q = quantized(convention.ours, x)
    words = numbers(pack_to_int32(torch.from_numpy(q.codes), 4)).view(np.uint32)
    codes = (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32)) & 15
    codes = codes.reshape(x.shape).astype(np.int8) - 8
    sides = [Side(c, c.astype(np.float32)) for c in (q.codes, codes)]
    yield ConformanceSample("codes", x, *sides)


def short_groups(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.ragged().items():
        scale = torch.ones(x.shape[0], 2)
        arguments = _arguments(Scheme.parse(convention.ours))
        with refusals(ValueError):
            codes = forward.quantize(torch.from_numpy(x), scale, scale * 0, arguments)
        q = quantized(convention.ours, x)
        yield ConformanceSample(name, x, side_of(q), Side(numbers(codes), numbers(codes)))


def schemes(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.matrices().items():
        yield _sample(convention.ours, name, x)
