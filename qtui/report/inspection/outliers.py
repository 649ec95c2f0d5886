"""The sections of `qtui inspect` about values that are not finite, and about outliers."""

from __future__ import annotations

from qtui.report.document import Column, Facts, Section, Table, figures
from qtui.report.numbers import format_value
from qtui_core.answers import OUTLIER_SIGMA, OutlierReport
from qtui_core.inspection.report import Inspection
from qtui_core.quantities import plural

LISTED_OUTLIERS = 20


#: The name of a matrix, and its outliers.
_Named = tuple[str, OutlierReport]


def _is_whole(inspection: Inspection) -> bool:
    return all(t.sampled_parameters in (0, t.info.elements) for t in inspection.tensors)


def _outlier_columns(matrices: list[_Named]) -> list[Section]:
    """The section of columns with several outliers, which may be worth 16 bits."""
    found = [
        (column, name, outliers.count)
        for name, outliers in matrices
        for column in outliers.columns
        if column.count >= 2
    ]
    if not found:
        return []
    found.sort(key=lambda entry: -entry[0].count)
    rows = tuple(
        (name, str(column.column), f"{column.count:,}", f"{column.count / total:.0%}")
        for column, name, total in found[:LISTED_OUTLIERS]
    )
    table = Table(
        columns=(
            Column("tensor", key=True),
            *figures("column", "values beyond 6σ", "of the tensor's"),
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
    matrices = [(t.info.name, t.outliers) for t in inspection.tensors if t.outliers and t.errors]
    found = [
        (outlier, name)
        for name, outliers in matrices
        for outlier in outliers.top
        if outlier.sigmas >= OUTLIER_SIGMA
    ]
    broken = [
        (t.info.name, f"{t.statistics.nan:,} NaN, {t.statistics.inf:,} infinite")
        for t in inspection.tensors
        if t.statistics and (t.statistics.nan or t.statistics.inf)
    ]
    sections = []
    if broken:
        sections.append(Section("Values that are not finite", (Facts(tuple(broken)),)))
    sections += _outlier_columns(matrices)
    if found:
        found.sort(key=lambda pair: -pair[0].sigmas)
        sampled = "" if _is_whole(inspection) else ", in the sample"
        total = sum(outliers.count for _, outliers in matrices)
        rows = tuple(
            (
                name,
                str(outlier.row),
                str(outlier.column),
                format_value(outlier.value),
                f"{outlier.sigmas:.1f}",
            )
            for outlier, name in found[:LISTED_OUTLIERS]
        )
        table = Table(
            columns=(Column("tensor", key=True), *figures("row", "column", "value", "sigmas")),
            rows=rows,
            note=f"The largest of {plural(total, 'value')} of matrices beyond 6 sigma{sampled}.",
        )
        sections.append(Section("Outliers", (table,)))
    return sections
