"""The one sentence an assignment of schemes to tensors ends in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qtui_core.inspection.sensitivity_report import (
    AS_STORED,
    FrontierPoint,
    TensorChoice,
    UniformPoint,
)
from qtui_core.inspection.weighing import Weighing
from qtui_core.models.quoting import quoted

#: A gain below this is not worth a sentence.
NOTICEABLE_DB = 0.1
#: A larger budget is worth a look from here on.
WORTH_DB = 1.0


def conclude_sensitivity(
    weighing: Weighing,
    point: FrontierPoint,
    choices: Sequence[TensorChoice],
    uniform: Sequence[UniformPoint],
    curve: Sequence[FrontierPoint],
) -> str:
    """What the assignment reaches, what it gives to whom, and what that is worth."""
    if not choices:
        return "No tensor could be quantized, so there is nothing to assign: every byte is kept."
    counts = Counter(c.scheme or AS_STORED for c in choices)
    parts = [_given(scheme, count, len(choices)) for scheme, count in counts.most_common(3)]
    if len(counts) > 3:
        parts.append(f"{len(counts) - 3} other schemes for the rest")
    quality = "every value exactly" if point.sqnr_db is None else f"{point.sqnr_db:z.1f} dB"
    of = "of the layers' outputs " if weighing.by == "outputs" else ""
    text = (
        f"{_broken(weighing)}At {point.bits_per_parameter:.2f} bits per parameter the best "
        f"assignment keeps {quality} {of}with {', '.join(parts)}"
    )
    smaller = [u for u in uniform if u.point.nbytes <= point.nbytes and u.point.sqnr_db is not None]
    best = max(smaller, key=lambda u: u.point.sqnr_db or 0.0, default=None)
    if best is None or point.sqnr_db is None or best.point.sqnr_db is None:
        return f"{text}."
    gain = point.sqnr_db - best.point.sqnr_db
    if gain < NOTICEABLE_DB:
        if point.nbytes == curve[0].nbytes:
            return f"{text}: these schemes allow no smaller one{_larger_budget(point, curve)}."
        return f"{text}: no tensor stands out, so one scheme for all, {best.scheme}, is as good."
    return (
        f"{text}, {gain:.1f} dB more than {best.scheme} for every tensor "
        f"({best.point.bits_per_parameter:.2f} bits){_deserving(choices, counts)}."
    )


def _broken(weighing: Weighing) -> str:
    """A warning to begin with, where the errors are not those of every value."""
    if not weighing.nonfinite:
        return ""
    count = weighing.nonfinite
    values = "value that is" if count == 1 else "values that are"
    return (
        f"{count:,} {values} NaN or infinite in float32 count for nothing here, so find out where "
        f"they come from first. "
    )


def _given(scheme: str, count: int, of: int) -> str:
    tensors = _tensors(count, of)
    return f"{tensors} {AS_STORED}" if scheme == AS_STORED else f"{scheme} for {tensors}"


def _larger_budget(point: FrontierPoint, curve: Sequence[FrontierPoint]) -> str:
    """What the first point of the curve that is worth it would bring: which tensors deserve bits
    shows only where there are some to give."""
    before = point.sqnr_db
    for after in curve:
        if before is not None and (after.sqnr_db is None or after.sqnr_db >= before + WORTH_DB):
            reached = "no error" if after.sqnr_db is None else f"{after.sqnr_db:z.1f} dB"
            return (
                f", so there are no bits to give; a budget of {after.bits_per_parameter:.2f} bits "
                f"would reach {reached} and show which tensors deserve them"
            )
    return ""


def _tensors(count: int, of: int) -> str:
    if count == of:
        return "every tensor" if count > 1 else "the one tensor"
    return "1 tensor" if count == 1 else f"{count} tensors"


def _deserving(choices: Sequence[TensorChoice], counts: Counter[str]) -> str:
    """Names the tensor that got the most bits, where few did."""
    best = max(choices, key=lambda c: (c.nbytes / max(1, c.parameters), c.parameters))
    scheme = best.scheme or AS_STORED
    if len(counts) == 1 or counts[scheme] > len(choices) // 2:
        return ""
    more = counts[scheme] - 1
    others = f" and {more} more" if more else ""
    return f"; bits are worth most in {quoted(best.name)}{others} ({scheme})"
