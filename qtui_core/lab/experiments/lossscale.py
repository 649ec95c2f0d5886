"""Which loss scale do gradients need, and why does a scale fall?

A gradient below half of the smallest number of its format becomes zero. Multiplying the loss by a
power of two prevents that, but if the power is too large, other gradients overflow. One histogram
of the gradients answers this for every format and every scale. The error of the weight gradient,
and a run under PyTorch's own GradScaler, are measured as well.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.formats.catalog import FORMATS
from qtui_core.formats.magnitudes import HEADROOM, Magnitudes, best_scale, flushed, together
from qtui_core.job import Job
from qtui_core.lab.numerics.exponents import histogram
from qtui_core.lab.numerics.products import (
    Products,
    gradients_of,
    gradients_seen,
    inner_linears,
    is_head,
    linears,
    quantized,
    relative,
)
from qtui_core.lab.numerics.rounding import Operand
from qtui_core.lab.results import (
    Cell,
    Findings,
    LabChart,
    LabColumn,
    LabLine,
    LabPart,
    findings,
)
from qtui_core.lab.training.tasks import TASKS, LabTask, loss_of, subject_of
from qtui_core.lab.training.twins import adamw, gradient_not_finite
from qtui_core.models.opening import DEMO
from qtui_core.quantities import phrase, plural
from qtui_core.training.measuring.ranges import magnitudes

#: Formats of gradients, and the base-2 logarithms of the scales that are tried.
STORED: Final = ("fp16", "e5m2", "e4m3")
SCALES: Final = tuple(range(0, 25, 4))
COLUMNS: Final = (
    LabColumn("what", "gradients in, or GradScaler"),
    LabColumn("scale", "scale", "log2"),
    LabColumn("flushed", "become zero", "share"),
    LabColumn("head", "the head's do", "share"),
    LabColumn("error", "error of dW"),
    LabColumn("best", "recommended", "log2"),
    LabColumn("skipped", "steps left out"),
    LabColumn("ends", "at the end", "log2"),
    LabColumn("cause", "because of"),
)


@dataclass(frozen=True)
class LabGradients:
    """Magnitudes of the gradients of one batch, and the error of the weight gradient.

    Attributes:
        body, head: gradients of the outputs of linear layers.
        weights: gradients of all weights.
        errors: the relative error over all weights, for each format one number per scale in SCALES.
            The gradient that reaches the output of each linear layer, except the head, is rounded
            to the format; what is beyond its largest number becomes that number, as in 8-bit
            recipes.
    """

    body: Magnitudes
    head: Magnitudes
    weights: Magnitudes
    errors: Mapping[str, tuple[float, ...]]

    def best(self, stored: str) -> int | None:
        """The base-2 logarithm of the scale to take; None if all gradients are zero."""
        largest = max(part.largest for part in (self.body, self.head, self.weights))
        return best_scale(stored, largest)


@dataclass(frozen=True)
class ScalerRun:
    """Steps under a GradScaler.

    Attributes:
        scales: the scale before the first step, and after each.
        overflows, upstream: skipped steps whose gradient is finite in float32, so that the scale
            was too large; and those where it is not finite there either.
        first: the first tensor that was not finite then.
        trained: the model that was trained.
    """

    scales: tuple[float, ...]
    overflows: int
    upstream: int
    first: str = ""
    trained: str = ""


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """The histogram with the errors, and a run from each scale."""
    cost = 0.2 * settings["steps"]
    return [
        LabPart("gradients", partial(gradients, settings["text"], model), LabGradients, 14),
        *(
            LabPart(f"from {_power(at)}", partial(scaler_run, settings, model, at), ScalerRun, cost)
            for at in settings["starts"]
        ),
    ]


def _power(scale: float) -> str:
    return f"2^{math.log2(scale):g}" if math.frexp(scale)[0] == 0.5 else f"{scale:g}"


def _log2(scale: float) -> float | None:
    """None for a scale that was halved until float32 has nothing smaller."""
    return math.log2(scale) if scale else None


def gradients(text: str | None, model: str, job: Job) -> LabGradients:
    """The magnitudes and errors of a batch. Raises ModelError for a model without linear layers."""
    subject = subject_of(TASKS["prose"], model, text)
    net, batch = subject.start(), next(subject.batches(0))
    names = inner_linears(net)
    parts: dict[bool, list[Magnitudes]] = {False: [], True: []}

    def seen(name: str, x: torch.Tensor, gradient: torch.Tensor) -> None:
        parts[is_head(name)].append(magnitudes(gradient))

    with gradients_seen(linears(net), seen):
        exact, _ = gradients_of(net, batch)
    errors: dict[str, tuple[float, ...]] = {}
    for number, stored in enumerate(STORED):
        row: list[float] = []
        products = Products(g_dx=Operand(stored), g_dw=Operand(stored))
        with quantized(net, dict.fromkeys(names, products)):
            for power in SCALES:
                job.at(number * len(SCALES) + len(row), len(STORED) * len(SCALES))
                row.append(relative(gradients_of(net, batch, 2.0**power)[0], exact))
        errors[stored] = tuple(row)
    return LabGradients(together(parts[False]), together(parts[True]), magnitudes(exact), errors)


def scaler_run(settings: Mapping[str, Any], model: str, start: float, job: Job) -> ScalerRun:
    """Steps of AdamW under autocast to float16 and torch.amp.GradScaler. They train the model, or
    `nano` in place of the demo, whose steps take long in float16 on a CPU. A skipped step is
    repeated in float32 without a scale, which tells an overflow from a gradient that no scale
    helps."""
    trained, steps = ("nano" if model == DEMO else model), settings["steps"]
    task = LabTask("nano" if model == DEMO else "prose", 4, 64, 1.0, False, ramp=0)
    subject = subject_of(task, model, settings["text"])
    net = subject.fresh(0)
    optimizer = adamw(net, settings["lr"], task.betas)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=settings["interval"])
    batches, scales = subject.batches(0), [start]
    overflows, upstream, first = 0, 0, ""
    for step in range(steps):
        job.at(step, steps, repr(scales[-1]))
        ids = next(batches)
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(net, ids)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(float(scaler.get_scale()))
        optimizer.zero_grad(set_to_none=True)
        if scales[-1] < scales[-2]:
            loss_of(net, ids).backward()
            bad = gradient_not_finite(net)
            overflows, upstream, first = overflows + (not bad), upstream + bool(bad), first or bad
            optimizer.zero_grad(set_to_none=True)
    job.at(steps, steps, repr(scales[-1]))
    return ScalerRun(tuple(scales), overflows, upstream, first, trained)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each format and scale and for each run, the histogram with a bar for each format,
    and which scale to use."""
    seen = outcomes.get("gradients")
    runs = {key: out for key, out in outcomes.items() if isinstance(out, ScalerRun)}
    of_gradients = None if seen is None else _of_gradients(settings["store"], seen)
    return findings(COLUMNS, parts=[of_gradients, _of_runs(runs) if runs else None])


