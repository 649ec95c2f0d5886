"""Recipes of low precision side by side, each compared with its twin in float32 on the same
batches.

The difference is the mean over the last steps of the recipe's loss minus the twin's loss on the
same batch. The floor is the difference that a millionth of noise on the twin's weights makes; for a
recipe that rounds at random it is also the difference between two runs with other random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from qtui_core.lab.results import Cell, Findings, LabColumn, LabPart, findings
from qtui_core.lab.training.comparison import (
    TWIN,
    LabComparison,
    TrainedComparison,
    steps_counted,
)
from qtui_core.lab.training.recipes import RECIPES, recipe_named
from qtui_core.lab.training.tasks import chosen_task
from qtui_core.lab.training.twins import TrainedRun
from qtui_core.quantities import phrase

#: Seconds that a step takes on one thread, roughly, for recipes that are slower than float32.
_SECONDS: Final = {
    "int8 weights": 0.35, "int8 weights nearest": 0.35, "int8 tiles": 0.4, "fp8 flow": 0.35,
    "fp8 flow scaled": 0.35, "float8 tensor": 0.6, "float8 row": 0.6, "mxfp8": 0.55, "mxfp4": 0.6,
    "nvfp4": 0.8, "nvfp4 full": 0.9, "nvfp4 forward": 0.5, "nvfp4 backward": 0.8,
}  # fmt: skip
_STEP: Final = 0.27
_PARTS: Final = ("weights", "gradients", "states")
COLUMNS: Final = (
    LabColumn("recipe", "recipe"),
    LabColumn("d", "d train", "nats"),
    LabColumn("d_low", "lowest", "nats"),
    LabColumn("d_high", "highest", "nats"),
    LabColumn("held_out", "d held out", "nats"),
    LabColumn("seen", "against the floor"),
    *(LabColumn(part, part, "bytes") for part in _PARTS),
    LabColumn("seconds", "a step", "seconds"),
    LabColumn("by", "computed by"),
    LabColumn("converted", "linear layers"),
    LabColumn("diverged", "diverged"),
)


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """A run of each recipe for each seed (two of a recipe that rounds at random), of the twin, and
    of the twin from weights that differ by a millionth. Raises as `chosen_task`."""
    return TrainedComparison(
        settings,
        model,
        settings["recipes"],
        lambda name, seed: recipe_named(name, 1000 + seed),
        lambda name: _SECONDS.get(name, _STEP),
        drawn=[name for name in settings["recipes"] if RECIPES[name].drawn],
        task=chosen_task(settings, model, "prose"),
    ).jobs()


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each recipe, the twin first, curves of the differences, and which recipe trains as
    float32 does."""
    runs = LabComparison(settings["recipes"], settings, outcomes)
    rows: list[dict[str, Cell]] = []
    if twin := runs.runs(TWIN):
        rows += [{"recipe": TWIN, "seconds": twin[0].seconds, "by": "torch", **_parts(twin[0])}]
    for row in runs.rows():
        made, first = RECIPES[name := str(row["recipe"])], runs.compared[name].runs[0]
        converted = first.notes[0].partition(" linear")[0] if first.notes else None
        rows.append(row | {"by": made.by, "converted": converted} | _parts(first))
        if not made.timed:
            rows[-1]["seconds"] = None
    one = ("d_low", "d_high") if len(settings["seeds"]) == 1 else ()
    return findings(
        [column for column in COLUMNS if column.key not in one],
        rows,
        [runs.chart(f"recipes beside fp32, lr {settings['lr']:g}")],
        [_verdict(settings, runs)],
        runs.floor,
        _notes(runs),
        spare=("diverged",),
    )


def _parts(run: TrainedRun) -> dict[str, Cell]:
    return {part: run.nbytes.get(part) for part in _PARTS}


def _notes(runs: LabComparison) -> Iterator[str]:
    """What each recipe converts and leaves, written once for recipes that do the same; and what is
    emulated."""
    yield runs.chaotic
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, one in runs.compared.items():
        alike.setdefault(one.runs[0].notes, []).append(name)
    for notes, names in alike.items():
        yield f"{', '.join(names)}: {'; '.join(notes)}." if notes else ""
    if emulated := [name for name in runs.compared if not RECIPES[name].timed]:
        yield (
            f"Emulated, so no times are given: {', '.join(emulated)}. Products are summed in "
            f"float32, which hardware may not do."
        )


def _verdict(settings: Mapping[str, Any], runs: LabComparison) -> str:
    if (answer := runs.without_answer()) is not None:
        return answer
    by_seen: dict[str | None, list[str]] = {}
    off = {name: one.difference or 0.0 for name, one in runs.compared.items()}
    for name in sorted(off, key=lambda name: -off[name]):
        by_seen.setdefault(runs.compared[name].seen, []).append(name)
    said = []
    if alike := [name for name in off if runs.compared[name].seen == "no difference"]:
        show = "show" if alike[1:] else "shows"
        said.append(f"{phrase(alike)} {show} no difference to fp32 that this run can see")
    for how in ("worse", "better"):
        if names := by_seen.get(how):
            parts = (f"{n} by {abs(off[n]):.2g}{_cure(n, runs)}" for n in names)
            said.append(f"{how}: {', '.join(parts)}")
    said += [f"{n} diverged at {runs.compared[n].diverged}" for n in by_seen.get("diverged", ())]
    at = f"With lr {settings['lr']:g}, {steps_counted(settings)}, {runs.counted}"
    return f"{at}: {'; '.join(said)}."


def _cure(name: str, runs: LabComparison) -> str:
    """In brackets the recipe to use instead of a worse one: one that came nearer, or was not run
    ("try ...")."""
    instead = RECIPES[name].cure
    here, cure = runs.compared[name], runs.compared.get(instead)
    if not instead or here.seen != "worse":
        return ""
    if cure is None:
        return f" (try {instead})"
    if cure.diverged or cure.difference is None or here.difference is None:
        return ""
    nearer = cure.difference <= here.difference / (2 if cure.seen == "worse" else 1)
    return f" ({instead} instead)" if nearer else ""
