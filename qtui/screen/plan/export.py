"""The contents of a panel with a plan, as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qtui.engine.estimator.answers import Answer
from qtui.screen.curve.legend import PARTS
from qtui.screen.plan.shown import Shown
from qtui_core.codec import to_plain
from qtui_core.memory.advice.cases import WorkedCase


def panel_data(shown: Shown, sentence: str) -> dict[str, Any] | None:
    """The estimate as `qtui memory --json` writes it, and the rest of the screen; None if there is
    no estimate yet."""
    answer = shown.answer
    if answer is None or not shown.current:
        return None
    return {
        "model": shown.facts.id if shown.facts else shown.model,
        "case": shown.case or None,
        "gpu": shown.gpu.label if shown.gpu else None,
        "sentence": sentence,
        "plan": to_plain(answer.plan),
        "memory": dict(shown.around.report) if shown.around else None,
        "curve": {
            "positions": list(answer.curve.positions),
            "bytes": {
                part.name: list(row)
                for part, row in zip(PARTS, answer.curve.rows, strict=True)
                if any(row)
            },
            "phases": to_plain(answer.curve.bands),
        },
        "map": to_plain(list(shown.cells.values())) if shown.cells_of == shown.mapped else None,
        "cases": [_case(case, shown) for case in shown.cases if case.key in shown.figures] or None,
    }


def _case(case: WorkedCase, shown: Shown) -> dict[str, Any]:
    return {
        "key": case.key,
        "title": case.title,
        "source": case.source,
        "plan": to_plain(case.plan),
        "figures": to_plain(shown.figures[case.key]),
    }


def curve_table(answer: Answer) -> Iterable[Sequence[object]]:
    """The curve as a table: event number, phase, bytes of each part, total."""
    curve = answer.curve
    yield ("event", "phase", *(part.name for part in PARTS), "all")
    bands = iter(curve.bands)
    band = next(bands, None)
    for at, position in enumerate(curve.positions):
        while band is not None and position >= band.stop:
            band = next(bands, None)
        values = [row[at] for row in curve.rows]
        yield (position, band.name if band else "", *values, sum(values))