def _of_gradients(store: str, seen: LabGradients) -> Findings:
    rows: list[dict[str, Cell]] = [
        {
            "what": FORMATS[stored].title,
            "scale": power,
            "flushed": flushed(stored, seen.body, power),
            "head": flushed(stored, seen.head, power) if seen.head.there else None,
            "best": seen.best(stored),
            "error": seen.errors[stored][number],
        }
        for stored, (number, power) in itertools.product(STORED, enumerate(SCALES))
    ]
    lines = tuple(
        LabLine(FORMATS[stored].title, row, tuple(map(float, SCALES)))
        for stored, row in seen.errors.items()
    )
    title = "error of the weight gradient over the loss scale"
    pictures = [
        histogram(
            "gradients by their power of two",
            (("of what layers put out", seen.body), ("of weights", seen.weights)),
            ("fp32", "bf16", *STORED),
            float(seen.best(store) or 0),
        ),
        LabChart(title, "log2 of the scale", "relative error", lines, log_y=True),
    ]
    return findings((), rows, pictures, [_needed(store, seen)], notes=_notes(seen))


def _of_runs(runs: Mapping[str, ScalerRun]) -> Findings:
    lines = tuple(LabLine(key, tuple(map(_log2, run.scales))) for key, run in runs.items())
    scales = LabChart("the scale of GradScaler", "step", "log2 of the scale", lines)
    nano = "GradScaler ran on nano, 434,816 parameters made from a seed, instead of the demo."
    rows: list[dict[str, Cell]] = []
    for key, run in runs.items():
        causes = ["overflow at that scale"] if run.overflows else []
        if run.upstream:
            causes.append(f"{run.first} has a gradient that is not finite without a scale")
        rows.append(
            {
                "what": f"GradScaler, {key}",
                "scale": _log2(run.scales[0]),
                "skipped": run.overflows + run.upstream,
                "ends": _log2(run.scales[-1]),
                "cause": "; ".join(causes) or None,
            }
        )
    on_nano = any(run.trained == "nano" for run in runs.values())
    return findings((), rows, [scales], [_fell(runs)], notes=[nano if on_nano else ""])


def _needed(store: str, seen: LabGradients) -> str:
    best, name = seen.best(store), FORMATS[store].title
    if best is None or not seen.body.there:
        return "Every gradient but the head's is zero here, so there is nothing to scale."
    without, scaled = flushed(store, seen.body), flushed(store, seen.body, best)
    if best <= 0 or scaled >= without:
        more = "they are too large for one" if best <= 0 else f"with one of 2^{best} no fewer"
        return f"{name} without a scale makes {without:.2%} of the gradients zero; {more}."
    return (
        f"A loss scale of 2^{best}, at no byte, makes {scaled:.2%} of the gradients zero in {name} "
        f"instead of {without:.2%}, with room for gradients {HEADROOM} times as large."
    )


def _fell(runs: Mapping[str, ScalerRun]) -> str:
    if key := next((key for key, run in runs.items() if run.upstream), None):
        return (
            f"GradScaler {key} skipped {plural(runs[key].upstream, 'step')} because the gradient "
            f"of {runs[key].first} is not finite in float32 without a scale either: no scale "
            f"helps, so look for the cause there."
        )
    if fell := [key for key, run in runs.items() if run.overflows]:
        key = max(fell, key=lambda key: runs[key].overflows)
        *_, before, last = runs[key].scales
        return (
            f"GradScaler {key} skipped {plural(runs[key].overflows, 'step')} on its way to "
            f"{_power(last)}, {'which is normal' if last >= before else 'and did not end there'}."
        )
    return f"GradScaler, {phrase(list(runs))}, skipped no step."


def _notes(seen: LabGradients) -> list[str]:
    (low, better), (high, worse) = sorted(
        (min(seen.errors[name]), FORMATS[name].title) for name in ("e4m3", "e5m2")
    )
    eight = (
        f"With a scale, {better} is the better format of 8 bits ({low:.2%} off; {worse} "
        f"{high:.2%})."
    )
    return [
        eight if low and low != high else "",
        "The rounding of gradients is emulated; what is too large becomes the largest number. "
        "In FP16 it would become infinite, and GradScaler would skip the step.",
    ]
