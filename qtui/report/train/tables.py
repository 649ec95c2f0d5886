"""The tables of a run: estimate and measurement, the parts of their difference, and the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qtui.report.document import Column, Table, Tone, figures
from qtui.report.numbers import format_value
from qtui_core.live.compare import GapPart, Level, RunBytes
from qtui_core.live.snapshot import StepTaken
from qtui_core.quantities import signed_bytes

#: The most steps that are listed.
LISTED = 12
#: A gap above this share of the measured bytes is coloured.
_OFF = 0.05


def against_table(
    title: str,
    rows: Sequence[RunBytes],
    peak: str | None = None,
    *,
    note: bool = False,
) -> Table:
    """Estimated and measured side by side, with the gap between them."""
    most = max((row.measured or 0 for row in rows), default=0)
    return Table(
        columns=(Column(title, key=True), *figures("estimate", "", "measured", "", "gap")),
        rows=tuple(
            (
                row.name,
                *_bytes(row.estimated),
                *_bytes(row.measured),
                percent(row.gap),
            )
            for row in rows
        ),
        tones=tuple(_tone(row, peak) for row in rows),
        bars=tuple(max(0.0, (row.measured or 0) / most) if most else 0.0 for row in rows),
        bar_title="measured",
        note="The gap is measured less estimated, as a share of what was measured." if note else "",
    )


def _tone(row: RunBytes, peak: str | None) -> Tone:
    if row.gap is not None and abs(row.gap) > _OFF:
        return "bad"
    return "warn" if row.name == peak else ""


def _bytes(count: int | None) -> tuple[str, str]:
    if count is None:
        return "–", "–"
    return f"{count:,}".replace("-", "−"), signed_bytes(count)


def percent(gap: float | None) -> str:
    """A gap in per cent, `+0.12%` if more was measured than estimated; without a sign if it rounds
    to zero."""
    if gap is None:
        return "–"
    text = f"{gap * 100:+.2f}" if abs(gap) < 0.1 else f"{gap * 100:+.1f}"
    return "0.00%" if text in ("+0.00", "-0.00") else f"{text.replace('-', '−')}%"


def gap_table(levels: Sequence[Level]) -> Table:
    parts = [(level, part) for level in levels for part in level.parts]
    return Table(
        columns=(Column("level", key=True), Column("part", key=True), *figures("bytes", "")),
        rows=tuple(
            (level.name, part.name, f"{part.bytes:+,}".replace("-", "−"), _plus(part))
            for level, part in parts
        ),
        tones=tuple("dim" if part.whole else "" for _, part in parts),
        note=(
            "Measured less estimated. The parts of a level sum to its difference; a part that is "
            "called a gap is the difference of the previous level."
        ),
    )


def _plus(part: GapPart) -> str:
    return ("+" if part.bytes > 0 else "") + signed_bytes(part.bytes)


def steps_table(steps: Sequence[StepTaken]) -> Table:
    count = len(steps)
    chosen = sorted({round(i * (count - 1) / (LISTED - 1)) for i in range(LISTED)})
    shown = [steps[i] for i in chosen] if count > LISTED else list(steps)
    lossless = all(step.loss is None for step in shown)
    known = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    most = max(known, default=0.0)
    columns = [
        Column("step", numeric=True, key=True),
        *figures("seconds", "tokens"),
    ]
    if not lossless:
        columns.append(Column("loss", numeric=True))
    return Table(
        columns=tuple(columns),
        rows=tuple(_step(step, lossless) for step in shown),
        tones=tuple("bad" if step.loss != step.loss else "" for step in shown),
        bars=() if lossless else tuple(_share(step.loss, most) for step in shown),
        bar_title="" if lossless else "loss",
        note=f"{len(shown)} of {count:,} steps; --json has all." if count > LISTED else "",
    )


def _step(step: StepTaken, lossless: bool) -> tuple[str, ...]:
    cells = (f"{step.step:,}", f"{step.step_seconds:.3g}", f"{step.tokens:,}")
    if lossless:
        return cells
    return (*cells, "NaN" if step.loss != step.loss else format_value(step.loss))


def _share(loss: float | None, most: float) -> float:
    if loss is None or not math.isfinite(loss) or most <= 0:
        return 0.0
    return max(0.0, loss / most)
