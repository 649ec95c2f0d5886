"""Can the second moment of an optimizer fall again? If v is stored in few bits and rounded to
nearest, it can rise but not fall where the share 1 - beta2 that a step removes is less than half of
the distance to the next lower code.

At first the gradients are N(0, 1). Then those of one half of the elements become N(0, 0.1²). The
other half shares their blocks and stays as it was, so that the scales do not shrink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import See
from qtui_core.lab.numerics import state_maps
from qtui_core.lab.results import Cell, LabChart, LabLine
from qtui_core.quantities import phrase

_ELEMENTS: Final = 8192
_QUIET: Final = 0.1
#: Steps before half of the gradients fall, and after it.
LOUD_STEPS: Final = 300
QUIET_STEPS: Final = 2500
#: A second moment is stuck if it is this many times too large.
_STUCK: Final = 2.0
#: If float32 itself is still above this share of the earlier level, it has hardly fallen.
_FALLEN: Final = 0.5
_POINTS: Final = 120
MAPS: Final = ("fp32", "bf16", "bf16 stochastic", "8-bit", "fp8", "fp8 expanded", "4-bit")


@dataclass(frozen=True)
class Ratchet:
    """v of the quiet half over the steps, as one map stores it.

    Attributes:
        name: of the map.
        steps, course: some of the steps, and the mean of v at each.
        ratio: v at the end over its true value 0.01.
    """

    name: str
    steps: tuple[float, ...]
    course: tuple[float, ...]
    ratio: float


def map_of(name: str, generator: torch.Generator) -> state_maps.Map:
    """The map of that name, for a second moment, which has no sign."""
    if name == "fp32":
        return lambda x: x
    if name == "bf16 stochastic":
        return state_maps.stochastic("bf16", generator)
    return state_maps.map_named(name, signed=False)


def ratchets(beta2: float, see: See) -> tuple[Ratchet, ...]:
    """v <- map(beta2·v + (1 - beta2)·g²) over the loud and the quiet steps, for each map."""
    return tuple(
        ratchet(name, beta2, LOUD_STEPS, QUIET_STEPS, _within(see, number))
        for number, name in enumerate(MAPS)
    )


def _within(see: See, number: int) -> See:
    return lambda step, steps, value: see(number * steps + step, len(MAPS) * steps, value)


def ratchet(name: str, beta2: float, loud: int, quiet: int, see: See) -> Ratchet:
    """The course of one map."""
    random = torch.Generator().manual_seed(0)
    keep = map_of(name, torch.Generator().manual_seed(1))
    v, size = torch.zeros(_ELEMENTS), torch.ones(_ELEMENTS)
    steps = loud + quiet
    every = max(1, steps // _POINTS)
    at: list[float] = []
    course: list[float] = []
    for step in range(1, steps + 1):
        if step == loud + 1:
            size[::2] = _QUIET
        if step % every == 0:
            see(step, steps, course[-1] if course else None)
        gradient = size * torch.randn(_ELEMENTS, generator=random)
        v = keep(beta2 * v + (1 - beta2) * gradient * gradient)
        if step % every == 0 or step == steps:
            at.append(float(step))
            course.append(float(v[::2].double().mean()))
    return Ratchet(name, tuple(at), tuple(course), course[-1] / _QUIET**2)


def ratchet_rows(found: tuple[Ratchet, ...]) -> list[dict[str, Cell]]:
    """A row for each map: its bytes, v over that of fp32, and what is judged."""
    ratios = {one.name: one.ratio for one in found}
    return [
        {"states": f"v that falls quiet, {name}", "each": nbytes_of(name),
         "against": ratio / ratios["fp32"], "judged": judged(ratio, ratios["fp32"])}
        for name, ratio in ratios.items()
    ]  # fmt: skip


def ratchet_chart(found: tuple[Ratchet, ...], beta2: float) -> LabChart:
    """The courses on a logarithmic axis."""
    lines = [LabLine(one.name, one.course, one.steps) for one in found]
    ends = (float(LOUD_STEPS), float(LOUD_STEPS + QUIET_STEPS))
    lines.append(LabLine("true", (_QUIET**2, _QUIET**2), ends, faint=True))
    title = f"v of the half that fell quiet, beta2 {beta2:g}"
    return LabChart(title, "step", "v", tuple(lines), log_y=True)


def judged(ratio: float, exact: float) -> str:
    """ "stuck", "falls" or "falls too far", by v over its true value and that of fp32."""
    if ratio * _STUCK < exact:
        return "falls too far"
    return "stuck" if ratio > _STUCK * exact else "falls"


def ratchet_sentence(found: tuple[Ratchet, ...], beta2: float) -> str:
    """Which maps do not fall, what follows in their place with its bytes, and what it costs."""
    ratios: Mapping[str, float] = {one.name: one.ratio for one in found}
    exact, peak = ratios["fp32"], max(found[0].course)
    if exact * _QUIET**2 > _FALLEN * peak:
        return (
            f"At beta2 {beta2:g} fp32 itself has hardly fallen after {QUIET_STEPS:,} quiet steps, "
            f"so nothing can be said of second moments in few bits."
        )
    how = {name: judged(ratio, exact) for name, ratio in ratios.items()}
    stuck = [name for name, one in how.items() if one == "stuck"]
    falls = [name for name, one in how.items() if one == "falls"]
    if not stuck:
        return f"At beta2 {beta2:g} a second moment falls as it should in {phrase(falls)}."
    worst = max(stuck, key=ratios.__getitem__)
    follow = phrase([f"{name} ({nbytes_of(name):g})" for name in falls])
    times = math.sqrt(ratios[worst] / exact)
    return (
        f"At beta2 {beta2:g} a second moment in {phrase(stuck)} rises and does not fall as it "
        f"should (in {worst} steps are {times:.2g} times too small); {follow} bytes an element "
        f"{'follow' if falls[1:] else 'follows'}."
    )


def nbytes_of(name: str) -> float:
    """Bytes of an element in a map, without scales."""
    return state_maps.BYTES[name.removesuffix(" stochastic")]
