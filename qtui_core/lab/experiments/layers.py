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
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.lab.experiments.survive import layer_of
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.gradients import gradients_of, quantized
from qtui_core.lab.numerics.products import SCHEMES, is_head, linears
from qtui_core.lab.results import Cell, Findings, Heat, LabColumn, LabFrontier, Point
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import See

#: The recommended choice of layers reduces the error to this share of that with all layers
#: quantized.
_GOAL: Final = 2 / 3


@dataclass(frozen=True)
class LabLayerErrors:
    """The relative error of the gradient with each layer alone quantized, and with all of them.

    Attributes:
        names, parameters, errors: one for each linear layer, in the order of the model.
        whole: the error with all layers quantized.
        rules: published rules for the layers to leave unquantized: name -> (share of the weights,
            measured error).
        left: the measured error with the layers of `recommended` left; None in old recordings.
    """

    names: tuple[str, ...]
    parameters: tuple[int, ...]
    errors: tuple[float, ...]
    whole: float
    rules: Mapping[str, tuple[float, float]]
    left: float | None = None


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """One job: a forward and a backward pass for each layer."""
    arguments = {"model": model, "text": settings["text"], "scheme": settings["scheme"]}
    return [Job("layers", layers, arguments, LabLayerErrors, 15)]


def layers(see: See, *, model: str, text: str | None, scheme: str) -> LabLayerErrors:
    """The errors of one scheme. Raises ModelError for a model without linear layers."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    found = linears(net)
    if not found:
        raise ModelError("The model has no linear layers (nn.Linear).")
    batch = next(subject.batches(0))
    exact, _ = gradients_of(net, batch)
    norm = float(exact.double().norm())
    products = SCHEMES[scheme]

    def error(names: Sequence[str]) -> float:
        random = torch.Generator().manual_seed(0)
        with quantized(net, dict.fromkeys(names, products), random):
            made, _ = gradients_of(net, batch)
        return float((made - exact).double().norm()) / norm if norm else 0.0

    names = list(found)
    errors: list[float] = []
    for number, name in enumerate(names):
        see(number, len(names) + 5, errors[-1] if errors else None)
        errors.append(error([name]))
    parameters = {name: module.weight.numel() for name, module in found.items()}
    whole = sum(parameters.values())
    rules = {}
    for rule, left in _rules(names).items():
        see(len(names), len(names) + 5, None)
        share = sum(parameters[name] for name in left) / whole
        rules[rule] = (share, error([name for name in names if name not in left]))
    alone = LabLayerErrors(
        tuple(names), tuple(parameters.values()), tuple(errors), error(names), rules
    )
    kept = set(recommended(alone)[0])
    return replace(alone, left=error([name for name in names if name not in kept]))


def _rules(names: Sequence[str]) -> dict[str, set[str]]:
    """The layers that published rules leave in high precision, by the name of the rule."""
    head = {name for name in names if is_head(name)}
    numbers = [n for name in names if (n := layer_of(name)) is not None]
    if not numbers:
        return {"the head": head} if head else {}
    first = {name for name in names if layer_of(name) == min(numbers)}
    last = {name for name in names if layer_of(name) == max(numbers)}
    found = {
        "the head": head,
        "head and first block": head | first,
        "head and last block": head | last,
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


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each layer, the frontier with the published rules beside it, and which layers to
    leave unquantized."""
    found: LabLayerErrors | None = outcomes.get("layers")
    if found is None:
        return Findings((), ())
    columns = (
        LabColumn("layer", "linear layer"),
        LabColumn("parameters", "parameters"),
        LabColumn("error", "error of the gradient"),
        LabColumn("share", "of all error²", "share"),
        LabColumn("rank", "leave as number"),
    )
    line, order = frontier(found)
    squares = sum(e * e for e in found.errors) or 1.0
    rank = {name: number for number, name in enumerate(order, 1)}
    rows: list[dict[str, Cell]] = [
        {
            "layer": name,
            "parameters": count,
            "error": error,
            "share": error * error / squares,
            "rank": rank[name],
        }
        for name, count, error in sorted(
            zip(found.names, found.parameters, found.errors, strict=True),
            key=lambda layer: rank[layer[0]],
        )
    ]
    points = tuple(Point(rule, *place) for rule, place in found.rules.items())
    pictures = (
        LabFrontier(
            f"error of the gradient under {settings['scheme']}, against what is left out",
            "share of the weights in high precision",
            "relative error",
            tuple(line),
            points,
        ),
        _heat(found),
    )
    return Findings(columns, tuple(rows), pictures, _verdict(settings, found))


def _heat(found: LabLayerErrors) -> Heat:
    """Errors by block and kind of layer."""
    blocks = sorted({n for name in found.names if (n := layer_of(name)) is not None})
    kinds = list(dict.fromkeys(name.rpartition(".")[2] for name in found.names))
    places = {
        (layer_of(name), name.rpartition(".")[2]): error
        for name, error in zip(found.names, found.errors, strict=True)
    }
    names: list[int | None] = [*blocks]
    if any(layer_of(name) is None for name in found.names):
        names.append(None)
    return Heat(
        "error of the gradient with one layer quantized",
        tuple("outside" if n is None else f"block {n}" for n in names),
        tuple(kinds),
        tuple(tuple(places.get((n, kind)) for kind in kinds) for n in names),
        "relative error",
        log=True,
    )


def _verdict(settings: Mapping[str, Any], found: LabLayerErrors) -> str:
    scheme = settings["scheme"]
    if not found.whole:
        return f"{scheme} changes no gradient here, so every layer can be quantized."
    summed = math.sqrt(sum(e * e for e in found.errors))
    off = summed / found.whole - 1
    if abs(off) > 0.1:
        return (
            f"Under {scheme} the layers' errors do not add up here ({summed:.3g} against "
            f"{found.whole:.3g} all at once), so this run cannot say which "
            "layers to leave in high precision."
        )
    order, share, predicted = recommended(found)
    names = ", ".join(order) if len(order) <= 3 else f"{len(order)} layers ({order[0]} first)"
    is_or_would = f"would be {predicted:.2%}" if found.left is None else f"is {found.left:.2%}"
    said = (
        f"Under {scheme} the gradient is {found.whole:.2%} off; with {names} in high precision "
        f"({share:.1%} of the weights) it {is_or_would}"
    )
    if found.rules:
        rule, (kept, measured) = min(found.rules.items(), key=lambda item: item[1][1])
        said += f"; the rule “{rule}” leaves {kept:.1%} of them so, and it is {measured:.2%}"
    return f"{said}."
