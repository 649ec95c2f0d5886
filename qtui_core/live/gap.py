"""Measured minus estimated at each level, in parts that add up to it exactly, and the sentence on
the largest part without a known cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from qtui_core.codec import or_null
from qtui_core.dataclass import dataclass
from qtui_core.live.compare import (
    NOT_APART,
    REST,
    at_peak,
    in_named_components,
    named,
    too_early,
)
from qtui_core.live.measured import Measured
from qtui_core.live.snapshot import Predicted
from qtui_core.live.state import RunState
from qtui_core.quantities import format_bytes

SLACK: Final = "slack and fragmentation"
CONTEXT: Final = "context and modules"
PAGED: Final = "paged states"
OTHERS: Final = "other processes and the driver"
MOMENTS: Final = "peaks at other moments"

#: A part below this share of its level's estimate is too small to mention.
WORTH: Final = 0.005
_CALIBRATE: Final = "`qtui calibrate` measures it on this machine, and the estimate then uses that."
_OTHER_MODEL: Final = (
    "What stands still follows from config.json and the plan: compare --quant, --kbit-prep, "
    "--lora-targets and the types with what ran."
)
#: What to do about each part.
_DO: Final = {
    **dict.fromkeys(("weights", "quantization constants", "adapters", "buffers"), _OTHER_MODEL),
    "inputs": "The batch that ran is not the one of the plan: compare --batch and --seq.",
    "gradients": "Look for parameters that train and should not, and at --accumulation.",
    "optimizer states": "The optimizer that ran keeps other states than the plan's --optimizer.",
    **dict.fromkeys(("cuBLAS workspaces", CONTEXT, f"{CONTEXT}, {PAGED}"), _CALIBRATE),
    SLACK: (
        "The allocator keeps it in pieces: --segments expandable makes it smaller, and "
        "`qtui calibrate` learns its settings."
    ),
    PAGED: "The driver decides how much of them stays on the GPU.",
    MOMENTS: "The levels peaked at different moments; a longer run brings them together.",
}
_LESS_SLACK: Final = "The allocator keeps less in pieces: `qtui calibrate` learns its settings."
_OF_OPERATIONS: Final = ("activations", "loss", "temporaries", "key-value cache")
_COMPUTED: Final = (
    "Other kernels than the plan's may have run: compare --attention, --loss and --checkpointing, "
    "or estimate from the classes themselves with `qtui memory --trace`."
)
#: The same where tensors were counted on a CPU, whose kernels a run does not measure one by one.
_COMPUTED_ON_CPU: Final = (
    "It is in the phase {}; its cause was not measured, and kernels of a CPU may hold other "
    "tensors than those of a GPU, which the estimate assumes."
)
#: How each level is named in a sentence.
_IS: Final = {
    "allocated": "allocated",
    "reserved": "reserved",
    "process": "in the process",
    "device": "used on the device",
}


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


def levels_of(state: RunState, figures: Measured) -> tuple[Level, ...]:
    """The gap at each level. Empty if nothing was estimated, and before a whole step has ended,
    because the estimate is of whole steps."""
    predicted = state.header.predicted if state.header is not None else None
    return () if predicted is None or not state.steps else gap(predicted, figures)


def gap(predicted: Predicted, figures: Measured) -> tuple[Level, ...]:
    """All levels. The parts of each level add up to its difference."""
    allocated = _allocated(predicted, figures)
    if "tensors" in (figures.counted, predicted.counted):
        why = "On a CPU bytes of live tensors are counted, and {} does not exist there."
        absent = {
            "reserved": "an allocator with segments",
            "process": "a context of CUDA",
            "device": "a device with memory of its own",
        }
        levels = (Level(n, None, None, (), why.format(what)) for n, what in absent.items())
        return allocated, *levels
    both = predicted.peak_reserved_bytes, figures.peak_reserved_bytes
    reserved = _above(allocated, "reserved", "What is reserved", both, SLACK)
    paged = bool(predicted.paged_bytes)
    context = figures.early_context_bytes if paged else figures.context_bytes
    parts = {} if context is None else {CONTEXT: context - predicted.context_bytes}
    rest = PAGED if paged else MOMENTS
    if context is None:
        rest = f"{CONTEXT}, {PAGED}" if paged else CONTEXT
    both = predicted.process_bytes, figures.process_bytes
    process = _above(reserved, "process", "What this process uses", both, rest, parts)
    # Nothing is predicted for other processes, so the estimate of the device is the process's.
    both = predicted.process_bytes, figures.device_used_bytes
    device = _above(process, "device", "What the device uses", both, OTHERS)
    return allocated, reserved, process, device


def _allocated(predicted: Predicted, figures: Measured) -> Level:
    estimated, peak = predicted.peak_allocated_bytes, figures.peak
    if peak is None:
        return Level("allocated", estimated, None, (), "No phase of the run has ended yet.")
    phase = next((p for p in predicted.phases if p.name == predicted.peak_phase), None)
    mine = in_named_components(peak.peak_held, {} if phase is None else phase.peak_held)
    apart, rest = at_peak(peak, mine)
    parts = {named(name): nbytes - mine.get(name, 0) for name, nbytes in apart.items()}
    level = _level("allocated", estimated, peak.peak_allocated_bytes, parts, rest)
    return replace(level, phase=peak.phase)


def _above(
    below: Level,
    name: str,
    subject: str,
    both: tuple[int | None, int | None],
    rest: str,
    parts: Mapping[str, int] | None = None,
) -> Level:
    """A level whose first part is the difference of the level below. `both` are the estimated and
    the measured bytes, of which `subject` is said where they are unknown."""
    estimated, most = both
    if estimated is None or most is None:
        why = f"{subject} is unknown: the driver is missing, or a container hides it."
        return Level(name, estimated, most, (), why)
    if below.bytes is None:
        return _level(name, estimated, most, {}, NOT_APART)
    chain = f"the {below.name} gap"
    return _level(name, estimated, most, {chain: below.bytes, **(parts or {})}, rest, chain)


def _level(
    name: str, estimated: int, most: int, parts: Mapping[str, int], rest: str, chain: str = ""
) -> Level:
    """A level whose part named `rest` is the total minus the other parts. Parts of zero bytes are
    left out."""
    left = {rest: most - estimated - sum(parts.values())}
    pairs = [*parts.items(), *left.items()]
    entries = [GapPart(part, nbytes, part == chain) for part, nbytes in pairs if nbytes]
    entries.sort(key=lambda part: -abs(part.bytes))
    return Level(name, estimated, most, tuple(entries))


def largest_unexplained(levels: Sequence[Level]) -> tuple[Level, GapPart] | None:
    """The largest part at any level without a known cause, which excludes the difference of the
    level below and what other processes use. None if no such part is large enough to mention."""
    candidates = [
        (level, part)
        for level in levels
        for part in level.parts
        if not part.whole
        and part.name != OTHERS
        and abs(part.bytes) > WORTH * (level.estimated or 0)
    ]
    return max(candidates, key=lambda pair: abs(pair[1].bytes), default=None)


def explanation(state: RunState, levels: Sequence[Level]) -> str:
    """The cause of the largest difference and what to do about it; empty if it is too early."""
    return "" if too_early(state) else explain(levels, tensors=state.counted == "tensors")


def explain(levels: Sequence[Level], *, tensors: bool = False) -> str:
    """One or two sentences; empty if nothing was measured. `tensors` is for a run on a CPU."""
    known = [level for level in levels if level.bytes is not None]
    if not known:
        return ""
    largest = largest_unexplained(levels)
    if largest is None:
        if len(known) == 1:
            what = f"At the peak no part of what is {_IS[known[0].name]} differs"
        else:
            names = ", ".join(level.name for level in known)
            what = f"At the peak of no level ({names}) does a part differ"
        return f"{what} by more than {WORTH:.1%} of the estimate, so you can plan with it."
    level, part = largest
    more = "more" if part.bytes > 0 else "less"
    where = "" if len(known) == 1 else f" at the level of what is {_IS[level.name]}"
    return (
        f"The largest difference that the estimate does not explain is {part.name}, "
        f"{format_bytes(abs(part.bytes))} {more} than estimated{where}. "
        f"{_what_to_do(part, level.phase, tensors)}"
    )


def _what_to_do(part: GapPart, phase: str, tensors: bool) -> str:
    if part.name == SLACK and part.bytes < 0:
        return _LESS_SLACK
    if part.name.endswith(REST) or part.name in _OF_OPERATIONS:
        return _COMPUTED_ON_CPU.format(phase) if tensors else _COMPUTED
    return _DO.get(part.name, "Its parts are unknown: a run of two steps or more shows more.")
