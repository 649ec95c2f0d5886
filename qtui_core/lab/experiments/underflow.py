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
from qtui_core.job import Job
from qtui_core.lab.catalog import STORED
from qtui_core.lab.experiments import survive
from qtui_core.lab.numerics.rounding import STORAGES, Storage
from qtui_core.lab.numerics.walks import check_decay, one_weight, terms
from qtui_core.lab.results import (
    Cell,
    Density,
    Findings,
    LabColumn,
    LabLine,
    LabPart,
    findings,
)
from qtui_core.lab.training.comparison import LabComparison, TrainedComparison, steps_counted
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import Recipe, stored_weights

#: The number of cells of the picture, and the ranges of its axes: log2|w| and log2|delta|.
_COLUMNS, _ROWS = 60, 40
_LEFT, _RIGHT, _LOW, _HIGH = -16.0, 1.0, -26.0, -4.0
COLUMNS: Final = (
    LabColumn("stored", "stored as"),
    LabColumn("lr", "lr"),
    LabColumn("part", "part"),
    LabColumn("lost", "lost", "share"),
    LabColumn("kept", "kept", "share"),
    LabColumn("gain", "of fp32's gain", "share"),
    LabColumn("d", "d train", "nats"),
    LabColumn("diverged", "diverged"),
    LabColumn("judged", "judged"),
)


@dataclass(frozen=True)
class Reach:
    """The shares of an update that are lost and kept in a format at a rate; of `group`, which is
    "all" or a part of the model, with so many elements whose wanted update is not zero."""

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
    shares: tuple[survive.UpdateShares, ...] = ()


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """The updates, the single weight, the terms of the optimizer, and a short run for each way to
    store weights. Raises UsageError for a decay that takes away more than there is."""
    check_decay(settings)
    store = settings["store"]
    parts = [
        LabPart("updates", partial(kept_by, settings, model), Updates, 6),
        LabPart("one weight", one_weight, Findings, 2),
    ]
    if STORAGES[store].mantissa_bits is not None:
        parts.append(LabPart("terms", partial(terms, settings), Findings, 2))
    names, recipe = ("nearest", "stochastic"), partial(recipe_of, store)
    runs = TrainedComparison(settings, model, names, recipe, lambda name: 0.3, before=True, more=0)
    return parts + runs.jobs()


def recipe_of(store: str, name: str, seed: int) -> Recipe:
    """Weights that are stored in a format, to nearest or stochastically."""
    drawn = None if name == "nearest" else torch.Generator().manual_seed(1000 + seed)
    return stored_weights(STORAGES[store], drawn)


def kept_by(settings: Mapping[str, Any], model: str, job: Job) -> Updates:
    """Lost and kept shares by format and rate, and at `lr` also by part of the model; those of each
    tensor in the format `store`."""
    subject = subject_of(TASKS["prose"], model, settings["text"])
    lr, store = settings["lr"], settings["store"]
    wanted = survive.wanted_updates(subject, job)
    reaches = []
    for stored in STORED:
        for rate in sorted({1e-3, 3e-4, 1e-4, 1e-5, lr}, reverse=True):
            groups: dict[str, list[survive.Sums]] = {}
            for name, (weight, u) in wanted.items():
                sums = survive.reach(STORAGES[stored], weight, -rate * u)
                for group in ("all", group_of(name, weight)) if rate == lr else ("all",):
                    groups.setdefault(group, []).append(sums)
            for group, parts in groups.items():
                elements, lost, kept, due = (sum(column) for column in zip(*parts, strict=True))
                lost, kept = lost / (elements or 1), kept / (due or 1)
                reaches.append(Reach(stored, rate, group, lost, kept, int(elements)))
    shares = tuple(survive.shares_of(name, w, w, u, lr, store) for name, (w, u) in wanted.items())
    return Updates(tuple(reaches), _plane(wanted, lr), shares)


