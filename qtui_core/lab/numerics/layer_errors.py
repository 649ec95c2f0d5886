"""Which linear layers should stay in high precision? How much quantizing each one changes the
gradient.

e_l = |g_q(l) - g| / |g| over all parameters, on one batch, where only the three products of linear
layer l are quantized. The squares nearly add up, so leaving a set of layers unquantized saves about
the sum of its e_l². Choosing the set is a knapsack problem in which a layer costs its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import See
from qtui_core.lab.numerics.gradients import gradients_of, quantized, relative
from qtui_core.lab.numerics.products import SCHEMES, is_head, layer_of, linears
from qtui_core.lab.results import LabFrontier, Point
from qtui_core.lab.training.tasks import TASKS, subject_of

#: The recommended choice of layers reduces the error to this share of that with all layers
#: quantized.
_GOAL: Final = 2 / 3
#: The layers' errors add up if they are within this share of the error of all at once.
_ADDS_UP: Final = 0.1


@dataclass(frozen=True)
class LabLayerErrors:
    """The relative error of the gradient with each layer alone quantized, and with all of them.

    Attributes:
        names, parameters, errors: one for each linear layer, in the order of the model.
        whole: the error with all layers quantized.
        rules: published rules for the layers to leave unquantized: name -> (share of the weights,
            measured error).
        left: the measured error with the layers of `recommended` left.
    """

    names: tuple[str, ...]
    parameters: tuple[int, ...]
    errors: tuple[float, ...]
    whole: float
    rules: Mapping[str, tuple[float, float]]
    left: float = 0.0


def layer_errors(text: str | None, model: str, scheme: str, see: See) -> LabLayerErrors:
    """The errors of one scheme, the head included."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    parameters = {name: module.weight.numel() for name, module in linears(net).items()}
    batch = next(subject.batches(0))
    exact, _ = gradients_of(net, batch)

    def error(names: Sequence[str]) -> float:
        random = torch.Generator().manual_seed(0)
        with quantized(net, dict.fromkeys(names, SCHEMES[scheme]), random):
            made, _ = gradients_of(net, batch)
        return relative(made, exact)

    names = list(parameters)
    errors: list[float] = []
    for number, name in enumerate(names):
        see(number, len(names) + 5, errors[-1] if errors else None)
        errors.append(error([name]))
    whole = sum(parameters.values())
    rules = {}
    for rule, left in _rules(names).items():
        see(len(names), len(names) + 5, None)
        share = sum(parameters[name] for name in left) / whole
        rules[rule] = (share, error([name for name in names if name not in left]))
    found = LabLayerErrors(
        tuple(names), tuple(parameters.values()), tuple(errors), error(names), rules
    )
    kept = set(recommended(found)[0])
    return replace(found, left=error([name for name in names if name not in kept]))


def _rules(names: Sequence[str]) -> dict[str, set[str]]:
    """The layers that published rules leave in high precision, by the name of the rule."""
    head = {name for name in names if is_head(name)}
    numbers = [n for name in names if (n := layer_of(name)) is not None]
    found = {"the head": head}
    if numbers:
        found |= {
            f"head and {which} block": head | {name for name in names if layer_of(name) == end}
            for which, end in (("first", min(numbers)), ("last", max(numbers)))
        }
    return {rule: left for rule, left in found.items() if left}


def frontier(found: LabLayerErrors) -> tuple[list[tuple[float, float]], list[str]]:
    """The points (share of the weights in high precision, error that remains) if the layers are
    left unquantized one after the other, and the layers in that order: those that remove most error
    per weight come first."""
    order = sorted(
        range(len(found.names)),
        key=lambda i: -(found.errors[i] ** 2) / max(1, found.parameters[i]),
    )
    whole, left, squares = sum(found.parameters), 0, sum(e * e for e in found.errors)
    line = [(0.0, math.sqrt(squares))]
    for index in order:
        left += found.parameters[index]
        squares -= found.errors[index] ** 2
        line.append((left / whole, math.sqrt(max(0.0, squares))))
    return line, [found.names[index] for index in order]


def recommended(found: LabLayerErrors) -> tuple[list[str], float, float]:
    """(the fewest layers of the frontier that reduce the error to _GOAL of it, their share of the
    weights, the predicted error)."""
    line, order = frontier(found)
    count = next((i for i, (_, e) in enumerate(line) if e <= _GOAL * line[0][1]), len(order))
    return order[:count], *line[count]


def layers_frontier(found: LabLayerErrors, scheme: str) -> LabFrontier:
    """The frontier with the published rules beside it."""
    return LabFrontier(
        f"error of the gradient under {scheme}, against what is left out",
        "share of the weights in high precision",
        "relative error",
        tuple(frontier(found)[0]),
        tuple(Point(rule, *place) for rule, place in found.rules.items()),
    )


def layers_sentence(found: LabLayerErrors, scheme: str) -> str:
    """Which layers to leave in high precision, and what that gains beside the best rule."""
    if not found.whole:
        return f"{scheme} changes no gradient here, so every layer can be quantized."
    summed = math.sqrt(sum(e * e for e in found.errors))
    if abs(summed / found.whole - 1) > _ADDS_UP:
        return (
            f"Under {scheme} the layers' errors do not add up here ({summed:.3g} against "
            f"{found.whole:.3g} all at once), so this run cannot say which to leave."
        )
    order, share, _ = recommended(found)
    names = ", ".join(order) if len(order) <= 3 else f"{len(order)} layers ({order[0]} first)"
    said = (
        f"Under {scheme} the gradient is {found.whole:.2%} off; with {names} in high precision "
        f"({share:.1%} of the weights) it is {found.left:.2%}"
    )
    if found.rules:
        rule, (kept, measured) = min(found.rules.items(), key=lambda item: item[1][1])
        said += f" (“{rule}” leaves {kept:.1%} so: {measured:.2%})"
    return f"{said}."
