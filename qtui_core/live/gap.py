"""Measured minus estimated at each level, in parts that add up to it exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.live.components import NOT_APART, at_peak, in_named_components, named
from qtui_core.live.header import Predicted
from qtui_core.live.measured import Measured

ALLOCATED, RESERVED, PROCESS, DEVICE = "allocated", "reserved", "process", "device"

SLACK: Final = "slack and fragmentation"
CONTEXT: Final = "context and modules"
PAGED: Final = "paged states"
OTHERS: Final = "other processes and the driver"
MOMENTS: Final = "peaks at other moments"

#: Why a level was not measured, by what was counted instead.
_NO_ALLOCATOR: Final = "On a CPU bytes of live tensors are counted, and {} does not exist there."
_SAYS_NOT: Final = "{} is unknown: the driver is missing, or a container hides it."


@dataclass(frozen=True)
class GapPart:
    """Bytes by which a run differs from its estimate, and their cause. `whole` marks the whole
    difference of the level below, which the parts of that level explain."""

    name: str
    bytes: int
    whole: bool = False


@dataclass(frozen=True)
class Level:
    """A level: estimated, measured, and the parts of measured minus estimated, the largest first.
    If nothing was measured, `why_not` says why in a sentence. `phase` is that in which the most was
    allocated, empty for other levels."""

    name: str
    estimated: int | None
    measured: int | None
    parts: tuple[GapPart, ...] = ()
    why_not: str = ""
    phase: str = ""

    PRINTED = (
        ("level", "name"),
        ("estimated_bytes", "estimated"),
        ("measured_bytes", "measured"),
        ("not_measured", or_null("why_not")),
    )

    @property
    def bytes(self) -> int | None:
        """Measured minus estimated."""
        if self.measured is None or self.estimated is None:
            return None
        return self.measured - self.estimated


def gap(predicted: Predicted, found: Measured) -> tuple[Level, ...]:
    """All levels. The parts of each level add up to its difference."""
    allocated = _allocated(predicted, found)
    if found.counted == "tensors" or predicted.counted == "tensors":
        return (
            allocated,
            _unmeasured(RESERVED, _NO_ALLOCATOR.format("an allocator with segments")),
            _unmeasured(PROCESS, _NO_ALLOCATOR.format("a context of CUDA")),
            _unmeasured(DEVICE, _NO_ALLOCATOR.format("a device with memory of its own")),
        )
    reserved = _reserved(predicted, found, allocated)
    process = _process(predicted, found, reserved)
    return allocated, reserved, process, _device(predicted, found, process)


def _allocated(predicted: Predicted, found: Measured) -> Level:
    estimated, peak = predicted.peak_allocated_bytes, found.peak
    if peak is None:
        return Level(ALLOCATED, estimated, None, (), "No phase of the run has ended yet.")
    phase = next((p for p in predicted.phases if p.name == predicted.peak_phase), None)
    total = peak.peak_allocated_bytes - estimated
    mine = in_named_components(peak.peak_held, {} if phase is None else phase.peak_held)
    apart, rest = at_peak(peak, mine)
    parts = {named(name): nbytes - mine.get(name, 0) for name, nbytes in apart.items()}
    return replace(_level(ALLOCATED, estimated, total, parts, rest), phase=peak.phase)


def _reserved(predicted: Predicted, found: Measured, below: Level) -> Level:
    estimated, most = predicted.peak_reserved_bytes, found.peak_reserved_bytes
    if estimated is None or most is None:
        return _unmeasured(RESERVED, _SAYS_NOT.format("What is reserved"), estimated, most)
    return _level(RESERVED, estimated, most - estimated, _of(below), SLACK, below)


def _process(predicted: Predicted, found: Measured, below: Level) -> Level:
    estimated, most = predicted.process_bytes, found.process_bytes
    if most is None:
        return _unmeasured(PROCESS, _SAYS_NOT.format("What this process uses"), estimated)
    parts, rest = _of(below), NOT_APART
    if below.bytes is not None:
        context = found.early_context_bytes if predicted.paged_bytes else found.context_bytes
        if context is None:
            rest = f"{CONTEXT}, {PAGED}" if predicted.paged_bytes else CONTEXT
        else:
            parts[CONTEXT] = context - predicted.context_bytes
            rest = PAGED if predicted.paged_bytes else MOMENTS
    return _level(PROCESS, estimated, most - estimated, parts, rest, below)


def _device(predicted: Predicted, found: Measured, below: Level) -> Level:
    """The level of the device. Nothing is predicted for other processes, so its estimate is that of
    this process."""
    estimated, most = predicted.process_bytes, found.device_used_bytes
    if most is None:
        return _unmeasured(DEVICE, _SAYS_NOT.format("What the device uses"), estimated)
    rest = NOT_APART if below.bytes is None else OTHERS
    return _level(DEVICE, estimated, most - estimated, _of(below), rest, below)


def _of(below: Level) -> dict[str, int]:
    """The difference of the level below, as a part of this level."""
    return {} if below.bytes is None else {f"the {below.name} gap": below.bytes}


def _level(
    name: str,
    estimated: int,
    total: int,
    parts: Mapping[str, int],
    rest: str,
    below: Level | None = None,
) -> Level:
    """A level whose part named `rest` is the total minus the other parts. Parts of zero bytes are
    left out."""
    left = total - sum(parts.values())
    chain = "" if below is None else f"the {below.name} gap"
    whole = [GapPart(part, nbytes, part == chain) for part, nbytes in parts.items()]
    shown = [part for part in (*whole, GapPart(rest, left)) if part.bytes]
    shown.sort(key=lambda part: -abs(part.bytes))
    return Level(name, estimated, estimated + total, tuple(shown))


def _unmeasured(
    name: str, why: str, estimated: int | None = None, most: int | None = None
) -> Level:
    return Level(name, estimated, most, (), why)
