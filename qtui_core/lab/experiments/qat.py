"""Is quantization-aware training (QAT) better than quantizing after training (PTQ)?

Three held-out losses are measured for each width: PTQ of the model as it is; the control, which is
the model trained for as many steps in float32 and then quantized; and QAT, whose forward passes use
quantized weights. All three quantize alike, with torchao's fake quantizer: symmetric integers by
groups. The floor of a width is how far the control moves if its weights start a millionth away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any, Final

from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.extras import require
from qtui_core.lab.job import Job, See
from qtui_core.lab.numerics.products import inner_linears
from qtui_core.lab.results import Cell, Findings, LabBar, LabBars, LabColumn
from qtui_core.lab.training.comparison import seeds_counted, steps_counted
from qtui_core.lab.training.recipes import fake_quantized, grouped_linears
from qtui_core.lab.training.tasks import TASKS, LabSubject, held_out_loss, subject_of
from qtui_core.lab.training.twins import FLOORS, Recipe, TrainedRun, apart, null, train
from qtui_core.quantities import phrase

#: Default learning rates: at these, few bits still learn and many bits are not spoiled.
_RATES: Final = {2: 3e-4, 3: 1e-4}
_RATE: Final = 5e-5
#: Bytes of the scale of a group.
_SCALE: Final = 4
_STEP: Final = 0.3


@dataclass(frozen=True)
class Untouched:
    """The held-out losses of the model before any training, nats per token.

    Attributes:
        exact: in float32.
        quantized: width -> loss after PTQ.
        weights: how many weights are quantized.
    """

    exact: float
    quantized: Mapping[str, float]
    weights: int


def rate_of(bits: int, settings: Mapping[str, Any]) -> float:
    """The learning rate for a width."""
    given: float | None = settings["lr"]
    return _RATES.get(bits, _RATE) if given is None else given


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """The model as it is; QAT for each width and seed; and a control for each rate and seed, twice
    for the first seed."""
    steps, bits = settings["steps"], settings["bits"]
    cost = 4 + _STEP * steps
    found = [Job("as it is", partial(as_it_is, settings, model), Untouched, 3 + 3 * len(bits))]
    for seed in settings["seeds"]:
        for width in bits:
            run = partial(trained_so, settings, model, width, seed)
            found.append(Job(f"qat {width} {seed}", run, TrainedRun, cost))
        for rate, widths in _widths(settings).items():
            for name in ("control", "null")[: 2 if seed == settings["seeds"][0] else 1]:
                run = partial(control, settings, model, name, rate, seed)
                key = f"{name} {rate:g} {seed}"
                found.append(Job(key, run, TrainedRun, cost + 3 * len(widths)))
    return found


def _widths(settings: Mapping[str, Any]) -> dict[float, tuple[int, ...]]:
    """The widths that are trained at each rate."""
    found: dict[float, tuple[int, ...]] = {}
    for bits in settings["bits"]:
        rate = rate_of(bits, settings)
        found[rate] = (*found.get(rate, ()), bits)
    return found


def _subject(settings: Mapping[str, Any], model: str) -> LabSubject:
    task = replace(TASKS["code"], decays=settings["schedule"] == "linear")
    return subject_of(task, model, settings["text"])


def as_it_is(settings: Mapping[str, Any], model: str, see: See) -> Untouched:
    """The held-out loss before and after PTQ. Raises as `fake_quantized`."""
    subject, bits, group = _subject(settings, model), settings["bits"], settings["group"]
    net = subject.start()
    weights = sum(net.get_submodule(name).weight.numel() for name in inner_linears(net))
    see(0, len(bits) + 1, None)
    exact = held_out_loss(net, subject.held_out)
    if not math.isfinite(exact):
        raise ModelError(
            "The model's loss is not finite before any training, so nothing can be compared; its "
            "weights may hold NaN or infinities."
        )
    return Untouched(exact, _quantized(subject, net, bits, group, see), weights)


def _quantized(
    subject: LabSubject, net: nn.Module, bits: Sequence[int], group: int, see: See
) -> dict[str, float]:
    """The held-out losses of a model after PTQ, by width."""
    found = {}
    for number, width in enumerate(bits, 1):
        see(number, len(bits) + 1, None)
        quantized = fake_quantized(deepcopy(net), width, group)
        found[str(width)] = held_out_loss(quantized, subject.held_out)
    return found


def trained_so(
    settings: Mapping[str, Any], model: str, bits: int, seed: int, see: See
) -> TrainedRun:
    """A run of QAT. Raises as `fake_quantized` does."""
    recipe = Recipe(prepare=lambda net: fake_quantized(net, bits, settings["group"]))
    subject, lr = _subject(settings, model), rate_of(bits, settings)
    return train(subject, recipe, seed=seed, steps=settings["steps"], lr=lr, see=see)


def control(
    settings: Mapping[str, Any], model: str, name: str, lr: float, seed: int, see: See
) -> TrainedRun:
    """A run in float32 with PTQ at its end; its facts are the losses by width."""
    subject, group = _subject(settings, model), settings["group"]
    require("QAT", "torchao")  # before minutes of training
    grouped_linears(subject.start(), group)

    def ended(net: Any, optimizer: Any, run: TrainedRun) -> TrainedRun:
        if run.diverged:
            return run
        bits = _widths(settings)[lr]
        return replace(run, facts=_quantized(subject, net, bits, group, lambda *at: None))

    floor = name == "null"  # of which only the losses by width are used
    recipe = replace(null() if floor else Recipe(), ended=ended)
    steps = settings["steps"]
    return train(subject, recipe, seed=seed, steps=steps, lr=lr, see=see, after=not floor)


@dataclass(frozen=True)
class _Width:
    """What is known of a width: one value for each finished seed."""

    bits: int
    ptq: float | None
    control: tuple[float, ...]
    qat: tuple[float, ...]
    better: tuple[float, ...]
    floor: float | None
    diverged: str = ""

    @property
    def seen(self) -> str | None:
        """How QAT compares with the control; None if that is not known yet."""
        if self.diverged:
            return "diverged"
        if not self.better or self.floor is None:
            return None
        one_way = all(d > 0 for d in self.better) or all(d < 0 for d in self.better)
        if not one_way or abs(fmean(self.better)) <= FLOORS * self.floor:
            return "no difference"
        return "better" if self.better[0] > 0 else "worse"


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each width, the three losses over the width, and what the control shows."""
    start: Untouched | None = outcomes.get("as it is")
    widths = [_width(bits, settings, outcomes, start) for bits in settings["bits"]]
    columns: tuple[LabColumn, ...] = (
        LabColumn("bits", "bits"),
        LabColumn("lr", "lr"),
        LabColumn("nbytes", "stored", "bytes"),
        LabColumn("ptq", "PTQ as it is", "loss"),
        LabColumn("control", "trained, then PTQ", "loss"),
        LabColumn("qat", "QAT", "loss"),
        LabColumn("d", "QAT − control", "nats"),
        LabColumn("seen", "against the floor"),
        LabColumn("recovered", "of PTQ's loss recovered", "share"),
    )
    rows: list[dict[str, Cell]] = [
        {
            "bits": width.bits,
            "lr": rate_of(width.bits, settings),
            "nbytes": None if start is None else _stored(start, width.bits, settings),
            "ptq": width.ptq,
            "control": _mean(width.control),
            "qat": _mean(width.qat),
            "d": -fmean(width.better) if width.better else None,
            "seen": width.seen,
            "recovered": _recovered(width, start),
            "diverged": width.diverged or None,
        }
        for width in widths
    ]
    if any(width.diverged for width in widths):
        columns = (*columns, LabColumn("diverged", "diverged"))
    floors = [width.floor for width in widths if width.floor is not None]
    moved = _moved(settings, outcomes, start)
    notes = tuple(
        f"Training at lr {rate:g} alone moved the held-out loss in fp32 by {by:+.2g}."
        for rate, by in moved.items()
    )
    return Findings(
        columns,
        tuple(rows),
        _pictures(widths, start),
        _verdict(settings, widths, start, moved),
        max(floors, default=None),
        notes,
    )


