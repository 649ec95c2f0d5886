"""Rounding to a format, to nearest or stochastically. The result is float32 values.

An `Operand` of a product has scales that can be moved out of its sum: they do not vary along the
summed axis. So it is passed as float32 `[rows, summed]`; its quantized values are returned in the
same shape.

To nearest means ties to even, as PyTorch casts. Stochastic rounding goes up with a probability
equal to the fraction of the way to the next number, so that its expectation is the value. In every
format, values beyond the largest number become that number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch.nn import functional

from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import float_format

Random = torch.Generator | None


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
    scales: str
    nbytes: float

    @property
    def unscaled(self) -> Storage:
        """The same format without a scale."""
        return replace(self, scales="none")

    def scale_of(self, x: torch.Tensor) -> torch.Tensor:
        """The scale of a tensor: float32 `[]`, or `[..., 1]` with a scale per row. It is 1 if the
        format has no scale, or for values that are all zero."""
        if self.scales == "none":
            return x.new_ones(())
        return _safe(_absmax(x, self.scales == "row" and x.dim() > 1) / self.largest)

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

    def rounded(
        self, x: torch.Tensor, random: Random, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`x` as stored, rounded stochastically with numbers of `random`, without it to nearest."""
        return self.nearest(x, scale) if random is None else self.stochastic(x, random, scale)

    def stochastic(
        self, x: torch.Tensor, generator: Random = None, scale: torch.Tensor | None = None
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
        whole = to_whole(scaled / step) * step
        return whole.clamp(-self.largest, self.largest) * scale


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


def _float(name: str, scales: str) -> Storage:
    spec = float_format(name)
    range_of = spec.mantissa_bits, 1 - spec.bias, float(spec.max)
    return Storage(name, *range_of, scales, spec.storage_bits / 8)


def integers(bits: int, scales: str = "row") -> Storage:
    """Integers of `bits` bits in [-q, q], q = 2^(bits-1) - 1, with a scale for each row by
    default."""
    largest = 2 ** (bits - 1) - 1
    return Storage(f"int{bits}", None, 0, float(largest), scales, bits / 8)


STORAGES: Final[dict[str, Storage]] = {
    **{name: _float(name, "none") for name in ("fp32", "bf16", "fp16")},
    **{name: _float(name, "tensor") for name in ("e4m3", "e5m2", "e2m1")},
    **{f"int{bits}": integers(bits) for bits in range(2, 9)},
}


@dataclass(frozen=True)
class Operand:
    """A way to quantize an operand.

    Attributes:
        storage: the format of the codes; "fp32" leaves the operand as it is.
        scales: "none", "tensor", "row" (one for each index that is not summed), "tile" (32 x 32),
            "block" (128 x 128), "group" (128 along the summed axis), "mx" (32 along it, powers of
            two, rounded down), "nv" (16 along it, in E4M3, with one scale for the tensor) or
            "nv-tile" (as "nv", for 16 x 16).
        stochastic: whether codes are rounded stochastically.
    """

    storage: str
    scales: str = "none"
    stochastic: bool = False

    def __call__(self, x: torch.Tensor, generator: Random = None) -> torch.Tensor:
        """The quantized values of `x` float32 `[rows, summed]`, in the same shape."""
        if self.storage == "fp32":
            return x
        if self.scales == "none" and self.storage == "bf16" and not self.stochastic:
            return x.bfloat16().float()
        if self.storage in _EIGHT and self.scales in ("tensor", "row") and not self.stochastic:
            return self._multiplied(x)
        scale, shape = self._scale(x)
        storage = STORAGES[self.storage]
        tiled = x if shape is None else _tiles(x, *shape)
        rounded = (
            storage.stochastic(tiled, generator, scale)
            if self.stochastic
            else storage.nearest(tiled, scale)
        )
        return rounded if shape is None else _untiled(rounded, x.shape)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """FP8 with a scale per tensor or row, as in torchao.float8: numbers are multiplied by
        largest / absmax, not divided by absmax / largest, which float32 rounds differently. This
        decides ties: 0.6 % of random BF16 numbers lie half way between two codes of E5M2, and
        products would differ by 0.9 %."""
        storage = STORAGES[self.storage]
        most = _absmax(x, self.scales == "row").double()
        times = (storage.largest / most).clamp_max(_MOST).to(x.dtype)
        times = torch.where(most > 0, times, torch.ones_like(times))
        return storage.nearest(x * times, x.new_ones(())) / times

    def _scale(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int] | None]:
        """(the scales, the shape (rows, summed) of a tile that shares one; None without tiles)."""
        storage = STORAGES[self.storage]
        if self.scales not in TILES:
            return replace(storage, scales=self.scales).scale_of(x), None
        shape = TILES[self.scales]
        most = _tiles(x, *shape).abs().amax(dim=(2, 3), keepdim=True)
        if self.scales == "mx":
            exponent = torch.frexp(most)[1] - torch.frexp(torch.tensor(storage.largest))[1]
            scale = torch.ldexp(torch.ones_like(most), exponent.clamp(-127, 127))
            return torch.where(most > 0, scale, torch.ones_like(scale)), shape
        if self.scales.startswith("nv"):
            whole = _safe(x.abs().amax() / (STORAGES["e4m3"].largest * storage.largest))
            scales = most / storage.largest / whole
            scales = STORAGES["e4m3"].nearest(scales, x.new_ones(()))
            return _safe(scales * whole), shape
        return _safe(most / storage.largest), shape


#: Formats of 8 bits whose scale is multiplied by, and the largest scale that float32 holds.
_EIGHT: Final = ("e4m3", "e5m2")
_MOST: Final = 2.0**127

#: The tiles that share a scale: (indices that are not summed, indices that are).
TILES: Final[dict[str, tuple[int, int]]] = {
    "tile": (32, 32),
    "block": (128, 128),
    "group": (1, 128),
    "mx": (1, 32),
    "nv": (1, 16),
    "nv-tile": (16, 16),
}


def _absmax(x: torch.Tensor, rows: bool) -> torch.Tensor:
    return x.abs().amax(dim=-1, keepdim=True) if rows else x.abs().amax()


def _safe(scale: torch.Tensor) -> torch.Tensor:
    """The scales with 0 replaced by 1, so that one can divide by them."""
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _tiles(x: torch.Tensor, rows: int, summed: int) -> torch.Tensor:
    """`[rows / r, summed / s, r, s]`, padded with zeros if the shape is not a multiple."""
    padded = functional.pad(x, (0, -x.shape[1] % summed, 0, -x.shape[0] % rows))
    across, along = padded.shape[0] // rows, padded.shape[1] // summed
    return padded.view(across, rows, along, summed).transpose(1, 2)


def _untiled(tiles: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    across, along, rows, summed = tiles.shape
    whole = tiles.transpose(1, 2).reshape(across * rows, along * summed)
    return whole[: shape[0], : shape[1]]


EXACT: Final = Operand("fp32")


def rotation(size: int, generator: Random = None) -> torch.Tensor:
    """A random Hadamard rotation: orthogonal float32 `[size, size]` whose rows have random signs.
    `size` is a power of two."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (size, 1), generator=generator) * 2.0 - 1
    return matrix * signs / size**0.5


def rotated(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`x` float32 `[rows, summed]` times a rotation, block by block along the summed axis, which is
    padded with zeros to a multiple of the rotation's size. The product of two operands stays the
    same if both are rotated by the same matrix."""
    size = matrix.shape[0]
    padded = functional.pad(x, (0, -x.shape[1] % size))
    return (padded.view(x.shape[0], -1, size) @ matrix).view(x.shape[0], -1)
