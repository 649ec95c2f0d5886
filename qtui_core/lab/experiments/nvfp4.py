"""What does each part of the NVFP4 recipe do?

The published recipe (Pretraining Large Language Models with NVFP4, NVIDIA 2025) rounds gradients
stochastically, rotates both operands of dW by a random Hadamard matrix of size 16, gives weights
one scale for each 16 x 16 tile so that W and W' are the same tensor, and leaves the last 15 % of
the blocks in high precision. Each part is measured twice, added to the plain format and removed
from the whole recipe, by the error of ONE product and by the error of the MEAN of many. Either of
these errors alone is misleading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.experiments.matmul import capture, relative
from qtui_core.lab.experiments.survive import layer_of
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.gradients import gradients_of, quantized
from qtui_core.lab.numerics.operands import EXACT, Operand
from qtui_core.lab.numerics.products import Products, QuantizedLinear, convert, inner_linears
from qtui_core.lab.results import Cell, Findings, Heat, LabColumn, Picture
from qtui_core.lab.training.comparison import AGAIN, NULL, TWIN, LabComparison, steps_counted
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import Recipe, See, TrainedRun, null, train
from qtui_core.quantities import phrase

_WHOLE: Final = frozenset({"stochastic", "rotation", "tiles"})
#: The parts of each recipe. "signs" draws new signs of the rotation for each product, while the
#: published recipe draws them once. "high" leaves the last blocks unquantized. "forward" and
#: "backward" quantize only one pass.
RECIPES: Final[dict[str, frozenset[str]]] = {
    "nearest": frozenset(),
    "+stochastic": frozenset({"stochastic"}),
    "+rotation": frozenset({"rotation"}),
    "+tiles": frozenset({"tiles"}),
    "full": _WHOLE,
    "full-stochastic": _WHOLE - {"stochastic"},
    "full-rotation": _WHOLE - {"rotation"},
    "full-tiles": _WHOLE - {"tiles"},
    "full+signs": _WHOLE | {"signs"},
    "full+high": _WHOLE | {"high"},
    "forward": _WHOLE | {"forward"},
    "backward": _WHOLE | {"backward"},
}
#: Recipes whose products differ; the others differ in which products are quantized.
_OF_PRODUCTS: Final = tuple(RECIPES)[:9]
#: The number of products in a mean, and the share of blocks that the recipe leaves unquantized.
DRAWS: Final = 64
_HIGH: Final = 0.15
#: Bytes of an element: a 4-bit code with an 8-bit scale for each 16, and BF16.
_NBYTES: Final = 0.5625
_HIGH_NBYTES: Final = 2.0


@dataclass(frozen=True)
class PartErrors:
    """Relative errors of the products of one layer under one recipe.

    Attributes:
        y, dx, dw: of one product, the mean over the draws.
        dw_mean: of the mean of all draws of dW.
        g, g_mean: as `dw` and `dw_mean`, with only the gradient quantized.
    """

    y: float
    dx: float
    dw: float
    dw_mean: float
    g: float
    g_mean: float


@dataclass(frozen=True)
class LabParts:
    """The layer that was measured, how often each product was drawn, and the errors by recipe."""

    layer: str
    draws: int
    errors: Mapping[str, PartErrors]


@dataclass(frozen=True)
class WholeErrors:
    """The relative error of the gradient over all weights by recipe, on one batch; and the share of
    the linear layers' weights that "full+high" leaves unquantized."""

    errors: Mapping[str, float]
    left: float


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """The products of one layer, the whole gradient, and a run of each recipe for each seed."""
    shared = {"model": model, "text": settings["text"]}
    found = [
        Job("products", products, shared | {"layer": settings["layer"]}, LabParts, 14),
        Job("gradients", whole_gradients, shared, WholeErrors, 12),
    ]
    steps = settings["steps"]
    for seed in settings["seeds"] if steps else ():
        arguments = shared | {"seed": seed, "steps": steps, "lr": settings["lr"]}
        names = [TWIN, NULL, *settings["runs"]]
        # A recipe that rounds at random differs from itself, which gives it a floor of its own.
        names += [f"{name} {AGAIN}" for name in settings["runs"] if _draws(name)]
        for name in names:
            cost = steps * 0.3 if name in (TWIN, NULL) else steps * 0.8 + 8
            run = arguments | {"name": name}
            found.append(Job(f"{name} {seed}", short_run, run, TrainedRun, cost))
    return found


