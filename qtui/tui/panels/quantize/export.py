"""The contents of the Quantize panel as JSON and as text."""

from __future__ import annotations

from typing import Any

from qtui.engine.answers.tensors import TensorEntry, TensorNumbers
from qtui.screen.tensors.exported_fields import ERRORS, STATISTICS
from qtui.screen.tensors.subject import WEIGHT
from qtui.tui.panels.quantize.numbers import Row, element_rows, scheme_rows, tensor_rows
from qtui.tui.panels.quantize.shown import QuantizeShown
from qtui_core.codec import printed


def panel_data(shown: QuantizeShown) -> dict[str, Any] | None:
    """The numbers as JSON without NaN or infinity; None before any are known."""
    if shown.entry is None or not any(shown.errors):
        return None
    schemes = []
    for scheme, errors in zip(shown.schemes, shown.errors, strict=False):
        numbers = {} if errors is None else {name: getattr(errors, name) for name in ERRORS}
        schemes.append({"scheme": str(scheme), **numbers})
    found: dict[str, Any] = printed(
        {
            "model": shown.model,
            "tensor": shown.entry.name,
            "source": shown.source,
            "inject": shown.inject,
            "shape": _shape(shown, shown.entry),
            "dtype": shown.entry.dtype if shown.source == WEIGHT else None,
            "statistics": None if shown.numbers is None else _statistics(shown.numbers),
            "schemes": schemes,
            "element": shown.element,
        }
    )
    return found


def panel_text(shown: QuantizeShown, sentence: str) -> str | None:
    """The same numbers as plain text for the clipboard; None before any are known."""
    if shown.entry is None or not any(shown.errors):
        return None
    shape = " x ".join(str(size) for size in _shape(shown, shown.entry) or ())
    details = [f"[{shape}]"] if shape else []
    if shown.source == WEIGHT:
        details.append(shown.entry.dtype)
    title = (shown.subject.title, " ".join(details), *shown.subject.words)
    lines = ["  ".join(part for part in title if part)]
    for letter, scheme in zip("AB", shown.schemes, strict=False):
        lines.append(f"{letter}  {scheme}")
    rows = [
        *scheme_rows(shown.errors, shown.active),
        *tensor_rows(shown.numbers),
        *element_rows(shown.element),
    ]
    lines += [_row_text(row) for row in rows]
    return "\n".join([*lines, "", sentence])


def _statistics(numbers: TensorNumbers) -> dict[str, Any]:
    stats, outliers = numbers.statistics, numbers.outliers
    return {
        **{name: getattr(stats, name) for name in STATISTICS},
        "outliers": outliers.count,
        "outlier_share": outliers.share,
        "outlier_columns": [[column.column, column.count] for column in outliers.columns],
    }


def _shape(shown: QuantizeShown, entry: TensorEntry) -> list[int] | None:
    """The shape of the subject: of the stored tensor, or of the captured matrix [tokens, channels],
    which is known once its map is."""
    if shown.source == WEIGHT:
        return list(entry.shape)
    return None if shown.map is None else [shown.map.grid.rows, shown.map.grid.columns]


def _row_text(row: Row) -> str:
    if row.tone == "heading" and not row.values:
        return f"\n{row.label}"
    return f"{row.label:<22}" + "".join(f"{value:>14}" for value in row.values)
