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

from qtui_core.lab.numerics.state_maps import map_named
from qtui_core.lab.results import Findings, LabChart, LabLine, See, findings
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
#: Map -> bytes of an element, without scales.
MAPS: Final = {
    "fp32": 4.0, "bf16": 2.0, "bf16 stochastic": 2.0, "8-bit": 1.0, "fp8": 1.0,
    "fp8 expanded": 1.0, "4-bit": 0.5,
}  # fmt: skip


def ratchets(beta2: float, see: See) -> Findings:
    """v <- map(beta2·v + (1 - beta2)·g²) over the loud and the quiet steps, for each map."""
    steps = LOUD_STEPS + QUIET_STEPS
    courses: dict[str, dict[int, float]] = {}

    def within(step: int, _: int, value: float | None) -> None:
        see(len(courses) * steps + step, len(MAPS) * steps, value)

    for name in MAPS:
        courses[name] = ratchet(name, beta2, LOUD_STEPS, QUIET_STEPS, within)
    return concluded(courses, beta2)


def ratchet(name: str, beta2: float, loud: int, quiet: int, see: See) -> dict[int, float]:
    """The mean of v over the quiet half as one map stores it, at some of the steps and the last."""
    random = torch.Generator().manual_seed(0)
    keep = map_named(name, False, torch.Generator().manual_seed(1))
    v, size = torch.zeros(_ELEMENTS), torch.ones(_ELEMENTS)
    steps = loud + quiet
    every = max(1, steps // _POINTS)
    course: dict[int, float] = {}
    for step in range(1, steps + 1):
        if step == loud + 1:
            size[::2] = _QUIET
        gradient = size * torch.randn(_ELEMENTS, generator=random)
        v = keep(beta2 * v + (1 - beta2) * gradient * gradient)
        if step % every == 0 or step == steps:
            course[step] = float(v[::2].double().mean())
            see(step, steps, course[step])
    return course


def concluded(courses: Mapping[str, Mapping[int, float]], beta2: float) -> Findings:
    """A row for each map with its bytes, v over that of fp32, and what is judged; the courses; and
    which maps do not fall, with what follows in their place."""
    ends = {name: list(course.values())[-1] / _QUIET**2 for name, course in courses.items()}
    exact = ends["fp32"]
    how = {name: _judged(end, exact) for name, end in ends.items()}
    rows = [
        {"states": f"v that falls quiet, {name}", "each": MAPS[name], "against": end / exact,
         "judged": how[name]}
        for name, end in ends.items()
    ]  # fmt: skip
    lines = [
        LabLine(name, tuple(course.values()), tuple(map(float, course)))
        for name, course in courses.items()
    ]
    quiet = (float(LOUD_STEPS), float(LOUD_STEPS + QUIET_STEPS))
    lines.append(LabLine("true", (_QUIET**2, _QUIET**2), quiet, faint=True))
    title = f"v of the half that fell quiet, beta2 {beta2:g}"
    stuck = [name for name, one in how.items() if one == "stuck"]
    falls = [name for name, one in how.items() if one == "falls"]
    if exact * _QUIET**2 > _FALLEN * max(next(iter(courses.values())).values()):
        said = (
            f"fp32 itself has hardly fallen after {QUIET_STEPS:,} quiet steps, so nothing can be "
            f"said of second moments in few bits."
        )
    elif stuck:
        worst = max(stuck, key=ends.__getitem__)
        said = (
            f"a second moment in {phrase(stuck)} rises and does not fall as it should (in {worst} "
            f"steps are {math.sqrt(ends[worst] / exact):.2g} times too small); "
            f"{phrase([f'{name} ({MAPS[name]:g})' for name in falls])} bytes an element "
            f"{'follow' if falls[1:] else 'follows'}."
        )
    else:
        said = f"a second moment falls as it should in {phrase(falls)}."
    chart = LabChart(title, "step", "v", tuple(lines), log_y=True)
    return findings((), rows, [chart], notes=[f"At beta2 {beta2:g} {said}"])


def _judged(ratio: float, exact: float) -> str:
    """By v over its true value and that of fp32."""
    if ratio * _STUCK < exact:
        return "falls too far"
    return "stuck" if ratio > _STUCK * exact else "falls"
