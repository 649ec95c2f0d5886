"""Compares a run with its estimate: by phase, by component, by level, and moment by moment.

All differences have the same sign: measured minus estimated, positive if the run took more. This
includes the parts of a level, the tables, the panels and the key `error` of JSON.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from qtui_core.codec import CodecError, from_plain, or_null, printed
from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import PhaseEnded, Predicted, PredictedCurve
from qtui_core.live.state import (
    COMPARE,
    IMPORT,
    QUANTIZE,
    Measured,
    Moment,
    PhaseSpan,
    RunState,
    measured,
)
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.quantities import format_bytes

#: All phases a run may have, in order.
ORDER: Final = (IMPORT, Phase.LOAD.value, QUANTIZE, *[p.value for p in list(Phase)[1:]], COMPARE)
_ACTIVATIONS: Final = Component.ACTIVATIONS.value
_CACHE: Final = Component.CACHE.value
_GRADIENTS: Final = Component.GRADIENTS.value
_STATES: Final = Component.OPTIMIZER.value
#: Components whose storages a run can name; the run has no such component if it names none.
_NAMEABLE: Final = tuple(
    component.value
    for component in (Component.WEIGHTS, Component.QUANTIZATION, Component.ADAPTERS,
                      Component.BUFFERS, Component.OPTIMIZER, Component.GRADIENTS, Component.INPUTS)
)  # fmt: skip
#: Phases in which the model does not change.
_OF_STEPS: Final = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN)
#: Names of the bytes that belong to no named storage: the rest of what is allocated.
REST: Final = "activations, loss and temporaries"
NOT_APART: Final = "not told apart"
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
#: What the levels above that of live tensors are of.
_NOT_ON_CPU: Final = {
    "reserved": "an allocator with segments",
    "process": "a context of CUDA",
    "device": "a device with memory of its own",
}


@dataclass(frozen=True)
class RunBytes:
    """The bytes of a phase, a level or a component of a phase; None if they were not estimated, or
    not measured."""

    name: str
    estimated: int | None
    measured: int | None

    PRINTED = ("name", ("estimated_bytes", "estimated"), ("measured_bytes", "measured"))

    @property
    def gap(self) -> float | None:
        return gap_share(self.estimated, self.measured)


def gap_share(estimated: int | None, measured: int | None) -> float | None:
    """Measured minus estimated, as a share of the measured bytes; None if one is unknown."""
    if estimated is None or not measured:
        return None
    return (measured - estimated) / measured


def by_phase(state: RunState) -> tuple[RunBytes, ...]:
    """The most bytes allocated in each phase that was estimated or measured, over all steps.

    The estimate loads weights as they are stored, quantized or not. A run may quantize them in a
    separate phase, which then counts as part of the load.
    """
    phases = state.predicted.phases if state.predicted else ()
    estimated = {phase.name: phase.allocated_bytes for phase in phases}
    most = {p.name: p.most.peak_allocated_bytes for p in state.phases}
    if Phase.LOAD in estimated and QUANTIZE in most:
        most[Phase.LOAD.value] = max(most.pop(QUANTIZE), most.get(Phase.LOAD, 0))
    known = {**estimated, **most}
    names = dict.fromkeys(name for name in (*ORDER, *known) if name in known)
    return tuple(RunBytes(name, estimated.get(name), most.get(name)) for name in names)


def by_component(state: RunState, phase: str, *, peak: bool = False) -> tuple[RunBytes, ...]:
    """What a phase held at its last end or, with `peak`, at its peak over all steps, the largest
    component first; the last row is the rest, which belongs to no named component. Empty unless the
    phase was both estimated and measured. The rows of each side add up to its level. The load is
    compared as in `by_phase`."""
    phases = state.predicted.phases if state.predicted else ()
    mine = next((entry for entry in phases if entry.name == phase), None)
    mark = _mark(state, phase, peak=peak)
    if mine is None or mark is None:
        return ()
    if peak:
        expected = in_named_components(mark.peak_held, mine.peak_held)
        apart, rest = at_peak(mark, expected)
        whole, level = mine.allocated_bytes, mark.peak_allocated_bytes
    else:
        expected = in_named_components(mark.held, mine.held)
        apart, rest = _apart(mark, mark.held, expected)
        whole, level = sum(expected.values()), mark.allocated_bytes
    pairs = {named(name): (expected.get(name, 0), nbytes) for name, nbytes in apart.items()}
    left = whole - sum(e for e, _ in pairs.values()), level - sum(m for _, m in pairs.values())
    rows = [*sorted(pairs.items(), key=lambda pair: -max(pair[1])), (rest, left)]
    return tuple(RunBytes(name, *both) for name, both in rows if any(both))


def _mark(state: RunState, phase: str, *, peak: bool) -> PhaseEnded | None:
    """The last mark of a phase or, with `peak`, the one with the highest peak. For the load it is
    the mark of the load or of the quantization after it, whichever holds more."""
    names = (phase, QUANTIZE) if phase == Phase.LOAD else (phase,)
    marks = [p.most if peak else p.last for p in state.phases if p.name in names]
    return max(marks, key=lambda mark: mark.peak_allocated_bytes, default=None)


def named(component: str) -> str:
    """The name of a component as a part of a difference."""
    return "cuBLAS workspaces" if component == Component.WORKSPACES.value else component


def in_named_components(held: Mapping[str, int], predicted: Mapping[str, int]) -> Mapping[str, int]:
    """The predicted bytes by component, in the components that the run reports (`held`). A run that
    reports no cache counts it among its activations."""
    if _CACHE in held or _CACHE not in predicted:
        return predicted
    others = {name: nbytes for name, nbytes in predicted.items() if name != _CACHE}
    return {**others, _ACTIVATIONS: others.get(_ACTIVATIONS, 0) + predicted[_CACHE]}


def at_peak(mark: PhaseEnded, predicted: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Bytes by component at the peak of a phase, as far as the run reported them; and the name of
    the rest.

    A run that counts tensors reports its components at the peak. CUDA's allocator reports the size
    of the peak but not its parts, so only components count that are the same at the end of the
    phase as at its peak: not gradients and optimizer states in the phases that create or free
    them. `predicted` says which other components there may be.
    """
    if mark.peak_held:
        return _apart(mark, mark.peak_held, predicted)
    if mark.phase not in _OF_STEPS:
        return {}, NOT_APART
    changing = set() if mark.phase in (Phase.FORWARD, Phase.LOSS) else {_GRADIENTS}
    if mark.phase == Phase.OPTIMIZER and mark.step <= 1:
        changing.add(_STATES)
    return _apart(mark, mark.held, predicted, changing)


