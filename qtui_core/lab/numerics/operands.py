"""How the operands of a product are quantized.

A scale can be moved out of a sum only if it does not vary along the summed axis. So an operand is
passed as float32 `[rows, summed]`; its quantized values are returned in the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch.nn import functional

from qtui_core.dataclass import dataclass
from qtui_core.lab.numerics.rounding import STORAGES, unscaled

Quantize = Callable[[torch.Tensor], torch.Tensor]


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

    def __call__(self, x: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """The quantized values of `x` float32 `[rows, summed]`, in the same shape."""
        if self.storage == "fp32":
            return x
        if self.scales == "none" and self.storage == "bf16" and not self.stochastic:
            return x.bfloat16().float()
        if self.storage in _EIGHT and self.scales in ("tensor", "row") and not self.stochastic:
            return self._multiplied(x)
        scale, shape = self._scale(x)
        storage = unscaled(STORAGES[self.storage])
        tiled = x if shape is None else _tiles(x, *shape)
        found = (
            storage.stochastic(tiled, generator, scale)
            if self.stochastic
            else storage.nearest(tiled, scale)
        )
        return found if shape is None else _untiled(found, x.shape)

    def _multiplied(self, x: torch.Tensor) -> torch.Tensor:
        """FP8 with a scale per tensor or row, as in torchao.float8: numbers are multiplied by
        largest / absmax, not divided by absmax / largest, which float32 rounds differently. This
        decides ties: 0.6 % of random BF16 numbers lie half way between two codes of E5M2, and
        products would differ by 0.9 %."""
        storage = STORAGES[self.storage]
        row = self.scales == "row"
        most = (x.abs().amax(dim=-1, keepdim=True) if row else x.abs().amax()).double()
        times = (storage.largest / most).clamp_max(_MOST).to(x.dtype)
        times = torch.where(most > 0, times, torch.ones_like(times))
        return unscaled(storage).nearest(x * times) / times

    def _scale(self, x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, int] | None]:
        """(the scales, the shape (rows, summed) of a tile that shares one; None without tiles)."""
        storage = STORAGES[self.storage]
        if self.scales == "none":
            return x.new_ones(()), None
        if self.scales == "tensor":
            return _safe(x.abs().amax() / storage.largest), None
        if self.scales == "row":
            return _safe(x.abs().amax(dim=-1, keepdim=True) / storage.largest), None
        shape = TILES[self.scales]
        most = _tiles(x, *shape).abs().amax(dim=(2, 3), keepdim=True)
        if self.scales == "mx":
            exponent = torch.frexp(most)[1] - torch.frexp(torch.tensor(storage.largest))[1]
            scale = torch.ldexp(torch.ones_like(most), exponent.clamp(-127, 127))
            return torch.where(most > 0, scale, torch.ones_like(scale)), shape
        if self.scales.startswith("nv"):
            whole = _safe(x.abs().amax() / (STORAGES["e4m3"].largest * storage.largest))
            each = unscaled(STORAGES["e4m3"]).nearest(most / storage.largest / whole)
            return _safe(each * whole), shape
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


def rotation(size: int, generator: torch.Generator | None = None) -> torch.Tensor:
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
