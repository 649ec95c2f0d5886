"""Stored numbers that are changed a little many times, and how much of the changes is kept."""

from __future__ import annotations

from typing import Final

import torch

from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.results import Cell, Findings, LabChart, LabLine, See, findings

#: Copies of the single weight, how often each is changed, and the change.
_COPIES, _MOVES, _MOVE = 2000, 1000, 1e-3
#: How the weight is stored.
_WAYS: Final = (
    "bf16", "bf16 stochastic", "bf16 Kahan", "fp16", "e4m3", "e4m3 stochastic", "int8",
    "int8 stochastic",
)  # fmt: skip
#: The factor by which weights with scales grow, and how many times.
GROWN: Final = (1.0005, 100)
#: Rows and columns of those weights.
_SHAPE: Final = (256, 256)


def one_weight(see: See) -> Findings:
    """Adds 0.001 to 2000 copies of a weight of 1.0 a thousand times in several formats: the mean
    after every 20th addition, with a band of one standard deviation. The int8 weight has a scale of
    1/32, so that 2 is well within its range. Kahan summation stores the rounding error beside the
    weight, in the same format."""
    generator = torch.Generator().manual_seed(0)
    lines = [LabLine("true", tuple(1 + _MOVE * 20 * i for i in range(51)), faint=True)]
    for number, way in enumerate(_WAYS):
        see(number, len(_WAYS), None)
        name, _, how = way.partition(" ")
        storage = STORAGES[name]
        drawn = generator if how == "stochastic" else None
        scale = torch.tensor(1 / 32 if name == "int8" else 1.0)
        weight, rest = torch.ones(_COPIES), torch.zeros(())
        course = [(1.0, 0.0)]
        for move in range(1, _MOVES + 1):
            after = storage.rounded(weight + (_MOVE + rest), drawn, scale)
            if how == "Kahan":
                rest = storage.nearest(_MOVE + rest - (after - weight), scale)
            weight = after
            if move % 20 == 0:
                course.append((float(weight.double().mean()), float(weight.double().std())))
        low, high = tuple(m - s for m, s in course), tuple(m + s for m, s in course)
        lines.append(LabLine(way, tuple(mean for mean, _ in course), low=low, high=high))
    chart = LabChart("a weight of 1.0, 1000 times +0.001", "moves / 20", "value", tuple(lines))
    return findings(pictures=[chart])


def grown_scales(store: str, see: See) -> Findings:
    """INT8 weights that are multiplied by the same factor many times, and stored as in torchao's
    quantized_training: codes are computed with the exact scale of a row, absmax / 127, and the
    scale is then rounded to its format. The chart has the norm, over that at the start, by the
    format of the scales."""
    factor, times = GROWN
    lines = [LabLine("true", tuple(factor**i for i in range(times + 1)), faint=True)]
    rows: list[dict[str, Cell]] = []
    kept = {}
    for name in ("fp32", "bf16"):
        generator = torch.Generator().manual_seed(1)
        codes, scales = _stored(_start(), name, generator)
        first = float((codes * scales).norm())
        course = [1.0]
        for _ in range(times):
            see(len(course), 3 * times, None)
            codes, scales = _stored(codes * scales * factor, name, generator)
            course.append(float((codes * scales).norm()) / first)
        lines.append(LabLine(f"scales in {name}", tuple(course)))
        kept[name] = (course[-1] - 1) / (factor**times - 1)
        stored = f"int8, scales in {name}, {times} times × {factor}"
        rows.append({"stored": stored, "part": "scales", "kept": kept[name]})
    once, after = reread(see)
    title = f"the norm of int8 weights, {times} times × {factor}"
    said = (
        f"Scales are stored too, and rounded to nearest: of a growth of {factor - 1:.2%} a step "
        f"scales in BF16 keep {kept['bf16']:.0%}, scales in fp32 (2 more bytes a row) "
        f"{kept['fp32']:.0%}."
    )
    note = (
        f"An int8 weight that is read in BF16 and stored again without an update, codes rounded "
        f"stochastically, has {once:.1%} other codes, after {times} times {after:.0%}: an "
        f"optimizer that adds in place does so."
    )
    chart = LabChart(title, "times", "norm over the first", tuple(lines))
    return findings((), rows, [chart], [said] if store == "int8" else (), notes=[note])


def reread(see: See) -> tuple[float, float]:
    """The share of codes that change if weights are read in BF16 and stored again without an
    update: once, and as often as weights grow."""
    _, times = GROWN
    generator = torch.Generator().manual_seed(1)
    codes, scales = _stored(_start(), "bf16", generator)
    begun, shares = codes, []
    for time in range(times):
        see(2 * times + time, 3 * times, None)
        read = STORAGES["bf16"].nearest(codes * scales)
        codes, scales = _stored(read, "bf16", generator, "bf16")
        shares.append(float((codes != begun).double().mean()))
    return shares[0], shares[-1]


def _start() -> torch.Tensor:
    return torch.randn(_SHAPE, generator=torch.Generator().manual_seed(0)) * 0.02


def _stored(
    weight: torch.Tensor, scales: str, generator: torch.Generator, computed: str = "fp32"
) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes `[rows, columns]`, scales `[rows, 1]` in the format `scales`) of `weight` float32
    `[rows, columns]`. Codes are computed with the scales in the format `computed`."""
    scale = STORAGES[computed].nearest(STORAGES["int8"].scale_of(weight))
    codes = STORAGES["int8"].rounded(weight / scale, generator, torch.ones(()))
    return codes, STORAGES[scales].nearest(scale)
