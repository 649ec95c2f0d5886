"""qtui's side of a comparison, from the text of a convention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from qtui_core.conformance.compare import Array, ConformanceSample, Refused, Side
from qtui_core.conformance.convention import Convention
from qtui_core.conformance.data import NUMBERS
from qtui_core.formats import Format, Rounding, get_format
from qtui_core.formats.array import decode_array, encode_array
from qtui_core.quant import QuantizedTensor, Scheme, quantize


@contextmanager
def refusals(*kinds: type[Exception]) -> Iterator[None]:
    """A block around a call of a library that is known to refuse some input: the refusal is the
    verdict.

    Raises Refused in place of an exception of these kinds.
    """
    try:
        yield
    except kinds as error:
        raise Refused(str(error).strip() or type(error).__name__) from error


def quantized(text: str, x: Array) -> QuantizedTensor:
    """`x` under the scheme in the text of a convention."""
    return quantize(x, Scheme.parse(text))


def side_of(q: QuantizedTensor, *, scale_name: str = "scale") -> Side:
    """The stored codes, the values that they decode to, and the scales and zero points."""
    scales: dict[str, Array] = {scale_name: q.scales}
    if q.zero_points is not None:
        scales["zero point"] = q.zero_points
    return Side(q.codes, q.dequantize(), scales)


def split_cast(text: str) -> tuple[Format, Rounding, bool]:
    """The format, the rounding, and whether to saturate, of a text like `encode e4m3 nearest-even
    saturate`."""
    verb, name, rounding, limit = text.split()
    if verb != "encode" or limit not in ("saturate", "nosat"):
        raise ValueError(f"{text!r} is no cast")
    return get_format(name), Rounding(rounding), limit == "saturate"


def cast(text: str, x: Array) -> Side:
    """The codes and values of `x`, of any float type, cast as the text says."""
    fmt, rounding, saturate = split_cast(text)
    codes = encode_array(fmt, x, rounding, saturate)
    return Side(codes, decode_array(fmt, codes))


def cast_sample(convention: Convention, name: str, x: Array, codes: Array) -> ConformanceSample:
    """Our cast and the `codes` of the library's cast; our decoder gives the values of both."""
    fmt = split_cast(convention.ours)[0]
    ours = cast(convention.ours, x)
    theirs = np.asarray(codes).astype(ours.codes.dtype)
    return ConformanceSample(name, x, ours, Side(theirs, decode_array(fmt, theirs)))


def cast_samples(
    convention: Convention, codes: Callable[[str, Array], Array], dtype: type = np.float32
) -> Iterator[ConformanceSample]:
    """A sample for each set of numbers of a convention, as elements of `dtype`, cast by both sides.

    `codes` casts with the library: it takes the text of a cast and numbers, and returns the codes.
    """
    for name in convention.numbers:
        x: Array = NUMBERS[name]().astype(dtype)
        yield cast_sample(convention, name, x, codes(convention.ours, x))


def numbers(array: Any) -> Array:
    """A torch tensor, or anything like it, as numpy; a bf16 tensor as float32."""
    tensor = array.detach().cpu()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())


def as_codes(values: Array) -> Side:
    """Numbers as a side whose codes are their bits in float32."""
    return Side(np.ascontiguousarray(values, np.float32).view(np.uint32), values)
