"""What the Codebooks panel shows, as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from qtui.tui.panels.codebooks.shown import Shown


def panel_data(shown: Shown, sentence: str) -> dict[str, Any] | None:
    """Everything behind the four views; None before there is anything."""
    if shown.entry is None or not shown.current:
        return None
    return {
        "model": shown.model,
        "tensor": shown.entry.name,
        "shape": list(shown.entry.shape),
        "dtype": shown.entry.dtype,
        "view": shown.view.value,
        "sentence": sentence,
        "equal_bits": [dataclasses.asdict(row) for row in shown.equal] or None,
        "schemes": [
            {
                "bar_counts": [bar.count for bar in column.bars],
                **dataclasses.asdict(column),
            }
            for column in shown.columns
        ],
        "budgets": [_plain(budget) for budget in shown.budgets],
        "block_sizes": [
            {
                "size": row.size,
                "plain": _plain(row.plain),
                "nested": None if row.nested is None else _plain(row.nested),
            }
            for row in shown.sweep
        ],
        "nf4_construction": (
            None if shown.construction is None else dataclasses.asdict(shown.construction)
        ),
    }


def _plain(budget: Any) -> dict[str, Any]:
    return {
        **{field.name: getattr(budget, field.name) for field in dataclasses.fields(budget)},
        "parts": dict(budget.parts),
        "exact": dict(budget.exact),
    }
