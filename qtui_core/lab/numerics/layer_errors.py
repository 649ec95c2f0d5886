"""Which linear layers should stay in high precision? How much quantizing each one changes the
gradient.

e_l = |g_q(l) - g| / |g| over all parameters, on one batch, where only the three products of linear
layer l are quantized. The squares nearly add up, so leaving a set of layers unquantized saves about
the sum of its e_l². Choosing the set is a knapsack problem in which a layer costs its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import torch

from qtui_core.lab.numerics.products import (
    SCHEMES,
    gradients_of,
    is_head,
    layer_of,
    linears,
    quantized,
    relative,
)
from qtui_core.lab.results import Findings, LabFrontier, Point, See, findings
from qtui_core.lab.training.tasks import TASKS, subject_of

#: The recommended choice of layers reduces the error to this share of that with all layers
#: quantized.
_GOAL: Final = 2 / 3
#: The layers' errors add up if they are within this share of the error of all at once.
_ADDS_UP: Final = 0.1


def layer_errors(text: str | None, model: str, scheme: str, see: See) -> Findings:
    """The errors of one scheme, the head included: a row for each layer, the worst first; the
    frontier with the published rules beside it; and which layers to leave."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    sizes = {name: module.weight.numel() for name, module in linears(net).items()}
    batch = next(subject.batches(0))
    exact, _ = gradients_of(net, batch)
    errors: dict[str, float] = {}

    def error(names: Collection[str]) -> float:
        see(len(errors), len(sizes) + 5, None)
        random = torch.Generator().manual_seed(0)
        with quantized(net, dict.fromkeys(names, SCHEMES[scheme]), random):
            made, _ = gradients_of(net, batch)
        return relative(made, exact)

    def without(left: Collection[str]) -> tuple[float, float]:
        """(The share of the weights in these layers, the error that remains without them.)"""
        share = sum(sizes[name] for name in left) / sum(sizes.values())
        return share, error(sizes.keys() - left)

    for name in sizes:
        errors[name] = error([name])
    rules = {rule: without(left) for rule, left in _rules(list(sizes)).items()}
    line, order = frontier(errors, sizes)
    rows = [
        {"scheme": f"{scheme} in {name} alone", "gradient": off}
        for name, off in sorted(errors.items(), key=lambda one: -one[1])
    ]
    picture = LabFrontier(
        f"error of the gradient under {scheme}, against what is left out",
        "share of the weights in high precision",
        "relative error",
        tuple(line),
        tuple(Point(rule, *place) for rule, place in rules.items()),
    )
    left = recommended(line, order)
    said = _sentence(scheme, error(sizes), line[0][1], left, without(left))
    return findings((), rows, [picture], notes=[said])


def _rules(names: Sequence[str]) -> dict[str, set[str]]:
    """The layers that published rules leave in high precision, by the name of the rule."""
    head = {name for name in names if is_head(name)}
    numbers = [n for name in names if (n := layer_of(name)) is not None]
    found = {"the head": head}
    for which, end in (("first", min), ("last", max)) if numbers else ():
        block = {name for name in names if layer_of(name) == end(numbers)}
        found[f"head and {which} block"] = head | block
    return {rule: left for rule, left in found.items() if left}


def frontier(
    errors: Mapping[str, float], sizes: Mapping[str, int]
) -> tuple[list[tuple[float, float]], list[str]]:
    """The points (share of the weights in high precision, error that remains) if the layers are
    left unquantized one after the other, and the layers in that order: those that remove most error
    per weight come first."""
    order = sorted(errors, key=lambda name: -(errors[name] ** 2) / max(1, sizes[name]))
    left, squares = 0, sum(e * e for e in errors.values())
    line = [(0.0, math.sqrt(squares))]
    for name in order:
        left += sizes[name]
        squares -= errors[name] ** 2
        line.append((left / sum(sizes.values()), math.sqrt(max(0.0, squares))))
    return line, order


def recommended(line: Sequence[tuple[float, float]], order: Sequence[str]) -> Sequence[str]:
    """The fewest layers of a frontier that reduce the error to _GOAL of it."""
    return order[
        : next((i for i, (_, e) in enumerate(line) if e <= _GOAL * line[0][1]), len(order))
    ]


def _sentence(
    scheme: str, whole: float, summed: float, left: Sequence[str], place: tuple[float, float]
) -> str:
    if not whole:
        return f"{scheme} changes no gradient here, so every layer can be quantized."
    if abs(summed / whole - 1) > _ADDS_UP:
        return (
            f"Under {scheme} the layers' errors do not add up here ({summed:.3g} against "
            f"{whole:.3g} all at once), so this run cannot say which to leave."
        )
    names = ", ".join(left) if len(left) <= 3 else f"{len(left)} layers ({left[0]} first)"
    return (
        f"Under {scheme} the gradient is {whole:.2%} off; with {names} in high precision "
        f"({place[0]:.1%} of the weights) it is {place[1]:.2%}."
    )
