"""The sentence below the picture of Memory: what it means right now, and what to do."""

from __future__ import annotations

from qtui.report.numbers import format_bytes
from qtui.screen.plan.levels import change_text
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, Shown, ViewName
from qtui.screen.widgets.drawing import Glyphs


def sentence_of(shown: Shown, glyphs: Glyphs) -> str:
    """Of the view that is shown."""
    if shown.view is ViewName.CASES and shown.cases:
        return _of_case(shown)
    if shown.answer is None:
        return ""
    if shown.view is ViewName.MAP and shown.cells_of == shown.mapped and shown.cells:
        return _of_map(shown)
    if shown.current and shown.around is not None:
        return shown.around.sentence
    answer = shown.answer
    change = change_text(shown, glyphs.minus)
    text = (
        f"Tensors peak at {format_bytes(answer.peak_live_bytes)} in the {answer.peak_phase} "
        "phase; what the allocator keeps is being added."
    )
    return f"{change}. {text}" if change else text


def _of_map(shown: Shown) -> str:
    row, column = shown.cell
    batch, length = MAP_BATCHES[row], MAP_SEQUENCES[column]
    if shown.gpu is None:
        return "Each cell is a plan of its own. g chooses a GPU, and the map says what fits it."
    known = [cell for cell in shown.cells.values() if cell.peak_live_bytes is not None]
    if len(shown.cells) < len(MAP_BATCHES) * len(MAP_SEQUENCES) or any(
        cell.verdict is None for cell in known
    ):
        return f"Looking along the edge of what fits {shown.gpu.label}."
    fitting = {
        length: max(
            (b for b in MAP_BATCHES if (c := shown.cells.get((b, length))) and c.verdict == "fits"),
            default=0,
        )
        for length in MAP_SEQUENCES
    }
    at = fitting[length]
    longest = max((s for s in MAP_SEQUENCES if fitting[s]), default=0)
    if not longest:
        return (
            f"Nothing on this map fits {shown.gpu.label}: even batch {MAP_BATCHES[0]} of "
            f"{MAP_SEQUENCES[0]:,} tokens needs more. Savings says what would help."
        )
    here = (
        f"At {length:,} tokens up to batch {at} fits {shown.gpu.label}"
        if at
        else f"At {length:,} tokens nothing fits {shown.gpu.label}"
    )
    most = max(fitting.items(), key=lambda item: item[0] * item[1])
    return (
        f"{here}; the longest sequence that fits is {longest:,}, and most tokens a step are "
        f"{most[0] * most[1]:,}, at batch {most[1]} of {most[0]:,}. "
        f"Enter takes batch {batch} of {length:,}."
    )


def _of_case(shown: Shown) -> str:
    case = shown.cases[shown.line_of(len(shown.cases))]
    figures = shown.figures.get(case.key, ())
    if not figures:
        return f"{case.title}: {case.source}. Our figures are being computed."
    near = [f for f in figures if abs(f.bytes - f.stated_bytes) <= 0.05 * f.stated_bytes]
    far = [f for f in figures if f not in near]
    if not far:
        return f"{case.title}: all {len(near)} figures are ours too, to 5%."
    worst = max(far, key=lambda f: max(f.bytes / f.stated_bytes, f.stated_bytes / max(1, f.bytes)))
    times = worst.bytes / worst.stated_bytes
    words = f"{times:.1f} times" if times >= 1 else f"{times:.0%} of"
    same = f"{len(near)} of {len(figures)} figures are ours to 5%" if near else "None agrees"
    return f"{case.title}: {same}; {worst.what}: ours is {words} what is stated. {worst.why}"
