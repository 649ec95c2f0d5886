"""bitsandbytes on the CPU. Tensors are flat, unless a convention is about matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from bitsandbytes import functional

from qtui_core.conformance import data
from qtui_core.conformance.checks.sides import check, numbers, quantized, same_numbers, side_of
from qtui_core.conformance.compare import Array, ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.quant.codebook import LEVELS, dynamic_map, unpack_nibbles
from qtui_core.schemes.scheme import Scheme


def _quantize(scheme: Scheme, x: Array, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    size = getattr(scheme.granularity, "size", 64)
    tensor = torch.from_numpy(x).reshape(-1).to(dtype)
    return functional.quantize_4bit(tensor, quant_type=scheme.format, blocksize=size, **more)


def _sides(scheme: Scheme, x: Array, dtype: torch.dtype = torch.float32) -> tuple[Side, Side]:
    packed, state = _quantize(scheme, x, dtype)
    values = numbers(functional.dequantize_4bit(packed, state)).reshape(-1)[: x.size]
    ours = side_of(quantized(scheme, x.reshape(-1)), "absmax")
    sides = (ours, Side(packed.numpy(), values, {"absmax": numbers(state.absmax)}))
    first, second = (Side(unpack_nibbles(s.codes, x.size), s.values, s.scales) for s in sides)
    return first, second


@check(*data.FINITE, "subnormal", "thresholds")
def blocks(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    return _sides(scheme, x)


@check(*data.VECTORS)
def short_blocks(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    # Compiling takes a second for each length; one length is enough to check compiled code.
    with torch.compiler.set_stance("default" if x.size == 1000 else "force_eager"):
        return _sides(scheme, x)


@check("normal")
def matrices(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    x = x.reshape(-1, 32)
    packed, state = functional.quantize_4bit(torch.from_numpy(x), quant_type=scheme.format)
    values = numbers(functional.dequantize_4bit(packed, state))
    q = quantized(scheme, x.reshape(-1))
    return Side(q.codes, q.dequantize()), Side(packed.numpy(), values)


@check()
def bf16_tensors(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    """The bytes of a BF16 tensor. bitsandbytes rounds its values to BF16, so ours are rounded
    too."""
    ours, theirs = _sides(scheme, x, torch.bfloat16)
    rounded = torch.from_numpy(np.asarray(ours.values)).bfloat16()
    return Side(ours.codes, numbers(rounded), ours.scales), theirs


@check("many blocks", "ties")
def double_quantization(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    """Compares the 8-bit codes of the scales; `nf4` compares the codes of the elements."""
    _, state = _quantize(scheme, x, compress_statistics=True)
    q = quantized(scheme, x.reshape(-1))
    assert q.nested is not None
    values = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    return Side(q.nested.codes, q.scales), Side(state.absmax.numpy(), numbers(values))


@check("many blocks", "ties")
def read_nested(scheme: Scheme, x: Array) -> tuple[Side, Side]:
    """What bitsandbytes decodes from our nested codes and constants."""
    packed, state = _quantize(scheme, x, compress_statistics=True)
    q = quantized(scheme, x.reshape(-1))
    assert q.nested is not None
    state.absmax = torch.from_numpy(q.nested.codes)
    state.state2.absmax = torch.from_numpy(q.nested.absmax)
    state.offset = torch.tensor(q.nested.offset)
    values = numbers(functional.dequantize_4bit(packed, state)).reshape(-1)
    return Side(q.codes, q.dequantize()), Side(packed.numpy(), values)


def levels(convention: Convention) -> Iterator[ConformanceSample]:
    name = Scheme.parse(convention.ours).format
    theirs = functional.get_4bit_type(name, device="cpu").numpy()
    return same_numbers("16 levels", LEVELS[name], theirs)


def map_of_scales(convention: Convention) -> Iterator[ConformanceSample]:
    return same_numbers("256 levels", dynamic_map(), functional.create_dynamic_map().numpy())


def blockwise(convention: Convention) -> Iterator[ConformanceSample]:
    """Blocks of 256, scaled by 1/absmax, rounded to the nearest entry of the map; ties go to the
    lower entry."""
    table = dynamic_map()
    thresholds = (table[:-1] + table[1:]) / np.float32(2)
    for name in ("normal", "ties", "zero groups"):
        x = data.numbers()[name]
        theirs, state = functional.quantize_blockwise(torch.from_numpy(x), blocksize=256)
        absmax = np.abs(x).max(axis=1, keepdims=True)
        scaled = x * (np.float32(1) / np.where(absmax > 0, absmax, np.float32(1)))
        codes = np.searchsorted(thresholds, scaled).astype(np.uint8)
        values = numbers(functional.dequantize_blockwise(theirs, state))
        ours = Side(codes, table[codes] * absmax, {"absmax": absmax})
        yield ConformanceSample(name, x, ours, Side(theirs.numpy(), values, {"absmax": absmax}))


@check()
def vectorwise(scheme: Scheme, x: Array) -> Side:
    codes, stats, _ = functional.int8_vectorwise_quant(torch.from_numpy(x.copy()))
    scale = (numbers(stats) / np.float32(127))[:, None]
    return Side(numbers(codes), numbers(codes).astype(np.float32) * scale, {"scale": scale})


def outlier_columns(convention: Convention) -> Iterator[ConformanceSample]:
    """Which columns are kept, and the scales of the rows; `vectorwise` compares codes."""
    scheme = Scheme.parse(convention.ours)
    for name in ("normal", "mixed magnitudes"):
        x = np.clip(data.numbers()[name] * 2, -1000, 1000).astype(np.float16)  # it takes FP16 only
        _, stats, columns = functional.int8_vectorwise_quant(
            torch.from_numpy(x), threshold=scheme.outlier_threshold
        )
        q = quantized(scheme, x)
        sides = []
        for kept, scale in (
            (q.outlier_columns, q.scales),
            (numbers(columns), numbers(stats) / np.float32(127)),
        ):
            mask = np.zeros(x.shape[1], np.uint8)
            mask[kept] = 1
            sides.append(Side(mask, mask.astype(np.float32), {"scale": scale}))
        yield ConformanceSample(name, x[0], *sides)
