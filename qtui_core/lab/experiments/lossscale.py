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
from qtui_core.lab.job import Job, See
from qtui_core.lab.numerics.exponents import histogram
from qtui_core.lab.numerics.gradients import gradients_of, gradients_seen, quantized, relative
from qtui_core.lab.numerics.products import Products, inner_linears, is_head, linears
from qtui_core.lab.numerics.rounding import Operand
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine, Picture
from qtui_core.lab.training.scaler import ScalerRun, scaler_run
from qtui_core.lab.training.tasks import TASKS, LabSubject, subject_of
from qtui_core.quantities import phrase
from qtui_core.training.measuring.ranges import magnitudes

#: Formats of gradients, and the base-2 logarithms of the scales that are tried.
STORED: Final = ("fp16", "e5m2", "e4m3")
SCALES: Final = tuple(range(0, 25, 4))
#: A shift of the median gradient is reported if it is at least this many powers of two.
_TELLING: Final = 0.1
#: The larger batch is this many batches together.
_TIMES: Final = 4


@dataclass(frozen=True)
class LabGradients:
    """Magnitudes of the gradients of one batch.

    Attributes:
        outputs: gradients of the output of each linear layer, by its name.
        weights: gradients of all weights.
        larger: as `outputs`, over all layers together, for a batch four times as large.
    """

    outputs: Mapping[str, Magnitudes]
    weights: Magnitudes
    larger: Magnitudes


@dataclass(frozen=True)
class ScaleErrors:
    """The relative error of the gradient over all weights, for each format one number per scale in
    SCALES. The gradient that reaches the output of each linear layer, except the head, is rounded
    to the format."""

    errors: Mapping[str, tuple[float, ...]]


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """The histogram, the errors, a run from each scale, and a run whose gradient is spoilt on
    purpose."""
    steps = settings["steps"]
    runs = {f"from {_power(start)}": (start, False) for start in settings["starts"]}
    return [
        Job("gradients", partial(gradients, settings["text"], model), LabGradients, 4),
        Job("errors", partial(errors, settings["text"], model), ScaleErrors, 10),
        *(
            Job(key, partial(scaler_run, settings, model, *how), ScalerRun, 0.2 * steps)
            for key, how in (runs | {"spoilt": (2.0**16, True)}).items()
        ),
    ]


def _power(scale: float) -> str:
    """A scale as text: as a power of two if it is one."""
    return f"2^{math.log2(scale):g}" if math.frexp(scale)[0] == 0.5 else f"{scale:g}"


def _log2(scale: float) -> float | None:
    """None for a scale that was halved until float32 has nothing smaller."""
    return math.log2(scale) if scale else None


def gradients(text: str | None, model: str, see: See) -> LabGradients:
    """The magnitudes of the gradients of a batch. Raises ModelError for a model without linear
    layers."""
    subject = subject_of(TASKS["prose"], model, text)
    inner_linears(subject.start())
    batches = list(itertools.islice(subject.batches(0), _TIMES))
    see(0, 2, None)
    outputs, weights = _seen(subject, batches[0])
    see(1, 2, None)
    larger, _ = _seen(subject, torch.cat(batches))
    return LabGradients(outputs, weights, together(larger.values()))


def _seen(subject: LabSubject, ids: torch.Tensor) -> tuple[dict[str, Magnitudes], Magnitudes]:
    net = subject.start()
    found: dict[str, list[Magnitudes]] = {}
    with gradients_seen(
        linears(net), lambda name, x, g: found.setdefault(name, []).append(magnitudes(g))
    ):
        whole, _ = gradients_of(net, ids)
    return {name: together(parts) for name, parts in found.items()}, magnitudes(whole)


