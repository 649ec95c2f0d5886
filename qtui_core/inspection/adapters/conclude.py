"""The sentence at the end of a report on an adapter that is merged and quantized."""

from __future__ import annotations

from collections.abc import Sequence

from qtui_core.inspection.adapters.report import (
    APART,
    MERGED,
    AdapterReport,
    DivergenceRow,
    MergedDivergence,
    UpdateSurvival,
)
from qtui_core.inspection.sentences import recommended
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


def conclude_adapter(report: AdapterReport, unread: str = "") -> str:
    """What survives of the update, beside keeping the adapter apart, and what to do. `unread` is a
    sentence that says why there is no divergence although a text was given."""
    if not report.weights:
        return (
            f"No tensor of {report.adapter} belongs to a weight of {report.base.model}: there is "
            f"nothing to merge."
        )
    moved = [weight for weight in report.weights if weight.update]
    if not moved:
        whole = all(weight.read == weight.parameters for weight in report.weights)
        rows = "" if whole else " in every row that was read"
        return (
            f"{report.adapter} changes nothing: its updates are zero{rows}, as before the first "
            f"step of a training, so check that the trained adapter was saved."
        )
    first = report.ways[0]
    if not any(weight.ways for weight in report.weights) or not first.update + first.lost:
        return (
            f"{report.adapter} changes {plural(len(moved), 'weight')}, and none that is quantized: "
            f"norms, biases, embeddings and heads stay as stored, so merging loses only the "
            f"rounding to the stored dtype."
        )
    lost = [way for way in report.ways if way.lost]
    finite = [way for way in report.ways if way.kept is not None]
    said = ""
    if lost:
        values = plural(max(way.lost for way in lost), "value")
        said = (
            f"{', '.join(way.name for way in lost)} {'makes' if len(lost) == 1 else 'make up to'} "
            f"{values} infinite or NaN: take a format that reaches further"
        )
        if not finite:
            return f"{said}, so nothing is known of the update."
        said += "; "
    if report.divergence is not None:
        return said + _by_divergence(report.divergence, finite)
    return said + _by_weights(report, finite, unread)


def _by_weights(report: AdapterReport, finite: Sequence[UpdateSurvival], unread: str) -> str:
    most = WHOLE * max(way.kept or 0.0 for way in finite)
    best = min(finite, key=lambda way: ((way.kept or 0.0) < most, way.error or 0.0))
    kept = _kept(best)
    error = f"under a rounding error {_size(best.error)}" if best.error else "without an error"
    if (best.kept or 0.0) < ERASED:
        error += f", so that {'it' if kept == 'none' else 'most of it'} is rounded away"
    end = f". {unread}" if unread else "; give --text FILE to measure what the model loses."
    return (
        f"Merged and quantized to {best.name}, {kept} of the update is left in the weights, "
        f"{error}; {_beside(report, best)}{end}"
    )


def _beside(report: AdapterReport, best: UpdateSurvival) -> str:
    """What keeping the adapter apart costs."""
    if any(way.scheme == report.trained_on for way in report.ways):
        return (
            f"kept apart from a base in {report.trained_on}, the adapter gives exactly what was "
            f"trained"
        )
    error, apart = best.error or 0.0, best.apart or 0.0
    if abs(error - apart) <= ALIKE * max(error, apart):
        return (
            "kept apart from a base in that scheme it has as large an error beside it, so merging "
            "itself loses nothing"
        )
    return f"kept apart from a base in that scheme the error is {_size(apart)}"


def _by_divergence(divergence: MergedDivergence, finite: Sequence[UpdateSurvival]) -> str:
    ways = {way.name: way for way in finite}
    merged = [r for r in divergence.of(MERGED) if r.kl_mean is not None and r.name in ways]
    if not merged:
        return (
            "every merged model gives logits that are not finite: take a format that reaches "
            "further."
        )
    best = recommended(merged, lambda row: row.kl_mean or 0.0)
    scheme = ways[best.name].scheme
    apart = next((row for row in divergence.of(APART) if row.name == scheme), None)
    said = (
        f"Merged and quantized to {best.name}, the model is {_nats(best)} from the trained one at "
        f"{best.bits_per_parameter:.2f} bits per parameter"
    )
    if apart is None or apart.kl_mean is None:
        little = _too_much(best, divergence) or "merge it, if that is little enough"
        return f"{said}: {little}."
    beside = f"is {_nats(apart)} from it" if apart.kl_mean else "is the trained model itself"
    return (
        f"{said}; a base in {scheme} with the adapter kept apart {beside}: "
        f"{_advice(best, apart, divergence)}."
    )


def _too_much(row: DivergenceRow, divergence: MergedDivergence) -> str:
    """Advice where quantizing undoes as much as the adapter does; else ""."""
    if divergence.base is None or (row.kl_mean or 0.0) < divergence.base:
        return ""
    return "quantizing changes the model more than the adapter does, so take a scheme of more bits"


def _advice(best: DivergenceRow, apart: DivergenceRow, divergence: MergedDivergence) -> str:
    one, other = best.kl_mean or 0.0, apart.kl_mean or 0.0
    if more_bits := _too_much(apart if other < one else best, divergence):
        return more_bits
    if not best.decided:
        return (
            f"the two cannot be told apart on this text, so merge with {best.name}, which is one "
            f"model to serve"
        )
    if other < one:
        return f"keep the adapter apart, which loses {_less(other, one)}"
    return f"merge with {best.name}, which loses {_less(one, other)}"


def _less(one: float, other: float) -> str:
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
