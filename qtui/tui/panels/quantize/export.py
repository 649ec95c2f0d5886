"""What the Quantize panel shows, as JSON and as text."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from qtui.tui.panels.quantize.numbers import Row, element_rows, scheme_rows, tensor_rows
from qtui.tui.panels.quantize.shown import Shown


def panel_data(shown: Shown) -> dict[str, Any] | None:
    """The numbers, JSON without NaN or infinity; None before there are any."""
    if shown.entry is None or not any(shown.errors):
        return None
    schemes = []
    for scheme, errors in zip(shown.schemes, shown.errors, strict=False):
        numbers = {} if errors is None else dataclasses.asdict(errors)
        schemes.append({"scheme": scheme.text, **numbers})
    return _finite(
        {
            "model": shown.model,
            "tensor": shown.entry.name,
            "source": shown.source,
            "inject": None if shown.inject is None else shown.inject.params,
            "shape": list(shown.entry.shape),
            "dtype": shown.entry.dtype,
            "statistics": None if shown.numbers is None else dataclasses.asdict(shown.numbers),
            "schemes": schemes,
            "element": None if shown.element is None else dataclasses.asdict(shown.element),
        }
    )


def panel_text(shown: Shown, sentence: str) -> str | None:
    """The same numbers to be pasted somewhere; None before there are any."""
    if shown.entry is None or not any(shown.errors):
        return None
    shape = " x ".join(str(size) for size in shown.entry.shape)
    lines = [
        "  ".join((shown.subject.title, f"[{shape}] {shown.entry.dtype}", *shown.subject.words))
    ]
    for letter, scheme in zip("AB", shown.schemes, strict=False):
        lines.append(f"{letter}  {scheme.text}")
    rows = [
        *scheme_rows(shown.errors, shown.active),
        *tensor_rows(shown.numbers),
        *element_rows(shown.element),
    ]
    lines += [_row_text(row) for row in rows]
    return "\n".join([*lines, "", sentence])


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
