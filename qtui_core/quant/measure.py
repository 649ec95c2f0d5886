"""The error of a scheme on a tensor, in one pass over the elements.

Elements are quantized, dequantized, compared and dropped one segment at a time. Two passes are
needed if a scale depends on all elements (granularity tensor, model or column, and double
quantization).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Unpack

import numpy as np
import numpy.typing as npt

from qtui_core.answers.tensors import ErrorReport
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.scan.outliers import find_beyond
from qtui_core.quant.scan.scan import SchemeReducer, scan
from qtui_core.quant.scan.segment_error import (
    NO_ERROR,
    Bool,
    SegmentError,
    element_errors,
    segment_error,
    squared_steps,
)
from qtui_core.quant.segments.elements import (
    Elements,
    Float32,
    ModelExtent,
    Segment,
    TensorLike,
    from_bfloat16,
)
from qtui_core.quant.segments.layout import matrix_shape
from qtui_core.quant.segments.parallel import Scratch, Watch
from qtui_core.quant.segments.process import Plan
from qtui_core.quant.segments.rounding import ROUNDING_NOISE
from qtui_core.quant.segments.word_table import WORDS, depends_on_the_word, word_segment
from qtui_core.quant.storage import bits_per_parameter, quantized_bytes
from qtui_core.schemes.scheme import Family, Scheme

Counts = npt.NDArray[np.int64]


def error_by_word(plan: Plan, elements: Elements, counts: Counts) -> SegmentError:
    """Sums over a whole tensor whose errors depend on the word alone: those of the 65,536 words,
    each times its count in `counts` `[65536]`."""
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
    """The position of the first element whose word is wanted."""
    words = np.flatnonzero(wanted).astype(np.uint16)
    for segment in elements.segments():
        # Comparing a few words is faster than looking each up.
        if words.size <= 4:
            there = np.logical_or.reduce([segment.raw == word for word in words])
        else:
            there = wanted[segment.raw]
        index = int(there.argmax())
        if there[index]:
            return segment.start + index
    raise AssertionError("a word that was counted is there")


class ErrorScan(SchemeReducer["SegmentError | Counts"]):
    """The error of a scheme. With `by_word`, for bfloat16 whose codes depend on the word alone, it
    counts words, which is faster and differs in the last bits of the sums."""

    def __init__(self, scheme: Scheme, *, by_word: bool = True) -> None:
        super().__init__(scheme)
        self._by_word = by_word

    def begin(self, elements: Elements) -> None:
        self._elements, self._total = elements, NO_ERROR
        by_word = self._by_word and depends_on_the_word(self.plan, elements)
        self._words = np.zeros(WORDS, np.int64) if by_word else None

    def take(self, segment: Segment, scratch: Scratch) -> SegmentError | Counts:
        if self._words is not None:
            return np.bincount(segment.raw, minlength=WORDS)
        return segment_error(self.plan, segment, scratch)

    def add(self, part: SegmentError | Counts) -> None:
        if isinstance(part, SegmentError):
            self._total += part
        elif self._words is not None:
            self._words += part

    def result(self) -> ErrorReport:
        total = self._total
        if self._words is not None:
            total = error_by_word(self.plan, self._elements, self._words)
        return report_of(self._elements, self.plan, self.model_absmax, total)


def measure(
    x: TensorLike,
    scheme: Scheme,
    *,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> ErrorReport:
    """The error of a scheme on a tensor: quantizes, dequantizes and compares, without keeping codes
    or values. Arguments and errors are those of `scan`. A scheme with an outlier threshold takes
    two more readings, which find the outliers of the report; progress does not include them."""
    found = ErrorScan(scheme)
    scan(x, [found], model_absmax=model_absmax, **watch)
    report = found.result()
    if scheme.outlier_threshold is None:
        return report
    unheard = Watch(cancelled=watch.get("cancelled"), threads=watch.get("threads"))
    return replace(report, outliers=find_beyond(x, scheme.outlier_threshold, **unheard))


def report_of(
    elements: Elements,
    plan: Plan,
    model_absmax: ModelExtent | None,
    total: SegmentError,
) -> ErrorReport:
    """The report on a tensor whose segments sum to `total`."""
    scheme, shape = plan.scheme, elements.shape
    finite = elements.count - total.nonfinite - total.overflowed
    columns = matrix_shape(shape)[1]
    mse = total.squared_error / finite if finite else 0.0
    power = total.squared / finite if finite else 0.0
    noise = ROUNDING_NOISE[scheme.rounding]
    relative = gaussian = None
    if power > 0:
        relative = total.squared_error / total.squared
        gaussian = gaussian_relative_mse(
            scheme, shape, sigma=math.sqrt(power), model_absmax=model_absmax
        )
    return ErrorReport(
        scheme=scheme,
        shape=shape,
        count=elements.count,
        nonfinite=total.nonfinite,
        saturated=total.saturated,
        subnormal=total.subnormal,
        mse=mse,
        relative_mse=relative,
        sqnr_db=decibels(relative),
        max_abs_error=total.max_error,
        max_abs_error_index=divmod(total.max_index, columns) if elements.count else None,
        bits_per_parameter=bits_per_parameter(scheme, shape, plan.outlier_columns),
        bytes=quantized_bytes(scheme, shape, plan.outlier_columns),
        gaussian_mse=None if gaussian is None else gaussian * power,
        gaussian_relative_mse=gaussian,
        gaussian_sqnr_db=decibels(gaussian),
        overflowed=total.overflowed,
        outlier_columns=plan.outlier_columns,
        signal=total.squared,
        even_mse=noise * total.squared_step / elements.count if total.squared_step else None,
    )


def decibels(relative_mse: float | None) -> float | None:
    """The ratio of signal to quantization noise in dB; None if there is no noise or no signal."""
    return -10 * math.log10(relative_mse) if relative_mse else None
