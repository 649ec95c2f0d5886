"""The codes of a scheme: bit pattern, level, and whether any element can get it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from qtui_core.dataclass import dataclass
from qtui_core.formats import get_format
from qtui_core.quant.coding.codebook import LEVELS
from qtui_core.quant.coding.levels import Float64, element_values
from qtui_core.quant.coding.scale_rules import integer_range
from qtui_core.schemes.scheme import Family, Scheme, check_countable


@dataclass(frozen=True, eq=False)
class Alphabet:
    """The codes of a format in ascending order of what they stand for, -0 before +0.

    Attributes:
        codes: int64 `[K]`, bit patterns; integers in two's complement.
        levels: float64 `[K]`, in units of the extent of a group: of its absmax, or for
            asymmetric integers -1 for the low end of the range and 1 for the high end. NaN and
            infinities where a pattern stands for these.
        reachable: bool `[K]`, False for a pattern that no finite element gets: the lowest code of a
            restricted integer, the second zero of bitsandbytes' FP4, NaN, infinity.
        top: the level 1 in units of the stored scale; negative for the rule "signed", whose scale
            has the opposite sign of the extreme element.
    """

    codes: npt.NDArray[np.int64]
    levels: Float64
    reachable: npt.NDArray[np.bool_]
    top: float

    @property
    def edges(self) -> Float64:
        """The edges between reachable levels: midpoints, with -inf and inf at the ends, float64
        `[reachable + 1]`. Between the two zeros the edge is zero."""
        values = self.levels[self.reachable]
        middles = (values[1:] + values[:-1]) / 2
        return np.concatenate([[-np.inf], middles, [np.inf]])


@lru_cache(maxsize=64)
def alphabet_of(scheme: Scheme) -> Alphabet:
    """The codes of a scheme.

    Raises UsageError for a format of more than 8 bits.
    """
    check_countable(scheme)
    patterns = np.arange(2**scheme.bits)
    match scheme.family:
        case Family.CODEBOOK:
            values, top = LEVELS[scheme.format].astype(np.float64), 1.0
            # Two patterns decode to zero; the encoder writes the first.
            reachable = ~(np.signbit(values) & (values == 0))
        case Family.INTEGER:
            values, top, reachable = _integers(scheme, patterns)
        case Family.TERNARY:
            # Two bits, of which one pattern is never used.
            values = np.where(patterns >= 2, patterns - 4, patterns).astype(np.float64)
            top, reachable = 1.0, values >= -1
        case _:
            assert scheme.element is not None
            values = element_values(get_format(scheme.element))
            reachable = np.isfinite(values)
            top = float(values[reachable].max())
    levels = np.where(values == 0, values, values / top)  # a zero keeps its sign
    order = np.lexsort((~np.signbit(levels), levels))
    return Alphabet(patterns[order], levels[order], reachable[order], top)


def _integers(
    scheme: Scheme, patterns: npt.NDArray[np.int64]
) -> tuple[Float64, float, npt.NDArray[np.bool_]]:
    half = len(patterns) // 2
    if not scheme.symmetric:
        middle = half - 0.5
        return patterns.astype(np.float64) - middle, middle, np.ones(len(patterns), bool)
    values = np.where(patterns >= half, patterns - 2 * half, patterns).astype(np.float64)
    codes = integer_range(scheme.scale_rule, scheme.bits)
    return values, float(codes.steps), values >= codes.lowest
