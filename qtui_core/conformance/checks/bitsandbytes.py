"""bitsandbytes on the CPU. Tensors are flat, unless a convention is about matrices."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import bitsandbytes as bnb
import numpy as np
import torch
from bitsandbytes import functional

from qtui_core.conformance import data
from qtui_core.conformance.checks.qtui_side import as_codes, numbers, quantized, side_of
from qtui_core.conformance.compare import Array, ConformanceSample, Side
from qtui_core.conformance.convention import Convention
from qtui_core.quant.codebook import LEVELS, dynamic_map, unpack_nibbles
from qtui_core.schemes.scheme import Scheme

_COMPILED_LENGTH = 1000


def _quantize(x: Array, text: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    scheme = Scheme.parse(text)
    size = getattr(scheme.granularity, "size", 64)
    tensor = torch.from_numpy(x).reshape(-1).to(dtype)
    return functional.quantize_4bit(tensor, quant_type=scheme.format, blocksize=size, **options)


def _sample(name: str, x: Array, text: str, packed: Any, state: Any) -> ConformanceSample:
    flat = np.ascontiguousarray(x).reshape(-1)
    values = numbers(functional.dequantize_4bit(packed, state)).reshape(-1)[: flat.size]
    ours = side_of(quantized(text, flat), scale_name="absmax")
    theirs = Side(packed.numpy(), values, {"absmax": numbers(state.absmax)})
    return ConformanceSample(name, flat, ours, theirs)


def nf4(convention: Convention) -> Iterator[ConformanceSample]:
    tensors = {**data.matrices(), **data.subnormals(), "thresholds": _on_thresholds()}
    for name, x in tensors.items():
        yield _sample(name, x, convention.ours, *_quantize(x, convention.ours))


def _on_thresholds() -> Array:
    """Blocks of 64 with absmax 1, 0.25 and 8, whose elements lie on, just below and just above the
    points half way between two levels. No BF16 number lies there."""
    levels = functional.get_4bit_type("nf4", device="cpu").numpy()
    middle = (levels[:-1] + levels[1:]) / np.float32(2)
    around = [np.nextafter(middle, np.float32(end)) for end in (-np.inf, np.inf)]
    block = np.zeros(64, np.float32)
    block[:45], block[63] = np.concatenate([middle, *around]), 1.0
    return np.concatenate([block * np.float32(factor) for factor in (1.0, 0.25, -8.0)])


def short_blocks(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.vectors().items():
        packed, state = _quantize(x, convention.ours)
        # Compiling takes a second for each length; one length is enough to check compiled code.
        with _eager() if x.size != _COMPILED_LENGTH else nullcontext():
            yield _sample(name, x, convention.ours, packed, state)


def _eager() -> AbstractContextManager[Any]:
    """A block without torch.compile, if this version of torch can switch it off."""
    stance = getattr(torch.compiler, "set_stance", None)
    return nullcontext() if stance is None else stance("force_eager")


def bf16_tensors(convention: Convention) -> Iterator[ConformanceSample]:
    """The bytes of a BF16 tensor. bitsandbytes rounds its values to BF16, so ours are rounded
    too."""
    for name, x in data.matrices().items():
        packed, state = _quantize(x, convention.ours, torch.bfloat16)
        sample = _sample(name, x, convention.ours, packed, state)
        rounded = torch.from_numpy(np.asarray(sample.ours.values)).bfloat16()
        ours = Side(sample.ours.codes, numbers(rounded), sample.ours.scales)
        yield ConformanceSample(name, sample.x, ours, sample.theirs)


def fp4(convention: Convention) -> Iterator[ConformanceSample]:
    """Compares codes one by one, as CPU and CUDA give zero different signs."""
    for name, x in data.matrices().items():
        sample = _sample(name, x, convention.ours, *_quantize(x, convention.ours))
        ours, theirs = (
            Side(unpack_nibbles(side.codes, x.size), side.values, side.scales)
            for side in (sample.ours, sample.theirs)
        )
        yield ConformanceSample(name, sample.x, ours, theirs)


def nonfinite(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.with_holes().items():
        yield _sample(name, x, convention.ours, *_quantize(x, convention.ours))


def double_quantization(convention: Convention) -> Iterator[ConformanceSample]:
    """Compares the 8-bit codes of the scales; `nf4` compares the codes of the elements."""
    for name, x in _nested_data().items():
        _, state = _quantize(x, convention.ours, compress_statistics=True)
        q = quantized(convention.ours, x.reshape(-1))
        assert q.nested is not None
        values = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        ours = Side(q.nested.codes, q.scales)
        yield ConformanceSample(name, x, ours, Side(state.absmax.numpy(), numbers(values)))


def read_nested(convention: Convention) -> Iterator[ConformanceSample]:
    """What bitsandbytes decodes from our nested codes and constants."""
    for name, x in _nested_data().items():
        packed, state = _quantize(x, convention.ours, compress_statistics=True)
        q = quantized(convention.ours, x.reshape(-1))
        assert q.nested is not None
        state.absmax = torch.from_numpy(q.nested.codes)
        state.state2.absmax = torch.from_numpy(q.nested.absmax)
        state.offset = torch.tensor(q.nested.offset)
        values = numbers(functional.dequantize_4bit(packed, state)).reshape(-1)
        yield ConformanceSample(
            name, x, Side(q.codes, q.dequantize()), Side(packed.numpy(), values)
        )


def _nested_data() -> dict[str, Array]:
    return {**data.many_blocks(), "ties": data.matrices()["ties"]}


def levels(convention: Convention) -> Iterator[ConformanceSample]:
    ours = LEVELS[Scheme.parse(convention.ours).format]
    theirs = functional.get_4bit_type(Scheme.parse(convention.ours).format, device="cpu").numpy()
    yield ConformanceSample("16 levels", ours, as_codes(ours), as_codes(theirs))


def map_of_scales(convention: Convention) -> Iterator[ConformanceSample]:
    ours, theirs = dynamic_map(), functional.create_dynamic_map().numpy()
    yield ConformanceSample("256 levels", ours, as_codes(ours), as_codes(theirs))


def blockwise(convention: Convention) -> Iterator[ConformanceSample]:
    """Blocks of 256, scaled by 1/absmax, rounded to the nearest entry of the map; ties go to the
    lower entry."""
    table = dynamic_map()
    thresholds = (table[:-1] + table[1:]) / np.float32(2)
    for name in ("normal", "ties", "zero groups"):
        x = data.matrices()[name]
        theirs, state = functional.quantize_blockwise(torch.from_numpy(x), blocksize=256)
        absmax = np.abs(x).max(axis=1, keepdims=True)
        scaled = x * (np.float32(1) / np.where(absmax > 0, absmax, np.float32(1)))
        codes = np.searchsorted(thresholds, scaled).astype(np.uint8)
        values = functional.dequantize_blockwise(theirs, state)
        ours = Side(codes, table[codes] * absmax, {"absmax": absmax})
        yield ConformanceSample(
            name, x, ours, Side(theirs.numpy(), numbers(values), {"absmax": absmax})
        )


def vectorwise(convention: Convention) -> Iterator[ConformanceSample]:
    for name, x in data.matrices().items():
        codes, stats, _ = functional.int8_vectorwise_quant(torch.from_numpy(x.copy()))
        scale = (numbers(stats) / np.float32(127))[:, None]
        values = numbers(codes).astype(np.float32) * scale
        ours = side_of(quantized(convention.ours, x))
        yield ConformanceSample(name, x, ours, Side(numbers(codes), values, {"scale": scale}))


def outlier_columns(convention: Convention) -> Iterator[ConformanceSample]:
    """Which columns are kept, and the scales of the rows; `vectorwise` compares codes."""
    for name in ("normal", "mixed magnitudes"):
        x = data.matrices()[name] * np.float32(2)
        x = np.ascontiguousarray(np.clip(x, -1000, 1000))  # it takes FP16 only
        threshold = Scheme.parse(convention.ours).outlier_threshold
        _, stats, columns = functional.int8_vectorwise_quant(
            torch.from_numpy(x).half(), threshold=threshold
        )
        q = quantized(convention.ours, x.astype(np.float16))
        sides = []
        for kept, scale in (
            (q.outlier_columns, q.scales),
            (numbers(columns), numbers(stats) / np.float32(127)),
        ):
            mask = np.zeros(x.shape[1], np.uint8)
            mask[kept] = 1
            sides.append(Side(mask, mask.astype(np.float32), {"scale": scale}))
        yield ConformanceSample(name, x[0], *sides)


def zero_blocks(convention: Convention) -> Iterator[ConformanceSample]:
    x = np.zeros((2, 64), np.float32)
    yield _sample("zeros", x, convention.ours, *_quantize(x, convention.ours))


# Known faults


def defaults_to_fp4() -> tuple[bool, str]:
    kind = inspect.signature(bnb.nn.Linear4bit).parameters["quant_type"].default
    return kind == "fp4", f'its quant_type is "{kind}"'


def dequantizes_matrices_wrongly() -> tuple[bool, str]:
    x = torch.from_numpy(data.matrices(64)["normal"][:32, :].reshape(64, 32).copy())
    packed, state = functional.quantize_4bit(x, quant_type="nf4")
    matrix = functional.dequantize_4bit(packed, state)
    packed, state = functional.quantize_4bit(x.reshape(-1), quant_type="nf4")
    flat = functional.dequantize_4bit(packed, state).reshape(64, 32)
    wrong = int((matrix != flat).sum())
    rms = [float((y - x).square().mean().sqrt()) for y in (matrix, flat)]
    return wrong > 0, (
        f"on a 64 x 32 matrix {wrong:,} of {x.numel():,} values differ from the flat call; "
        f"root-mean-square error {rms[0]:.3f} instead of {rms[1]:.3f}"
    )


def misses_zero() -> tuple[bool, str]:
    x = torch.zeros(256)
    x[0] = 1.0
    codes, state = functional.quantize_blockwise(x, blocksize=256)
    zero = float(functional.dequantize_blockwise(codes, state)[1])
    return zero != 0.0, f"0 beside 1 came back as {zero:.2g}"


def repacks_weights() -> tuple[bool, str]:
    layer = bnb.nn.Linear4bit(64, 64, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16)
    layer.to("cpu")
    if layer.weight.quant_state is None:  # older versions quantize on CUDA only
        return False, "Linear4bit does not quantize on the CPU here"
    before = layer.weight.data.clone()
    layer.eval()
    with torch.no_grad():
        layer(torch.ones(1, 64, dtype=torch.bfloat16))
    after = layer.weight.data
    changed = before.shape != after.shape or not torch.equal(before, after)
    return changed, "after one forward pass the stored bytes of the weight are others"


def adds_a_dimension() -> tuple[bool, str]:
    x = torch.ones(128)
    shape = tuple(functional.dequantize_4bit(*functional.quantize_4bit(x)).shape)
    return shape != (128,), f"128 elements came back in the shape {shape}"


def trains_without_int8_activations() -> tuple[bool, str]:
    """Where activations are not quantized, the threshold has no effect."""
    weight = torch.from_numpy(data.matrices(64)["normal"][:16].copy())
    x = torch.from_numpy(data.matrices(64)["normal"][16:20].copy())
    x[0, 0] = 100.0
    outputs = []
    for threshold in (0.0, 6.0):
        layer = bnb.nn.Linear8bitLt(64, 16, bias=False, has_fp16_weights=False, threshold=threshold)
        layer.load_state_dict({"weight": weight})
        outputs.append(layer.to("cpu").train()(x).detach())
    same = torch.equal(outputs[0], outputs[1])
    return same, "with and without a threshold the output is the same to the bit"
