"""The document of `qtui inspect BASE --adapter LORA`, built from an `AdapterReport`."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.document import Column, Document, Facts, Section, Table, Tone, figures
from qtui.report.numbers import format_shape, format_value
from qtui_core.codec import printed
from qtui_core.inspection.adapters.survival import (
    ERASED,
    AdapterReport,
    ChangedWeight,
    MergedDivergence,
    UpdateSurvival,
)
from qtui_core.quantities import format_bytes, plural

#: The most weights that a text report lists.
TEXT_WEIGHTS = 60
_CELLS = "Each cell: the share of the update that is left, and the rounding error in its sizes."


def adapter_document(report: AdapterReport, *, all_tensors: bool) -> Document:
    """The report on an adapter. `all_tensors` lists every weight; otherwise a long list has only
    the TEXT_WEIGHTS worst."""
    sections = [Section("Models", (_models(report),))]
    matrices = [weight for weight in report.weights if weight.ways]
    if matrices:
        sections.append(Section("Merged and quantized, all weights", (_ways(report),)))
    if report.divergence is not None:
        sections.append(Section("On a text", (_divergence(report.divergence),)))
    if matrices:
        sections.append(_weight_section(report, matrices, all_tensors))
    return Document(
        title=f"qtui inspect {report.base.model} --adapter {report.adapter}",
        sections=tuple(sections),
        conclusion=report.conclusion,
        data=printed(report),
    )


def _models(report: AdapterReport) -> Facts:
    base = report.base
    stored = f"{base.parameters:,} parameters in {format_bytes(base.nbytes)}"
    pairs = [
        ("base", f"{base.location}: {stored}. {base.quantization or ''}".strip()),
        ("adapter", f"{report.location}: {format_bytes(report.nbytes)}. {report.words}"),
    ]
    if report.trained_on:
        pairs.append(("trained on", f"the base in {report.trained_on}"))
    pairs += [
        ("merged as", report.merging),
        ("read", report.sample),
        ("update", f"{_percent(report.relative)} of the size of the weights that it changes"),
    ]
    vectors = sum(1 for weight in report.weights if not weight.ways)
    if vectors:
        kept = f"{plural(vectors, 'weight')}: norms, biases, embeddings and heads stay as merged"
        pairs.append(("not quantized", kept))
    return Facts((*pairs, *(("note", note) for note in report.notes)))


def _ways(report: AdapterReport) -> Table:
    most = max((way.kept or 0.0 for way in report.ways), default=0.0)
    onto = bool(report.trained_on)
    return Table(
        columns=(
            Column("scheme", key=True),
            *((Column("merged into"),) if onto else ()),
            *(
                Column(title, numeric=True)
                for title in ("bits/param", "left of update", "error", "apart")
            ),
        ),
        rows=tuple(
            (
                way.scheme,
                *((f"{way.onto} base" if way.onto else "stored base",) if onto else ()),
                f"{bits:.3f}",
                _left(way),
                _times(way.error),
                _times(way.apart),
            )
            for way, bits in zip(report.ways, report.bits, strict=True)
        ),
        tones=tuple(_tone((way,)) for way in report.ways),
        bars=tuple(max(0.0, way.kept or 0.0) / most if most > 0 else 0.0 for way in report.ways),
        bar_title="left of update",
        note=(
            "Left of update: by how much of it the quantized merged weights differ from the "
            "quantized base, along its direction; errors of either sign cancel. Error: from the "
            "trained weight, in sizes of the update; apart: that of the quantized base with the "
            "adapter kept beside it. Bits are those of the weights that change."
        ),
    )


def _divergence(found: MergedDivergence) -> Table:
    most = max((row.kl_mean or 0.0 for row in found.rows), default=0.0)
    titles = ("bits/param", "bytes", "KL", "±")
    moved = "" if found.base is None else f" The base without the adapter: {found.base:.3g}."
    return Table(
        columns=(
            Column("model", key=True),
            Column("adapter"),
            *(Column(title, numeric=True) for title in titles),
        ),
        rows=tuple(
            (
                row.name,
                row.kind,
                f"{row.bits_per_parameter:.3f}",
                format_bytes(row.nbytes),
                format_value(row.kl_mean, 3),
                format_value(row.kl_stderr, 2),
            )
            for row in found.rows
        ),
        tones=tuple("bad" if row.kl_mean is None else "" for row in found.rows),
        bars=tuple((row.kl_mean or 0.0) / most if most else 0.0 for row in found.rows),
        bar_title="KL",
        note=(
            f"KL divergence of the next token from the model as it was trained, nats a token."
            f"{moved} {found.text}"
        ),
    )


def _weight_section(
    report: AdapterReport, weights: Sequence[ChangedWeight], all_tensors: bool
) -> Section:
    title, note = "Weights, worst first", _CELLS
    if not all_tensors and len(weights) > TEXT_WEIGHTS:
        title = f"Weights, the {TEXT_WEIGHTS} worst"
        note += f" {len(weights) - TEXT_WEIGHTS:,} more: --format json, markdown or html lists all."
        weights = weights[:TEXT_WEIGHTS]
    return Section(
        title,
        (
            Table(
                columns=(
                    Column("weight", key=True),
                    *figures("shape", "rank", "update"),
                    *(Column(way.name, numeric=True) for way in report.ways),
                ),
                rows=tuple(
                    (
                        weight.name,
                        format_shape(weight.shape),
                        "new" if weight.rank is None else str(weight.rank),
                        _percent(weight.relative),
                        *map(_both, weight.ways),
                    )
                    for weight in weights
                ),
                tones=tuple(_tone(weight.ways) for weight in weights),
                note=note,
            ),
        ),
    )


def _both(way: UpdateSurvival) -> str:
    return "–" if way.kept is None else f"{_left(way)}, {_times(way.error)}"


def _left(way: UpdateSurvival) -> str:
    return "–" if way.kept is None else f"{way.kept + 0.0:.1%}"


def _times(size: float | None) -> str:
    return "–" if size is None else f"{format_value(size, 3)}×"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{format_value(100 * share, 3)}%"


def _tone(ways: Sequence[UpdateSurvival]) -> Tone:
    if any(way.kept is not None and way.kept < ERASED for way in ways):
        return "warn"
    return "dim" if all(way.kept is None for way in ways) else ""
