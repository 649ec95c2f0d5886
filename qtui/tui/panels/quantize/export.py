"""What the Quantize panel shows, as JSON and as text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from qtui.screen.tensors.list import TensorEntry
from qtui.screen.tensors.subject import WEIGHT
from qtui.tui.panels.quantize.numbers import Row, element_rows, scheme_rows, tensor_rows
from qtui.tui.panels.quantize.shown import Shown


def panel_data(shown: Shown) -> dict[str, Any] | None:
    """The numbers, JSON without NaN or infinity; None before there are any."""
    if shown.entry is None or not any(shown.errors):
        return None
    schemes = []
    for scheme, errors in zip(shown.schemes, shown.errors, strict=False):
        numbers = {} if errors is None else dataclasses.asdict(errors)
        schemes.append({"scheme": str(scheme), **numbers})
    return _finite(
        {
            "model": shown.model,
            "tensor": shown.entry.name,
            "source": shown.source,
            "inject": None if shown.inject is None else shown.inject.params,
            "shape": _shape(shown, shown.entry),
            "dtype": shown.entry.dtype if shown.source == WEIGHT else None,
            "statistics": None if shown.numbers is None else dataclasses.asdict(shown.numbers),
            "schemes": schemes,
            "element": None if shown.element is None else dataclasses.asdict(shown.element),
        }
    )


def panel_text(shown: Shown, sentence: str) -> str | None:
    """The same numbers to be pasted somewhere; None before there are any."""
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


def _shape(shown: Shown, entry: TensorEntry) -> list[int] | None:
    """Of what is looked at: the stored tensor's, or that of the captured matrix (tokens x
    channels) once its map is there."""
    if shown.source == WEIGHT:
        return list(entry.shape)
    return None if shown.map is None else [shown.map.grid.rows, shown.map.grid.columns]


def _row_text(row: Row) -> str:
    if row.tone == "heading" and not row.values:
        return f"\n{row.label}"
    return f"{row.label:<22}" + "".join(f"{value:>14}" for value in row.values)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
