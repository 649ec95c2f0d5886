"""Codes of bfloat16 by looking them up: there are 65,536 words, and under one scale each has one
code, so a large tensor is coded by one look-up an element."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.quant.coder import Codes
from qtui_core.quant.elements import Elements, Segment, from_bfloat16
from qtui_core.quant.layout import Whole
from qtui_core.quant.parallel import Scratch
from qtui_core.quant.plan import Plan
from qtui_core.quant.process import encode, prepare
from qtui_core.quant.scheme import Family

WORDS = 1 << 16
#: Fewer elements are coded sooner than the table is made.
LEAST_ELEMENTS = 8 * WORDS
#: The exponent bits of a bfloat16 word: all set in infinities and NaN.
EXPONENT = np.uint16(0x7F80)


def word_table(plan: Plan, elements: Elements) -> Codes | None:
    """The code of every word `[65536]`; None where elements are not words of bfloat16 in memory,
    do not share one scale or have none, or where a code depends on more than the value."""
    values = elements.in_memory
    if values is None or values.dtype != np.uint16 or values.size < LEAST_ELEMENTS:
        return None
    shared = plan.fixed is not None or plan.scheme.family is Family.CAST
    if not shared or not isinstance(plan.layout, Whole):
        return None
    alone = plan.coder.code_count(2) == 2 and plan.decomposition is None
    if not alone or plan.scheme.rounding == "stochastic":
        return None
    table = np.empty(WORDS, plan.coder.code_dtype)
    scratch = Scratch()
    words = Segment(0, np.arange(WORDS, dtype=np.uint16), from_bfloat16)
    with np.errstate(all="ignore"):
        encode(plan, prepare(plan, words, scratch), table, scratch)
    return table


def look_up(table: Codes, words: npt.NDArray[np.uint16], codes: Codes, scratch: Scratch) -> int:
    """Writes the codes of the words, and counts the NaN and infinities among them."""
    # Every word is an index; "clip" only spares numpy a check.
    np.take(table, words, out=codes, mode="clip")
    exponents = np.bitwise_and(words, EXPONENT, out=scratch.take("words", words.size, np.uint16))
    if not words.size or exponents.max() != EXPONENT:
        return 0
    return int(np.count_nonzero(exponents == EXPONENT))
