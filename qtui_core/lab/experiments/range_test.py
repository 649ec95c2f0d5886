"""How many bits does learning need? The precision range test.

Weights and activations in b bits, symmetric by rows; gradients in 8 bits, rounded stochastically,
throughout (Fu et al., CPT: Efficient Deep Neural Network Training via Cyclic Precision, 2021). In
the backward pass weights and activations are quantized anew in b bits along the other axis.

The published test takes the least b that improves by more than a threshold: B_learn, here with the
loss for accuracy. B_match is the least b from which on the loss is near that of float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, variance
from typing import Any, Final

import torch

from qtui_core.lab.numerics.products import (
    Products,
    alike,
    emulate,
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


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """A run for each width, of the twin and of the disturbed twin. Raises as `chosen_task`."""
    own = model != DEMO or settings["text"] is not None
    return TrainedComparison(
        settings,
        model,
        _names(settings),
        recipe_of,
        lambda name: 0.06 if name in (TWIN, NULL) else 0.1,
        task=chosen_task(settings, model, "prose" if own else "nano"),
        more=2,
    ).jobs()


def _names(settings: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{bits} bits" for bits in sorted(settings["bits"]))


def recipe_of(name: str, seed: int) -> Recipe:
    """Linear layers but the head in the bits of "4 bits". Preparing raises ModelError for a model
    without any."""
    products, random = products_of(int(name.split()[0])), torch.Generator().manual_seed(seed)

    def prepare(net: Any) -> None:
        emulate(net, dict.fromkeys(inner_linears(net), products), random)

    return Recipe(prepare)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each width, the gap to float32 over the width, and both figures."""
    runs = LabComparison(_names(settings), settings, outcomes)
    rows: list[dict[str, Cell]] = [
        {
            "name": row["recipe"],
            "gap": gap_of(runs, name := str(row["recipe"])),
            "learned": _learned(runs, name),
            "held": runs.held(name),
            "operations": (int(name.split()[0]) / WIDEST) ** 2,
            "d": row["d"],
            "seen": row["seen"],
        }
        for row in runs.rows()
    ]
    pictures = [_gaps(settings, runs), runs.chart("weights and activations in few bits")]
    verdict = _verdict(settings, runs)
    return findings(COLUMNS, rows, pictures, [verdict], runs.floor, [runs.chaotic])


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
        whole, error = improvement(twin)
        if not twin.diverged and whole <= 2 * error:
            return None
        if not twin.diverged:
            shares.append(0.0 if run.diverged else improvement(run)[0] / whole)
    return mean(shares)


def least_learning(learned: Mapping[int, float | None], threshold: float) -> int | None:
    """B_learn: the least width that improves by more than the threshold."""
    return next((b for b in sorted(learned) if (learned[b] or 0) > threshold), None)


def least_matching(gaps: Mapping[int, float | None], tolerance: float) -> int | None:
    """B_match: the least width from which on every gap is within the tolerance."""
    least = None
    for bits in sorted(gaps, reverse=True):
        gap = gaps[bits]
        if gap is None or gap > tolerance:
            break
        least = bits
    return least


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
    matches = f"no width up to {max(names)} bits stays within {tolerance:.2g} nats of fp32"
    if match is not None:
        matches = (
            f"learning as fp32 does takes {match} bits (B_match, within {tolerance:.2g} nats; "
            f"{match / WIDEST:.3g} bytes a value in place of 4)"
        )
    learns = f"no width improves by more than {threshold:.0%} of fp32"
    if all(share is None for share in shares.values()):
        learns = "fp32 itself does not improve by more than its batches scatter"
    elif learn is not None:
        learns = f"the published test is passed from {learn} bits on (B_learn)"
        if (gap := gaps[learn]) is not None and gap > tolerance:
            learns += f", which are {gap:.2g} nats behind"
    at = f"At lr {settings['lr']:g}, {steps_counted(settings)} and {runs.counted}"
    return f"{at}, {matches}; {learns}."
