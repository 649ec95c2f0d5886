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
    """`scale` float32 `[groups]`, what a level is multiplied by; for asymmetric integers
    `zero_point` `[groups]`, uint8, or float32 in the tensor's unit; where a scale is itself
    stored as a small float, its `code` uint8 `[groups]`; `inverse` float32 `[groups]`, what
    elements are multiplied by where that is not 1 / scale."""

    scale: Float32
    zero_point: npt.NDArray[Any] | None = None
    code: npt.NDArray[np.uint8] | None = None
    inverse: Float32 | None = None


NO_SCALES = GroupScales(np.empty(0, np.float32))


class Coder(ABC):
    """Turns elements into codes and back, given the scales of their groups.

    Elements are finite: the caller replaces a NaN by 0 and an infinity by the largest float32 of
    its sign, and overwrites the code if the format has one for it. All arrays are flat and of one
    segment.
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
    #: A group whose extent is below this gets the scale of this extent, or zeros.
    smallest_extent: float = 0.0
    #: The format scales are stored in, where that is not float32.
    scale_format: ClassVar[str | None] = None
    #: The scale of the tensor, by which the scales of the groups are multiplied, if there is one.
    tensor_scale: float | None = None

    @abstractmethod
    def scales(self, extents: Float32, size: int) -> GroupScales:
        """Scales of groups with these extents, `[extent.width, groups]`, which have `size` elements
        together. Scales are computed from extents alone, never from elements, so a rule that needs
        the elements (such as the least squared error) needs its own `Extent`."""

    @abstractmethod
    def encode(
        self, layout: Layout, x: Float32, scales: GroupScales, codes: Codes, scratch: Scratch
    ) -> None:
        """Writes the codes of the elements to `codes`, of length `code_count(x.size)`."""

    @abstractmethod
    def decode(
        self, layout: Layout, codes: Codes, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """Writes the values of the codes to `out`, one for each element."""

    def round_trip(
        self, layout: Layout, x: Float32, scales: GroupScales, out: Float32, scratch: Scratch
    ) -> None:
        """What `decode` gives for the codes of `encode`, possibly without making codes."""
        codes = scratch.take("codes", self.code_count(x.size), self.code_dtype)
        self.encode(layout, x, scales, codes, scratch)
        self.decode(layout, codes, scales, out, scratch)

    def code_count(self, elements: int) -> int:
        """Length of the array of codes for `elements` elements."""
        return elements


def keep_finite(out: Float32, scales: GroupScales) -> None:
    """Replaces products that overflowed by the largest float32. Costs a pass over `out` only if a
    scale is so large that a level times the scale may overflow."""
    if scales.scale.size and float(np.abs(scales.scale).max()) > LARGEST / 2**17:
        np.clip(out, -LARGEST, LARGEST, out=out)