def _width(
    bits: int, settings: Mapping[str, Any], outcomes: Mapping[str, Any], start: Untouched | None
) -> _Width:
    rate, key = rate_of(bits, settings), str(bits)
    controls, trained, better, diverged = [], [], [], ""
    for seed in settings["seeds"]:
        one, other = outcomes.get(f"control {rate:g} {seed}"), outcomes.get(f"qat {bits} {seed}")
        for name, run in (("QAT", other), ("training in fp32", one)):
            if run is not None and run.diverged:
                diverged = f"{name} diverged at step {run.diverged} ({run.first})"
        before = one.facts.get(key) if one is not None else None
        after = other.held_after if other is not None else None
        controls += [before] if before is not None else []
        trained += [after] if after is not None else []
        if before is not None and after is not None:
            better.append(before - after)
    first = settings["seeds"][0]
    ends = [outcomes.get(f"{name} {rate:g} {first}") for name in ("control", "null")]
    floor = apart(ends[0], ends[1], key)
    ptq = None if start is None else start.quantized.get(key)
    return _Width(bits, ptq, tuple(controls), tuple(trained), tuple(better), floor, diverged)


def _mean(values: tuple[float, ...]) -> float | None:
    return fmean(values) if values else None


def _stored(start: Untouched, bits: int, settings: Mapping[str, Any]) -> int:
    """The bytes of the quantized weights, scales included."""
    return start.weights * bits // 8 + start.weights // int(settings["group"]) * _SCALE


