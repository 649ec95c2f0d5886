"""An estimate in a title and three lines: its peak, the levels above it, the last change."""

from __future__ import annotations

from typing import Final

from qtui.engine.estimator.answers import Answer
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone
from qtui_core.quantities import format_bytes, format_count

#: Verdict -> its words and tone.
VERDICTS: Final[dict[str, tuple[str, Tone]]] = {
    "fits": ("fits", "best"),
    "tight": ("tight", "expected"),
    "no": ("no", "warning"),
}


#: Below this width the reserved bytes are not shown here.
NARROW = 70


def signed(nbytes: int, minus: str) -> str:
    """The bytes with a sign, as "+3.1 GiB"."""
    return f"{minus if nbytes < 0 else '+'}{format_bytes(abs(nbytes))}"


def level_lines(shown: Shown, canvas: Canvas) -> list[TextLine]:
    """The peak and where it is; the levels above it and the verdict; the last change."""
    answer = shown.answer
    if answer is None:
        return []
    ellipsis = canvas.glyphs.ellipsis
    about = "tensors " if answer.stage == "first" else ""
    about = {"trace": "traced ", "bounds": "assumed "}.get(answer.origin, about)
    place = f" in {answer.peak_phase}"
    if answer.peak_operation:
        place += f": {answer.peak_operation}"
    peak = f"{about}peak {format_bytes(answer.peak_allocated_bytes)}"
    lines: list[TextLine] = [
        [
            Put(0, peak, "heading"),
            Put(len(peak), shortened(place, canvas.width - len(peak), ellipsis), "label"),
        ],
        _levels(shown, answer, canvas),
        [Put(0, shortened(change_text(shown, canvas.glyphs.minus), canvas.width, ellipsis),
             "expected")],
    ]  # fmt: skip
    return lines[: canvas.height]


def _levels(shown: Shown, answer: Answer, canvas: Canvas) -> list[Put]:
    bar = f" {canvas.glyphs.vertical} "
    text = f"process {format_bytes(answer.process_bytes)}"
    if canvas.width >= NARROW:
        reserved = answer.peak_reserved_bytes
        known = "not yet known" if reserved is None else format_bytes(reserved)
        text = f"reserved {known}{bar}{text}"
    puts = [Put(0, text, "value")]
    found = _verdict_words(shown, answer)
    room = canvas.width - len(text) - len(bar)
    if found is not None and room > 7:
        words, tone = found
        cut = shortened(words, room, canvas.glyphs.ellipsis)
        puts += [Put(len(text), bar, "quiet"), Put(len(text) + len(bar), cut, tone)]
    return puts


def _verdict_words(shown: Shown, answer: Answer) -> tuple[str, Tone] | None:
    if answer.fit is not None:
        _, tone = VERDICTS[answer.fit.verdict]
        left = answer.fit.headroom_bytes
        more = "to spare" if left >= 0 else "too much"
        word = {"fits": "fits", "tight": "tight on", "no": "does not fit"}[answer.fit.verdict]
        return f"{word} {answer.fit.gpu}: {format_bytes(abs(left))} {more}", tone
    if shown.gpu is None and shown.around is not None and shown.current:
        holding = [fit.gpu for fit in shown.around.fits if fit.verdict == "fits"]
        if not holding:
            return "fits no GPU of the catalogue", "warning"
        return f"fits {', '.join(holding)}", "best"
    return None


def change_text(shown: Shown, minus: str) -> str:
    """What the last change did to the peak, at the highest level that is known for both plans."""
    before, after = shown.before, shown.answer
    if before is None or after is None or not shown.change:
        return ""
    whole = before.stage == after.stage == "full"
    old = before.peak_allocated_bytes if whole else before.peak_live_bytes
    new = after.peak_allocated_bytes if whole else after.peak_live_bytes
    if old == new:
        return f"the peak stays the same: {shown.change}"
    level = "at the peak" if whole else "of tensors at the peak"
    ends = list(dict.fromkeys((format_bytes(old), format_bytes(new))))
    text = f"{signed(new - old, minus)} {level} ({' → '.join(ends)}"
    if before.peak_phase != after.peak_phase:
        text += f", now in {after.peak_phase}"
    return f"{text}): {shown.change}"


def headline(shown: Shown) -> tuple[str, tuple[str, ...]]:
    """What is estimated: its name, and facts about it."""
    facts = shown.facts
    if facts is None:
        return "", ()
    details = [facts.architecture]
    if facts.parameters is not None and facts.layers is not None:
        details += [f"{format_count(facts.parameters)} parameters", f"{facts.layers} layers"]
    if facts.quantized:
        details.append("quantized already: estimated from its unquantized original")
    return facts.id, tuple(details)
