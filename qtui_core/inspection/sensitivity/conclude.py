"""The sentence at the end of an assignment of schemes to tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qtui_core.inspection.sensitivity.report import (
    AS_STORED,
    FrontierPoint,
    TensorChoice,
    UniformPoint,
)
from qtui_core.inspection.sensitivity.weighing import Weighing
from qtui_core.models.quoting import quoted
from qtui_core.quantities import percent

#: A smaller gain is not mentioned.
NOTICEABLE_DB = 0.1
#: A larger budget is mentioned if it gains at least this much.
WORTH_DB = 1.0


def conclude_sensitivity(
    weighing: Weighing,
    point: FrontierPoint,
    choices: Sequence[TensorChoice],
    uniform: Sequence[UniformPoint],
    curve: Sequence[FrontierPoint],
) -> str:
    """What the assignment achieves, which schemes it gives, and how much that gains."""
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
    smaller = [
        (u.point.sqnr_db, place, u)
        for place, u in enumerate(uniform)
        if u.point.nbytes <= point.nbytes and u.point.sqnr_db is not None
    ]
    if not smaller or point.sqnr_db is None:
        return f"{text}."
    quality_of_best, place, best = max(smaller, key=lambda found: found[0])
    gain = point.sqnr_db - quality_of_best
    if gain < NOTICEABLE_DB:
        if point.nbytes == curve[0].nbytes:
            return f"{text}: these schemes allow no smaller one{_larger_budget(point, curve)}."
        return f"{text}, hardly more than {best.scheme} for every tensor."
    return (
        f"{text}, {gain:.1f} dB more than {best.scheme} for every tensor{_bytes(point, best)}; "
        f"{_gaining(weighing, choices, place)}."
    )


def _bytes(point: FrontierPoint, uniform: UniformPoint) -> str:
    """The words for the bytes of a comparison: equal, or else how many bits it takes and what the
    gain at equal bytes is."""
    own = uniform.point
    bits = f"{own.bits_per_parameter:.2f}"
    if bits == f"{point.bits_per_parameter:.2f}":
        return " in the same bytes"
    before, after = own.sqnr_db, uniform.assigned.sqnr_db
    if before is None or after is None:
        return f", which takes {bits} bits"
    return f", which takes {bits} bits (in its bytes the gain is {after - before:z.1f} dB)"


def _broken(weighing: Weighing) -> str:
    """A warning for the beginning, if values that are not finite are left out of the errors."""
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
    """What the first sufficiently better point of the curve would achieve. Only with bits to give
    does it show which tensors deserve them. The last point of the curve is everything as stored."""
    before = point.sqnr_db
    for after in curve[:-1]:
        if before is not None and after.sqnr_db is not None and after.sqnr_db >= before + WORTH_DB:
            return (
                f", so there are no bits to give; a budget of {after.bits_per_parameter:.2f} bits "
                f"would reach {after.sqnr_db:z.1f} dB and show which tensors gain most by them"
            )
    return ""


def _tensors(count: int, of: int) -> str:
    if count == of:
        return "every tensor" if count > 1 else "the one tensor"
    return "1 tensor" if count == 1 else f"{count} tensors"


def _gaining(weighing: Weighing, choices: Sequence[TensorChoice], uniform: int) -> str:
    """The tensor with the largest part of the gain over scheme number `uniform` for all."""
    saved = {
        choice.name: (tensor.options[uniform].error - choice.error, choice)
        for tensor, choice in zip(weighing.tensors, choices, strict=True)
    }
    total = sum(max(0.0, error) for error, _ in saved.values())
    error, most = max(saved.values(), key=lambda found: found[0])
    return (
        f"{quoted(most.name)} ({most.scheme or AS_STORED}) has {percent(error / total)} of the "
        f"gain, more than any other, with {percent(most.parameters / weighing.parameters)} of the "
        f"parameters"
    )
