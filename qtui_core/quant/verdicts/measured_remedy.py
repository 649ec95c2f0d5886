"""What would lower an error, as measured on the same tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.answers.tensors import ErrorReport
from qtui_core.quant.verdicts.alternatives import DB_PER_BIT
from qtui_core.quant.verdicts.case import NOTICEABLE_DB, db_text


def measured_remedy(report: ErrorReport, others: Sequence[ErrorReport]) -> str | None:
    """The alternative among `others` that gains noticeably, and most for the bits it adds; and
    the smallest that loses nothing. None where there are none."""
    assert report.sqnr_db is not None
    useful = [o for o in others if o.sqnr_db and o.sqnr_db - report.sqnr_db > NOTICEABLE_DB]
    exact = [o for o in others if o.relative_mse == 0]
    lossless = min(exact, key=lambda o: o.bits_per_parameter, default=None)
    if lossless is not None:
        useful = [o for o in useful if o.bits_per_parameter < lossless.bits_per_parameter]
    if not useful:
        if lossless is None:
            return None
        return (
            f"{lossless.scheme} would keep it exactly "
            f"{at_bits(lossless.bits_per_parameter, report.bits_per_parameter)} (measured)"
        )

    def value(other: ErrorReport) -> float:
        added = max(0.0, other.bits_per_parameter - report.bits_per_parameter)
        return (other.sqnr_db or 0.0) - DB_PER_BIT * added

    better = max(useful, key=value)
    text = (
        f"{better.scheme} would bring it from {db_text(report.sqnr_db)} to "
        f"{db_text(better.sqnr_db or 0.0)} dB "
        f"{at_bits(better.bits_per_parameter, report.bits_per_parameter)} (measured)"
    )
    if lossless is not None:
        text += (
            f", and {lossless.scheme} would keep it exactly at "
            f"{lossless.bits_per_parameter:.2f} bits"
        )
    return text


def no_better(report: ErrorReport, others: Sequence[ErrorReport]) -> str:
    """Of measured schemes that gain nothing worth a word: how much the best of them gains."""
    assert report.sqnr_db is not None
    best = max(others, key=lambda o: o.sqnr_db or -math.inf)
    gain = (best.sqnr_db or -math.inf) - report.sqnr_db
    if gain <= 0:
        return "none of the other schemes measured does better"
    much = "less than 0.1" if gain < 0.1 else f"only {gain:.1f}"
    return (
        f"the best of the other schemes measured, {best.scheme}, gains {much} dB "
        f"{at_bits(best.bits_per_parameter, report.bits_per_parameter)}"
    )


def at_bits(bits: float, instead: float) -> str:
    """What something takes, beside what is taken now."""
    if f"{bits:.2f}" == f"{instead:.2f}":
        return f"at the same {bits:.2f} bits"
    return f"at {bits:.2f} bits instead of {instead:.2f}"
