"""Emulations of how optimizers store their moments in few bits, and whether a second moment that is
stored so can fall again.

Each map takes float32 `[n]` and returns the float32 `[n]` that would be read back. The 8-bit and
4-bit maps are those of torchao.optim 0.18; tests compare them.

If v is rounded to nearest, it can rise but not fall where the share 1 - beta2 that a step removes
is less than half of the distance to the next lower code. At first the gradients are N(0, 1). Then
those of one half of the elements become N(0, 0.1²). The other half shares their blocks and stays as
it was, so that the scales do not shrink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Final

import torch

from qtui_core.job import Job
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.results import Findings, LabChart, LabLine, findings
from qtui_core.quant.codebook import dynamic_map
from qtui_core.quantities import phrase

Map = Callable[[torch.Tensor], torch.Tensor]

#: Elements that share a scale in torchao.optim, by map.
BLOCKS: Final = {"8-bit": 256, "fp8": 256, "4-bit": 128}
_FP8: Final = STORAGES["e4m3"]


@cache
def dynamic_codes(signed: bool, bits: int = 8) -> torch.Tensor:
    """The values of the dynamic map in ascending order: float32 `[2^bits]` in [-1, 1] or [0, 1].

    The number of leading zeros of a code is the power of ten, and the remaining bits divide that
    decade evenly (Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2021). The signed
    one of 8 bits is that of bitsandbytes.
    """
    if signed and bits == 8:
        return torch.from_numpy(dynamic_map().copy())
    exponents = bits - 1
    values = [0.0, 1.0]
    for index in range(exponents):
        edges = torch.linspace(0.1, 1, 2 ** (index + (not signed)) + 1)
        means = ((edges[:-1] + edges[1:]) / 2).tolist()
        decade = 10.0 ** (index - exponents + 1)
        values += [sign * decade * mean for mean in means for sign in ((1, -1) if signed else (1,))]
    return torch.tensor(sorted(values), dtype=torch.float32)


def linear_codes(bits: int = 4) -> torch.Tensor:
    """1/2^bits, 2/2^bits, ..., 1: a map without a zero, for second moments (Li et al., Memory
    Efficient Optimizers with 4-bit States, 2023)."""
    return torch.arange(1, 2**bits + 1) / 2**bits


def nearest_code(codes: torch.Tensor, block: int, x: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest of `codes`, with an absmax for each block. A value half way between two
    codes is rounded up."""
    blocks = x.view(-1, block)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
    limits = ((codes[1:] + codes[:-1]) / 2).to(x.device)
    index = torch.bucketize((blocks / scale).contiguous(), limits, right=True)
    return (codes.to(x.device)[index] * scale).view(x.shape)


def fp8_blocks(block: int, x: torch.Tensor) -> torch.Tensor:
    """E4M3 with a scale of absmax/448 for each block, as AdamWFp8 stores its moments."""
    blocks = x.view(-1, block)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / _FP8.largest
    return _FP8.nearest(blocks, scale).view(x.shape)


def map_named(name: str, signed: bool, random: torch.Generator | None = None) -> Map:
    """The map of that name, for moments with a sign or without, in the blocks of BLOCKS. A map of 4
    bits is linear for numbers without a sign. "bf16 stochastic" draws from `random`."""
    match name:
        case "fp32":
            return lambda x: x
        case "bf16":
            return STORAGES[name].nearest
        case "bf16 stochastic":
            return partial(STORAGES["bf16"].stochastic, generator=random)
        case "fp8":
            return partial(fp8_blocks, BLOCKS[name])
    bits = int(name[0])
    codes = linear_codes(bits) if bits == 4 and not signed else dynamic_codes(signed, bits)
    return partial(nearest_code, codes, BLOCKS[name])


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
    "fp32": 4.0, "bf16": 2.0, "bf16 stochastic": 2.0, "8-bit": 1.0, "fp8": 1.0, "4-bit": 0.5,
}  # fmt: skip


def ratchets(beta2: float, job: Job) -> Findings:
    """v <- map(beta2·v + (1 - beta2)·g²) over the loud and the quiet steps, for each map."""
    steps = LOUD_STEPS + QUIET_STEPS
    courses: dict[str, dict[int, float]] = {}
    within = Job(lambda n, _, v: job.at(len(courses) * steps + n, len(MAPS) * steps, v))
    for name in MAPS:
        courses[name] = ratchet(name, beta2, LOUD_STEPS, QUIET_STEPS, within)
    return concluded(courses, beta2)


def ratchet(name: str, beta2: float, loud: int, quiet: int, job: Job) -> dict[int, float]:
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
            job.at(step, steps, repr(course[step]))
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