def _draws(name: str) -> bool:
    """Whether a recipe rounds at random."""
    return bool(RECIPES[name] & {"stochastic", "signs"}) and "forward" not in RECIPES[name]


def products_of(name: str) -> Products:
    """The quantized products of a recipe."""
    parts = RECIPES[name]
    x = Operand("e2m1", "nv")
    g = Operand("e2m1", "nv", stochastic="stochastic" in parts)
    w = Operand("e2m1", "nv-tile" if "tiles" in parts else "nv")
    made = Products(x, w, g, w, g, x, turned="rotation" in parts, fresh="signs" in parts)
    for way in ("forward", "backward"):
        if way in parts:
            return made.only(forward=way == "forward")
    return made


def quantized_layers(name: str, layers: list[str]) -> list[str]:
    """The linear layers that a recipe quantizes."""
    numbers = sorted({n for layer in layers if (n := layer_of(layer)) is not None})
    if "high" not in RECIPES[name] or not numbers:
        return layers
    high = set(numbers[-math.ceil(_HIGH * len(numbers)) :])
    return [layer for layer in layers if layer_of(layer) not in high]


def products(see: See, *, model: str, text: str | None, layer: str | None) -> LabParts:
    """The errors of each recipe in one layer. Raises UsageError for a layer that the model does not
    have, ModelError for a model without linear layers."""
    names = inner_linears(subject_of(TASKS["prose"], model, text).start())
    found = layer_chosen(names, layer)
    part = capture(model, text, only=found)[found]
    x, w, g = part.x.double(), part.w.double(), part.g.double()
    exact = x @ w.T, g @ w, g.T @ x
    errors = {}
    for number, name in enumerate(_OF_PRODUCTS):
        see(number, len(_OF_PRODUCTS), None)
        kind, random = products_of(name), torch.Generator().manual_seed(0)
        y = relative(kind.y(part.x, part.w, random), exact[0])
        dx = relative(kind.dx(part.g, part.w, random), exact[1])
        drawn = kind.g_dw.stochastic or kind.fresh
        both = _errors(partial(kind.dw, part.g, part.x, random), exact[2], drawn)
        alone = replace(kind, x_dw=EXACT)
        only = _errors(partial(alone.dw, part.g, part.x, random), exact[2], drawn)
        errors[name] = PartErrors(y, dx, *both, *only)
    return LabParts(found, DRAWS, errors)


