"""Rounding to a format, to nearest or stochastically. The result is float32 values.

To nearest means ties to even, as PyTorch casts. Stochastic rounding goes up with a probability
equal to the fraction of the way to the next number, so that its expectation is the value. In every
format, values beyond the largest number become that number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.spec import FloatFormat

#: The granularity of scales: "tensor", "row", or "none" without scales.
Scales = str


@dataclass(frozen=True)
class Storage:
    """How a tensor is stored.

    Attributes:
        name: as in settings.
        mantissa_bits: of a floating-point format; None for integers.
        least_exponent: the exponent of its smallest normal number.
        largest: its largest number, in units of the scale.
        scales: "none", or absmax / `largest` of the whole tensor ("tensor") or of each row along
            the last dimension ("row").
        nbytes: bytes of an element, without scales.
    """

    name: str
    mantissa_bits: int | None
    least_exponent: int
    largest: float
    scales: Scales
    nbytes: float

    @property
    def whole(self) -> bool:
        """Whether its numbers are integers times a scale."""
        return self.mantissa_bits is None

    def scale_of(self, x: torch.Tensor) -> torch.Tensor:
        """The scale of a tensor: float32 `[]`, or `[..., 1]` with a scale per row. It is 1 if the
        format has no scale, or for values that are all zero."""
        if self.scales == "none":
            return x.new_ones(())
        if self.scales == "row" and x.dim() > 1:
            most = x.abs().amax(dim=-1, keepdim=True)
        else:
            most = x.abs().amax()
        scale = most / self.largest
        return torch.where(scale > 0, scale, torch.ones_like(scale))

    def step_of(self, x: torch.Tensor) -> torch.Tensor:
        """The spacing of the format at each value of `x`, both in units of the scale."""
        if self.mantissa_bits is None:
            return torch.ones_like(x)
        # The exponent bits alone are the power of two below |x|, and 0 for zero. Infinity and NaN
        # get a finite spacing too: infinity is clamped later, NaN stays NaN.
        bits, mask, most = _EXPONENTS[x.dtype]
        power = (x.contiguous().view(bits) & mask).view(x.dtype)
        return power.clamp(2.0**self.least_exponent, most) * 2.0**-self.mantissa_bits

    def nearest(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """`x` as stored, rounded to nearest: float32 in the same shape. Uses `scale`, or the
        tensor's own scale if it is None."""
        cast = _CASTS.get(self.name)
        if cast is None or x.dtype is not torch.float32:
            return self.by_arithmetic(x, scale, torch.round)
        if self.scales == "none" and scale is None:
            return x.clamp(-self.largest, self.largest).to(cast).float()
        scale = self.scale_of(x) if scale is None else scale
        return (x / scale).clamp(-self.largest, self.largest).to(cast).float() * scale

    def stochastic(
        self,
        x: torch.Tensor,
        generator: torch.Generator | None = None,
        scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`x` as stored, rounded up with a probability equal to the fraction of the way up: float32
        in the same shape. Uses `scale`, or the tensor's own scale if it is None."""

        def up_or_down(ratio: torch.Tensor) -> torch.Tensor:
            # Comparing the fraction is exact; adding a random number to a ratio near 127 is not.
            below = ratio.floor()
            # Drawn on the CPU, so that a seed gives the same numbers on every device.
            drawn = torch.rand(ratio.shape, generator=generator).to(ratio.device)
            return below + (drawn < ratio - below)

        return self.by_arithmetic(x, scale, up_or_down)

    def by_arithmetic(
        self,
        x: torch.Tensor,
        scale: torch.Tensor | None,
        to_whole: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Rounds `x` by arithmetic: divides by the spacing at each value, rounds to whole numbers
        with `to_whole`, and multiplies again."""
        scale = self.scale_of(x) if scale is None else scale
        scaled = x / scale
        step = self.step_of(scaled)
        found = to_whole(scaled / step) * step
        return found.clamp(-self.largest, self.largest) * scale


#: For a floating-point dtype: the integer dtype of its width, the mask of its exponent bits, and
#: its largest power of two.
_EXPONENTS: Final = {
    torch.float32: (torch.int32, 0x7F800000, 2.0**127),
    torch.float64: (torch.int64, 0x7FF0000000000000, 2.0**1023),
}
#: Formats to which PyTorch casts with rounding to nearest, which is faster than arithmetic.
_CASTS: Final = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


def _float(name: str, scales: Scales) -> Storage:
    found = FORMATS[name]
    assert isinstance(found, FloatFormat)
    return Storage(
        name,
        found.mantissa_bits,
        1 - found.bias,
        float(found.max),
        scales,
        found.storage_bits / 8,
    )


def integers(bits: int, scales: Scales = "row") -> Storage:
    """Integers of `bits` bits in [-q, q], q = 2^(bits-1) - 1, with a scale for each row by
    default."""
    largest = 2 ** (bits - 1) - 1
    return Storage(f"int{bits}", None, 0, float(largest), scales, bits / 8)


STORAGES: Final[dict[str, Storage]] = {
    "fp32": _float("fp32", "none"),
    "bf16": _float("bf16", "none"),
    "fp16": _float("fp16", "none"),
    "e4m3": _float("e4m3", "tensor"),
    "e5m2": _float("e5m2", "tensor"),
    "e2m1": _float("e2m1", "tensor"),
    **{f"int{bits}": integers(bits) for bits in range(2, 9)},
}


def unscaled(storage: Storage) -> Storage:
    """The same format without a scale."""
    return replace(storage, scales="none")
