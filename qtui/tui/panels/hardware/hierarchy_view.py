"""The memory levels of the device: size, bandwidth, and the source of each figure."""

from __future__ import annotations

from math import log10

from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, paragraphs, right
from qtui.tui.panels.hardware.shown import HardwareShown
from qtui.tui.panels.hardware.units import seconds, speed
from qtui_core.quantities import format_bytes
from qtui_core.roofline.hierarchy import MEMORY, MemoryLevel, hierarchy

#: The column of the texts after the figures.
_AFTER = 47


class HierarchyView(View[HardwareShown]):
    """The size and bandwidth of each memory level."""

    TITLE = "Hierarchy"
    HELP = """\
**Hierarchy**: the size and bandwidth of registers, L1 and shared memory, L2, and memory. A figure
is *stated* by the vendor, *derived* from a stated width and the highest clock, or *measured*.
"""

    def draw(self, shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
        """For each level a line of figures and one with their source, registers first."""
        device = shown.device
        levels = hierarchy(device)
        if not levels:
            text = (
                f"Only the memory of {device.name} is known, as it is not in the catalogue. r asks "
                "CUDA and measures it."
            )
            return paragraphs([text], canvas.width, "value")
        titles = headings((0, "level"), (-32, "holds"), (-45, "gives"), (_AFTER, "source"))
        lines: list[TextLine] = [titles]
        spaced = canvas.height >= 3 * len(levels) + 6
        for level in levels:
            lines += _level(level, levels, shown, canvas)
            if spaced:
                lines.append([])
        below = _facts(shown, canvas)
        if any(len(_source(level, shown)) > canvas.width - _AFTER for level in levels):
            sources = [f"{level.name}: {_source(level, shown)}" for level in levels]
            apart = [[], *paragraphs(sources, canvas.width)]
            together = paragraphs(["; ".join(sources)], canvas.width)
            # If there is little room, the lines about sources are left out first.
            fits = len(lines) + len(below) + len(apart) <= canvas.height
            below = [*below, *apart] if fits else [*together, *below]
        return [*lines, *below][: canvas.height]

    def meaning(self, shown: HardwareShown) -> str:
        device = shown.device
        levels = hierarchy(device)
        if not levels:
            return f"Only the memory of {device.name} is known. r asks CUDA and measures it."
        memory = levels[-1]
        fast = max(
            (each for each in levels if each.bandwidth), key=lambda each: each.bandwidth or 0
        )
        text = (
            f"Data in the {fast.name} of the {device.name} is read "
            f"{(fast.bandwidth or 0) / max(1, memory.bandwidth or 1):,.0f} times as fast as data "
            f"in its memory, which holds {memory.bytes / max(1, fast.bytes):,.0f} times as much"
        )
        once = seconds(memory.bytes / (memory.bandwidth or 1))
        return (
            f"{text}. Reading that once takes {once}: use each byte several times per read, as "
            "fused kernels do."
        )


def _source(level: MemoryLevel, shown: HardwareShown) -> str:
    words = f"{level.basis}: {level.source}" if level.basis else level.source
    if level.name == MEMORY and shown.measured_here:
        words += "; size from CUDA"
    return words


def _level(
    level: MemoryLevel, levels: tuple[MemoryLevel, ...], shown: HardwareShown, canvas: Canvas
) -> list[TextLine]:
    room = canvas.width - _AFTER
    words = _source(level, shown)
    each = "" if level.per_unit is None else f"{format_bytes(level.per_unit)} each"
    return [
        [
            Put(0, level.name, "label"),
            right(32, format_bytes(level.bytes)),
            right(45, speed(level.bandwidth), "value" if level.bandwidth else "quiet"),
            Put(_AFTER, shortened(words, room, canvas.glyphs.ellipsis), "quiet"),
        ],
        [
            Put(2, _bar(level, levels, canvas, 15), "bar"),
            right(32, each, "quiet"),
            Put(_AFTER, _wait(level, levels), "quiet"),
        ],
    ]


def _bar(level: MemoryLevel, levels: tuple[MemoryLevel, ...], canvas: Canvas, width: int) -> str:
    """A bar for the bandwidth on a logarithmic scale that starts at a third of the slowest."""
    speeds = [each.bandwidth for each in levels if each.bandwidth]
    if not level.bandwidth or not speeds:
        return ""
    low, high = log10(min(speeds) / 3), log10(max(speeds))
    return canvas.glyphs.full * max(1, round(width * (log10(level.bandwidth) - low) / (high - low)))


def _wait(level: MemoryLevel, levels: tuple[MemoryLevel, ...]) -> str:
    """How many times as fast as the device's memory a level is."""
    memory = levels[-1].bandwidth
    if level is levels[-1] or not level.bandwidth or not memory:
        return ""
    return f"{level.bandwidth / memory:,.1f} times the memory"


def _facts(shown: HardwareShown, canvas: Canvas) -> list[TextLine]:
    device = shown.device
    word = "compute units" if device.vendor == "AMD" else "multiprocessors"
    capability = ".".join(map(str, device.capability)) if device.capability else ""
    parts = [f"{device.multiprocessors} {word}", f"{device.boost_mhz} MHz at most"]
    if capability:
        parts.append(f"compute capability {capability}")
    if device.architecture:
        parts.append(device.architecture)
    said = "sizes from CUDA" if shown.measured_here else "sizes from the catalogue"
    return paragraphs([", ".join([*parts, said])], canvas.width)
