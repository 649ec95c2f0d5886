"""The current state of all GPUs, and their processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from qtui.report.pictures.glyphs import Glyphs
from qtui.screen.panel.keys import key_of
from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, paragraphs, right
from qtui.tui.panels.hardware.shown import HardwareShown
from qtui_core.quantities import format_bytes, plural
from qtui_core.telemetry.readings import DeviceReading, ProcessReading

#: The actions that take another GPU, and that measure this machine.
_KEYS: Final = ("hardware.gpu", "hardware.measure")
NONE_HERE: Final = "No GPU is here: NVML, the driver's library, finds none on this machine."
BAR: Final = 20
#: Lines for each GPU, if there is room.
LINES: Final = 4


class GpusView(View[HardwareShown]):
    """The current state of each GPU."""

    TITLE = "GPUs"
    HELP = """\
**GPUs**: every GPU and the processes on it, read twice a second. A dash marks a value that the
driver does not report.
"""

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        """Several lines for each GPU, or one if there are many, and one for each process; without
        GPUs a text that says why."""
        if shown.gpus is None:
            return [[Put(0, "asking the driver", "quiet")]]
        if not shown.gpus:
            return _none(shown, canvas, *(key_of(self.panel, each) for each in _KEYS))
        lines: list[TextLine] = []
        if canvas.height < LINES * len(shown.gpus):
            lines = [_in_one_line(reading, canvas) for reading in shown.gpus]
        else:
            for reading in shown.gpus:
                lines += _gpu(reading, shown, canvas)
        processes = [(each.label, row) for each in shown.gpus for row in each.processes or ()]
        if len(lines) + 2 < canvas.height:
            told = any(reading.processes is not None for reading in shown.gpus)
            none = (
                "No process uses a GPU." if told else "The driver does not report processes here."
            )
            titles = headings((0, "GPU"), (-14, "process"), (-26, "memory"), (28, "name"))
            lines += [[], titles if processes else [Put(0, none, "quiet")]]
            lines += [_process(label, row, canvas) for label, row in processes]
        return lines[: canvas.height]

    def meaning(self, shown: HardwareShown) -> str:
        if shown.gpus is None:
            return "The driver is being asked."
        if not shown.gpus:
            return (
                f"{NONE_HERE} The other views show the {shown.device.name} of the catalogue: "
                "Operations says what limits the plan on it."
            )
        fullest = [
            each for each in shown.gpus if each.memory_total and each.memory_used is not None
        ]
        lost = [each.label for each in shown.gpus if each.lost]
        if lost:
            return (
                f"The driver no longer reaches GPU {', '.join(lost)}: its processes have failed. "
                "dmesg says why (look for Xid). Reset the GPU, or restart the machine."
            )
        if not fullest:
            return "No GPU reports its memory: no permission, as with MIG, or unified memory."
        free = max(fullest, key=lambda each: (each.memory_total or 0) - (each.memory_used or 0))
        left = (free.memory_total or 0) - (free.memory_used or 0)
        told = [each.processes for each in shown.gpus if each.processes is not None]
        busy = [each.gpu_percent for each in shown.gpus if each.gpu_percent is not None]
        parts = [f"Most memory is free on GPU {free.label}: {format_bytes(left)}"]
        if busy:
            parts.append(f"kernels ran in {sum(busy) / len(busy):.0f}% of the time")
        if told:  # the driver of some machines does not report processes
            count = plural(sum(map(len, told)), "process", "processes")
            parts.append(f"{count} on {plural(len(told), 'GPU')}")
        return ", ".join(parts) + "."


def _none(shown: HardwareShown, canvas: Canvas, gpu: str, measure: str) -> list[TextLine]:
    """Why there is no GPU, with the keys that take another and that measure this machine."""
    device = shown.device
    text = [
        NONE_HERE,
        f"The other views show the {device.name} of the catalogue; {gpu} takes another.",
        f"{measure} in Rates measures this machine's processor.",
    ]
    lines: list[TextLine] = []
    for each in text:
        lines += [*paragraphs([each], canvas.width, "value"), []]
    return lines


def _gpu(reading: DeviceReading, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
    glyphs = canvas.glyphs
    name = reading.name or "a GPU that does not say its name"
    state: list[Put] = []
    if reading.lost:
        state.append(Put(0, "lost: the driver no longer reaches it", "warning"))
    first = [
        Put(0, f"GPU {reading.label}", "heading"),
        Put(9, shortened(name, canvas.width - 40, glyphs.ellipsis), "value"),
        right(canvas.width, _beside(reading), "quiet"),
    ]
    second = [
        Put(0, "busy", "label"),
        right(11, _percent(reading.gpu_percent)),
        Put(12, _bar(_share(reading.gpu_percent), BAR, glyphs.full, glyphs.dot), "bar"),
        Put(34, "memory", "label"),
        Put(41, _memory(reading), "value"),
    ]
    used, total = reading.memory_used, reading.memory_total
    if used is not None and total and canvas.width >= 90:
        second.append(Put(66, _bar(used / total, BAR, glyphs.full, glyphs.dot), "bar"))
    lines: list[TextLine] = [first, state or second]
    past = shown.history.get(reading.label)
    if past and canvas.width >= 60:
        room = canvas.width - 12
        shares = [_share(percent) for percent, _ in past][-room:]
        lines.append([Put(0, "last minute", "label"), Put(12, _spark(shares, glyphs), "bar")])
    if reading.mig:
        lines.append(
            [Put(0, "partitioned (MIG): its slices follow, and report their own use", "quiet")]
        )
    if reading.unified:
        lines.append([Put(0, "shares the memory of the machine and has none of its own", "quiet")])
    lines.append([])
    return lines


def _in_one_line(reading: DeviceReading, canvas: Canvas) -> TextLine:
    """The most important values of a GPU on one line, for a machine with many."""
    glyphs = canvas.glyphs
    name = (reading.name or "GPU").removeprefix("NVIDIA ")
    line = [
        Put(0, reading.label, "heading"),
        Put(5, shortened(name, 19, glyphs.ellipsis)),
    ]
    if reading.lost:
        return [*line, Put(25, "lost: the driver no longer reaches it", "warning")]
    line += [
        right(30, _percent(reading.gpu_percent)),
        Put(31, _bar(_share(reading.gpu_percent), BAR // 2, glyphs.full, glyphs.dot), "bar"),
        Put(43, _memory(reading)),
    ]
    if canvas.width >= 100:
        line.append(right(canvas.width, _beside(reading), "quiet"))
    return line


def _memory(reading: DeviceReading) -> str:
    if reading.memory_used is None or reading.memory_total is None:
        return "not reported"
    return f"{format_bytes(reading.memory_used)} of {format_bytes(reading.memory_total)}"


def _beside(reading: DeviceReading) -> str:
    parts = []
    if reading.power_watts is not None:
        limit = reading.power_limit_watts
        parts.append(f"{reading.power_watts:.0f}{f' of {limit:.0f}' if limit else ''} W")
    if reading.temperature_celsius is not None:
        parts.append(f"{reading.temperature_celsius} C")
    if reading.clock_mhz is not None:
        parts.append(f"{reading.clock_mhz} MHz")
    return "  ".join(parts)


def _process(label: str, row: ProcessReading, canvas: Canvas) -> TextLine:
    memory = "unknown" if row.memory is None else format_bytes(row.memory)
    name = row.name or "hidden (another user's, or outside this container)"
    return [
        Put(0, label),
        right(14, str(row.pid)),
        right(26, memory),
        Put(
            28, shortened(f"{name}  {row.kind}", canvas.width - 28, canvas.glyphs.ellipsis), "label"
        ),
    ]


def _percent(value: int | None) -> str:
    return "–" if value is None else f"{value}%"


def _share(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _bar(share: float | None, width: int, full: str, rest: str) -> str:
    if share is None:
        return ""
    done = round(width * min(1.0, max(0.0, share)))
    return full * done + rest * (width - done)


def _spark(shares: Sequence[float | None], glyphs: Glyphs) -> str:
    steps = glyphs.eighths
    return "".join(
        " " if share is None else steps[round(min(1.0, share) * (len(steps) - 1))]
        for share in shares
    )
