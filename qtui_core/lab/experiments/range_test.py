"""How many bits does learning need? The precision range test, and cyclic precision training (CPT).

Weights and activations in b bits, symmetric by rows; gradients in 8 bits, rounded stochastically,
throughout (Fu et al., CPT: Efficient Deep Neural Network Training via Cyclic Precision, 2021). In
the backward pass weights and activations are quantized anew in b bits along the other axis.

The published test takes the least b that improves by more than a threshold: B_learn, here with the
loss for accuracy. B_match is the least b from which on the loss is near that of float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, variance
from typing import Any, Final

import torch
from torch import nn

from qtui_core.errors import UsageError
from qtui_core.lab.numerics.products import (
    Products,
    QuantizedLinear,
    alike,
    convert,
    inner_linears,
)
from qtui_core.lab.numerics.rounding import Operand
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine, LabPart, findings
from qtui_core.lab.training.comparison import (
    NULL,
    TWIN,
    LabComparison,
    TrainedComparison,
    mean,
    steps_counted,
)
from qtui_core.lab.training.tasks import chosen_task
from qtui_core.lab.training.twins import FLOORS, Recipe, TrainedRun
from qtui_core.models.opening import DEMO

#: Steps at either end whose mean loss counts.
ENDS: Final = 10
#: Bits of the gradients, and of the widest weights and activations.
WIDEST: Final = 8
COLUMNS: Final = (
    LabColumn("name", "weights and activations"),
    LabColumn("gap", "gap at the end", "nats"),
    LabColumn("learned", "of fp32's improvement", "share"),
    LabColumn("held", "held out", "loss"),
    LabColumn("operations", "bit operations", "share"),
    LabColumn("d", "d train", "nats"),
    LabColumn("seen", "against the floor"),
)


def products_of(bits: int) -> Products:
    """Weights and activations in so many bits, gradients in 8."""
    return alike(Operand(f"int{bits}", "row"), Operand(f"int{WIDEST}", "row", stochastic=True))


def width_at(step: int, steps: int, periods: int, low: int, high: int) -> int:
    """Bits of a step of the cyclic schedule: round(low + (high-low)/2 (1 - cos(pi (t mod T)/T))),
    T = steps / periods."""
    period = steps / periods
    turn = math.pi * math.fmod(step, period) / period
    return round(low + (high - low) / 2 * (1 - math.cos(turn)))


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """A run for each width and each cyclic schedule, of the twin and of the disturbed twin. Raises
    UsageError for a cycle that begins above its end or is shorter than a step."""
    low, high, steps = settings["low"], settings["high"], settings["steps"]
    if low > high:
        raise UsageError(f"--low {low} is more than --high {high}.")
    if max(settings["periods"]) > steps:
        raise UsageError(f"--periods {max(settings['periods'])} is more than --steps {steps}.")
    own = model != DEMO or settings["text"] is not None
    return TrainedComparison(
        settings,
        model,
        _names(settings),
        partial(recipe_of, settings),
        lambda name: 0.06 if name in (TWIN, NULL) else 0.1,
        task=chosen_task(settings, model, "prose" if own else "nano"),
        more=2,
    ).jobs()


def _names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        *(f"{bits} bits" for bits in sorted(settings["bits"])),
        *(f"cycle {periods}" for periods in settings["periods"]),
    )


def recipe_of(settings: Mapping[str, Any], name: str, seed: int) -> Recipe:
    """The recipe of a width or of "cycle PERIODS". What cycles is evaluated at its widest; the fact
    "operations" of its run is the mean of b² over that of 8 bits."""
    kind, _, number = name.partition(" ")
    steps, low, high = settings["steps"], settings["low"], settings["high"]
    if kind == "cycle":
        widths = [width_at(step, steps, int(number), low, high) for step in range(steps)]
        last = high
    else:
        last = int(kind)
        widths = [last] * steps
    recipe = scheduled(widths, last, seed)
    facts = {"operations": fmean(bits * bits for bits in widths) / WIDEST**2}
    recipe.ended = lambda model, optimizer, run: replace(run, facts=facts)
    return recipe


def scheduled(widths: Sequence[int], last: int, seed: int) -> Recipe:
    """Linear layers but the head in the bits of each step, and in `last` bits after them. Preparing
    raises ModelError for a model without any."""
    random = torch.Generator().manual_seed(seed)
    layers: dict[str, QuantizedLinear] = {}

    def prepare(model: nn.Module) -> None:
        for name, linear in inner_linears(model).items():
            layers[name] = QuantizedLinear(linear, products_of(widths[0]), random)
        convert(model, layers)

    def stepped(model: Any, step: int) -> None:
        for layer in layers.values():
            layer.products = products_of(widths[step + 1] if step + 1 < len(widths) else last)

    return Recipe(prepare, stepped=stepped)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each width and cycle, the gap to float32 over the width, and both figures."""
    runs = LabComparison(_names(settings), settings, outcomes)
    rows: list[dict[str, Cell]] = [
        {
            "name": name,
            "gap": gap_of(runs, name),
            "learned": _learned(runs, name),
            "held": runs.held(name),
            "operations": found.runs[0].facts.get("operations"),
            "d": found.difference,
            "seen": runs.seen(name),
        }
        for name, found in runs.compared.items()
    ]
    curves = runs.chart("weights and activations in few bits")
    return findings(
        COLUMNS,
        rows,
        [_gaps(settings, runs), curves],
        [_verdict(settings, runs)],
        runs.floor,
        [runs.chaotic],
    )


