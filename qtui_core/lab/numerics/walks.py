"""Stored numbers that are changed a little many times, and how much of the changes is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import See
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.results import LabChart, LabLine

#: Copies of the single weight, how often each is changed, and the change.
_COPIES, _MOVES, _MOVE = 2000, 1000, 1e-3
#: How the weight is stored.
_WAYS: Final = (
    "bf16",
    "bf16 stochastic",
    "bf16 Kahan",
    "fp16",
    "e4m3",
    "e4m3 stochastic",
    "int8",
    "int8 stochastic",
)
#: The factor by which weights with scales grow, and how many times.
GROWN: Final = (1.0005, 100)
#: Rows and columns of those weights.
_SHAPE: Final = (256, 256)


@dataclass(frozen=True)
class OneWeight:
    """Copies of a weight of 1.0 to which 0.001 is added 1000 times.

    Attributes:
        stored: how the weight is stored.
        mean, std: over the copies, after every 20th addition.
        moved: the share of additions that changed the stored number.
    """

    stored: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    moved: float


@dataclass(frozen=True)
class GrownScales:
    """INT8 weights, with a scale for each row and stochastically rounded codes, that are multiplied
    by the same factor many times.

    Attributes:
        courses: by the format of the scales: the norm after each multiplication, relative to the
            norm at the start.
        moved, moved_after: the share of codes that change if weights are read in BF16 and stored
            again without an update: once, and as often as the weights are multiplied.
    """

    courses: Mapping[str, tuple[float, ...]]
    moved: float
    moved_after: float

    def kept(self, name: str) -> float:
        """The share of the growth that is kept if the scales have this format."""
        factor, times = GROWN
        return (self.courses[name][-1] - 1) / (factor**times - 1)


def one_weight(see: See) -> tuple[OneWeight, ...]:
    """Adds 0.001 to a weight of 1.0 a thousand times in several formats. The int8 weight has a
    scale of 1/32, so that 2 is well within its range. Kahan summation stores the rounding error
    beside the weight, in the same format."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, way in enumerate(_WAYS):
        see(number, len(_WAYS), None)
        name, _, how = way.partition(" ")
        storage = STORAGES[name]
        scale = torch.tensor(1 / 32 if name == "int8" else 1.0)
        weight, rest = torch.ones(_COPIES), torch.zeros(())
        mean, std, moved = [1.0], [0.0], 0
        for move in range(1, _MOVES + 1):
            wanted = weight + (_MOVE + rest)
            after = (
                storage.stochastic(wanted, generator, scale)
                if how == "stochastic"
                else storage.nearest(wanted, scale)
            )
            if how == "Kahan":
                rest = storage.nearest(_MOVE + rest - (after - weight), scale)
            moved += int((after != weight).sum())
            weight = after
            if move % 20 == 0:
                mean.append(float(weight.double().mean()))
                std.append(float(weight.double().std()))
        found.append(OneWeight(way, tuple(mean), tuple(std), moved / (_COPIES * _MOVES)))
    return tuple(found)


def grown_scales(see: See) -> GrownScales:
    """Multiplies int8 weights that are stored as in torchao's quantized_training: codes are
    computed with the exact scale of a row, absmax / 127, and the scale is then rounded to its
    format."""
    factor, times = GROWN
    start = torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0)) * 0.02
    courses = {}
    for name in ("fp32", "bf16"):
        generator = torch.Generator().manual_seed(1)
        codes, scales = _stored(start, name, generator)
        first = float((codes * scales).norm())
        course = [1.0]
        for _ in range(times):
            see(len(course), 3 * times, None)
            codes, scales = _stored(codes * scales * factor, name, generator)
            course.append(float((codes * scales).norm()) / first)
        courses[name] = tuple(course)
    generator = torch.Generator().manual_seed(1)
    codes, scales = _stored(start, "bf16", generator)
    begun, shares = codes, []
    for time in range(times):
        see(2 * times + time, 3 * times, None)
        read = STORAGES["bf16"].nearest(codes * scales)
        codes, scales = _stored(read, "bf16", generator, "bf16")
        shares.append(float((codes != begun).double().mean()))
    return GrownScales(courses, shares[0], shares[-1])


def _stored(
    weight: torch.Tensor, scales: str, generator: torch.Generator, computed: str = "fp32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes `[rows, columns]`, scales `[rows, 1]` in the format `scales`) of `weight` float32
    `[rows, columns]`. Codes are computed with the scales in the format `computed`."""
    scale = STORAGES[computed].nearest(STORAGES["int8"].scale_of(weight))
    codes = STORAGES["int8"].stochastic(weight / scale, generator, torch.ones(()))
    return codes, STORAGES[scales].nearest(scale)


def walks_chart(weights: tuple[OneWeight, ...]) -> LabChart:
    """The means after each 20 additions, with bands of one standard deviation, and the true sum."""
    lines = [LabLine("true", tuple(1 + _MOVE * 20 * i for i in range(51)), faint=True)]
    for w in weights:
        pairs = list(zip(w.mean, w.std, strict=True))
        low, high = tuple(m - s for m, s in pairs), tuple(m + s for m, s in pairs)
        lines.append(LabLine(w.stored, w.mean, low=low, high=high))
    return LabChart("a weight of 1.0, 1000 times +0.001", "moves / 20", "value", tuple(lines))


def grown_chart(found: GrownScales) -> LabChart:
    """The norms after each multiplication, and the true ones."""
    factor, times = GROWN
    lines = [LabLine("true", tuple(factor**i for i in range(times + 1)), faint=True)]
    lines += [LabLine(f"scales in {name}", course) for name, course in found.courses.items()]
    title = f"the norm of int8 weights, {times} times × {factor}"
    return LabChart(title, "times", "norm over the first", tuple(lines))


def scales_sentence(grown: GrownScales) -> str:
    """A sentence: how much of a slow growth is kept, by the format of the scales."""
    return (
        f"Scales are stored too, and rounded to nearest: of a growth of {GROWN[0] - 1:.2%} a step "
        f"scales in BF16 keep {grown.kept('bf16'):.0%}, scales in fp32 (2 more bytes a row) "
        f"{grown.kept('fp32'):.0%}."
    )


def codes_sentence(grown: GrownScales) -> str:
    """A sentence: how many codes change if weights are read and stored again without an update."""
    return (
        f"An int8 weight that is read in BF16 and stored again without an update, codes rounded "
        f"stochastically, has {grown.moved:.1%} other codes, after {GROWN[1]} times "
        f"{grown.moved_after:.0%}: an optimizer that adds in place does so."
    )
