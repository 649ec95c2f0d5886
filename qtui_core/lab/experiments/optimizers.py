"""What do low-bit optimizer states do to learning, and to parameters that have no gradient?

The optimizers are those of their libraries. Each is compared with AdamW in float32 on the same
batches. Four things are read off after a run: the bytes of the states, how many of their codes are
used, how the next update changes if the moments pass once through the stored format, and whether
parameters move that never had a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from qtui_core.lab.experiments.underflow import group_of
from qtui_core.lab.job import Job
from qtui_core.lab.numerics import state_maps
from qtui_core.lab.numerics.ratchet import (
    Ratchet,
    ratchet_chart,
    ratchet_rows,
    ratchet_sentence,
    ratchets,
)
from qtui_core.lab.results import Cell, Findings, Heat, LabColumn, Picture
from qtui_core.lab.training import optimizers as libraries
from qtui_core.lab.training.comparison import (
    TWIN,
    LabComparison,
    TrainedComparison,
    steps_counted,
)
from qtui_core.lab.training.tasks import TASKS, LabSubject, loss_of
from qtui_core.lab.training.twins import Recipe, TrainedRun
from qtui_core.lab.training.updates import EPSILON
from qtui_core.quantities import phrase

#: Optimizers of the table, with the seconds that a step of the demo takes on one thread.
COSTS: Final = {
    "bf16": 0.35,
    "bitsandbytes 8-bit": 0.36,
    "torchao 8-bit": 0.45,
    "torchao fp8": 0.4,
    "torchao 4-bit": 0.45,
    "muon": 0.6,
}
#: The optimizer that follows another rule, instead of storing fewer bits.
_OTHER: Final = "muon"
#: The map through which an optimizer stores its moments; these maps are emulated for one pass.
_MAP_OF: Final = {
    "bf16": "bf16",
    "bitsandbytes 8-bit": "8-bit",
    "torchao 8-bit": "8-bit",
    "torchao fp8": "fp8",
    "torchao 4-bit": "4-bit",
}
#: Tensors with fewer elements keep float32 states.
_SMALL: Final = 4096
_MAPS: Final = ("bf16", "8-bit", "fp8", "4-bit")
#: It is reported if the error of the update in the embedding is more than this many times that in
#: the matrices.
_FARTHER: Final = 3.0
_UNCOMPILED: Final = (
    "torchao's optimizers ran without compiling, which costs them time, and found their codes in "
    "tables, which saves half of that; the codes are the same."
)
Betas = tuple[float, float]
#: Of the second moments that fall quiet.
_OF_QUIET: Final = (LabColumn("against", "v over fp32's"), LabColumn("judged", "judged"))
_GROUPS: Final = ("all", "embedding", "matrices", "output")


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """A run of each optimizer for each seed, of the twin, and of the twin from weights that differ
    by a millionth; and second moments that fall quiet."""
    runs = TrainedComparison(
        settings,
        model,
        settings["optimizers"],
        recipe_of,
        lambda name: COSTS.get(name, 0.3),
        twin=lambda subject, seed: recipe_of(TWIN, seed, subject),
        more=4,
    )
    quiet = Job("second moments", partial(ratchets, settings["beta2"]), tuple[Ratchet, ...], 5)
    return [*runs.jobs(), quiet]


def recipe_of(name: str, seed: int, subject: LabSubject | None = None) -> Recipe:
    """A recipe whose run has the bytes of the optimizer's states in `nbytes` and its other figures
    in `facts`; with a `subject`, also those of `one_pass` on the first batch of the next seed.
    Training raises MissingLibrary if the library of the optimizer is not installed."""
    betas = TASKS["prose"].betas
    torchao = name.startswith("torchao")

    def takes(each: str, parameter: torch.nn.Parameter) -> bool:
        return group_of(each, parameter) == "matrices"

    def make(net: Any, rate: float) -> Any:
        return libraries.make(name, net.named_parameters(), rate, betas, takes)

    def ended(net: Any, optimizer: Any, run: TrainedRun) -> TrainedRun:
        facts = {"parameters": float(sum(p.numel() for p in net.parameters() if p.requires_grad))}
        for moment, (counts, bits) in libraries.codes_of(optimizer).items():
            facts[f"entropy {moment}"] = libraries.entropy(counts)
            facts[f"unused {moment}"] = float((counts == 0).sum())
            facts["bits"] = float(bits)
        facts["drifted"], facts["drift"] = libraries.drift(name)
        if subject is not None:
            batch = next(subject.batches(seed + 1))
            facts |= one_pass(net, optimizer, batch, betas)
        states = libraries.state_bytes(name, optimizer, net.named_parameters())
        notes = (_UNCOMPILED,) if torchao else ()
        return replace(run, nbytes={**run.nbytes, "states": states}, facts=facts, notes=notes)

    around = libraries.looked_up if torchao else nullcontext
    return Recipe(optimizer=make, around=around, ended=ended)


def one_pass(net: Any, optimizer: Any, ids: torch.Tensor, betas: Betas) -> dict[str, float]:
    """How much the next update changes if the moments first pass once through a map, for each map:
    |u' - u| / |u| by part of the model, and the share of second moments that the map makes zero."""
    loss_of(net, ids).backward()
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    zeros: dict[tuple[str, str], tuple[float, float]] = {}
    counts: dict[str, float] = {}
    for name, parameter in net.named_parameters():
        state, part = optimizer.state.get(parameter), group_of(name, parameter)
        counts[part] = counts.get(part, 0.0) + parameter.numel()
        if not state or parameter.grad is None:
            continue
        g, step = parameter.grad.reshape(-1), float(state["step"]) + 1
        m, v = state["exp_avg"].reshape(-1), state["exp_avg_sq"].reshape(-1)
        exact = _update(m, v, g, step, betas)
        for kind in _MAPS:
            block = state_maps.BLOCKS.get(kind, 1)
            small = kind != "bf16" and (m.numel() < _SMALL or m.numel() % block)
            kept_m, kept_v = (m, v) if small else through(kind, m, v)
            made = _update(kept_m, kept_v, g, step, betas)
            off, norm = float(((made - exact) ** 2).sum()), float((exact**2).sum())
            gone, there = float(((kept_v == 0) & (v > 0)).sum()), float((v > 0).sum())
            for group in ("all", part):
                _add(sums, (kind, group), off, norm)
                _add(zeros, (kind, group), gone, there)
    found = {f"pass {kind} {group}": (a / b) ** 0.5 for (kind, group), (a, b) in sums.items() if b}
    found |= {f"zero {kind} {group}": a / b for (kind, group), (a, b) in zeros.items() if b}
    return found | {f"parameters {part}": count for part, count in counts.items()}


