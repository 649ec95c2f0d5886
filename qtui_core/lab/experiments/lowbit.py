"""Recipes of low precision side by side, each compared with its twin in float32 on the same
batches.

The difference is the mean over the last steps of the recipe's loss minus the twin's loss on the
same batch. The floor is the difference that a millionth of noise on the twin's weights makes; for a
recipe that rounds at random it is also the difference between two runs with other random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from qtui_core.lab.job import Job
from qtui_core.lab.results import Cell, Findings, LabColumn
from qtui_core.lab.training.comparison import (
    AGAIN,
    COLUMNS,
    NULL,
    TWIN,
    LabComparison,
    TrainedComparison,
    best_rate,
    rates_of,
    run_key,
    steps_counted,
)
from qtui_core.lab.training.recipes import RECIPES, recipe_named
from qtui_core.lab.training.tasks import chosen_task
from qtui_core.lab.training.twins import Recipe, TrainedRun
from qtui_core.quantities import format_bytes, phrase

#: A model with three values per weight needs more steps than this before it can show that it falls
#: behind.
_BITNET_STEPS: Final = 200
#: Seconds that a step takes on one thread, roughly, for recipes that are slower than float32.
_SECONDS: Final = {
    "int8 weights": 0.35,
    "int8 weights nearest": 0.35,
    "int8 tiles": 0.4,
    "fp8 flow": 0.35,
    "fp8 flow scaled": 0.35,
    "float8 tensor": 0.6,
    "float8 row": 0.6,
    "mxfp8": 0.55,
    "mxfp4": 0.6,
    "nvfp4": 0.8,
    "nvfp4 full": 0.9,
    "nvfp4 forward": 0.5,
    "nvfp4 backward": 0.8,
}
_STEP: Final = 0.27
_PARTS: Final = ("weights", "gradients", "states")


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
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
    told: list[str] = []
    recipe = recipe_named(name, 1000 + seed, told)
    recipe.ended = lambda model, optimizer, run: replace(run, notes=tuple(told))
    return recipe


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each recipe, the twin first, curves of the differences, and which recipe trains as
    float32 does."""
    recipes = settings["recipes"]

    def keys(name: str) -> Callable[[float], list[str]]:
        return lambda rate: [run_key(name, rate, seed, settings) for seed in settings["seeds"]]

    best = {n: best_rate(rates_of(settings), keys(n), outcomes) for n in (TWIN, *recipes)}
    runs = LabComparison(recipes, settings["seeds"], _chosen(settings, outcomes, best))
    several = len(settings["seeds"]) > 1
    columns = (
        *(each for each in COLUMNS[:6] if several or each.key not in ("d_low", "d_high")),
        LabColumn("lr", "lr"),
        *(LabColumn(part, part, "bytes") for part in _PARTS),
        LabColumn("seconds", "a step", "seconds"),
        LabColumn("by", "computed by"),
        LabColumn("converted", "linear layers"),
        *(COLUMNS[7:] if any(found.diverged for found in runs.compared.values()) else ()),
    )
    rows: list[dict[str, Cell]] = []
    twin = runs.first(TWIN)
    if twin is not None:
        rows.append({"recipe": TWIN, "lr": best[TWIN], "seconds": twin.seconds, "by": "torch"})
        rows[-1] |= {part: twin.nbytes.get(part) for part in _PARTS}
    for row in runs.rows():
        name = str(row["recipe"])
        made = RECIPES[name]
        found = runs.compared[name].runs[0]
        rows.append(
            row
            | {part: found.nbytes.get(part) for part in _PARTS}
            | {
                "lr": best[name],
                "seconds": row["seconds"] if made.timed else None,
                "by": made.by,
                "converted": found.notes[0].partition(" linear")[0] if found.notes else None,
            }
        )
    at = _at(settings, outcomes)
    title = f"recipes beside fp32, {at}"
    verdict = _verdict(settings, runs, best, at)
    return Findings(
        columns, tuple(rows), runs.charts(title), verdict, runs.floor, _notes(settings, runs)
    )


def _chosen(
    settings: Mapping[str, Any], outcomes: Mapping[str, Any], best: Mapping[str, float]
) -> dict[str, Any]:
    """Runs by the names that a comparison expects, each at the best rate of its recipe."""
    found = {}
    for name, rate in best.items():
        beside = NULL if name == TWIN else f"{name} {AGAIN}"
        for one in (name, beside):
            for seed in settings["seeds"]:
                if (run := outcomes.get(run_key(one, rate, seed, settings))) is not None:
                    found[f"{one} {seed}"] = run
    return found