def _apart(
    mark: PhaseEnded,
    held: Mapping[str, int],
    predicted: Mapping[str, int],
    changing: set[str] | None = None,
) -> tuple[dict[str, int], str]:
    if not held:
        return {}, NOT_APART
    if mark.counted == "tensors":  # each tensor is reported, so there is no rest
        return {name: held.get(name, 0) for name in (*held, *predicted)}, NOT_APART
    changing = changing or set()
    names = (*(n for n in held if n != _ACTIVATIONS), *(n for n in predicted if n in _NAMEABLE))
    apart = {name: held.get(name, 0) for name in names if name not in changing}
    rest = REST
    for name in sorted(changing & {*held, *predicted}):
        rest = f"{name}, {rest}"
    return apart, rest


def steps_needed(state: RunState) -> int:
    """How many whole steps a run takes before it is compared with its estimate. During most of the
    first training step the optimizer has no states yet, and the estimate counts them."""
    return 2 if state.header is not None and state.header.plan.get("method") != "inference" else 1


def too_early(state: RunState) -> bool:
    """Whether there is an estimate but too little of the run to compare with it. A step in which
    the run was stopped or failed does not count, because it was not measured completely."""
    return state.predicted is not None and len(state.steps) < steps_needed(state)


def plan_of(recorded: Mapping[str, Any]) -> RunPlan:
    """The plan of a header, as far as this version knows its fields. A field that another version
    did not record, or recorded with another type, has its default."""
    given: dict[str, Any] = {}
    for name, hint in get_type_hints(RunPlan).items():
        named = any(get_origin(part) is Literal for part in (hint, *get_args(hint)))
        with suppress(CodecError):
            if name in recorded:  # and any text where names are, as later versions have more
                given[name] = from_plain(str if named else hint, recorded[name])
    return RunPlan(**given)


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
    return gap(state.predicted, figures) if state.predicted and state.steps else ()


