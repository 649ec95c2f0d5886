"""The contents of the Codebooks panel as JSON."""

from __future__ import annotations

from typing import Any

from qtui.engine.answers.codes import CodeColumn, SchemeBudget
from qtui.screen.tensors.exported_fields import ERRORS
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui_core.answers import EqualBits, NF4Construction
from qtui_core.codec import to_plain

_COUNTED = (
    "entropy_bits", "expected_entropy_bits", "unused", "unreachable", "beyond", "nonfinite",
)  # fmt: skip


def panel_data(shown: CodebooksShown, view: str, sentence: str) -> dict[str, Any] | None:
    """The data of all four views; None before any is known."""
    if shown.entry is None or not shown.current:
        return None
    return {
        "model": shown.model,
        "tensor": shown.entry.name,
        "shape": list(shown.entry.shape),
        "dtype": shown.entry.dtype,
        "view": view,
        "sentence": sentence,
        "equal_bits": [_equal(row) for row in shown.equal] or None,
        "schemes": [_column(column) for column in shown.columns],
        "budgets": [_budget(budget) for budget in shown.budgets],
        "block_sizes": [
            {"size": row.size, "plain": _budget(row.plain), "nested": _budget(row.nested)}
            for row in shown.sweep
        ],
        "nf4_construction": _construction(shown.construction),
    }


def _equal(row: EqualBits) -> dict[str, Any]:
    return {
        "asked": str(row.original),
        "scheme": str(row.scheme),
        "bits": float(row.bits),
        "exact": str(row.bits),
        "difference": float(row.difference),
        "equal": row.equal,
        "note": row.note,
    }


def _column(column: CodeColumn) -> dict[str, Any]:
    scheme, counted = column.scheme, to_plain(column)
    return {
        "bar_counts": [bar.count for bar in column.bars],
        "scheme": column.name,
        "format": scheme.format,
        "bits": scheme.bits,
        "has_zero_point": not scheme.symmetric,
        **{name: counted.pop(name) for name in _COUNTED},
        "error": {name: getattr(column.error, name) for name in ERRORS},
        **{name: numbers for name, numbers in counted.items() if name != "error"},
    }


def _budget(each: SchemeBudget) -> dict[str, Any]:
    budget = each.budget
    return {
        "scheme": each.name,
        "parts": each.parts,
        "exact": {part.name: str(budget.share(part)) for part in budget.parts},
        "bits_per_parameter": each.bits,
        "exact_bits_per_parameter": str(budget.bits_per_parameter),
        "overhead": each.overhead,
        "bytes": budget.bytes,
        "gaussian_sqnr_db": each.gaussian_sqnr_db,
    }


def _construction(found: NF4Construction | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"levels": to_plain(found.levels), "steps": to_plain(found.steps)}
