"""Does the update reach the weight? How much of a step is lost because the stored weight is too
coarse.

The weight w is a number of its format. The wanted update is delta = -lr·u with u = m^/(sqrt(v^) +
eps), and the stored weight becomes w' = Q(w + delta). The lost share is that of the elements with
delta != 0 and w' = w. The kept share is sum((w'-w)·delta)/sum(delta^2): 1 if all of it arrives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import Job, See
from qtui_core.lab.numerics.rounding import STORAGES, Storage
from qtui_core.lab.numerics.terms import (
    LabTerm,
    check_decay,
    term_rows,
    terms,
    terms_sentence,
)
from qtui_core.lab.numerics.walks import (
    GROWN,
    GrownScales,
    OneWeight,
    codes_sentence,
    grown_chart,
    grown_scales,
    one_weight,
    scales_sentence,
    walks_chart,
)
from qtui_core.lab.results import Cell, Density, Findings, LabColumn, LabLine, Picture
from qtui_core.lab.training.comparison import LabComparison, TrainedComparison, steps_counted
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import Recipe, stored_weights
from qtui_core.lab.training.updates import (
    ENOUGH,
    RATES,
    Sums,
    UpdateShares,
    cures_of,
    enough_from,
    kept_text,
    kept_words,
    reach,
    shares_of,
    too_little,
    wanted_updates,
)

_STORED: Final = ("bf16", "fp16", "e4m3", "int8")
#: The number of cells of the picture, and the ranges of its axes: log2|w| and log2|delta|.
_COLUMNS, _ROWS = 60, 40
_LEFT, _RIGHT, _LOW, _HIGH = -16.0, 1.0, -26.0, -4.0


@dataclass(frozen=True)
class Reach:
    """How much of an update arrives.

    Attributes:
        stored, lr: the format, the learning rate.
        group: "all", or a part of the model.
        lost, kept: shares.
        elements: the number of elements whose wanted update is not zero.
    """

    stored: str
    lr: float
    group: str
    lost: float
    kept: float
    elements: int


@dataclass(frozen=True)
class Updates:
    """What formats keep of the updates after ten batches, and how many weights lie where over |w|
    and |delta|, at one rate; `shares` are of each tensor in the format that it is about."""

    reaches: tuple[Reach, ...]
    counts: tuple[tuple[int, ...], ...]
    shares: tuple[UpdateShares, ...] = ()


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """The updates, the single weight, the terms of the optimizer, and a short run for each way to
    store weights. Raises UsageError for a decay that takes away more than there is."""
    check_decay(settings)
    found = [
        Job("updates", partial(updates, settings, model), Updates, 6),
        Job("one weight", one_weight, tuple[OneWeight, ...], 2),
        Job("scales", grown_scales, GrownScales, 1),
    ]
    if not STORAGES[settings["store"]].whole:
        found.append(Job("terms", partial(terms, settings), tuple[LabTerm, ...], 2))
    recipe = partial(recipe_of, settings["store"])
    names = ("nearest", "stochastic")
    runs = TrainedComparison(settings, model, names, recipe, lambda name: 0.3, before=True, more=0)
    return found + runs.jobs()


def recipe_of(store: str, name: str, seed: int) -> Recipe:
    """Weights that are stored in a format, to nearest or stochastically."""
    drawn = None if name == "nearest" else torch.Generator().manual_seed(1000 + seed)
    return stored_weights(STORAGES[store], drawn)


def updates(settings: Mapping[str, Any], model: str, see: See) -> Updates:
    """Lost and kept shares by format and rate, and at `lr` also by part of the model; those of each
    tensor in the format `store`."""
    subject = subject_of(TASKS["prose"], model, settings["text"])
    lr, store = settings["lr"], settings["store"]
    wanted = wanted_updates(subject, see)
    rates = sorted({1e-3, 3e-4, 1e-4, 1e-5, lr}, reverse=True)
    reaches = []
    for stored in _STORED:
        for rate in rates:
            groups: dict[str, list[Sums]] = {}
            for name, (weight, u) in wanted.items():
                found = reach(STORAGES[stored], weight, -rate * u)
                groups.setdefault("all", []).append(found)
                if rate == lr:
                    groups.setdefault(group_of(name, weight), []).append(found)
            reaches += [_summed(stored, rate, group, parts) for group, parts in groups.items()]
    shares = tuple(shares_of(name, w, w, u, lr, store) for name, (w, u) in wanted.items())
    return Updates(tuple(reaches), _plane(wanted, lr), shares)


def group_of(name: str, weight: torch.Tensor) -> str:
    """The part of a model that a parameter belongs to."""
    if weight.dim() < 2:
        return "norms and biases"
    if "embed" in name:
        return "embedding"
    return "output" if "lm_head" in name else "matrices"


def _summed(stored: str, lr: float, group: str, parts: list[Sums]) -> Reach:
    elements, lost, arrived, wanted = (sum(column) for column in zip(*parts, strict=True))
    shares = lost / (elements or 1), arrived / (wanted or 1)
    return Reach(stored, lr, group, *shares, int(elements))


def _plane(wanted: Mapping[str, tuple[torch.Tensor, torch.Tensor]], lr: float) -> Any:
    """The number of weights in each cell of log2|w| and log2|lr·u|."""
    counts = torch.zeros(_ROWS * _COLUMNS, dtype=torch.int64)
    for weight, u in wanted.values():
        there = (weight != 0) & (u != 0)
        x = torch.log2(weight[there].abs())
        y = torch.log2((lr * u[there]).abs())
        column = ((x - _LEFT) / (_RIGHT - _LEFT) * _COLUMNS).long()
        row = ((y - _LOW) / (_HIGH - _LOW) * _ROWS).long()
        inside = (column >= 0) & (column < _COLUMNS) & (row >= 0) & (row < _ROWS)
        counts += torch.bincount((row * _COLUMNS + column)[inside], minlength=_ROWS * _COLUMNS)
    return tuple(map(tuple, counts.view(_ROWS, _COLUMNS).tolist()))


def threshold(storage: Storage, magnitude: float) -> float:
    """The size below which an update is lost, rounding to nearest, at a weight of this magnitude:
    half of the distance to the next number up, 2^(floor(log2|w|) - p - 1)."""
    assert storage.mantissa_bits is not None
    exponent = max(math.frexp(magnitude)[1] - 1, storage.least_exponent)
    return math.ldexp(1.0, exponent - storage.mantissa_bits - 1)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """The table of shares, the picture of the updates with thresholds, the curves, and a
    sentence."""
    store = settings["store"]
    found: Updates | None = outcomes.get("updates")
    runs = LabComparison(("nearest", "stochastic"), settings["seeds"], outcomes)
    columns: tuple[LabColumn, ...] = (
        LabColumn("stored", "stored as"),
        LabColumn("lr", "lr"),
        LabColumn("part", "part"),
        LabColumn("lost", "lost", "share"),
        LabColumn("kept", "kept", "share"),
        LabColumn("gain", "of fp32's gain", "share"),
        LabColumn("d", "d train", "nats"),
    )
    rows: list[dict[str, Cell]] = [
        {"stored": r.stored, "lr": r.lr, "part": r.group, "lost": r.lost, "kept": r.kept}
        for r in (found.reaches if found else ())
        if r.group == "all" or r.stored == store
    ]
    ran = list(runs.rows())
    rows += [
        {
            "stored": f"{store} {row['recipe']}, {steps_counted(settings)} run",
            "lr": settings["lr"],
            "part": "all",
            "gain": runs.share_of_gain(str(row["recipe"])),
            "d": row["d"],
            "diverged": row["diverged"],
        }
        for row in ran
    ]
    if any(row["diverged"] for row in ran):
        columns = (*columns, LabColumn("diverged", "diverged"))
    pictures: list[Picture] = []
    if found is not None:
        pictures.append(_picture(found, settings["lr"], store))
    pictures += runs.charts(f"weights stored as {store}, lr {settings['lr']:g}")
    if weights := outcomes.get("one weight"):
        pictures.append(walks_chart(weights))
    grown: GrownScales | None = outcomes.get("scales")
    if grown is not None:
        pictures.append(grown_chart(grown))
        rows += [
            {
                "stored": f"int8, scales in {name}, {GROWN[1]} times × {GROWN[0]}",
                "part": "scales",
                "kept": grown.kept(name),
            }
            for name in grown.courses
        ]
    acting: tuple[LabTerm, ...] = outcomes.get("terms", ())
    if acting:
        columns = (*columns, LabColumn("judged", "judged"))
        rows += term_rows(acting, store)
    verdict = "" if found is None else _verdict(settings, found, runs)
    if grown is not None and store == "int8":
        verdict = f"{verdict} {scales_sentence(grown)}".strip()
    notes = [runs.chaotic] if runs.chaotic else []
    if grown is not None:
        notes.append(codes_sentence(grown))
    notes += filter(None, (terms_sentence(acting, store),))
    return Findings(columns, tuple(rows), tuple(pictures), verdict, runs.floor, tuple(notes))


def _verdict(settings: Mapping[str, Any], found: Updates, runs: LabComparison) -> str:
    store, lr = settings["store"], settings["lr"]
    here = next(r for r in found.reaches if (r.stored, r.lr, r.group) == (store, lr, "all"))
    if not lr:
        return "At lr 0 no weight changes, so no update can be lost."
    if not here.elements:
        return "No weight has a gradient here, so no update can be lost."
    name = store.upper()
    said = f"At lr {lr:g} {name} weights keep {kept_text(here.kept)} of each step"
    short = too_little(found.shares)
    if short and here.kept > ENOUGH:
        said += f", but {kept_words(short)}"
    gain = runs.share_of_gain("nearest")
    if broken := runs.broken:
        return f"{said}. {broken}"
    nearest = runs.compared.get("nearest")
    how = None if nearest is None else runs.seen("nearest")
    if nearest is not None and how == "diverged":
        said += f", and the run with these weights diverged, {nearest.diverged}"
    elif nearest is not None and how == "worse" and (gain is None or gain > ENOUGH):
        # The share of a small gain held out says little; the same batches say it.
        said += (
            f", but after {steps_counted(settings)} their training loss is "
            f"{nearest.difference or 0:.2g} nats behind that of fp32"
        )
    elif gain is not None:
        said += f", and {steps_counted(settings)} {_of_gain(gain)}"
    if not short and how not in ("worse", "diverged"):
        return f"{said}: {name} weights are good enough here."
    drawn = runs.share_of_gain("stochastic")
    if drawn is None and "stochastic" in runs.compared:
        drawn = float(runs.seen("stochastic") in ("no difference", "better"))
    said = f"{said}; {cures_of(found.shares, short, store, drawn)} would help."
    if not short:
        return said
    least = enough_from(found.shares)
    rates = f"at no lr up to {RATES[-1]:g}" if least is None else f"from lr {least:.2g} on"
    return f"{said} {name} alone keeps {ENOUGH:.0%} of every tensor {rates}."


def _of_gain(share: float) -> str:
    """What a run has of its twin's gain, which may be nothing, or more than it."""
    if share < 0.005:
        return "kept nothing of what fp32 gained"
    return "gained as much as fp32" if share > 0.995 else f"kept {share:.0%} of what fp32 gained"


def _picture(found: Updates, lr: float, store: str) -> Density:
    lines = []
    for name in dict.fromkeys((store, "bf16")):
        storage = STORAGES[name]
        if storage.mantissa_bits is None or storage.scales != "none":
            continue
        xs = tuple(_LEFT + (_RIGHT - _LEFT) * i / 200 for i in range(200))
        ys = tuple(math.log2(threshold(storage, 2.0**x)) for x in xs)
        lines.append(LabLine(f"{name} loses what is below", ys, xs))
    title = f"updates at lr {lr:g} over the weights they move"
    axes = ("log2 |weight|", "log2 |update|", _LEFT, _RIGHT, _LOW, _HIGH)
    return Density(title, *axes, found.counts, tuple(lines))
