"""The document of `qtui inspect`, built from an `Inspection`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtui.report.document import (
    Column,
    Document,
    Facts,
    HeatMap,
    MadeWhenRead,
    Section,
    Table,
    Tone,
    figures,
)
from qtui.report.inspection.layers import layer_map
from qtui.report.inspection.outliers import LISTED_OUTLIERS, outlier_sections
from qtui.report.numbers import format_decibels, format_shape, format_signed, format_value
from qtui_core.codec import printed
from qtui_core.inspection.report import Completeness, Inspection, SchemeTotal, TensorReport
from qtui_core.models import Reading, TensorInfo
from qtui_core.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from qtui_core.quant import ErrorReport

#: The most tensors that a text report lists.
TEXT_TENSORS = 60


def inspection_document(inspection: Inspection, *, all_tensors: bool) -> Document:
    """The report on a model. `all_tensors` lists every tensor; otherwise a long list has only the
    TEXT_TENSORS worst."""
    census = inspection.census
    model: list[Facts | Table] = [_model_facts(inspection)]
    if census.dtypes:
        model.append(_dtypes(inspection))
    sections = [Section("Model", tuple(model))]
    sections += _against_config(inspection.completeness, all_tensors)
    if any(t.errors for t in inspection.tensors):
        whole = sum(t.info.nbytes for t in inspection.tensors) == census.nbytes
        title = "Schemes, whole model" if whole else "Schemes, the chosen tensors"
        sections.append(Section(title, (_schemes(inspection),)))
    if inspection.tensors:
        sections.append(_tensor_section(inspection, all_tensors))
    if inspection.measured:
        sections += outlier_sections(inspection)
    return Document(
        title=f"qtui inspect {census.model}",
        sections=tuple(sections),
        conclusion=inspection.conclusion,
        data=MadeWhenRead(lambda: printed(inspection)),
    )


def _model_facts(inspection: Inspection) -> Facts:
    census = inspection.census
    pairs = [
        ("source", f"{census.origin}: {census.location}"),
        ("architecture", census.architecture or "not named"),
    ]
    if census.dtypes:
        pairs += [
            ("parameters", _both(f"{census.parameters:,}", format_count(census.parameters))),
            ("bytes", _both(f"{census.nbytes:,}", format_bytes(census.nbytes))),
            ("read", inspection.sample),
        ]
    if census.dtypes and inspection.completeness is not None:
        pairs.append(("config.json implies", _implied(inspection.completeness)))
    if census.quantization:
        pairs.append(("already quantized", census.quantization))
    return Facts(tuple(pairs))


def _implied(found: Completeness) -> str:
    """A few words on how the tensors differ from those that config.json implies."""
    if found.unchecked:
        return f"not checked: {found.unchecked}"
    what = f"{found.implied:,} tensors of {found.architecture}"
    if found.partly_of:
        what += f", of which {found.partly_of} has more or another head"
    counts = (
        (found.missing, "missing"),
        (found.misshapen, "of another shape"),
    )
    wrong = [f"{len(names):,} {word}" for names, word in counts if names]
    return f"{what}: {', '.join(wrong) or 'all are there in their shapes'}"


def _against_config(found: Completeness | None, all_tensors: bool) -> list[Section]:
    """The section of tensors that differ from those that config.json implies."""
    if found is None:
        return []
    pairs = [("missing", name) for name in found.missing]
    pairs += [
        (
            "of another shape",
            f"{m.name}: {format_shape(m.shape)}, implied {format_shape(m.implied)}",
        )
        for m in found.misshapen
    ]
    if not all_tensors and len(pairs) > LISTED_OUTLIERS:
        more = f"{len(pairs) - LISTED_OUTLIERS:,} more: --format json lists all"
        pairs = [*pairs[:LISTED_OUTLIERS], ("and", more)]
    return [Section("Beside config.json", (Facts(tuple(pairs)),))] if pairs else []


def _both(exact: str, short: str) -> str:
    """An exact number, with its short form in parentheses if that differs."""
    return exact if short.removesuffix(" B") == exact else f"{exact} ({short})"


def _dtypes(inspection: Inspection) -> Table:
    census = inspection.census
    return Table(
        columns=(Column("dtype", key=True), *figures("tensors", "parameters", "bytes")),
        rows=tuple(
            (d.dtype, str(d.tensors), f"{d.parameters:,}", format_bytes(d.nbytes))
            for d in census.dtypes
        ),
        bars=tuple(d.nbytes / census.nbytes if census.nbytes else 0.0 for d in census.dtypes),
        bar_title="share of bytes",
    )


def _schemes(inspection: Inspection) -> Table:
    kept = {s.scheme: s.sqnr_db or 0.0 for s in inspection.schemes}
    best = max(kept.values(), default=0.0)
    beyond = any(s.saturated for s in inspection.schemes)
    return Table(
        columns=(
            Column("scheme", key=True),
            *figures("bits/param", "bytes", "relative MSE", "SQNR dB"),
            *((Column("beyond range", numeric=True),) if beyond else ()),
            Column("Gaussian dB", numeric=True),
            Column("worst tensor"),
        ),
        rows=tuple(
            (
                s.scheme,
                f"{s.bits_per_parameter:.3f}",
                format_bytes(s.nbytes),
                format_value(s.relative_mse, 3),
                format_decibels(s.sqnr_db),
                *((beyond_range(s.saturated) or "0",) if beyond else ()),
                format_decibels(s.gaussian_sqnr_db),
                s.worst_tensor or "–",
            )
            for s in inspection.schemes
        ),
        bars=tuple(kept[s.scheme] / best if best > 0 else 0.0 for s in inspection.schemes),
        bar_title="SQNR, model",
        note=(
            "Matrices quantized, norms and biases kept as stored; scales and zero points are "
            "counted: 32 bits a scale, 8 in MX and NVFP4 and under dq. Relative MSE is the squared "
            "error of all matrices over their energy, SQNR (signal to quantization noise ratio) "
            "the same in dB; Gaussian: what Gaussian tensors of these shapes and energies would "
            "give." + (f" {_BEYOND}" if beyond else "")
        ),
    )


_BEYOND = (
    "Beyond range: values of what was read that exceed the largest number of the format and were "
    "clipped to it."
)


def beyond_range(saturated: int) -> str:
    """How many values exceed the largest number of a format; "" if there are none."""
    return f"{saturated:,} clipped" if saturated else ""


def _tensor_section(inspection: Inspection, all_tensors: bool) -> Section:
    tensors = list(inspection.tensors)
    title = "Tensors"
    note = ""
    if not all_tensors and len(tensors) > TEXT_TENSORS:
        tensors = sorted(tensors, key=_first_sqnr)[:TEXT_TENSORS]
        order = "with the most error" if inspection.measured else "first by name"
        title = f"Tensors, the {TEXT_TENSORS} {order}"
        note = (
            f"{len(inspection.tensors) - TEXT_TENSORS} more: --format json, markdown or html "
            f"lists all, --tensors GLOB chooses."
        )
    if not inspection.measured:
        return Section(title, (_headers(tensors, note),))
    tables: list[Table | HeatMap] = []
    if inspection.schemes and any(t.errors for t in tensors):
        tables.append(_errors(sorted(tensors, key=_first_sqnr), inspection.schemes))
        # Imported here, as it takes numpy, which headers do without.
        from qtui_core.inspection.conclude import recommended_scheme

        recommended = recommended_scheme(inspection.schemes, inspection.tensors)
        if recommended is not None:
            scheme = inspection.schemes[recommended].scheme
            heat = layer_map(inspection.tensors, recommended, scheme)
            tables += [heat] if heat else []
    return Section(title, (*tables, _statistics(tensors, note)))


def _first_sqnr(tensor: TensorReport) -> float:
    value = tensor.errors[0].sqnr_db if tensor.errors else None
    return math.inf if value is None else value


def reading_note(infos: Sequence[TensorInfo]) -> str:
    """How tensors of three or more dimensions are read as matrices; "" if there are none."""
    parts = []
    for reading, rows in (
        (Reading.CONVOLUTION, "convolutions, one row for each output channel"),
        (Reading.STACK, "stacked matrices, one row for each row of each"),
    ):
        found = [i for i in infos if i.reading is reading]
        if found:
            named = [
                f"{i.name} ({format_shape(i.shape)}) as {format_shape(i.matrix)}" for i in found[:2]
            ]
            more = f" and {len(found) - 2:,} more" if len(found) > 2 else ""
            parts.append(f"Read as {rows}: {', '.join(named)}{more}.")
    return " ".join(parts)


_IDENTITY = (Column("tensor", key=True), Column("shape", numeric=True), Column("dtype"))


def _identity(tensor: TensorReport) -> tuple[str, str, str]:
    info = tensor.info
    return info.name, format_shape(info.shape), info.dtype


def _headers(tensors: Sequence[TensorReport], note: str) -> Table:
    return Table(
        columns=(*_IDENTITY, Column("parameters", numeric=True), Column("bytes", numeric=True)),
        rows=tuple(
            (*_identity(t), f"{t.info.parameters:,}", format_bytes(t.info.nbytes)) for t in tensors
        ),
        note=f"{reading_note([t.info for t in tensors])} {note}".strip(),
    )


def _statistics(tensors: Sequence[TensorReport], note: str) -> Table:
    rows = []
    for tensor in tensors:
        stats = tensor.statistics
        numbers = ("–",) * 5
        if stats:
            numbers = (
                format_value(stats.mean, 2),
                format_value(stats.std, 3),
                format_value(stats.absmax if stats.finite else None, 3),
                format_value(stats.kurtosis, 3),
                f"{tensor.outliers.count:,}" if tensor.outliers else "–",
            )
        rows.append((*_identity(tensor), *numbers))
    titles = ("mean", "std", "absmax", "kurtosis", ">6σ")
    return Table(
        columns=(*_IDENTITY, *(Column(title, numeric=True) for title in titles)),
        rows=tuple(rows),
        tones=tuple(_tone(t) for t in tensors),
        note=" ".join(
            part
            for part in (
                "Kurtosis 3 is Gaussian; more means heavier tails.",
                reading_note([t.info for t in tensors]),
                note,
            )
            if part
        ),
    )


def _errors(tensors: Sequence[TensorReport], schemes: Sequence[SchemeTotal]) -> Table:
    quantized = [t for t in tensors if t.errors]
    beyond = any(e.saturated for t in quantized for e in t.errors)
    return Table(
        columns=(Column("tensor", key=True), *(Column(s.scheme, numeric=True) for s in schemes)),
        rows=tuple(
            (
                t.info.name,
                *(_with_gap(e) for e in t.errors),
            )
            for t in quantized
        ),
        tones=tuple(_tone(t) for t in quantized),
        note=(
            f"Most error of {schemes[0].scheme} first. SQNR in dB, and how far above (+) or below "
            "(−) that of a Gaussian tensor of the same shape it is."
            + (f" {_BEYOND}" if beyond else "")
        ),
    )


def _with_gap(error: ErrorReport) -> str:
    parts = (_decibels(error), beyond_range(error.saturated))
    return ", ".join(part for part in parts if part)


def _decibels(error: ErrorReport) -> str:
    if error.relative_mse is None:
        return "–"  # nothing but zeros, or nothing finite
    if error.sqnr_db is None:
        return "exact"
    gap = None
    if error.gaussian_sqnr_db is not None:
        gap = error.sqnr_db - error.gaussian_sqnr_db
    return f"{format_decibels(error.sqnr_db)} {format_signed(gap).replace('-', '−')}"


def _tone(tensor: TensorReport) -> Tone:
    stats = tensor.statistics
    if stats is None or not tensor.errors:
        return "dim"
    if stats.nan or stats.inf:
        return "bad"
    gaps = [
        e.gaussian_sqnr_db - e.sqnr_db
        for e in tensor.errors
        if e.sqnr_db is not None and e.gaussian_sqnr_db is not None
    ]
    return "warn" if gaps and max(gaps) >= 3.0 else ""
