"""Our side of a comparison, from the text of a convention."""

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
    """Around a call of a library that is known to refuse: what it says is the verdict.

    Raises Refused for an exception of these kinds.
    """
    try:
        yield
    except kinds as error:
        raise Refused(str(error).strip() or type(error).__name__) from error


def quantized(text: str, x: Array) -> QuantizedTensor:
    """`x` under the scheme that the text of a convention names."""
    return quantize(x, Scheme.parse(text))


def side_of(q: QuantizedTensor, *, scale_name: str = "scale") -> Side:
    """Codes as they are stored, the values they stand for, scales and zero points."""
    scales: dict[str, Array] = {scale_name: q.scales}
    if q.zero_points is not None:
        scales["zero point"] = q.zero_points
    return Side(q.codes, q.dequantize(), scales)


def split_cast(text: str) -> tuple[Format, Rounding, bool]:
    """`encode e4m3 nearest-even saturate` -> format, rounding, whether it saturates."""
    verb, name, rounding, limit = text.split()
    if verb != "encode" or limit not in ("saturate", "nosat"):
        raise ValueError(f"{text!r} is no cast")
    return get_format(name), Rounding(rounding), limit == "saturate"


def cast(text: str, x: Array) -> Side:
    """`x`, of any float type, as codes of a format, and their values."""
    fmt, rounding, saturate = split_cast(text)
    codes = encode_array(fmt, x, rounding, saturate)
    return Side(codes, decode_array(fmt, codes))


def cast_sample(convention: Convention, name: str, x: Array, codes: Array) -> ConformanceSample:
    """A cast here next to the codes it has there, both read by our decoder."""
    fmt = split_cast(convention.ours)[0]
    ours = cast(convention.ours, x)
    theirs = np.asarray(codes).astype(ours.codes.dtype)
    return ConformanceSample(name, x, ours, Side(theirs, decode_array(fmt, theirs)))


def cast_samples(
    convention: Convention, codes: Callable[[str, Array], Array], dtype: type = np.float32
) -> Iterator[ConformanceSample]:
    """The numbers of a convention, as elements of `dtype`, cast here and there.

    `codes` casts with the library: of the text of a cast and numbers, the codes.
    """
    for name in convention.numbers:
        x: Array = NUMBERS[name]().astype(dtype)
        yield cast_sample(convention, name, x, codes(convention.ours, x))


def numbers(array: Any) -> Array:
    """A torch tensor, or anything like it, as numpy; bf16 as the float32 it stands for."""
    tensor = array.detach().cpu()
    return np.asarray((tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy())