def _add(
    sums: dict[tuple[str, str], tuple[float, float]], key: tuple[str, str], a: float, b: float
) -> None:
    one, other = sums.get(key, (0.0, 0.0))
    sums[key] = one + a, other + b


def _update(
    m: torch.Tensor, v: torch.Tensor, g: torch.Tensor, step: float, betas: Betas
) -> torch.Tensor:
    """The update u of AdamW at a step, float64, from the moments of the step before and this
    gradient."""
    first, second = betas
    m = (first * m + (1 - first) * g).double() / (1 - first**step)
    v = (second * v + (1 - second) * g * g).double() / (1 - second**step)
    return m / (v.sqrt() + EPSILON)


def through(kind: str, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both moments, float32 `[n]`, as a map would store them."""
    return state_maps.map_named(kind, True)(m), state_maps.map_named(kind, False)(v)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each optimizer, a row for each part of the model for the single pass, the curves,
    and which optimizer to use."""
    names = settings["optimizers"]
    runs = LabComparison(names, settings["seeds"], outcomes)
    columns: tuple[LabColumn, ...] = (
        LabColumn("states", "states"),
        LabColumn("nbytes", "bytes", "bytes"),
        LabColumn("each", "bytes a parameter"),
        LabColumn("d", "d train", "nats"),
        LabColumn("held_out", "d held out", "nats"),
        LabColumn("seen", "against the floor"),
        LabColumn("pass", "update of matrices, one pass"),
        LabColumn("pass_embedding", "of the embedding"),
        LabColumn("zeroed", "v made zero", "share"),
        LabColumn("entropy_m", "bits used of m"),
        LabColumn("entropy_v", "bits used of v"),
        LabColumn("unused_v", "codes of v unused"),
        LabColumn("drifted", "untouched that moved", "share"),
        LabColumn("drift", "farthest"),
        LabColumn("seconds", "a step", "seconds"),
    )
    twin = runs.first(TWIN)
    rows: list[dict[str, Cell]] = []
    if twin is not None:
        rows.append({"states": TWIN, "seconds": twin.seconds, **_read_off(twin)})
    compared = {str(row["recipe"]): row for row in runs.rows()}
    for name in names:
        if (own := runs.first(name)) is None:
            continue
        row: dict[str, Cell] = {"states": name} | _read_off(own)
        row |= {key: cell for key, cell in compared.get(name, {}).items() if key != "recipe"}
        if twin is not None and name in _MAP_OF:
            kind, facts = _MAP_OF[name], twin.facts
            row["pass"] = facts.get(f"pass {kind} matrices")
            row["pass_embedding"] = facts.get(f"pass {kind} embedding")
            row["zeroed"] = facts.get(f"zero {kind} all")
        rows.append(row)
    of_bits = [name for name in names if name != _OTHER]  # beside another rule they would be flat
    pictures: list[Picture] = [*runs.charts(f"states in few bits, lr {settings['lr']:g}", of_bits)]
    if twin is not None and (heat := _parts_heat(twin)) is not None:
        pictures.append(heat)
    pictures += runs.charts(f"{_OTHER}, another rule, lr {settings['lr']:g}", (_OTHER,))
    quiet: tuple[Ratchet, ...] = outcomes.get("second moments", ())
    notes = [_of_drift(rows), *_notes(names, outcomes)]
    if quiet:
        columns = (*columns, *_OF_QUIET)
        rows += ratchet_rows(quiet)
        pictures.append(ratchet_chart(quiet, settings["beta2"]))
        notes.append(ratchet_sentence(quiet, settings["beta2"]))
    return Findings(
        columns,
        tuple(rows),
        tuple(pictures),
        _verdict(settings, runs, rows),
        runs.floor,
        tuple(filter(None, notes)),
    )


def _read_off(run: TrainedRun) -> dict[str, Cell]:
    """The figures of an optimizer besides its losses."""
    if "states" not in run.nbytes:
        return {}
    facts, nbytes = run.facts, run.nbytes["states"]
    return {
        "nbytes": nbytes,
        "each": nbytes / facts["parameters"] if facts.get("parameters") else None,
        "entropy_m": facts.get("entropy m"),
        "entropy_v": facts.get("entropy v"),
        "unused_v": int(facts["unused v"]) if "unused v" in facts else None,
        "drifted": facts.get("drifted"),
        "drift": facts.get("drift"),
    }


def _parts_heat(twin: TrainedRun) -> Heat | None:
    """The error of an update by map and part of the model."""
    maps = [kind for kind in _MAPS if f"pass {kind} all" in twin.facts]
    if not maps:
        return None
    return Heat(
        "the next update after one pass through a map",
        tuple(maps),
        _GROUPS,
        tuple(tuple(twin.facts.get(f"pass {m} {group}") for group in _GROUPS) for m in maps),
        "relative error",
        log=True,
    )


def _verdict(
    settings: Mapping[str, Any], runs: LabComparison, rows: Sequence[Mapping[str, Cell]]
) -> str:
    twin = next((row for row in rows if row["states"] == TWIN), {})
    found = {n: c for n, c in runs.compared.items() if n != _OTHER}
    if (answer := runs.without_answer(settings["lr"])) is not None:
        return answer
    if not found:
        return ""
    sizes = {str(row["states"]): row.get("each") for row in rows}
    well = [n for n in found if runs.seen(n) == "no difference"]
    ill = [n for n in found if runs.seen(n) in ("worse", "better")]
    said = []
    drifted = {str(row["states"]): row.get("drifted") for row in rows}
    least = min(
        (n for n in well if isinstance(sizes.get(n), float)),
        key=lambda n: (round(float(sizes[n] or 0), 2), bool(drifted.get(n))),
        default=None,
    )
    if least is not None:
        whole = f" instead of {twin['each']:.2f}" if twin.get("each") else ""
        said.append(
            f"{least} takes {sizes[least]:.2f} bytes a parameter{whole}, with no visible "
            f"difference ({steps_counted(settings)}, {runs.counted}, lr {settings['lr']:g})"
        )
    if ill:
        costs = [f"{n} ({found[n].difference:+.4f} nats)" for n in ill]
        said.append(f"{phrase(costs)} {'differ' if costs[1:] else 'differs'} from fp32")
    said += [f"{n} diverged, {c.diverged}" for n, c in found.items() if c.diverged]
    verdict = f"{'; '.join(said)}." if said else ""
    return " ".join(filter(None, (verdict, _of_embedding(runs, rows))))


def _of_drift(rows: Sequence[Mapping[str, Cell]]) -> str:
    """A warning of optimizers that move parameters without a gradient."""
    moved = [row for row in rows if row.get("drifted")]
    if not moved:
        return ""
    names = [str(row["states"]) for row in moved]
    move = "move" if names[1:] else "moves"
    return f"Here {phrase(names)} {move} parameters that never had a gradient."


def _of_embedding(runs: LabComparison, rows: Sequence[Mapping[str, Cell]]) -> str:
    """Whether the update of the embedding, whose gradients are rare, is worse than that of the
    matrices."""
    twin = runs.first(TWIN)
    tried = {_MAP_OF[name] for row in rows if (name := str(row["states"])) in _MAP_OF}
    for kind in ("8-bit", "fp8"):
        if twin is None or kind not in tried:
            continue
        inner, outer, zero = (
            twin.facts.get(key, 0.0)
            for key in (f"pass {kind} matrices", f"pass {kind} embedding", f"zero {kind} embedding")
        )
        if outer > _FARTHER * inner > 0 and zero:
            cost = round(
                twin.facts["parameters embedding"] * (8 - 2 * (1 + 4 / state_maps.BLOCKS[kind]))
            )
            return (
                f"In {kind} the embedding's next update is {outer:.0%} off (matrices "
                f"{inner:.1%}); its states in fp32 would take {cost:,} bytes more."
            )
    return ""


def _notes(names: Sequence[str], outcomes: Mapping[str, Any]) -> list[str]:
    notes = []
    if "bf16" in names:
        notes.append("States in BF16 are emulated: rounded after each step of PyTorch's AdamW.")
    if _OTHER in names:
        notes.append(
            "Muon follows another rule, for the matrices within the blocks, with AdamW for the "
            "rest: its d shows how that rule learns, not what few bits cost."
        )
    notes += dict.fromkeys(
        note for run in outcomes.values() if isinstance(run, TrainedRun) for note in run.notes
    )
    return notes
