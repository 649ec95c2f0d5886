"""The sentence at the end of an assignment of schemes to tensors."""

from __future__ import annotations

import math
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
from qtui_core.quant.measure import decibels
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
    text = (
        f"{_broken(weighing)}At {point.bits_per_parameter:.2f} bits per parameter the best "
        f"assignment {_quality(weighing, point)} with {', '.join(parts)}"
    )
    smaller = [
        (u.point.error, place, u)
        for place, u in enumerate(uniform)
        if u.point.nbytes <= point.nbytes and u.point.error
    ]
    if not smaller or not point.error:
        return f"{text}."
    _, place, best = min(smaller, key=lambda found: found[0])
    # Then the assignment is that scheme, and has nothing to be compared with.
    if counts == {best.scheme: len(choices)} and point.nbytes != curve[0].nbytes:
        return f"{text}: no better assignment was found in that budget."
    if _gain_db(best.point, point) < NOTICEABLE_DB:
        if point.nbytes == curve[0].nbytes:
            return f"{text}: these schemes allow no smaller one{_larger_budget(point, curve)}."
        than = "hardly nearer" if weighing.nats else "hardly more"
        return f"{text}, {than} than {best.scheme} for every tensor."
    return (
        f"{text}, {_gain(best.point, point)} {'nearer' if weighing.nats else 'more'} than "
        f"{best.scheme} for every tensor{_bytes(point, best)}; "
        f"{_gaining(weighing, choices, place)}."
    )


def _quality(weighing: Weighing, point: FrontierPoint) -> str:
    """What an assignment keeps, as a verb with its object."""
    if not point.error:
        return "keeps every value exactly"
    if point.nats:
        measured = "measured" if weighing.by == "kl" else "estimated"
        return (
            f"is {point.error:.2g} nats a token from the original by the sum of what each tensor "
            f"was {measured} to do alone,"
        )
    of = " of the layers' outputs" if weighing.by == "output" else ""
    return f"keeps {decibels(point.error):z.1f} dB{of}"


def _gain_db(before: FrontierPoint, after: FrontierPoint) -> float:
    """By how many decibels the error is less; 0 if one has none."""
    return 10 * math.log10(before.error / after.error) if before.error and after.error else 0.0


def _gain(before: FrontierPoint, after: FrontierPoint) -> str:
    """By how much the error is less: in decibels, or for nats as a multiple."""
    gain = _gain_db(before, after)
    return f"{10 ** (gain / 10):.2f} times" if after.nats else f"{gain:z.1f} dB"


def _bytes(point: FrontierPoint, uniform: UniformPoint) -> str:
    """The words for the bytes of a comparison: equal, or else how many bits it takes and what the
    gain at equal bytes is."""
    own = uniform.point
    bits = f"{own.bits_per_parameter:.2f}"
    if bits == f"{point.bits_per_parameter:.2f}":
        return " in the same bytes"
    if not (own.error and uniform.assigned.error):
        return f", which takes {bits} bits"
    gained = f"the gain is {_gain(own, uniform.assigned)}"
    if _gain_db(own, uniform.assigned) < NOTICEABLE_DB:
        gained = "nothing is gained"
    return f", which takes {bits} bits (in its bytes {gained})"


def _broken(weighing: Weighing) -> str:
    """A warning for the beginning, if values that are not finite are left out of the errors."""
    if not weighing.nonfinite:
        return ""
    count = weighing.nonfinite
    values = "value that is" if count == 1 else "values that are"
    come = "counts for nothing here, so find out where it comes"
    if count > 1:
        come = "count for nothing here, so find out where they come"
    return f"{count:,} {values} NaN or infinite in float32 {come} from first. "


def _given(scheme: str, count: int, of: int) -> str:
    tensors = _tensors(count, of)
    return f"{tensors} {AS_STORED}" if scheme == AS_STORED else f"{scheme} for {tensors}"


def _larger_budget(point: FrontierPoint, curve: Sequence[FrontierPoint]) -> str:
    """What the first sufficiently better point of the curve would achieve. Only with bits to give
    does it show which tensors deserve them. The last point of the curve is everything as stored."""
    for after in curve[:-1]:
        if _gain_db(point, after) >= WORTH_DB:
            reach = f"{after.error:.2g} nats" if after.nats else f"{after.sqnr_db:z.1f} dB"
            return (
                f", so there are no bits to give; a budget of {after.bits_per_parameter:.2f} bits "
                f"would reach {reach} and show which tensors gain most by them"
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
    alone = sum(other == error for other, _ in saved.values()) == 1
    more = "more than any other" if alone else "as much as any other"
    return (
        f"{quoted(most.name)} ({most.scheme or AS_STORED}) has {percent(error / total)} of the "
        f"gain, {more}, with {percent(most.parameters / weighing.parameters)} of the "
        f"parameters"
    )
