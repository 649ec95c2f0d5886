"""Can the second moment of an optimizer fall again? If v is stored in few bits and rounded to
nearest, it can rise but not fall where the share 1 - beta2 that a step removes is less than half of
the distance to the next lower code.

At first the gradients are N(0, 1). Then those of one half of the elements become N(0, 0.1²). The
other half shares their blocks and stays as it was, so that the scales do not shrink.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import Job
from qtui_core.lab.numerics import state_maps
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine
from qtui_core.lab.training.twins import See
from qtui_core.quantities import phrase

#: At most; as many as fill whole blocks.
ELEMENTS: Final = 8192
QUIET: Final = 0.1
#: A second moment is stuck if it is this many times too large.
STUCK: Final = 2.0
#: If float32 itself is still above this share of the earlier level, it has hardly fallen.
_FALLEN: Final = 0.5
_POINTS: Final = 120
_SHARED: Final = (
    "Quiet elements lie among loud ones here, in the same blocks; where a whole block falls quiet, "
    "its scale follows, and so does v."
)
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


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """A job for each map and seed."""
    shared = {name: settings[name] for name in ("beta2", "block", "loud", "quiet")}
    steps = settings["loud"] + settings["quiet"]
    return [
        Job(f"{name} {seed}", ratchet, shared | {"name": name, "seed": seed}, Ratchet, steps / 4000)
        for seed in settings["seeds"]
        for name in MAPS
    ]


def map_of(name: str, block: int | None, generator: torch.Generator) -> state_maps.Map:
    """The map of that name, for a second moment, which has no sign. Without a block size the map
    has that of torchao."""
    if name == "fp32":
        return lambda x: x
    if name == "bf16 stochastic":
        return state_maps.stochastic("bf16", generator)
    if name not in state_maps.BLOCKS:
        return state_maps.nearest(name)
    block = block or state_maps.BLOCKS[name]
    if name == "8-bit":
        return state_maps.blockwise(state_maps.dynamic_codes(signed=False), block)
    if name == "4-bit":
        return state_maps.blockwise(state_maps.linear_codes(4), block)
    if name == "fp8":
        return state_maps.fp8_blocks(block)
    return state_maps.fp8_expanded(block)


def ratchet(
    see: See, *, name: str, seed: int, beta2: float, block: int | None, loud: int, quiet: int
) -> Ratchet:
    """v <- map(beta2·v + (1 - beta2)·g²) over the loud and the quiet part, with the block size of
    each map's library if none is given."""
    random = torch.Generator().manual_seed(seed)
    keep = map_of(name, block, torch.Generator().manual_seed(seed + 1))
    count = ELEMENTS if block is None else ELEMENTS // block * block
    v, size = torch.zeros(count), torch.ones(count)
    steps = loud + quiet
    every = max(1, steps // _POINTS)
    at: list[float] = []
    course: list[float] = []
    for step in range(1, steps + 1):
        if step == loud + 1:
            size[::2] = QUIET
        if step % every == 0:
            see(step, steps, course[-1] if course else None)
        gradient = size * torch.randn(count, generator=random)
        v = keep(beta2 * v + (1 - beta2) * gradient * gradient)
        if step % every == 0 or step == steps:
            at.append(float(step))
            course.append(float(v[::2].double().mean()))
    return Ratchet(name, tuple(at), tuple(course), course[-1] / QUIET**2)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each map, the courses on a logarithmic axis, and the maps that cannot fall."""
    found = {
        name: [o for seed in settings["seeds"] if (o := outcomes.get(f"{name} {seed}"))]
        for name in MAPS
    }
    ratios = {name: fmean(o.ratio for o in runs) for name, runs in found.items() if runs}
    exact = ratios.get("fp32")
    rows: list[dict[str, Cell]] = [
        {
            "states": name,
            "nbytes": _nbytes(name),
            "ratio": ratio,
            "against": ratio / exact if exact else None,
            "step": 1 / math.sqrt(ratio) if ratio > 0 else None,
            "judged": None if exact is None else _judged(ratio, exact),
        }
        for name, ratio in ratios.items()
    ]
    columns = (
        LabColumn("states", "second moment in"),
        LabColumn("nbytes", "bytes an element"),
        LabColumn("ratio", "v over the true"),
        LabColumn("against", "v over fp32's"),
        LabColumn("step", "size of the step"),
        LabColumn("judged", "judged"),
    )
    lines = [
        LabLine(
            name,
            tuple(map(fmean, zip(*(o.course for o in runs), strict=True))),
            runs[0].steps,
            low=tuple(map(min, zip(*(o.course for o in runs), strict=True))),
            high=tuple(map(max, zip(*(o.course for o in runs), strict=True))),
        )
        for name, runs in found.items()
        if runs
    ]
    if lines:
        ends = (float(settings["loud"]), float(settings["loud"] + settings["quiet"]))
        lines.append(LabLine("true", (QUIET**2, QUIET**2), ends, faint=True))
    peak = max((max(o.course, default=0.0) for o in found["fp32"]), default=0.0)
    title = f"v of the half that fell quiet, beta2 {settings['beta2']:g}"
    picture = LabChart(title, "step", "v", tuple(lines), log_y=True)
    verdict = "" if exact is None else _verdict(settings, ratios, exact, peak)
    notes = (_SHARED,) if verdict else ()
    return Findings(columns, tuple(rows), (picture,) if lines else (), verdict, notes=notes)


def _judged(ratio: float, exact: float) -> str:
    if ratio * STUCK < exact:
        return "falls too far"
    return "stuck" if ratio > STUCK * exact else "falls"


def _verdict(
    settings: Mapping[str, Any], ratios: Mapping[str, float], exact: float, peak: float
) -> str:
    beta2 = settings["beta2"]
    judged = {n: _judged(r, exact) for n, r in ratios.items() if n != "fp32"}
    stuck = {n: ratios[n] for n, how in judged.items() if how == "stuck"}
    falls = [n for n, how in judged.items() if how == "falls"]
    low = [n for n, how in judged.items() if how == "falls too far"]
    if not judged:
        return ""
    if exact * QUIET**2 > _FALLEN * peak:
        return (
            f"At beta2 {beta2:g} fp32 itself has hardly fallen after {settings['quiet']:,} quiet "
            f"steps, so nothing can be said of the others: take more of them with --quiet, or "
            f"more before them with --loud."
        )
    below = ""
    if low:
        worst = min(low, key=ratios.__getitem__)
        times = math.sqrt(exact / ratios[worst]) if ratios[worst] > 0 else math.inf
        below = (
            f" In {phrase(low)} it falls too far: {f'in {worst} ' if low[1:] else ''}"
            + ("to zero" if math.isinf(times) else f"steps become {times:.2g} times too large")
            + "."
        )
    if not stuck:
        alike = f"{phrase(falls)} {'fall' if falls[1:] else 'falls'}"
        if not low or not falls:
            alike = f"{'no' if low else 'every'} map that was tried falls"
        return f"At beta2 {beta2:g} {alike} as fp32 does.{below}"
    worst = max(stuck, key=stuck.__getitem__)
    # What stands near where it was has not fallen at all; other maps stop on their way.
    unmoved = all(ratio * QUIET**2 > _FALLEN * peak for ratio in stuck.values())
    how = "rises and does not fall" if unmoved else "stops before it is down"
    follow = [f"{n} ({_nbytes(n):g})" for n in falls]
    follow.insert(0, f"fp32 ({_nbytes('fp32'):g} bytes an element)")
    said = (
        f"At beta2 {beta2:g} a second moment in {phrase(list(stuck))} {how}; {phrase(follow)} "
        f"{'follow' if falls else 'follows'}. In {worst} it stays {stuck[worst] / exact:.2g} times "
        f"fp32's, so its steps are {math.sqrt(stuck[worst] / exact):.2g} times too small.{below}"
    )
    if beta2 > 0.95:
        said += " A beta2 of 0.95 may let it fall too, at no byte more: --beta2 0.95 tries it."
    return said


def _nbytes(name: str) -> float:
    return state_maps.BYTES[name.removesuffix(" stochastic")]