def errors(text: str | None, model: str, see: See) -> ScaleErrors:
    """The errors by format and scale. Values beyond the largest number of a format become that
    number, as in 8-bit recipes. Raises ModelError for a model without linear layers."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    ids = next(subject.batches(0))
    names = inner_linears(net)
    exact, _ = gradients_of(net, ids)
    found: dict[str, tuple[float, ...]] = {}
    for number, stored in enumerate(STORED):
        products = Products(g_dx=Operand(stored), g_dw=Operand(stored))
        row: list[float] = []
        with quantized(net, dict.fromkeys(names, products)):
            for power in SCALES:
                see(number * len(SCALES) + len(row), len(STORED) * len(SCALES), None)
                made, _ = gradients_of(net, ids, 2.0**power)
                row.append(relative(made, exact))
        found[stored] = tuple(row)
    return ScaleErrors(found)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each format and scale and for each run, the histogram with a bar for each format,
    and which scale to use."""
    seen: LabGradients | None = outcomes.get("gradients")
    measured: ScaleErrors | None = outcomes.get("errors")
    runs = {key: out for key, out in outcomes.items() if isinstance(out, ScalerRun)}
    columns = (
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
    rows = [*_format_rows(seen, measured), *(_run_row(key, run) for key, run in runs.items())]
    pictures: list[Picture] = []
    if seen is not None and (picture := _histogram(settings, seen)) is not None:
        pictures.append(picture)
    if measured is not None:
        lines = tuple(
            LabLine(_title(stored), row, tuple(map(float, SCALES)))
            for stored, row in measured.errors.items()
        )
        title = "error of the weight gradient over the loss scale"
        pictures.append(LabChart(title, "log2 of the scale", "relative error", lines, log_y=True))
    if runs:
        pictures.append(
            LabChart(
                "the scale of GradScaler",
                "step",
                "log2 of the scale",
                tuple(LabLine(key, tuple(map(_log2, run.scales))) for key, run in runs.items()),
            )
        )
    return Findings(
        columns,
        tuple(rows),
        tuple(pictures),
        " ".join(filter(None, (_needed(settings["store"], seen), _fell(runs)))),
        notes=_notes(settings["store"], seen, measured, runs),
    )


def _format_rows(seen: LabGradients | None, measured: ScaleErrors | None) -> list[dict[str, Cell]]:
    if seen is None and measured is None:
        return []
    rows: list[dict[str, Cell]] = []
    for stored, (number, power) in itertools.product(STORED, enumerate(SCALES)):
        row: dict[str, Cell] = {"what": _title(stored), "scale": power}
        if seen is not None:
            body, head = _gradients(seen, False), _gradients(seen, True)
            row["flushed"] = flushed(stored, body, power)
            row["head"] = flushed(stored, head, power) if head.there else None
            row["best"] = best_scale(stored, _largest(seen))
        if measured is not None and stored in measured.errors:
            row["error"] = measured.errors[stored][number]
        rows.append(row)
    return rows


def _run_row(key: str, run: ScalerRun) -> dict[str, Cell]:
    causes = []
    if run.overflows:
        causes.append("overflow at that scale")
    if run.upstream:
        made = ", spoilt on purpose" if run.spoilt else ""
        causes.append(f"{run.first} has a gradient that is not finite without a scale{made}")
    return {
        "what": f"GradScaler, {key}",
        "scale": _log2(run.scales[0]),
        "skipped": run.overflows + run.upstream,
        "ends": _log2(run.scales[-1]),
        "cause": "; ".join(causes) or None,
    }


def _gradients(seen: LabGradients, head: bool) -> Magnitudes:
    return together(found for name, found in seen.outputs.items() if is_head(name) == head)


def _largest(seen: LabGradients) -> float:
    return max(seen.weights.largest, together(seen.outputs.values()).largest)


def _histogram(settings: Mapping[str, Any], seen: LabGradients) -> Picture | None:
    best = best_scale(settings["store"], _largest(seen))
    return histogram(
        "gradients by their power of two",
        (("of what layers put out", _gradients(seen, False)), ("of weights", seen.weights)),
        ("fp32", "bf16", *STORED),
        float(best or 0),
    )


def _title(stored: str) -> str:
    return FORMATS[stored].title


def _needed(store: str, seen: LabGradients | None) -> str:
    """Which scale to use, and what it improves."""
    if seen is None:
        return ""
    body, name = _gradients(seen, False), _title(store)
    best = best_scale(store, _largest(seen))
    if best is None:
        return "Every gradient is zero here, so there is nothing to scale."
    if not body.there:
        return "No layer but the head has a gradient here, so there is nothing to scale."
    without = f"{flushed(store, body):.2%}"
    if best <= 0:
        return (
            f"{name} without a scale makes {without} of the gradients zero; they are too large for "
            f"a scale above 2^{best}."
        )
    if flushed(store, body, best) >= flushed(store, body):
        return (
            f"{name} makes {without} of the gradients zero without a loss scale, and no fewer with "
            f"one of 2^{best}."
        )
    return (
        f"A loss scale of 2^{best}, at no byte, makes {flushed(store, body, best):.2%} of "
        f"the gradients zero in {name} instead of {without}, with room for gradients {HEADROOM} "
        f"times as large."
    )


def _fell(runs: Mapping[str, ScalerRun]) -> str:
    """Why the scale fell in the runs."""
    said = []
    own = {key: run for key, run in runs.items() if not run.spoilt}
    ill = {key: run for key, run in own.items() if run.upstream}
    if ill:
        key, run = next(iter(ill.items()))
        said.append(
            f"GradScaler {key} skipped {_steps(run.upstream)} because the gradient of {run.first} "
            f"is not finite in float32 without a scale either: no scale "
            f"helps, so look for the cause there."
        )
    if own and not any(run.overflows or run.upstream for run in own.values()):
        said.append(f"GradScaler, {phrase(list(own))}, skipped no step.")
    fell = {key: run for key, run in own.items() if run.overflows and not run.upstream}
    if fell:
        key, run = max(fell.items(), key=lambda item: item[1].overflows)
        settled = run.scales[-1] >= run.scales[-2]
        end = "which is normal" if settled else "and did not end there"
        said.append(
            f"GradScaler {key} skipped {_steps(run.overflows)} on its way to "
            f"{_power(run.scales[-1])}, {end}."
        )
    spoilt = next((run for run in runs.values() if run.spoilt and run.upstream), None)
    if spoilt is not None:
        said.append(
            f"A scale that never stops falling (here to {_power(spoilt.scales[-1])}, on purpose) "
            f"means NaN in the model."
        )
    return " ".join(said)


def _of_errors(store: str, measured: ScaleErrors) -> list[str]:
    """How far off the weight gradient is, and which 8-bit format suits gradients better, each at
    its best scale."""
    said = []
    known = dict(zip(SCALES, measured.errors[store], strict=True))
    power = min(known, key=known.__getitem__)
    if known[power]:
        said.append(
            f"The weight gradient is {known[0]:.2%} off in {_title(store)} without a scale, least "
            f"at 2^{power} of all scales tried ({known[power]:.2%})."
        )
    e4, e5 = (min(measured.errors[name]) for name in ("e4m3", "e5m2"))
    if min(e4, e5) and e4 != e5:
        better, worse = ("E4M3", "E5M2") if e4 < e5 else ("E5M2", "E4M3")
        said.append(
            f"With a scale, {better} is the better format of 8 bits ({min(e4, e5):.2%} off; "
            f"{worse} {max(e4, e5):.2%})."
        )
    return said


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"


def _notes(
    store: str,
    seen: LabGradients | None,
    measured: ScaleErrors | None,
    runs: Mapping[str, ScalerRun],
) -> tuple[str, ...]:
    notes = [] if measured is None else _of_errors(store, measured)
    if seen is not None:
        one, many = (m.quantile(0.5) for m in (together(seen.outputs.values()), seen.larger))
        if one is not None and many is not None and abs(many - one) > _TELLING:
            notes.append(
                f"A batch {_TIMES} times as large multiplies the median gradient of the layers' "
                f"outputs by 2^{many - one:.2g}, as the loss is a mean: more tokens need a larger "
                f"scale."
            )
    if measured is not None:
        notes.append(
            "The rounding of gradients is emulated; what is too large becomes the largest number. "
            "In FP16 it would become infinite, and GradScaler would skip the step."
        )
    if any(run.trained == "nano" for run in runs.values()):
        notes.append(
            "GradScaler ran on nano, 434,816 parameters made from a seed, instead of the demo."
        )
    return tuple(notes)