def gap_of(runs: LabComparison, name: str) -> float | None:
    """The mean loss over the last steps less that of float32, over the seeds; None if it is not
    known or diverged."""
    pairs = [(run, twin) for run, twin in runs.pairs(name) if not run.diverged]
    return mean([fmean(run.losses[-ENDS:]) - fmean(twin.losses[-ENDS:]) for run, twin in pairs])


def improvement(run: TrainedRun) -> tuple[float, float]:
    """(how far the loss fell from the first steps to the last ones, its standard error). The two
    ends never share a step."""
    ends = min(ENDS, len(run.losses) // 2)
    if ends < 2:
        return 0.0, math.inf
    first, last = run.losses[:ends], run.losses[-ends:]
    return fmean(first) - fmean(last), math.sqrt((variance(first) + variance(last)) / ends)


def _learned(runs: LabComparison, name: str) -> float | None:
    """The share of float32's improvement; None if float32 itself does not improve by more than its
    batches scatter."""
    shares = []
    for run, twin in runs.pairs(name):
        if twin.diverged:
            continue
        whole, error = improvement(twin)
        if whole <= 2 * error:
            return None
        shares.append(0.0 if run.diverged else improvement(run)[0] / whole)
    return mean(shares)


def least_learning(learned: Mapping[int, float | None], threshold: float) -> int | None:
    """B_learn: the least width that improves by more than the threshold."""
    return next((b for b in sorted(learned) if (learned[b] or 0) > threshold), None)


def least_matching(gaps: Mapping[int, float | None], tolerance: float) -> int | None:
    """B_match: the least width from which on every gap is within the tolerance."""
    found = None
    for bits in sorted(gaps, reverse=True):
        gap = gaps[bits]
        if gap is None or gap > tolerance:
            break
        found = bits
    return found


def _gaps(settings: Mapping[str, Any], runs: LabComparison) -> LabChart | None:
    known = [(b, gap) for b in sorted(settings["bits"]) if (gap := gap_of(runs, f"{b} bits"))]
    if not known:
        return None
    bits, gaps = zip(*known, strict=True)
    wanted = settings["tolerance"]
    lines = (
        LabLine("gap to fp32", tuple(gaps), tuple(map(float, bits))),
        LabLine("tolerance", (wanted, wanted), (float(bits[0]), float(bits[-1])), faint=True),
    )
    return LabChart("gap at the end over the width", "bits", "nats", lines)


def _verdict(settings: Mapping[str, Any], runs: LabComparison) -> str:
    if (answer := runs.without_answer()) is not None:
        return answer
    names, threshold = {b: f"{b} bits" for b in settings["bits"]}, settings["threshold"]
    if runs.floor is None or any(runs.run(n, runs.seeds[0]) is None for n in names.values()):
        return ""
    # What this run cannot see is no gap, whatever is asked for.
    tolerance = max(settings["tolerance"], FLOORS * runs.floor)
    gaps = {bits: gap_of(runs, name) for bits, name in names.items()}
    match = least_matching(gaps, tolerance)
    shares = {bits: _learned(runs, name) for bits, name in names.items()}
    learn = least_learning(shares, threshold)
    if match is None:
        matches = f"no width up to {max(names)} bits stays within {tolerance:.2g} nats of fp32"
    else:
        matches = (
            f"learning as fp32 does takes {match} bits (B_match, within {tolerance:.2g} nats; "
            f"{match / WIDEST:.3g} bytes a value in place of 4)"
        )
    if all(share is None for share in shares.values()):
        learns = (
            "the published test has no answer, because fp32 itself does not improve by more than "
            "its batches scatter"
        )
    elif learn is None:
        learns = f"no width improves by more than {threshold:.0%} of fp32"
    else:
        above = all((share or 0) > threshold for b, share in shares.items() if b > learn)
        widths = f"from {learn} bits on" if above else f"at {learn} bits"
        learns = f"the published test is passed {widths} (B_learn)"
        if (gap := gaps[learn]) is not None and gap > tolerance:
            learns += f", which are {gap:.2g} nats behind"
    at = f"At lr {settings['lr']:g}, {steps_counted(settings)} and {runs.counted}"
    return f"{at}, {matches}; {learns}."
