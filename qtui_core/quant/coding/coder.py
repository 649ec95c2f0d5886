"""The interface of every family of formats: from grouped elements to codes, and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.quant.segments.elements import Float32
from qtui_core.quant.segments.grouping import Extent
from qtui_core.quant.segments.layout import Layout
from qtui_core.quant.segments.parallel import Scratch

Codes = npt.NDArray[Any]

#: Smallest normal float32. Scales are at least this, as in torchao, so that their reciprocal is
#: finite; groups with smaller values still become zeros.
SMALLEST_NORMAL = np.float32(2.0**-126)
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class GroupScales:
    """The scales of groups.

    Attributes:
        scale: float32 `[groups]`, the factor of the levels.
        zero_point: `[groups]`, uint8, or float32 in the tensor's unit; None without zero points.
        code: uint8 `[groups]`, the stored code of a scale that is a small float; else None.
        inverse: float32 `[groups]`, the factor of the elements if it is not 1 / scale; else None.
    """

    scale: Float32
    zero_point: npt.NDArray[Any] | None = None
    code: npt.NDArray[np.uint8] | None = None
    inverse: Float32 | None = None


NO_SCALES = GroupScales(np.empty(0, np.float32))


class Coder(ABC):
    """Turns elements into codes and back, given the scales of their groups.

    Elements are finite: the caller replaces NaN by 0 and infinities by the largest float32 with
    their sign, and overwrites the codes if the format has codes for them. All arrays are flat and
    belong to one segment.
    """

    extent: ClassVar[Extent | None]
    code_dtype: np.dtype[Any]
    nan_code: int | None = None
    #: Codes of +inf and -inf.
    infinity_codes: tuple[int, int] | None = None
    #: Largest finite value of the format before scaling.
    largest: float = LARGEST
    #: Smallest normal number of a float format before scaling.
    smallest_normal: np.float32 = SMALLEST_NORMAL
    #: A group with a smaller extent gets the scale for this extent, or becomes zeros.
    smallest_extent: float = 0.0
    #: The format in which scales are stored; None for float32.
    scale_format: ClassVar[str | None] = None
    #: The scale of the tensor, a factor of the scales of all groups; None if there is none.
    tensor_scale: float | None = None

    @abstractmethod
    def scales(self, extents: Float32, size: int) -> GroupScales:
        """The scales of groups with `extents` float32 `[extent.width, groups]` and `size` elements
        in all. Only extents are passed, never elements, so a rule that needs the elements (such as
        the least squared error) needs its own `Extent`."""

    @abstractmethod
    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        """Writes the codes of the elements `x` to `codes` `[code_count(x.size)]`."""

    @abstractmethod
    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """Writes the values of the codes to `out` float32, one for each element."""

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """Writes to `out` what `decode` returns for the codes of `encode`, possibly without
        codes."""
        codes = scratch.take("codes", self.code_count(x.size), self.code_dtype)
        self.encode(layout, x, scales, codes, scratch)
        self.decode(layout, codes, scales, out, scratch)

    def code_count(self, elements: int) -> int:
        """The length of the array of codes for this number of elements."""
        return elements


def keep_finite(out: Float32, scales: GroupScales) -> None:
    """Replaces products that overflowed by the largest float32. Costs a pass over `out` only if a
    scale is so large that a level times the scale may overflow."""
    if scales.scale.size and float(np.abs(scales.scale).max()) > LARGEST / 2**17:
        np.clip(out, -LARGEST, LARGEST, out=out)