def _recovered(width: _Width, start: Untouched | None) -> float | None:
    """The share of PTQ's loss that QAT recovers; None if PTQ loses almost nothing."""
    if start is None or width.ptq is None or not width.qat or width.floor is None:
        return None
    gap = width.ptq - start.exact
    return (width.ptq - fmean(width.qat)) / gap if gap > FLOORS * width.floor else None


def _moved(
    settings: Mapping[str, Any], outcomes: Mapping[str, Any], start: Untouched | None
) -> dict[float, float]:
    """Rate -> how far training alone moved the held-out loss, the mean over the seeds."""
    found: dict[float, float] = {}
    for rate in _widths(settings) if start is not None else ():
        runs = [outcomes.get(f"control {rate:g} {seed}") for seed in settings["seeds"]]
        held = [run.held_after for run in runs if run is not None and run.held_after is not None]
        if held and start is not None:
            found[rate] = fmean(held) - start.exact
    return found


def _pictures(widths: Sequence[_Width], start: Untouched | None) -> tuple[LabBars, ...]:
    """Three bars a width: what each way loses against float32 as it is."""
    if start is None:
        return ()
    groups = []
    for width in sorted(widths, key=lambda width: width.bits):
        ptq = () if width.ptq is None else (width.ptq,)
        back = _recovered(width, start)
        note = "" if back is None else f"QAT recovers {back:.0%} of PTQ's loss"
        if back is not None and back >= 1:
            note = "QAT ends below fp32 as it was"
        bars = []
        for name, losses in (
            ("PTQ as it is", ptq), ("trained, then PTQ", width.control), ("QAT", width.qat),
        ):  # fmt: skip
            if losses:
                lost = [loss - start.exact for loss in losses]
                low, high = (min(lost), max(lost)) if lost[1:] else (None, None)
                bars.append(LabBar(name, fmean(lost), low, high, note if name == "QAT" else ""))
        if bars:
            groups.append((f"{width.bits} bits", tuple(bars)))
    title = f"held-out nats over fp32's {start.exact:.4f}, a scale a width"
    return (LabBars(title, "nats", tuple(groups)),)


def _verdict(
    settings: Mapping[str, Any],
    widths: Sequence[_Width],
    start: Untouched | None,
    moved: Mapping[float, float],
) -> str:
    known = [width for width in widths if width.seen is not None]
    if start is None or not known:
        return ""
    if not settings["lr"] and settings["lr"] is not None:
        return "At lr 0 nothing is learned, so that QAT is PTQ of the model as it is."
    done = min((len(w.better) for w in known if not w.diverged), default=len(settings["seeds"]))
    seeds = seeds_counted(done, len(settings["seeds"]))
    said = []
    even = [str(width.bits) for width in known if width.seen == "no difference"]
    for width in known:
        if width.diverged:
            said.append(f"at {width.bits} bits {width.diverged}, so take a lower --lr")
            continue
        if width.seen == "no difference":
            continue
        share = _recovered(width, start) or 0
        back = f" ({min(share, 0.99):.0%} of PTQ's loss back)" if share >= 0.005 else ""
        if share >= 1:
            back = " (below fp32 as it was)"
        by = abs(fmean(width.better))
        said.append(f"{by:.2g} nats {width.seen} at {width.bits} bits{back}")
    if even:
        said.append(f"no difference at {phrase(even)} bits that this run can see")
    text = (
        f"QAT beside equal training and then PTQ, {steps_counted(settings)}, {seeds}: "
        f"{'; '.join(said)}."
    )
    return text + _against_ptq(settings, known, moved)


def _against_ptq(
    settings: Mapping[str, Any], known: Sequence[_Width], moved: Mapping[float, float]
) -> str:
    """A warning of widths at which training made the model worse, so that not to train is best."""
    spoilt = [
        width
        for width in known
        if width.ptq is not None
        and width.floor is not None
        and not width.diverged
        and min(fmean(width.qat), fmean(width.control)) - width.ptq > FLOORS * width.floor
        and moved.get(rate_of(width.bits, settings), 0) > FLOORS * width.floor
    ]
    if not spoilt:
        return ""
    bits = phrase([str(width.bits) for width in spoilt])
    cure = "a lower --lr" if settings["schedule"] == "linear" else "--schedule linear"
    return (
        f" At {bits} bits PTQ of the model as it is stays ahead of both, because training alone "
        f"made the model worse; try {cure}."
    )