def gap(predicted: Predicted, figures: Measured) -> tuple[Level, ...]:
    """All levels. The parts of each level add up to its difference; the first part of a level is
    the difference of the level below, and the rest is what the other parts leave."""
    levels = [_allocated(predicted, figures)]
    if "tensors" in (figures.counted, predicted.counted):
        why = "On a CPU bytes of live tensors are counted, and {} does not exist there."
        return *levels, *(Level(n, None, None, (), why.format(w)) for n, w in _NOT_ON_CPU.items())
    paged = bool(predicted.paged_bytes)
    context = figures.early_context_bytes if paged else figures.context_bytes
    parts = {} if context is None else {CONTEXT: context - predicted.context_bytes}
    rest = PAGED if paged else MOMENTS
    if context is None:
        rest = f"{CONTEXT}, {PAGED}" if paged else CONTEXT
    reserved = predicted.peak_reserved_bytes, figures.peak_reserved_bytes
    process = predicted.process_bytes, figures.process_bytes
    # Nothing is predicted for other processes, so the estimate of the device is the process's.
    device = predicted.process_bytes, figures.device_used_bytes
    for name, subject, (estimated, most), own, left in (
        ("reserved", "What is reserved", reserved, {}, SLACK),
        ("process", "What this process uses", process, parts, rest),
        ("device", "What the device uses", device, {}, OTHERS),
    ):
        below = levels[-1]
        if estimated is None or most is None:
            why = f"{subject} is unknown: the driver is missing, or a container hides it."
            levels.append(Level(name, estimated, most, (), why))
        elif below.bytes is None:
            levels.append(_level(name, estimated, most, {}, NOT_APART))
        else:
            chain = f"the {below.name} gap"
            levels.append(_level(name, estimated, most, {chain: below.bytes, **own}, left, chain))
    return tuple(levels)


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
        names = ", ".join(level.name for level in known)
        what = f"At the peak no part of a level ({names}) differs"
        return f"{what} by more than {WORTH:.1%} of the estimate, so you can plan with it."
    level, part = largest
    more = "more" if part.bytes > 0 else "less"
    where = "" if len(known) == 1 else f" at the {level.name} level"
    do = _DO.get(part.name, "Its parts are unknown: a run of two steps or more shows more.")
    if part.name == SLACK and part.bytes < 0:
        do = _LESS_SLACK
    elif part.name.endswith(REST) or part.name in _OF_OPERATIONS:
        do = _COMPUTED_ON_CPU.format(level.phase) if tensors else _COMPUTED
    return (
        f"The largest difference that the estimate does not explain is {part.name}, "
        f"{format_bytes(abs(part.bytes))} {more} than estimated{where}. {do}"
    )


def aligned(state: RunState, curve: PredictedCurve) -> tuple[tuple[float, Moment], ...]:
    """The recent moments that lie on the predicted curve of a step, in the order of time, each
    after its position on the axis of the curve's events. The curve counts events, a run counts
    seconds: a share of the seconds of a phase is taken to be that share of its events. A phase that
    is still running is assumed to take as long as last time; if it has never ended, its moments are
    placed in its middle. A phase that occurs more often in a step than on the curve is placed at
    its last occurrence."""
    usual = {
        (span.phase, span.turn): span.ended - span.begun
        for span in state.spans
        if span.ended is not None
    }
    occurrences: dict[str, list[tuple[int, int]]] = {}
    for name, start, stop in curve.spans:
        occurrences.setdefault(name, []).append((start, stop))
    begun = attrgetter("begun")
    placed = []
    for moment in state.recent:
        before = bisect_right(state.spans, moment.seconds, key=begun)
        span = _span_of(state.spans[:before], moment) if moment.step else None
        if span is not None and (places := occurrences.get(span.phase)):
            start, stop = places[min(span.turn, len(places) - 1)]
            share = _share(span, moment.seconds, usual.get((span.phase, span.turn)))
            placed.append((start + share * (stop - start), moment))
    return tuple(placed)


def _span_of(spans: Sequence[PhaseSpan], moment: Moment) -> PhaseSpan | None:
    """The last of the spans that a moment belongs to. If one phase ends exactly when the next
    begins, the name of the phase decides."""
    for span in reversed(spans):
        if (span.step, span.phase) == (moment.step, moment.phase):
            return span
        if span.step < moment.step:
            return None
    return None


def _share(span: PhaseSpan, seconds: float, usual: float | None) -> float:
    lasts = usual if span.ended is None else span.ended - span.begun
    if not lasts:
        return 0.5 if span.ended is None else 1.0
    return min(1.0, max(0.0, (seconds - span.begun) / lasts))


def summary(state: RunState) -> dict[str, Any]:
    """The `train` object of `qtui train --json` and `qtui replay --json`, of a run that reported at
    least its header: bytes as integers under the keys that scripts rely on, unknown values as None.
    Raises ValueError before that."""
    header = state.header
    if header is None:
        raise ValueError("A run that reported nothing has no summary.")
    figures, phases = measured(state), by_phase(state)
    levels = levels_of(state, figures)
    predicted = header.predicted
    return {
        **printed(header),
        "estimate": None if predicted is None else printed(predicted.memory),
        "estimate_missing": header.why_not or None,
        "warning": (predicted.warning or None) if predicted is not None else None,
        "status": state.status,
        "steps_taken": len(state.steps),
        "measured": printed(figures),
        "phases": [{**printed(phase), "error": printed(phase.gap)} for phase in phases],
        # Of each phase that both sides have, at its peak.
        "components": [
            {"phase": phase.name, **printed(row)}
            for phase in phases
            for row in by_component(state, phase.name, peak=True)
        ],
        "levels": printed(levels),
        "gap": [
            {"level": level.name, "part": part.name, "bytes": part.bytes}
            for level in levels
            for part in level.parts
        ],
        "explanation": explanation(state, levels) or None,
        "adapters": printed(state.adapters),
        "faults": printed(state.faults),
        "log": [message.text for message in state.log],
    }
