"""One sentence about what a measured error means, written from the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.quant.granularity import PerBlock, PerColumn, PerGroup, PerModel, PerRow, PerTensor
from qtui_core.quant.measure import ErrorReport
from qtui_core.quant.outliers import OutlierReport, columns_holding
from qtui_core.quant.scheme import Family, Scheme
from qtui_core.quant.statistics import TensorStatistics

#: Decibels between measured and expected error that are worth a word.
NOTICEABLE_DB = 0.5
#: Kurtosis from which tails, and below which their absence, explain a difference.
HEAVY_TAILS, LIGHT_TAILS = 4.0, 2.5


def explain(
    reports: ErrorReport | Sequence[ErrorReport],
    stats: TensorStatistics | None = None,
    outliers: OutlierReport | None = None,
) -> str:
    """What the error of a scheme on a tensor means and what to do about it.

    Args:
        reports: the measurement in question; more after it are alternatives measured on the
            same tensor, and the best of them is named where it is better.
        stats, outliers: of the same tensor; the sentence says less without them.
    """
    report, *others = [reports] if isinstance(reports, ErrorReport) else list(reports)
    name = str(report.scheme)
    if report.count == 0:
        return "This tensor has no elements, so there is nothing to quantize."
    if report.nonfinite:
        return (
            f"{_number(report.nonfinite, 'element is', 'elements are')} NaN or infinite: find "
            f"out where they come from first; every figure is over the finite rest."
        )
    if report.relative_mse is None:
        return f"Every element is zero, and {name} keeps zero exactly."
    if report.saturated:
        return (
            f"{_number(report.saturated, 'element lies', 'elements lie')} beyond the largest "
            f"number of {name} and became it: scale the tensor first, or use bf16."
        )
    if report.sqnr_db is None or report.gaussian_sqnr_db is None:
        return f"{name} keeps every element of this tensor exactly."
    worse = report.gaussian_sqnr_db - report.sqnr_db
    if worse > NOTICEABLE_DB:
        cause = _cause(report.scheme, stats, outliers)
        first = f"{name} is {worse:.1f} dB worse here than on Gaussian values: {cause}"
        return f"{first}; {_remedy(report, others)}."
    if worse < -NOTICEABLE_DB:
        first = (
            f"{name} gives {report.sqnr_db:.1f} dB, {-worse:.1f} dB better than on Gaussian "
            f"values: {_advantage(stats)}"
        )
    else:
        first = (
            f"{name} gives {report.sqnr_db:.1f} dB, as good as a Gaussian tensor of this shape "
            f"gets ({report.gaussian_sqnr_db:.1f} dB), so this error is normal"
        )
    better = _best(report, others)
    if better is None:
        cast = report.scheme.family is Family.CAST
        wanted = (
            "a format with more mantissa bits lowers"
            if cast
            else ("more bits or smaller groups lower")
        )
        return f"{first} and only {wanted} it."
    return f"{first}; {_would_bring(report, better)}."


def _cause(scheme: Scheme, stats: TensorStatistics | None, outliers: OutlierReport | None) -> str:
    if outliers is not None and outliers.count:
        return _blame_outliers(outliers)
    if stats is not None and stats.kurtosis is not None and stats.kurtosis > HEAVY_TAILS:
        return f"its tails are heavy (kurtosis {stats.kurtosis:.1f}, a Gaussian has 3)"
    if isinstance(scheme.granularity, PerModel):
        return "the scale of the model is too wide for this tensor"
    if scheme.family is Family.CAST:
        return "many of its values are below the smallest normal number of the format"
    return "values that share a scale differ in size from row to row or column to column"


def _blame_outliers(outliers: OutlierReport) -> str:
    many = _number(outliers.count, "element", "elements")
    verb = "stretches its scale" if outliers.count == 1 else "stretch the scales"
    sentence = f"{many} beyond {outliers.sigma:g} sigma {verb}"
    if outliers.count == 1:
        return sentence
    for share in (0.9, 0.5):
        columns, held = columns_holding(outliers, share)
        if 0 < columns <= max(1, outliers.column_total // 20):
            where = _number(columns, "column", "columns")
            verb = "has" if columns == 1 else "have"
            # Rounded down: "100%" is said of all of them only.
            percent = math.floor(100 * held)
            return f"{sentence}, and {where} of {outliers.column_total:,} {verb} {percent}% of them"
    return sentence


def _advantage(stats: TensorStatistics | None) -> str:
    if stats is not None and stats.finite and stats.zeros > 0.1 * stats.finite:
        return f"{stats.zeros / stats.finite:.0%} of its elements are zero, which costs nothing"
    if stats is not None and stats.kurtosis is not None and stats.kurtosis < LIGHT_TAILS:
        return f"it has almost no tails (kurtosis {stats.kurtosis:.1f}, a Gaussian has 3)"
    return "values that share a scale are of similar size"


def _remedy(report: ErrorReport, others: Sequence[ErrorReport]) -> str:
    better = _best(report, others)
    if better is not None:
        return _would_bring(report, better)
    if others:
        return "none of the other schemes measured does better"
    match report.scheme.granularity:
        case PerModel():
            return "a scale for each tensor would follow it"
        case PerTensor() | PerColumn():
            return "try a scale for each row, or group64"
        case PerRow():
            return "try groups, group64 or group128, so that an outlier spoils only its group"
        case PerGroup(size) | PerBlock(size) if size > 32:
            return "smaller groups would confine the damage, or keep those columns in 16 bits"
        case PerGroup() | PerBlock():
            return "more bits are the way, or keep those columns in 16 bits"
        case _:
            return "scale it first, or use a format with more exponent bits"


def _best(report: ErrorReport, others: Sequence[ErrorReport]) -> ErrorReport | None:
    """The alternative that gains noticeably, and most for the bits it adds."""

    def gain(other: ErrorReport) -> float:
        if other.sqnr_db is None or report.sqnr_db is None:
            return 0.0
        return other.sqnr_db - report.sqnr_db

    useful = [o for o in others if gain(o) > NOTICEABLE_DB]
    if not useful:
        return None
    # A bit is worth 6.02 dB of uniform quantization: gains beyond that are the finding.
    return max(
        useful,
        key=lambda o: gain(o) - 6.02 * max(0.0, o.bits_per_parameter - report.bits_per_parameter),
    )


def _would_bring(report: ErrorReport, better: ErrorReport) -> str:
    return (
        f"{better.scheme} would bring it from {report.sqnr_db:.1f} to {better.sqnr_db:.1f} dB "
        f"at {better.bits_per_parameter:.2f} bits instead of "
        f"{report.bits_per_parameter:.2f} (measured)"
    )


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
