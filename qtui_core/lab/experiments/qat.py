"""Is quantization-aware training (QAT) better than quantizing after training (PTQ)?

Three held-out losses are measured for each width: PTQ of the model as it is; the control, which is
the model trained for as many steps in float32 and then quantized; and QAT, whose forward passes use
quantized weights. All three quantize alike, with torchao's fake quantizer: symmetric integers by
groups. The floor of a width is how far the control moves if its weights start a millionth away.
"""

from __future__ import annotations

import itertools
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
from qtui_core.job import IDLE, Job
from qtui_core.lab.numerics.products import inner_linears
from qtui_core.lab.results import Cell, Findings, LabBar, LabBars, LabColumn, LabPart, findings
from qtui_core.lab.training.comparison import (
    NULL,
    TWIN,
    TrainedComparison,
    mean,
    seeds_counted,
    steps_counted,
)
from qtui_core.lab.training.recipes import fake_quantized, grouped_linears
from qtui_core.lab.training.tasks import TASKS, LabSubject, held_out_loss, subject_of
from qtui_core.lab.training.twins import FLOORS, Recipe, TrainedRun, apart, null
from qtui_core.quantities import phrase

#: Default learning rates: at these, few bits still learn and many bits are not spoiled.
_RATES: Final = {2: 3e-4, 3: 1e-4}
_RATE: Final = 5e-5
#: Bytes of the scale of a group.
_SCALE: Final = 4
COLUMNS: Final = (
    LabColumn("bits", "bits"),
    LabColumn("lr", "lr"),
    LabColumn("nbytes", "stored", "bytes"),
    LabColumn("ptq", "PTQ as it is", "loss"),
    LabColumn("control", "trained, then PTQ", "loss"),
    LabColumn("qat", "QAT", "loss"),
    LabColumn("d", "QAT − control", "nats"),
    LabColumn("seen", "against the floor"),
    LabColumn("recovered", "of PTQ's loss recovered", "share"),
    LabColumn("diverged", "diverged"),
)


@dataclass(frozen=True)
class Untouched:
    """The held-out losses of the model before any training, nats per token: in float32, and after
    PTQ by width; `weights` are quantized."""

    exact: float
    quantized: Mapping[str, float]
    weights: int


def rate_of(bits: int, settings: Mapping[str, Any]) -> float:
    """The learning rate for a width."""
    given: float | None = settings["lr"]
    return _RATES.get(bits, _RATE) if given is None else given


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """The model as it is; and for each rate and seed a control, a disturbed one, and QAT for each
    of its widths."""
    bits = settings["bits"]
    parts = [LabPart("as it is", partial(as_it_is, settings, model), Untouched, 3 + 3 * len(bits))]
    for rate in dict.fromkeys(rate_of(width, settings) for width in bits):
        widths = [width for width in bits if rate_of(width, settings) == rate]
        parts += TrainedComparison(
            {**settings, "lr": rate},
            model,
            [f"qat {width}" for width in widths],
            lambda name, seed: Recipe(
                lambda net: fake_quantized(net, int(name.split()[1]), settings["group"])
            ),
            lambda name: 0.3,
            task=TASKS["code"],
            twin=partial(control, settings["group"], widths),
            more=4 + 3 * len(widths),
            apart=f" {rate:g}",
        ).jobs()
    return parts


def as_it_is(settings: Mapping[str, Any], model: str, job: Job) -> Untouched:
    """The held-out loss before and after PTQ. Raises as `fake_quantized`."""
    subject, bits = subject_of(TASKS["code"], model, settings["text"]), settings["bits"]
    net = subject.start()
    weights = sum(module.weight.numel() for module in inner_linears(net).values())
    job.at(0, len(bits) + 1)
    exact = held_out_loss(net, subject.held_out)
    if not math.isfinite(exact):
        raise ModelError(
            "The model's loss is not finite before any training, so nothing can be compared; its "
            "weights may hold NaN or infinities."
        )
    return Untouched(exact, _quantized(subject, net, bits, settings["group"], job), weights)


def _quantized(
    subject: LabSubject, net: nn.Module, bits: Sequence[int], group: int, job: Job
) -> dict[str, float]:
    """The held-out losses of a model after PTQ, by width."""
    losses = {}
    for number, width in enumerate(bits, 1):
        job.at(number, len(bits) + 1)
        quantized = fake_quantized(deepcopy(net), width, group)
        losses[str(width)] = held_out_loss(quantized, subject.held_out)
    return losses


def control(group: int, widths: Sequence[int], subject: LabSubject, seed: int, name: str) -> Recipe:
    """A run in float32 with PTQ at its end; its facts are the losses by width."""
    require("QAT", "torchao")  # before minutes of training
    grouped_linears(subject.start(), group)

    def ended(net: Any, optimizer: Any, run: TrainedRun) -> TrainedRun:
        if run.diverged:
            return run
        return replace(run, facts=_quantized(subject, net, widths, group, IDLE))

    return replace(null() if name == NULL else Recipe(), ended=ended)


