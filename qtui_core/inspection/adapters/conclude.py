"""The sentence at the end of a report on an adapter that is merged and quantized."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui_core.inspection.adapters.report import (
    APART,
    MERGED,
    AdapterReport,
    DivergenceRow,
    MergedDivergence,
    UpdateSurvival,
)
from qtui_core.quantities import plural

#: Below this share of the update, rounding has brought it back to the base for the most part.
ERASED = 0.5
#: From this share of the most on, as much of the update counts as left. What is lacking is lacking
#: in every layer alike, and costs a model more than rounding errors of either sign: of an adapter
#: of the demo, trained on NF4, 80% were left under an error of 0.76 sizes in one order and 99.6%
#: under 1.21 in the other; the first had twice the divergence.
WHOLE = 0.95
#: Two rounding errors that differ by less than this share count as equal.
ALIKE = 0.05
#: A rounding error of the stored dtype from this size of the update on is mentioned.
ROUNDED = 0.3
#: The most bits per parameter of a small model; 4 bits with scales are small.
SMALL_BITS = 5.0


def conclude_adapter(report: AdapterReport, unread: str = "") -> str:
    """What survives of the update, beside keeping the adapter apart, and what to do. `unread` is a
    sentence that says why there is no divergence although a text was given."""
    matrices = [weight for weight in report.weights if weight.ways]
    if not report.weights:
        return (
            f"No tensor of {report.adapter} belongs to a weight of {report.base.model}: there is "
            f"nothing to merge."
        )
    moved = [weight for weight in report.weights if weight.update]
    if not moved:
        rows = ""
        if any(weight.read < weight.parameters for weight in report.weights):
            rows = " in every row that was read"
        return (
            f"{report.adapter} changes nothing: its updates are zero{rows}, as before the first "
            f"step of "
            f"a training, so check that the trained adapter was saved."
        )
    if not matrices or not report.ways[0].sums.update + report.ways[0].sums.lost:
        return (
            f"{report.adapter} changes {plural(len(moved), 'weight')}, and none that is quantized: "
            f"norms, biases, embeddings and heads stay as stored, so merging loses only the "
            f"rounding to the stored dtype."
        )
    lost = [way for way in report.ways if way.sums.lost]
    finite = [way for way in report.ways if way.kept is not None]
    end = "; " if finite else ", so nothing is known of the update."
    said = _overflow(lost) + end if lost else ""
    if not finite:
        return said
    if report.divergence is not None:
        return said + _by_divergence(report, report.divergence, finite)
    return said + _by_weights(report, finite, unread)


def _overflow(lost: Sequence[UpdateSurvival]) -> str:
    names = ", ".join(way.way.name for way in lost)
    most = max(way.sums.lost for way in lost)
    makes = "makes" if len(lost) == 1 else "make up to"
    return (
        f"{names} {makes} {plural(most, 'value')} infinite or NaN: take a format that "
        f"reaches further"
    )


def _by_weights(report: AdapterReport, finite: Sequence[UpdateSurvival], unread: str) -> str:
    most = WHOLE * max(way.kept or 0.0 for way in finite)
    best = min(finite, key=lambda way: ((way.kept or 0.0) < most, way.error or 0.0))
    size = f"under a rounding error {_size(best.error)}"
    error = size if best.error else "without a rounding error"
    said = (
        f"Merged and quantized to {best.way.name}, {_kept(best)} of the update is left in the "
        f"weights, {error}"
    )
    more = f"{_erased(best, finite)}{_beside(report, best)}{_rounded(report)}"
    end = f". {unread}" if unread else "; give --text FILE to measure what the model loses."
    return said + more + end


def _erased(best: UpdateSurvival, finite: Sequence[UpdateSurvival]) -> str:
    """Ways that bring the update back to the base."""
    if (best.kept or 0.0) < ERASED:
        most = "it" if _kept(best) == "none" else "most of it"
        return f", so that {most} is rounded away"
    erased = [way for way in finite if way.kept is not None and way.kept < ERASED]
    if not erased:
        return ""
    worst = min(erased, key=lambda way: way.kept or 0.0)
    others = f" (and less than half under {len(erased) - 1} more)" if len(erased) > 1 else ""
    left = _kept(worst)
    only = "nothing" if left == "none" else f"only {left}"
    return f"; under {worst.way.name}{others} {only} is left"


def _beside(report: AdapterReport, best: UpdateSurvival) -> str:
    """What keeping the adapter apart costs."""
    if report.trained_on and any(way.way.scheme == report.trained_on for way in report.ways):
        return (
            f"; kept apart from a base in {report.trained_on}, the adapter gives exactly what was "
            f"trained"
        )
    error, apart = best.error or 0.0, best.apart or 0.0
    if abs(error - apart) <= ALIKE * max(error, apart):
        return (
            "; kept apart from a base in that scheme it has as large an error beside it, so "
            "merging itself loses nothing"
        )
    return f"; kept apart from a base in that scheme the error is {_size(apart)}"


def _rounded(report: AdapterReport) -> str:
    rounding = report.rounding_over_update or 0.0
    if rounding < ROUNDED:
        return ""
    return f"; rounding the sum to the stored dtype alone has an error {_size(rounding)}"


def _by_divergence(
    report: AdapterReport, found: MergedDivergence, finite: Sequence[UpdateSurvival]
) -> str:
    ways = {way.way.name: way for way in finite}
    merged = [r for r in found.of(MERGED) if r.kl_mean is not None and r.name in ways]
    if not merged:
        return (
            "every merged model gives logits that are not finite: take a format that reaches "
            "further."
        )
    small = [row for row in merged if row.bits_per_parameter <= SMALL_BITS] or merged
    best = min(small, key=lambda row: (row.kl_mean or 0.0, row.nbytes))
    way = ways[best.name].way
    apart = next((row for row in found.of(APART) if row.name == way.scheme), None)
    said = (
        f"Merged and quantized to {best.name}, the model is {_nats(best)} from the trained one at "
        f"{best.bits_per_parameter:.2f} bits per parameter, with {_kept(ways[best.name])} of the "
        f"update left in its weights"
    )
    if found.base is not None:
        said += f", where the base without the adapter is {found.base:.3g} from it"
    if apart is None or apart.kl_mean is None:
        return f"{said}: {_worth(best, found) or 'merge it, if that is little enough'}."
    beside = f"is {_nats(apart)} from it" if apart.kl_mean else "is the trained model itself"
    said += f"; a base in {way.scheme} with the adapter kept apart {beside}"
    return f"{said}: {_advice(best, apart, found)}{_larger(best, merged, found.base)}."


def _worth(row: DivergenceRow, found: MergedDivergence) -> str:
    """Advice where quantizing undoes as much as the adapter does; else ""."""
    if found.base is None or (row.kl_mean or 0.0) < found.base:
        return ""
    return "quantizing changes the model more than the adapter does, so take a scheme of more bits"


def _advice(best: DivergenceRow, apart: DivergenceRow, found: MergedDivergence) -> str:
    one, other = best.kl_mean or 0.0, apart.kl_mean or 0.0
    if many := _worth(apart if other < one else best, found):
        return many
    if not best.decided:
        return (
            f"the two cannot be told apart on this text, so merge with {best.name}, which is one "
            f"model to serve"
        )
    if other < one:
        return f"keep the adapter apart, which loses {_less(other, one)}"
    return f"merge with {best.name}, which loses {_less(one, other)}"


def _larger(best: DivergenceRow, merged: Sequence[DivergenceRow], base: float | None) -> str:
    """A merged model of more bits that loses much less, beyond the standard errors of both, and
    less than leaving out the adapter."""
    most = min((best.kl_mean or 0.0) / 2, math.inf if base is None else base)
    found = [
        row
        for row in merged
        if row.nbytes > best.nbytes and (row.kl_mean or 0.0) < most and _beats(row, best)
    ]
    if not found:
        return ""
    row = min(found, key=lambda each: (each.kl_mean or 0.0, each.nbytes))
    return (
        f", or merge with {row.name}, which at {row.bits_per_parameter:.2f} bits loses "
        f"{_less(row.kl_mean or 0.0, best.kl_mean or 0.0)}"
    )


def _beats(row: DivergenceRow, other: DivergenceRow) -> bool:
    """Whether a row lies below by more than twice the sum of both standard errors, which is the
    most that the error of the difference may be."""
    errors = [math.inf if e is None else e for e in (row.kl_stderr, other.kl_stderr)]
    return (other.kl_mean or 0.0) - (row.kl_mean or 0.0) > 2 * sum(errors)


def _less(one: float, other: float) -> str:
    """How much less than `other` `one` is."""
    return f"{other / one:,.3g} times less" if one else "nothing"


def _nats(row: DivergenceRow) -> str:
    spread = "" if row.kl_stderr is None else f" ± {row.kl_stderr:.2g}"
    return f"{row.kl_mean or 0.0:.3g}{spread} nats a token"


def _kept(way: UpdateSurvival) -> str:
    """How much of the update is left, as the subject of a sentence."""
    kept = way.kept or 0.0
    if kept < 0.0005:  # rounding may even move the weights the other way
        return "none"
    return f"all ({kept:.1%})" if kept > 1.0005 else f"{min(kept, 1.0):.1%}"


def _size(size: float | None) -> str:
    """`14 times its size`; beyond a hundred without decimals."""
    value = size or 0.0
    text = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
    return "of its own size" if text == "1" else f"{text} times its size"
