"""The three lines above the picture: the estimate before a run, the measured levels during it."""

from __future__ import annotations

from typing import Final

from qtui.screen.plan.levels import level_lines as estimate_lines
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, Tone
from qtui.tui.panels.train.shown import RunShown
from qtui_core.live.compare import Level, gap_share, levels_of, too_early
from qtui_core.live.snapshot import Fault, Predicted, Sample
from qtui_core.live.state import Measured, RunState, measured
from qtui_core.quantities import format_bytes, plural

#: Up to the first share of the estimate a gap is good, and beyond the second it is a warning.
NEAR, FAR = 0.02, 0.1


def before_lines(shown: Shown, run: RunShown, canvas: Canvas) -> list[TextLine]:
    """The estimated levels, whether they fit, and what `r` would run."""
    lines = estimate_lines(shown, canvas)[:2]
    steps = "until stopped" if run.steps is None else plural(run.steps, "step")
    data = run.data or "built-in text"
    where = "" if shown.live else " on the CPU"
    facts = shown.facts
    random = " from random weights" if facts is not None and facts.random_weights else ""
    text = f"r runs {steps}{random}{where} with {data}"
    if facts is not None and facts.cannot_run:
        text = "There are no weights to run; o opens a recording."
    elif run.largest and run.largest_of == shown.asked:
        text = f"B takes batch {run.largest}, the largest that fits; {text}"
    return [*lines, [Put(0, shortened(text, canvas.width, canvas.glyphs.ellipsis), "quiet")]]


def run_lines(state: RunState, canvas: Canvas) -> list[TextLine]:
    """The measured levels with their gaps to the estimate; readings of the device; the pace."""
    header = state.header
    if header is None and state.fault is not None:
        return _fault(state.fault, canvas)
    if header is None:
        return [[Put(0, "its process reads the model and estimates the run", "label")]]
    found = measured(state)
    if state.fault is not None and state.fault.fatal:
        return [_levels(state, header.predicted, found, canvas), *_fault(state.fault, canvas)]
    return [
        _levels(state, header.predicted, found, canvas),
        [Put(0, shortened(_machine(state, found), canvas.width, canvas.glyphs.ellipsis), "label")],
        [Put(0, shortened(_pace(found), canvas.width, canvas.glyphs.ellipsis), "label")],
    ]


def _fault(fault: Fault, canvas: Canvas) -> list[TextLine]:
    """What ended the run, the phase and step of that, and the components with the most memory."""
    asked = ""
    if fault.asked_bytes is not None:
        asked = f", asking for {format_bytes(fault.asked_bytes)}"
    where = f" {place_of(fault)}" if fault.phase else ""
    held = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in fault.largest)
    ellipsis = canvas.glyphs.ellipsis
    return [
        [Put(0, shortened(f"{fault.kind}{where}{asked}", canvas.width, ellipsis), "warning")],
        [Put(0, shortened(f"held {held}" if held else "", canvas.width, ellipsis), "label")],
    ]


def place_of(fault: Fault) -> str:
    """Where a fault happened: "in backward of step 3"."""
    step = f"of step {fault.step}" if fault.step else "before the first step"
    return f"in {fault.phase or 'the start'} {step}"


def gap_of(state: RunState) -> tuple[Level, ...]:
    """The gap at each level; empty until there is something to compare with an estimate."""
    return levels_of(state, measured(state)) if state.phases else ()


def gap_text(measured: int | None, estimated: int | None, minus: str) -> str:
    """The gap in per cent of the measured bytes, "+0.3%" if more was measured than estimated; empty
    if one of them is unknown."""
    gap = gap_share(estimated, measured)
    if gap is None:
        return ""
    text = f"{abs(100 * gap):.1f}%"
    sign = "" if text == "0.0%" else "+" if gap > 0 else minus
    return sign + text


def gap_tone(measured: int | None, estimated: int | None) -> Tone:
    """The tone of a gap: that of a good, a near, or a wrong estimate."""
    gap = gap_share(estimated, measured)
    if gap is None:
        return "quiet"
    return "best" if abs(gap) <= NEAR else "value" if abs(gap) <= FAR else "warning"


def _levels(
    state: RunState, predicted: Predicted | None, found: Measured, canvas: Canvas
) -> list[Put]:
    """The levels with their gaps, "allocated 11.9 GiB  gap −0.4% | reserved …", as many as fit;
    while gaps are not known, the estimate."""
    early = too_early(state)
    of_tensors = found.counted == "tensors"
    peak = reserved = process = None
    if predicted is not None:
        peak, reserved = predicted.peak_allocated_bytes, predicted.peak_reserved_bytes
        process = None if of_tensors else predicted.process_bytes
    levels = [
        ("tensors" if of_tensors else "allocated", found.peak_allocated_bytes, peak),
        ("reserved", found.peak_reserved_bytes, reserved),
        ("process", found.process_bytes, process),
    ]
    puts: list[Put] = []
    at = 0
    for name, nbytes, estimated in levels:
        if not nbytes:
            continue
        label = f"peak {name} " if not puts else f"{name} "
        value, gap = format_bytes(nbytes), gap_text(nbytes, estimated, canvas.glyphs.minus)
        more = f"  gap {gap}" if gap else ""
        if early and estimated is not None:
            more = f" of {format_bytes(estimated)}" + (" estimated" if not puts else "")
        bar = f" {canvas.glyphs.vertical} " if puts else ""
        if not puts and len(label + value + more) > canvas.width:
            label, more = "peak ", f"  {gap}"
        if at + len(bar + label + value + more) > canvas.width:
            break
        puts.append(Put(at, bar, "quiet"))
        at += len(bar)
        puts.append(Put(at, label, "label"))
        at += len(label)
        puts.append(Put(at, value, "heading"))
        at += len(value)
        puts.append(Put(at, more, "quiet" if early else gap_tone(nbytes, estimated)))
        at += len(more)
    return puts or [Put(0, "nothing is measured yet", "label")]


_READINGS: Final = (
    ("utilisation_percent", "{:,}%"),
    ("power_watts", "{:.0f} W"),
    ("temperature_celsius", "{:,} C"),
    ("clock_mhz", "{:,} MHz"),
)


def _machine(state: RunState, found: Measured) -> str:
    """The readings of the device, as text."""
    header, sample = state.header, state.sample
    assert header is not None
    name = header.device.name
    if found.counted == "tensors":
        rss = sample.rss_bytes if sample is not None else None
        process = rss if rss is not None else found.process_bytes
        uses = "" if process is None else f"; the process uses {format_bytes(process)}"
        return f"{name}: bytes of live tensors are counted{uses}"
    return ", ".join([name, *_readings(sample, header.device.capacity_bytes)])


def _readings(sample: Sample | None, capacity: int | None) -> list[str]:
    if sample is None:
        return []
    found = []
    if sample.device_used_bytes is not None:
        of = f" of {format_bytes(capacity)}" if capacity else ""
        found.append(f"{format_bytes(sample.device_used_bytes)}{of} in use")
    for name, form in _READINGS:
        value = getattr(sample, name)
        if value is not None:
            found.append(form.format(value))
    return found


def _pace(found: Measured) -> str:
    if found.step_seconds is None:
        return "no step is over yet"
    seconds = found.step_seconds
    text = f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"
    text += " a step"
    if found.tokens_per_second:
        text += f", {found.tokens_per_second:,.0f} tokens a second"
    known = [loss for loss in found.losses if loss is not None]
    return f"{text}, loss {known[-1]:.3f}" if known else text
