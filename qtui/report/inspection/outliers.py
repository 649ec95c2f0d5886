"""The sections of `qtui inspect` about single values: those that are not finite, and outliers."""

from __future__ import annotations

from qtui.report.document import Column, Facts, Section, Table
from qtui.report.numbers import format_value, plural
from qtui_core.inspection import Inspection

LISTED_OUTLIERS = 20


def _is_whole(inspection: Inspection) -> bool:
    return all(t.sampled_parameters in (0, t.info.elements) for t in inspection.tensors)


def _outlier_columns(inspection: Inspection) -> list[Section]:
    """Columns that hold several outliers, which is what makes them worth keeping in 16 bits."""
    found = [
        (column, tensor)
        for tensor in inspection.tensors
        if tensor.outliers and tensor.errors
        for column in tensor.outliers.columns
        if column.count >= 2
    ]
    if not found:
        return []
    found.sort(key=lambda pair: -pair[0].count)
    rows = tuple(
        (
            tensor.info.name,
            str(column.column),
            f"{column.count:,}",
            f"{column.count / tensor.outliers.count:.0%}" if tensor.outliers else "–",
        )
        for column, tensor in found[:LISTED_OUTLIERS]
    )
    table = Table(
        columns=(
            Column("tensor", key=True),
            Column("column", numeric=True),
            Column("values beyond 6σ", numeric=True),
            Column("of the tensor's", numeric=True),
        ),
        rows=rows,
        note=(
            f"The fullest of {len(found):,} columns with two outliers or more."
            if len(found) > len(rows)
            else "All columns with two outliers or more."
        ),
    )
    return [Section("Outlier columns", (table,))]


def outlier_sections(inspection: Inspection) -> list[Section]:
    found = [
        (outlier, tensor)
        for tensor in inspection.tensors
        if tensor.outliers and tensor.errors
        for outlier in tensor.outliers.top
        if outlier.sigmas >= 6.0
    ]
    broken = [
        (t.info.name, f"{t.statistics.nan:,} NaN, {t.statistics.inf:,} infinite")
        for t in inspection.tensors
        if t.statistics and (t.statistics.nan or t.statistics.inf)
    ]
    sections = []
    if broken:
        sections.append(Section("Values that are not finite", (Facts(tuple(broken)),)))
    sections += _outlier_columns(inspection)
    if found:
        found.sort(key=lambda pair: -pair[0].sigmas)
        sampled = "" if _is_whole(inspection) else ", in the sample"
        total = sum(t.outliers.count for t in inspection.tensors if t.outliers and t.errors)
        rows = tuple(
            (
                tensor.info.name,
                str(outlier.row),
                str(outlier.column),
                format_value(outlier.value),
                f"{outlier.sigmas:.1f}",
            )
            for outlier, tensor in found[:LISTED_OUTLIERS]
        )
        table = Table(
            columns=(
                Column("tensor", key=True),
                Column("row", numeric=True),
                Column("column", numeric=True),
                Column("value", numeric=True),
                Column("sigmas", numeric=True),
            ),
            rows=rows,
            note=f"The largest of {plural(total, 'value')} of matrices beyond 6 sigma{sampled}.",
        )
        sections.append(Section("Outliers", (table,)))
    return sections
