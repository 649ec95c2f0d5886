"""Both sides of a comparison: qtui's, from the text of a convention, and what makes a check of a
function that gives the library's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from qtui_core.conformance.compare import Array, ConformanceSample, Refused, Side
from qtui_core.conformance.convention import Convention
from qtui_core.conformance.data import FINITE
from qtui_core.conformance.data import numbers as all_numbers
from qtui_core.formats import FloatFormat, Rounding, float_format
from qtui_core.quant import QuantizedTensor, Scheme, quantize

Check = Callable[[Convention], Iterator[ConformanceSample]]
#: The library's side of a tensor under a scheme, or both sides, where qtui's is not `side_of`.
Quantizer = Callable[[Scheme, Array], Side | tuple[Side, Side]]


def check(*names: str, refuses: tuple[type[Exception], ...] = ()) -> Callable[[Quantizer], Check]:
    """Makes a check of a function: what it gives for each tensor, beside qtui's side.

    Args:
        names: of the tensors, unless the convention names others; without any, FINITE.
        refuses: exceptions with which the library is known to refuse some input; that is a verdict.
    """

    def made(quantizer: Quantizer) -> Check:
        def run(convention: Convention) -> Iterator[ConformanceSample]:
            scheme = Scheme.parse(convention.ours)
            for name in convention.numbers or names or FINITE:
                x = all_numbers()[name]
                try:
                    sides = quantizer(scheme, x)
                except refuses as error:
                    raise Refused(str(error).strip() or type(error).__name__) from error
                if isinstance(sides, Side):
                    sides = side_of(quantized(scheme, x)), sides
                yield ConformanceSample(name, x, *sides)

        run.__module__, run.__wrapped__ = quantizer.__module__, quantizer  # type: ignore[attr-defined]
        return run

    return made


def quantized(scheme: Scheme, x: Array) -> QuantizedTensor:
    """`x` by qtui; tests put another scheme here."""
    return quantize(x, scheme)


def side_of(q: QuantizedTensor, scale_name: str = "scale") -> Side:
    """The stored codes, the values that they decode to, and the scales and zero points."""
    scales: dict[str, Array] = {scale_name: q.scales}
    if q.zero_points is not None:
        scales["zero point"] = q.zero_points
    return Side(q.codes, q.dequantize(), scales)


def coded_side(q: QuantizedTensor) -> Side:
    """As `side_of`, with the codes of the scales in their place."""
    assert q.scale_codes is not None
    return Side(q.codes.view(np.uint8), q.dequantize(), {"scale": q.scale_codes})


def same_numbers(name: str, ours: Array, theirs: Array) -> Iterator[ConformanceSample]:
    """A comparison of numbers: their codes are their bits in float32."""
    sides = [Side(np.ascontiguousarray(v, np.float32).view(np.uint32), v) for v in (ours, theirs)]
    yield ConformanceSample(name, ours, *sides)


def split_cast(text: str) -> tuple[FloatFormat, Rounding, bool]:
    """The format, the rounding, and whether to saturate, of a text like `encode e4m3 nearest-even
    saturate`."""
    verb, name, rounding, limit = text.split()
    if verb != "encode" or limit not in ("saturate", "nosat"):
        raise ValueError(f"{text!r} is no cast")
    return float_format(name), Rounding(rounding), limit == "saturate"


def numbers(array: Any) -> Array:
    """A torch tensor, or anything like it, as numpy; a bf16 tensor as float32."""
    tensor = array.detach().cpu()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