def _notes(settings: Mapping[str, Any], runs: LabComparison) -> tuple[str, ...]:
    """What each recipe converts and leaves, written once for recipes that do the same; and what is
    emulated."""
    said: dict[tuple[str, ...], list[str]] = {}
    for name, found in runs.compared.items():
        said.setdefault(found.runs[0].notes, []).append(name)
    notes = [f"{', '.join(names)}: {'; '.join(told)}." for told, names in said.items() if told]
    emulated = [name for name in runs.compared if not RECIPES[name].timed]
    if emulated:
        notes.append(
            f"Emulated, so no times are given: {', '.join(emulated)}. Products are summed in "
            f"float32, which hardware may not do."
        )
    if any(name.startswith("int8 weights") for name in runs.compared):
        notes.append("torchao's optimizer ran the same code without compiling it.")
    if "bitnet" in runs.compared and settings["steps"] < _BITNET_STEPS:
        notes.append(
            f"bitnet starts fast and falls behind later, which {_BITNET_STEPS} steps or more would "
            f"show; {settings['steps']} do not."
        )
    return (*filter(None, (runs.chaotic,)), *notes)


def _at(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> str:
    if settings["rates"] is None:
        return f"lr {settings['lr']:g}"
    rates = f"lr {', '.join(f'{rate:g}' for rate in settings['rates'])}"
    wanted = (
        run_key(name, rate, seed, settings)
        for name in (TWIN, *settings["recipes"])
        for rate in settings["rates"]
        for seed in settings["seeds"]
    )
    if all(key in outcomes for key in wanted):
        return f"each at its best of {rates}"
    return f"each at its best of the runs that are done, of {rates}"


def _verdict(
    settings: Mapping[str, Any], runs: LabComparison, best: Mapping[str, float], at: str
) -> str:
    if (answer := runs.without_answer(max(best.values()))) is not None:
        return answer
    seen: dict[str, list[str]] = {}
    for name in runs.compared:
        seen.setdefault(runs.seen(name) or "", []).append(name)
    said = []
    if alike := seen.get("no difference"):
        show = "show" if alike[1:] else "shows"
        words = [f"{name}{_less(name, runs)}" for name in alike]
        said.append(f"{phrase(words)} {show} no difference to fp32 that this run can see")
    worse = sorted(seen.get("worse", ()), key=lambda name: -(runs.compared[name].difference or 0))
    if worse:
        cures = {name: _cure(name, runs) for name in worse}
        costs = {cost for _, cost in filter(None, cures.values())}
        (cost,) = costs if len(costs) == 1 else ("",)
        words = [
            _by(name, runs)
            + (f" ({cure[0]}{'' if cost else ', ' + cure[1]})" if (cure := cures[name]) else "")
            for name in worse
        ]
        take = f" (what to use instead, at {cost})" if cost else ""
        said.append(f"worse{take}: {', '.join(words)}")
    if better := seen.get("better"):
        said.append(f"better: {', '.join(_by(name, runs) for name in better)}")
    said += [f"{n} diverged at {runs.compared[n].diverged}" for n in seen.get("diverged", ())]
    return f"With {at}, {steps_counted(settings)}, {runs.counted}: {'; '.join(said)}."


def _by(name: str, runs: LabComparison) -> str:
    return f"{name} by {abs(runs.compared[name].difference or 0):.2g}"


def _cure(name: str, runs: LabComparison) -> tuple[str, str] | None:
    """The recipe to use instead, and what it costs: one that came nearer, or was not run ("try
    ..."); None without one."""
    instead = RECIPES[name].cure
    here, cure = runs.compared[name], runs.compared.get(instead)
    if not instead:
        return None
    if cure is None:
        twin = runs.first(TWIN)
        whole = here.runs[0] if instead.startswith("int8 weights") or twin is None else twin
        return f"try {instead}", _more(whole, here.runs[0])
    if cure.diverged or cure.difference is None or here.difference is None:
        return None
    most = here.difference / (2 if runs.seen(cure.name) == "worse" else 1)
    if cure.difference > most:
        return None
    return cure.name, _more(cure.runs[0], here.runs[0])


def _more(cure: TrainedRun, here: TrainedRun) -> str:
    more = _stored(cure) - _stored(here)
    return "no byte more" if more <= 0 else f"{format_bytes(more)} more"


def _stored(run: TrainedRun) -> int:
    return sum(run.nbytes.get(part, 0) for part in _PARTS)


def _less(name: str, runs: LabComparison) -> str:
    """In brackets what a recipe stores between steps, if that is less than float32 does."""
    twin = runs.first(TWIN)
    here, whole = _stored(runs.compared[name].runs[0]), 0 if twin is None else _stored(twin)
    if not 0 < here < 0.99 * whole:
        return ""
    return f" ({format_bytes(here)} stored, fp32 {format_bytes(whole)})"
