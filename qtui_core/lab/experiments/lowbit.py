"""Recipes of low precision side by side, each compared with its twin in float32 on the same
batches.

The difference is the mean over the last steps of the recipe's loss minus the twin's loss on the
same batch. The floor is the difference that a millionth of noise on the twin's weights makes; for a
recipe that rounds at random it is also the difference between two runs with other random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from qtui_core.lab.results import Cell, Findings, LabColumn, LabPart, findings
from qtui_core.lab.training.comparison import (
    TWIN,
    LabComparison,
    TrainedComparison,
    run_key,
    steps_counted,
)
from qtui_core.lab.training.recipes import RECIPES, recipe_named
from qtui_core.lab.training.tasks import chosen_task
from qtui_core.lab.training.twins import Recipe
from qtui_core.quantities import phrase

#: A model with three values per weight needs more steps than this before it can show that it falls
#: behind.
_BITNET_STEPS: Final = 200
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
    LabColumn("lr", "lr"),
    *(LabColumn(part, part, "bytes") for part in _PARTS),
    LabColumn("seconds", "a step", "seconds"),
    LabColumn("by", "computed by"),
    LabColumn("converted", "linear layers"),
    LabColumn("diverged", "diverged"),
)


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """A run of each recipe for each seed and rate (two of a recipe that rounds at random), of the
    twin, and of the twin from weights that differ by a millionth. Raises as `chosen_task`."""
    return TrainedComparison(
        settings,
        model,
        settings["recipes"],
        recipe_of,
        lambda name: _SECONDS.get(name, _STEP),
        drawn=[name for name in settings["recipes"] if RECIPES[name].drawn],
        task=chosen_task(settings, model, "prose"),
    ).jobs()


def recipe_of(name: str, seed: int) -> Recipe:
    """A recipe whose run says what it converted. Preparing raises as that of `recipe_named`."""
    notes: list[str] = []
    recipe = recipe_named(name, 1000 + seed, notes)
    recipe.ended = lambda model, optimizer, run: replace(run, notes=tuple(notes))
    return recipe


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each recipe, the twin first, curves of the differences, and which recipe trains as
    float32 does."""
    runs = LabComparison(settings["recipes"], settings, outcomes)
    rows: list[dict[str, Cell]] = []
    if (twin := runs.first(TWIN)) is not None:
        rows.append({"recipe": TWIN, "seconds": twin.seconds, "by": "torch"})
    for row in runs.rows():
        made, found = RECIPES[name := str(row["recipe"])], runs.compared[name].runs[0]
        converted = found.notes[0].partition(" linear")[0] if found.notes else None
        rows.append(row | {"by": made.by, "converted": converted})
        if not made.timed:
            rows[-1]["seconds"] = None
    for row in rows:
        run = runs.first(name := str(row["recipe"]))
        nbytes = {} if run is None else run.nbytes
        row |= {"lr": runs.rates[name], **{part: nbytes.get(part) for part in _PARTS}}
    one = ("d_low", "d_high") if len(settings["seeds"]) == 1 else ()
    at = _at(settings, outcomes)
    return findings(
        [column for column in COLUMNS if column.key not in one],
        rows,
        [runs.chart(f"recipes beside fp32, {at}")],
        [_verdict(settings, runs, at)],
        runs.floor,
        _notes(settings, runs),
        spare=("diverged",),
    )


def _notes(settings: Mapping[str, Any], runs: LabComparison) -> Iterator[str]:
    """What each recipe converts and leaves, written once for recipes that do the same; and what is
    emulated."""
    yield runs.chaotic
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, found in runs.compared.items():
        alike.setdefault(found.runs[0].notes, []).append(name)
    for notes, names in alike.items():
        yield f"{', '.join(names)}: {'; '.join(notes)}." if notes else ""
    if emulated := [name for name in runs.compared if not RECIPES[name].timed]:
        yield (
            f"Emulated, so no times are given: {', '.join(emulated)}. Products are summed in "
            f"float32, which hardware may not do."
        )
    if any(name.startswith("int8 weights") for name in runs.compared):
        yield "torchao's optimizer ran the same code without compiling it."
    if "bitnet" in runs.compared and settings["steps"] < _BITNET_STEPS:
        yield (
            f"bitnet starts fast and falls behind later, which {_BITNET_STEPS} steps or more would "
            f"show; {settings['steps']} do not."
        )


def _at(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> str:
    if settings["rates"] is None:
        return f"lr {settings['lr']:g}"
    done = all(
        run_key(name, rate, seed, settings) in outcomes
        for name in (TWIN, *settings["recipes"])
        for rate in settings["rates"]
        for seed in settings["seeds"]
    )
    rates = ", ".join(f"{rate:g}" for rate in settings["rates"])
    return f"each at its best of {'' if done else 'the runs that are done, of '}lr {rates}"


def _verdict(settings: Mapping[str, Any], runs: LabComparison, at: str) -> str:
    if (answer := runs.without_answer()) is not None:
        return answer
    seen: dict[str, list[str]] = {}
    for name in runs.compared:
        seen.setdefault(runs.seen(name) or "", []).append(name)
    said = []
    if alike := seen.get("no difference"):
        show = "show" if alike[1:] else "shows"
        said.append(f"{phrase(alike)} {show} no difference to fp32 that this run can see")
    if worse := seen.get("worse"):
        worst = sorted(worse, key=lambda name: -(runs.compared[name].difference or 0))
        said.append(
            f"worse: {', '.join(f'{_by(name, runs)}{_cure(name, runs)}' for name in worst)}"
        )
    if better := seen.get("better"):
        said.append(f"better: {', '.join(_by(name, runs) for name in better)}")
    said += [f"{n} diverged at {runs.compared[n].diverged}" for n in seen.get("diverged", ())]
    return f"With {at}, {steps_counted(settings)}, {runs.counted}: {'; '.join(said)}."


def _by(name: str, runs: LabComparison) -> str:
    return f"{name} by {abs(runs.compared[name].difference or 0):.2g}"


def _cure(name: str, runs: LabComparison) -> str:
    """In brackets the recipe to use instead: one that came nearer, or was not run ("try ...")."""
    instead = RECIPES[name].cure
    here, cure = runs.compared[name], runs.compared.get(instead)
    if not instead:
        return ""
    if cure is None:
        return f" (try {instead})"
    if cure.diverged or cure.difference is None or here.difference is None:
        return ""
    nearer = cure.difference <= here.difference / (2 if runs.seen(instead) == "worse" else 1)
    return f" ({instead} instead)" if nearer else ""