class _Width:
    """What is known of a width.

    Attributes:
        control, qat: the held-out losses by finished seed; `better` how much less QAT's is.
        floor: of the seed whose disturbed control is farthest; None if none is known yet.
        diverged: which run did, and when; empty if none did.
        nbytes: of the quantized weights, scales included.
        moved: how far training alone moved the held-out loss of fp32, the mean over the seeds.
        ptq: the held-out loss of the model as it is, quantized.
        recovered: the share of PTQ's loss that QAT recovers; None if PTQ loses almost nothing.
        seen: how QAT compares with the control; None if that is not known yet.
    """

    def __init__(self, bits: int, settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> None:
        self.bits, self.rate = bits, rate_of(bits, settings)
        controls, nulls, trained = (
            [outcomes.get(f"{name} {self.rate:g} {seed}") for seed in settings["seeds"]]
            for name in (TWIN, NULL, f"qat {bits}")
        )
        before = [None if run is None else run.facts.get(str(bits)) for run in controls]
        after = [None if run is None else run.held_after for run in trained]
        both = zip(before, after, strict=True)
        self.better = [b - a for b, a in both if a is not None and b is not None]
        self.control = [loss for loss in before if loss is not None]
        self.qat = [loss for loss in after if loss is not None]
        floors = map(apart, controls, nulls, itertools.repeat(str(bits)))
        self.floor = max((floor for floor in floors if floor is not None), default=None)
        self.diverged = ""
        for name, runs in (("QAT", trained), ("training in fp32", controls)):
            if run := next((run for run in runs if run is not None and run.diverged), None):
                self.diverged = f"{name} diverged at step {run.diverged} ({run.first})"
        self.ptq = self.nbytes = self.moved = self.recovered = None
        if (start := outcomes.get("as it is")) is not None:
            group = int(settings["group"])
            self.nbytes = start.weights * bits // 8 + start.weights // group * _SCALE
            held = [run.held_after for run in controls if run is not None]
            self.moved = mean([loss - start.exact for loss in held if loss is not None])
            self.ptq = start.quantized.get(str(bits))
            gap = None if self.ptq is None else self.ptq - start.exact
            if gap is not None and self.qat and self.clears(gap):
                self.recovered = (self.ptq - fmean(self.qat)) / gap
        self.seen: str | None = None
        if self.diverged:
            self.seen = "diverged"
        elif self.better and self.floor is not None:
            one_way = all(d > 0 for d in self.better) or all(d < 0 for d in self.better)
            self.seen = "no difference"
            if one_way and self.clears(abs(fmean(self.better))):
                self.seen = "better" if self.better[0] > 0 else "worse"

    def clears(self, difference: float) -> bool:
        return self.floor is not None and difference > FLOORS * self.floor


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each width, the three losses over the width, and what the control shows."""
    start: Untouched | None = outcomes.get("as it is")
    widths = [_Width(bits, settings, outcomes) for bits in settings["bits"]]
    rows: list[dict[str, Cell]] = [
        {
            "bits": width.bits,
            "lr": width.rate,
            "nbytes": width.nbytes,
            "ptq": width.ptq,
            "control": mean(width.control),
            "qat": mean(width.qat),
            "d": -fmean(width.better) if width.better else None,
            "seen": width.seen,
            "recovered": width.recovered,
            "diverged": width.diverged or None,
        }
        for width in widths
    ]
    moved = {width.rate: width.moved for width in widths if width.moved is not None}
    floors = [width.floor for width in widths if width.floor is not None]
    return findings(
        COLUMNS,
        rows,
        [] if start is None else [_bars(widths, start)],
        [] if start is None else [_verdict(settings, widths)],
        max(floors, default=None),
        (
            f"Training at lr {rate:g} alone moved the held-out loss in fp32 by {by:+.2g}."
            for rate, by in moved.items()
        ),
        spare=("diverged",),
    )


def _bars(widths: Sequence[_Width], start: Untouched) -> LabBars:
    groups = []
    for width in sorted(widths, key=lambda width: width.bits):
        back = width.recovered
        note = "" if back is None else f"QAT recovers {back:.0%} of PTQ's loss"
        losses = {
            "PTQ as it is": [] if width.ptq is None else [width.ptq],
            "trained, then PTQ": width.control,
            "QAT": width.qat,
        }
        bars = []
        for name, some in losses.items():
            if lost := [loss - start.exact for loss in some]:
                low, high = (min(lost), max(lost)) if lost[1:] else (None, None)
                bars.append(LabBar(name, fmean(lost), low, high, note if name == "QAT" else ""))
        if bars:
            groups.append((f"{width.bits} bits", tuple(bars)))
    title = f"held-out nats over fp32's {start.exact:.4f}, a scale a width"
    return LabBars(title, "nats", tuple(groups))


def _verdict(settings: Mapping[str, Any], widths: Sequence[_Width]) -> str:
    known = [width for width in widths if width.seen is not None]
    if not known:
        return ""
    if not settings["lr"] and settings["lr"] is not None:
        return "At lr 0 nothing is learned, so that QAT is PTQ of the model as it is."
    wanted, said = len(settings["seeds"]), []
    done = min((len(w.better) for w in known if not w.diverged), default=wanted)
    for width in known:
        if width.diverged:
            said.append(f"at {width.bits} bits {width.diverged}, so take a lower --lr")
        elif width.seen != "no difference":
            share = width.recovered or 0
            back = f" ({share:.0%} of PTQ's loss back)" if share >= 0.005 else ""
            nats = f"{abs(fmean(width.better)):.2g} nats {width.seen}"
            said.append(f"{nats} at {width.bits} bits{back}")
    if even := [str(width.bits) for width in known if width.seen == "no difference"]:
        said.append(f"no difference at {phrase(even)} bits that this run can see")
    trained = [w for w in known if not w.diverged and w.clears(w.moved or 0.0)]
    spoilt = [
        str(w.bits)
        for w in trained
        if w.ptq is not None and w.clears(min(fmean(w.qat), fmean(w.control)) - w.ptq)
    ]
    ptq = f" At {phrase(spoilt)} bits PTQ of the model as it is stays ahead of both; lower --lr."
    return (
        f"QAT beside equal training and then PTQ, {steps_counted(settings)}, "
        f"{seeds_counted(done, wanted)}: {'; '.join(said)}.{ptq if spoilt else ''}"
    )
