"""The error of bfloat16 under one scale, or cast, from a count of its words: it costs one look at
each element, however much is asked about them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qtui_core.quant.scan.segment_error import Bool, SegmentError, element_errors, squared_steps
from qtui_core.quant.segments.elements import Elements, Float32, from_bfloat16
from qtui_core.quant.segments.parallel import Scratch
from qtui_core.quant.segments.process import Plan
from qtui_core.quant.segments.word_table import WORDS, word_segment
from qtui_core.schemes.scheme import Family

Counts = npt.NDArray[np.int64]


def error_by_word(plan: Plan, elements: Elements, counts: Counts) -> SegmentError:
    """Sums of a whole tensor where errors depend on the word alone: those of the 65,536 words, as
    often as each is there, `counts` `[65536]`."""
    with np.errstate(all="ignore"):
        found = element_errors(plan, word_segment(), Scratch())
        magnitude = np.where(counts, found.magnitude, np.float32(-1))
        largest = magnitude.max()
        absolute = np.abs(from_bfloat16(word_segment().raw))
        small = (absolute > 0) & (absolute < plan.coder.smallest_normal)
        beyond = np.abs(found.values) > plan.coder.largest
        is_cast = plan.scheme.family is Family.CAST

        def times(values: Float32) -> float:
            return float((np.square(values, dtype=np.float64) * counts).sum())

        def total(which: Bool | None) -> int:
            return 0 if which is None else int(counts[which].sum())

        return SegmentError(
            squared_error=times(found.magnitude),
            squared=times(found.values),
            max_error=float(largest),
            max_index=_first_of(magnitude == largest, elements),
            nonfinite=total(found.nonfinite),
            saturated=total(beyond) if is_cast else 0,
            subnormal=total(small) if found.prepared.magnitude is not None else 0,
            overflowed=total(found.lost),
            squared_step=squared_steps(plan, found.prepared) / WORDS * int(counts.sum()),
        )


def _first_of(wanted: Bool, elements: Elements) -> int:
    """Where the first element is whose word is wanted."""
    words = np.flatnonzero(wanted).astype(np.uint16)
    for segment in elements.segments():
        # A few words are compared sooner than each is looked up.
        if words.size <= 4:
            there = np.logical_or.reduce([segment.raw == word for word in words])
        else:
            there = wanted[segment.raw]
        index = int(there.argmax())
        if there[index]:
            return segment.start + index
    raise AssertionError("a word that was counted is there")