def group_of(name: str, weight: torch.Tensor) -> str:
    """The part of a model that a parameter belongs to."""
    if weight.dim() < 2:
        return "norms and biases"
    if "embed" in name:
        return "embedding"
    return "output" if "lm_head" in name else "matrices"


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
    store, lr = settings["store"], settings["lr"]
    updates: Updates | None = outcomes.get("updates")
    runs = LabComparison(("nearest", "stochastic"), settings, outcomes)
    rows: list[dict[str, Cell]] = [
        {"stored": r.stored, "lr": r.lr, "part": r.group, "lost": r.lost, "kept": r.kept}
        for r in (updates.reaches if updates else ())
        if r.group == "all" or r.stored == store
    ]
    rows += [
        {
            "stored": f"{store} {row['recipe']}, {steps_counted(settings)} run",
            "lr": lr,
            "part": "all",
            "gain": runs.share_of_gain(str(row["recipe"])),
            "d": row["d"],
            "diverged": row["diverged"],
        }
        for row in runs.rows()
    ]
    return findings(
        COLUMNS,
        rows,
        [
            None if updates is None else _picture(updates, lr, store),
            runs.chart(f"weights stored as {store}, lr {lr:g}"),
        ],
        ["" if updates is None else _verdict(settings, updates, runs)],
        runs.floor,
        [runs.chaotic],
        spare=("diverged", "judged"),
        parts=map(outcomes.get, ("one weight", "terms")),
    )


def _verdict(settings: Mapping[str, Any], updates: Updates, runs: LabComparison) -> str:
    store, lr = settings["store"], settings["lr"]
    here = next(r for r in updates.reaches if (r.stored, r.lr, r.group) == (store, lr, "all"))
    if not lr:
        return "At lr 0 no weight changes, so no update can be lost."
    if not here.elements:
        return "No weight has a gradient here, so no update can be lost."
    name = store.upper()
    said = f"At lr {lr:g} {name} weights keep {survive.kept_text(here.kept)} of each step"
    short = survive.too_little(updates.shares)
    if short and here.kept > survive.ENOUGH:
        said += f", but {survive.kept_words(short)}"
    if runs.broken:
        return f"{said}. {runs.broken}"
    gain = runs.share_of_gain("nearest")
    nearest = runs.compared.get("nearest")
    how = None if nearest is None else nearest.seen
    if nearest is not None and how == "diverged":
        said += f", and the run with these weights diverged, {nearest.diverged}"
    elif nearest is not None and how == "worse" and (gain is None or gain > survive.ENOUGH):
        # The share of a small gain held out says little; the same batches say it.
        behind = f"training is {nearest.difference or 0:.2g} nats behind that of fp32"
        said += f", but after {steps_counted(settings)} {behind}"
    elif gain is not None:
        kept = "all" if gain > 0.995 else f"{max(gain, 0):.0%}"
        said += f", and {steps_counted(settings)} kept {kept} of what fp32 gained"
    if not short and how not in ("worse", "diverged"):
        return f"{said}: {name} weights are good enough here."
    drawn = runs.share_of_gain("stochastic")
    if drawn is None and (other := runs.compared.get("stochastic")):
        drawn = float(other.seen in ("no difference", "better"))
    said = f"{said}; {survive.cures_of(updates.shares, short, store, drawn)} would help."
    if not short:
        return said
    least = survive.enough_from(updates.shares)
    rates = f"at no lr up to {survive.RATES[-1]:g}" if least is None else f"from lr {least:.2g} on"
    return f"{said} {name} alone keeps {survive.ENOUGH:.0%} of every tensor {rates}."


def _picture(updates: Updates, lr: float, store: str) -> Density:
    lines = []
    for name in dict.fromkeys((store, "bf16")):
        storage = STORAGES[name]
        if storage.mantissa_bits is not None and storage.scales == "none":
            xs = tuple(_LEFT + (_RIGHT - _LEFT) * i / 200 for i in range(200))
            ys = tuple(math.log2(threshold(storage, 2.0**x)) for x in xs)
            lines.append(LabLine(f"{name} loses what is below", ys, xs))
    title = f"updates at lr {lr:g} over the weights they move"
    axes = ("log2 |weight|", "log2 |update|", _LEFT, _RIGHT, _LOW, _HIGH)
    return Density(title, *axes, updates.counts, tuple(lines))
