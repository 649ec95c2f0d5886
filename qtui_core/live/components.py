"""Which components the bytes allocated at a moment belong to, and what the rest is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qtui_core.live.snapshot import PhaseEnded
from qtui_core.memory.replay.record import Component, Phase

_ACTIVATIONS: Final = Component.ACTIVATIONS.value
_CACHE: Final = Component.CACHE.value
_GRADIENTS: Final = Component.GRADIENTS.value
_STATES: Final = Component.OPTIMIZER.value
_WORKSPACES: Final = Component.WORKSPACES.value

#: Components whose storages a run can name; the run has no such component if it names none.
_NAMEABLE: Final = (
    Component.WEIGHTS.value,
    Component.QUANTIZATION.value,
    Component.ADAPTERS.value,
    Component.BUFFERS.value,
    _STATES,
    _GRADIENTS,
    Component.INPUTS.value,
)
#: Phases in which the model does not change.
_OF_STEPS: Final = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN)

#: Names of the bytes that belong to no named storage: the rest of what is allocated.
REST: Final = "activations, loss and temporaries"
NOT_APART: Final = "not told apart"


def named(component: str) -> str:
    """The name of a component as a part of a difference."""
    return "cuBLAS workspaces" if component == _WORKSPACES else component


def in_named_components(held: Mapping[str, int], predicted: Mapping[str, int]) -> Mapping[str, int]:
    """The predicted bytes by component, in the components that the run reports (`held`). A run that
    reports no cache counts it among its activations."""
    if _CACHE in held or _CACHE not in predicted:
        return predicted
    cache = predicted[_CACHE]
    found = {name: nbytes for name, nbytes in predicted.items() if name != _CACHE}
    return {**found, _ACTIVATIONS: found.get(_ACTIVATIONS, 0) + cache}


def at_peak(mark: PhaseEnded, predicted: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Bytes by component at the peak of a phase, as far as the run reported them; and the name of
    the rest.

    A run that counts tensors reports its components at the peak. CUDA's allocator reports the size
    of the peak but not its parts, so only components count that are the same at the end of the
    phase as at its peak. `predicted` says which other components there may be.
    """
    if mark.peak_held:
        return _apart(mark, mark.peak_held, predicted, frozenset())
    if mark.held and mark.phase in _OF_STEPS:
        return _apart(mark, mark.held, predicted, _changing(mark))
    return {}, NOT_APART


def at_end(mark: PhaseEnded, predicted: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """The same at the end of the phase."""
    return _apart(mark, mark.held, predicted, frozenset()) if mark.held else ({}, NOT_APART)


def _apart(
    mark: PhaseEnded, held: Mapping[str, int], predicted: Mapping[str, int], open_: frozenset[str]
) -> tuple[dict[str, int], str]:
    if mark.counted == "tensors":  # each tensor is reported, so there is no rest
        return {name: held.get(name, 0) for name in (*held, *predicted)}, NOT_APART
    expected = [name for name in predicted if name in _NAMEABLE]
    names = dict.fromkeys((*(n for n in held if n != _ACTIVATIONS), *expected))
    apart = {name: held.get(name, 0) for name in names if name not in open_}
    rest = REST
    for name in sorted(open_ & {*held, *predicted}):
        rest = f"{name}, {rest}"
    return apart, rest


def _changing(mark: PhaseEnded) -> frozenset[str]:
    """Components that differ between the peak of a phase and its end: gradients and optimizer
    states, in the phases that create or free them."""
    changing = set()
    if mark.phase not in (Phase.FORWARD, Phase.LOSS):
        changing.add(_GRADIENTS)
    if mark.phase == Phase.OPTIMIZER and mark.step <= 1:
        changing.add(_STATES)
    return frozenset(changing)
