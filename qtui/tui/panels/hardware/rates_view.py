"""Operations per second by data type: stated by the vendor, and measured on this machine."""

from __future__ import annotations

from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, paragraphs, right
from qtui.tui.panels.hardware.shown import HardwareShown
from qtui.tui.panels.hardware.units import rate, ratio, speed
from qtui_core.quantities import format_bytes, plural
from qtui_core.roofline.rates import COPY, PRODUCT, MeasuredRate

#: The cells before which the columns of figures end.
_STATED, _RIDGE, _MEASURED, _SHARE = 19, 29, 43, 51


class RatesView(View[HardwareShown]):
    """The stated and the measured rate of each data type."""

    TITLE = "Rates"
    HELP = """\
**Rates**: operations per second by data type, as the vendor states them. `r` measures this machine
in a process of its own (the processor, if there is no GPU).
"""

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        """A line for each data type, one for the memory, then the sources of the figures."""
        device = shown.device
        measured = {each.dtype: each for each in shown.rates if each.what == PRODUCT}
        on_cpu = shown.facts is not None and shown.facts.kind == "cpu"
        here = "processor" if on_cpu else "measured"
        titles = (-_STATED, "stated"), (-_RIDGE, "op/byte"), (-_MEASURED, here)
        lines: list[TextLine] = [headings((0, "type"), *titles, (-_SHARE, "share"))]
        stated = {} if shown.measured_here and not shown.choice.known else dict(device.rates)
        fastest = max(stated.values(), default=0.0)
        for dtype in [*stated, *(name for name in measured if name not in stated)]:
            lines.append(
                _rate(dtype, stated.get(dtype), measured.get(dtype), fastest, shown, canvas)
            )
        copied = next((each for each in shown.rates if each.what == COPY), None)
        lines.append(_memory(copied, shown))
        return [*lines, [], *paragraphs(_sources(shown), canvas.width)][: canvas.height]

    def meaning(self, shown: HardwareShown) -> str:
        device = shown.device
        if shown.measuring:
            return f"Measuring: {plural(len(shown.rates), 'rate')} so far."
        best = next(
            (each for each in shown.rates if each.what == PRODUCT and each.dtype == "bf16"), None
        )
        copied = next((each for each in shown.rates if each.what == COPY), None)
        facts = shown.facts
        if facts is not None and best is not None and best.per_second and copied is not None:
            share = best.share_of(device) if shown.measured_here else None
            of = "" if share is None else f", {share:.0%} of what is stated"
            where = f"the {device.name} here" if facts.kind == "cuda" else "this processor"
            return (
                f"Measured on {where}: bf16 products at {rate(best.per_second, 'bf16')}{of}, and "
                f"copies at {speed(copied.per_second)}: below "
                f"{ratio(best.per_second / (copied.per_second or 1))} operations a byte it waits "
                "for memory."
            )
        dtype = next((name for name in ("bf16", "fp16", "fp32") if name in device.rates), None)
        if dtype is None:
            return f"No rates of {device.name} are known. r measures it."
        stated = device.rates[dtype]
        return (
            f"The {device.name} does {rate(stated, dtype)} in {dtype} and reads "
            f"{speed(device.bandwidth)}: below {ratio(stated / device.bandwidth)} operations a "
            "byte it waits for memory. Larger batches raise the operations a byte of products; "
            "the view Operations says which operations wait."
        )


def _rate(
    dtype: str,
    stated: float | None,
    measured: MeasuredRate | None,
    fastest: float,
    shown: HardwareShown,
    canvas: Canvas,
) -> TextLine:
    device = shown.device
    line = [Put(0, dtype, "label"), right(_STATED, rate(stated, dtype))]
    if stated and device.bandwidth:
        line.append(right(_RIDGE, ratio(stated / device.bandwidth), "quiet"))
    if measured is not None:
        if measured.per_second is None:
            why = shortened(measured.why_not, canvas.width - _RIDGE - 3, canvas.glyphs.ellipsis)
            return [*line, Put(_RIDGE + 3, f"not here: {why}"[: canvas.width], "quiet")]
        line.append(right(_MEASURED, rate(measured.per_second, dtype)))
        share = measured.share_of(device) if shown.measured_here else None
        line.append(right(_SHARE, "–" if share is None else f"{share:.0%}"))
    room = min(40, canvas.width - _SHARE - 2)
    if stated and room > 4:
        line.append(
            Put(_SHARE + 2, canvas.glyphs.full * max(1, round(room * stated / fastest)), "bar")
        )
    return line


def _memory(copied: MeasuredRate | None, shown: HardwareShown) -> TextLine:
    device = shown.device
    stated = device.bandwidth if shown.choice.known else None
    line = [Put(0, "memory", "label"), right(_STATED, speed(stated))]
    if copied is not None:
        line.append(right(_MEASURED, speed(copied.per_second)))
        share = copied.share_of(device) if shown.measured_here else None
        line.append(right(_SHARE, "–" if share is None else f"{share:.0%}"))
    return line


def _sources(shown: HardwareShown) -> list[str]:
    device = shown.device
    found = []
    if shown.choice.known:
        found.append(f"Stated, dense: {device.source}. {device.note}".strip())
    found.append("op/byte: with fewer operations for each byte, the memory limits the rate.")
    facts = shown.facts
    if facts is None:
        what = "a product of each type, and a copy."
        found.append(f"Measuring {what}" if shown.measuring else f"r measures this machine: {what}")
        return found
    where = facts.name if facts.kind == "cuda" else f"the processor, {facts.name}"
    sides = sorted({each.size for each in shown.rates if each.what == PRODUCT})
    copied = next((each for each in shown.rates if each.what == COPY), None)
    parts = []
    if sides:
        rows = " to ".join(f"{side:,}" for side in dict.fromkeys((sides[0], sides[-1])))
        parts.append(f"products of {rows} rows")
    if copied is not None:
        parts.append(f"a copy of {format_bytes(copied.size)}")
    word = "Measuring" if shown.measuring else "Measured"
    found.append(f"{word} on {where}{': ' if parts else ''}{', '.join(parts)}.")
    if facts.kind == "cpu":
        found.append("No GPU was found by torch, so these are the rates of the processor.")
    return found