def layer_chosen(names: list[str], layer: str | None) -> str:
    """The layer with that name, or whose name ends so; without a name the last layer of the middle
    block."""
    if layer is not None:
        fits = [name for name in names if name == layer or name.endswith(f".{layer}")]
        if not fits:
            raise UsageError(f"The model has no linear layer {layer!r}; its last is {names[-1]!r}.")
        return fits[0]
    numbers = sorted({n for name in names if (n := layer_of(name)) is not None})
    if not numbers:
        return names[len(names) // 2]
    middle = numbers[len(numbers) // 2]
    return [name for name in names if layer_of(name) == middle][-1]


def _errors(
    make: Callable[[], torch.Tensor], exact: torch.Tensor, drawn: bool
) -> tuple[float, float]:
    """The relative error of one product, and that of the mean of DRAWS products."""
    total, ones = torch.zeros_like(exact), []
    for _ in range(DRAWS if drawn else 1):
        made = make().double()
        total += made
        ones.append(relative(made, exact))
    return fmean(ones), relative(total / len(ones), exact)


def whole_gradients(see: See, *, model: str, text: str | None) -> WholeErrors:
    """The error of the whole gradient under each recipe. Raises ModelError for a model without
    linear layers."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    layers = inner_linears(net)
    batch = next(subject.batches(0))
    exact, _ = gradients_of(net, batch)
    errors = {}
    for number, name in enumerate(RECIPES):
        see(number, len(RECIPES), None)
        random = torch.Generator().manual_seed(0)
        chosen = dict.fromkeys(quantized_layers(name, layers), products_of(name))
        with quantized(net, chosen, random):
            errors[name] = relative(gradients_of(net, batch)[0], exact)
    sizes = {layer: net.get_submodule(layer).weight.numel() for layer in layers}
    left = set(layers) - set(quantized_layers("full+high", layers))
    return WholeErrors(errors, sum(sizes[layer] for layer in left) / sum(sizes.values()))


def short_run(
    see: See, *, model: str, text: str | None, name: str, seed: int, steps: int, lr: float
) -> TrainedRun:
    """A run of a recipe, possibly with random numbers of another seed, of its twin, or of the twin
    from weights that differ by a millionth."""
    subject = subject_of(TASKS["prose"], model, text)

    def quantize(net: Any) -> None:
        recipe = name.removesuffix(f" {AGAIN}")
        random = torch.Generator().manual_seed(seed + 1000 * (recipe != name))
        kind = products_of(recipe)
        chosen = quantized_layers(recipe, inner_linears(net))
        convert(net, chosen, lambda linear: QuantizedLinear(linear, kind, random))

    recipe = {TWIN: Recipe, NULL: null}.get(name, lambda: Recipe(prepare=quantize))()
    after = name != NULL and not name.endswith(AGAIN)  # runs for a floor are compared by steps
    return train(subject, recipe, seed=seed, steps=steps, lr=lr, see=see, after=after)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each recipe, its errors as colours, the runs, and what each part does here."""
    parts: LabParts | None = outcomes.get("products")
    whole: WholeErrors | None = outcomes.get("gradients")
    runs = LabComparison(settings["runs"], settings["seeds"], outcomes)
    columns = (
        LabColumn("recipe", "recipe"),
        LabColumn("y", "Y"),
        LabColumn("dx", "dX"),
        LabColumn("dw", "dW, one"),
        LabColumn("dw_mean", f"mean of {DRAWS}"),
        LabColumn("g", "by G alone, one"),
        LabColumn("g_mean", f"mean of {DRAWS}"),
        LabColumn("gradient", "whole gradient"),
        LabColumn("d", "d train", "nats"),
        LabColumn("held_out", "d held out", "nats"),
        LabColumn("seen", "against the floor"),
    )
    trained = {str(row["recipe"]): row for row in runs.rows()}
    rows: list[dict[str, Cell]] = []
    for name in RECIPES:
        row: dict[str, Cell] = {"recipe": name}
        if parts is not None and name in parts.errors:
            row |= vars(parts.errors[name])
        if whole is not None and name in whole.errors:
            row["gradient"] = whole.errors[name]
        if name in trained:
            row |= {key: trained[name][key] for key in ("d", "held_out", "seen")}
        if len(row) > 1:
            rows.append(row)
    pictures: list[Picture] = []
    if parts is not None:
        keys = ("y", "dx", "dw", "dw_mean", "g", "g_mean")
        pictures.append(
            Heat(
                f"errors of the products of {parts.layer}",
                tuple(parts.errors),
                ("Y", "dX", "dW, one", f"dW, mean of {DRAWS}", "G alone, one", f"mean of {DRAWS}"),
                tuple(tuple(vars(e)[key] for key in keys) for e in parts.errors.values()),
                "relative error",
                log=True,
            )
        )
    pictures += runs.charts(f"{steps_counted(settings)} at lr {settings['lr']:g}")
    notes = ["Products are emulated in float32: their error is that of NVFP4, their time is not."]
    if not settings["steps"]:
        notes.append("No run was asked for; --steps runs the recipes beside float32.")
    notes += filter(None, (runs.chaotic,))
    if rows:
        notes += filter(None, (_of_rotation(parts), _of_blocks(whole)))
    # What to do first: a small terminal shows the beginning.
    passes, of_parts = _of_passes(runs), _of_parts(parts)
    if passes:  # both are more than a small terminal shows
        notes.append(of_parts)
    said = (passes, _of_others(runs), "" if passes else of_parts)
    return Findings(
        columns,
        tuple(rows),
        tuple(pictures),
        " ".join(filter(None, said)),
        runs.floor,
        tuple(filter(None, notes)) if rows else (),
    )


def _of_parts(found: LabParts | None) -> str:
    """What each part does to one product, and stochastic rounding to the mean of many."""
    if found is None:
        return ""
    plain, drawn = found.errors["nearest"], found.errors["+stochastic"]
    if not plain.dw:
        return f"NVFP4 changes no product of {found.layer} here."
    parts = {"stochastic": "stochastic", "rotation": "rotated", "tiles": "in tiles"}
    added = [f"{found.errors[f'+{part}'].dw:.3f} {how}" for part, how in parts.items()]
    return (
        f"One dW is {plain.dw:.3f} off, {phrase(added)}; with G alone rounded the mean of "
        f"{found.draws} is {plain.g_mean:.3f} off, stochastic {drawn.g_mean:.3f}."
    )


def _of_rotation(found: LabParts | None) -> str:
    """What rounding the gradient alone and rotating do in the layer that was measured."""
    if found is None or not found.errors["nearest"].dw:
        return ""
    plain, drawn = found.errors["nearest"], found.errors["+stochastic"]
    full, without = found.errors["full"], found.errors["full-rotation"]
    gains = (full.dw < without.dw) + (full.dw_mean < without.dw_mean)
    return (
        f"In {found.layer} rounding the gradient alone makes one dW {plain.g:.3f} off, "
        f"stochastically {drawn.g:.3f}. Rotation takes one dW of the whole recipe from "
        f"{without.dw:.3f} to {full.dw:.3f} and the mean of {found.draws} from "
        f"{without.dw_mean:.3f} to {full.dw_mean:.3f} "
        f"({found.errors['full+signs'].dw_mean:.3f} with new signs for each product): it "
        f"{('does not help', 'helps in one of both', 'helps in both')[gains]}."
    )


def _of_passes(runs: LabComparison) -> str:
    """Which pass, forward or backward, causes the difference in loss."""
    if broken := runs.broken:
        return broken
    forward, backward = (runs.compared.get(name) for name in ("forward", "backward"))
    if forward is None or backward is None or runs.floor is None or runs.chaotic:
        return ""
    for found in (forward, backward):
        if found.diverged:
            return f"With only the {found.name} pass quantized the run diverged, {found.diverged}."
    shown = {
        name: f"{runs.compared[name].difference:+.4f} nats"
        if runs.seen(name) in ("worse", "better")
        else "no visible difference"
        for name in ("forward", "backward")
    }
    ill = [name for name in shown if runs.seen(name) == "worse"]
    if len(ill) != 1:
        return (
            f"Quantized alone, the forward pass shows {shown['forward']}, the backward pass "
            f"{shown['backward']}."
        )
    (name,) = ill
    other = "backward" if name == "forward" else "forward"
    return (
        f"Leave the {name} pass in high precision ({_HIGH_NBYTES - _NBYTES:.2f} bytes more a "
        f"number in BF16): quantized alone it shows {shown[name]}, the {other} pass "
        f"{shown[other]}."
    )


def _of_others(runs: LabComparison) -> str:
    """The loss of recipes that were run and are not of one pass alone."""
    if runs.broken or runs.chaotic or runs.floor is None:
        return ""
    said = []
    for name, found in runs.compared.items():
        if name in ("forward", "backward"):
            continue
        if found.diverged:
            said.append(f"{name} diverged, {found.diverged}")
        elif runs.seen(name) in ("worse", "better"):
            said.append(f"{name} {found.difference:+.4f} nats")
        else:
            said.append(f"{name} no visible difference")
    return f"In training: {'; '.join(said)}." if said else ""


def _of_blocks(whole: WholeErrors | None) -> str:
    """What leaving the last blocks unquantized improves, and its cost."""
    if whole is None or not whole.left or not whole.errors["full"]:
        return ""
    return (
        f"The last blocks in BF16 take the error of the whole gradient from "
        f"{whole.errors['full']:.3f} to {whole.errors['full+high']:.3f}, for "
        f"{_HIGH_NBYTES - _NBYTES:.2f} more bytes for each of {whole.left:.0%} of the weights."
    )
