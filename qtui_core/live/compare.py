"""Compares the estimate with the measurements, by phase and by component.

All differences have the same sign: measured minus estimated, positive if the run took more. This
includes the parts of a gap (qtui_core.live.gap), the tables, the panels and the key `error` of
JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from qtui_core.dataclass import dataclass
from qtui_core.live.snapshot import PhaseEnded
from qtui_core.live.state import COMPARE, IMPORT, QUANTIZE, RunState
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase

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
    predicted = state.header.predicted if state.header is not None else None
    estimated = {p.name: p.allocated_bytes for p in predicted.phases} if predicted else {}
    most = {p.name: p.most.peak_allocated_bytes for p in state.phases}
    if Phase.LOAD in estimated and QUANTIZE in most:
        most[Phase.LOAD.value] = max(most.pop(QUANTIZE), most.get(Phase.LOAD, 0))
    known = dict.fromkeys((*ORDER, *estimated, *most))
    return tuple(
        RunBytes(name, estimated.get(name), most.get(name))
        for name in known
        if name in estimated or name in most
    )


def by_component(state: RunState, phase: str, *, peak: bool = False) -> tuple[RunBytes, ...]:
    """What a phase held at its last end or, with `peak`, at its peak over all steps, the largest
    component first; the last row is the rest, which belongs to no named component. Empty unless the
    phase was both estimated and measured. The rows of each side add up to its level. The load is
    compared as in `by_phase`."""
    predicted = state.header.predicted if state.header is not None else None
    phases = predicted.phases if predicted is not None else ()
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
    pairs = dict(sorted(pairs.items(), key=lambda pair: -max(pair[1])))
    rows = [*pairs.items(), (rest, left)]
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
    return 2 if state.header is not None and plan_of(state.header.plan).trains else 1


def too_early(state: RunState) -> bool:
    """Whether there is an estimate but too little of the run to compare with it. A step in which
    the run was stopped or failed does not count, because it was not measured completely."""
    predicted = state.header.predicted if state.header is not None else None
    return predicted is not None and len(state.steps) < steps_needed(state)


def plan_of(recorded: Mapping[str, Any]) -> RunPlan:
    """The plan of a header, as far as this version knows its fields. A field that another version
    did not record, or recorded with another type, has its default."""
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value := recorded[name], list) else value
        for name, hint in _hints(RunPlan).items()
        if name in recorded and _is_of(recorded[name], hint)
    }
    return RunPlan(**given)


@cache
def _hints(kind: type[RunPlan]) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a JSON value has the type of a field. Any string counts as a name, since later
    versions may have more names."""
    origin = get_origin(hint)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    if origin is not None:
        return any(_is_of(value, part) for part in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    return type(value) is (NoneType if hint is None else hint)
