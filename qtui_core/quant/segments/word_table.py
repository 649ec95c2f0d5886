"""Codes of bfloat16 by look-up: there are 65,536 words, and with one scale each has one code, so a
large tensor needs only one look-up per element."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.quant.coding.coder import Codes
from qtui_core.quant.segments.elements import (
    INFINITE_WORD,
    Elements,
    Segment,
    from_bfloat16,
    largest_word,
)
from qtui_core.quant.segments.layout import Whole
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.process import encode, prepare
from qtui_core.quant.segments.tensor_plan import Plan
from qtui_core.schemes.scheme import Family

WORDS = 1 << 16
#: Fewer elements are encoded faster than the table is made.
LEAST_ELEMENTS = 8 * WORDS


def depends_on_the_word(plan: Plan, elements: Elements) -> bool:
    """Whether the tensor consists of bfloat16 words in memory, is large, and its codes depend on
    nothing but the word: one scale or none, and neither on other elements nor on positions."""
    values = elements.in_memory
    if values is None or values.dtype != np.uint16 or values.size < LEAST_ELEMENTS:
        return False
    shared = plan.fixed is not None or plan.scheme.family is Family.CAST
    alone = plan.coder.code_count(2) == 2 and plan.decomposition is None
    whole = isinstance(plan.layout, Whole)
    return shared and alone and whole and plan.scheme.rounding != "stochastic"


def word_segment() -> Segment:
    """Every word of bfloat16, in order, as the segment of a tensor `[65536]`."""
    return Segment(0, np.arange(WORDS, dtype=np.uint16), from_bfloat16)


def word_table(plan: Plan, elements: Elements) -> Codes | None:
    """The code of every word `[65536]`; None if a code depends on more than the word."""
    if not depends_on_the_word(plan, elements):
        return None
    table = np.empty(WORDS, plan.coder.code_dtype)
    scratch = Scratch()
    with np.errstate(all="ignore"):
        encode(plan, prepare(plan, word_segment(), scratch), table, scratch)
    return table


def look_up(table: Codes, words: npt.NDArray[np.uint16], codes: Codes) -> int:
    """Writes the codes of the words, and counts the NaN and infinities among them."""
    # Every word is a valid index; "clip" only saves numpy a check.
    np.take(table, words, out=codes, mode="clip")
    if largest_word(words) < INFINITE_WORD:
        return 0
    return int(np.count_nonzero((words & np.uint16(0x7FFF)) >= INFINITE_WORD))
