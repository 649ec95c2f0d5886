"""What do low-bit optimizer states do to learning?

The optimizers are those of the libraries that people use. Each is compared with AdamW in float32 on
the same batches. Two things are read off after a run: the bytes of the states, and how the next
update changes if the moments pass once through the stored format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from qtui_core.extras import importing
from qtui_core.lab.experiments.survive import EPSILON
from qtui_core.lab.experiments.underflow import group_of
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.numerics.state_maps import BLOCKS, map_named, ratchets
from qtui_core.lab.results import Cell, Findings, Heat, LabColumn, LabPart, findings
from qtui_core.lab.training.comparison import (
    TWIN,
    LabComparison,
    TrainedComparison,
    steps_counted,
)
from qtui_core.lab.training.recipes import eagerly
from qtui_core.lab.training.tasks import TASKS, LabSubject, loss_of
from qtui_core.lab.training.twins import Recipe, TrainedRun, null
from qtui_core.quantities import phrase
from qtui_core.training.model.optimizers import optimizer_tensors, shared_tables

#: Seconds that a step of the demo takes on one thread.
_SECONDS: Final = {
    "bf16": 0.35, "bitsandbytes 8-bit": 0.36, "torchao 8-bit": 0.45, "torchao fp8": 0.4,
    "torchao 4-bit": 0.45,
}  # fmt: skip
#: Tensors with fewer elements keep float32 states.
_SMALL: Final = 4096
#: Maps through which optimizers store their moments; these maps are emulated for one pass.
_MAPS: Final = ("bf16", "8-bit", "fp8", "4-bit")
Betas = tuple[float, float]
Named = Iterable[tuple[str, torch.nn.Parameter]]
_GROUPS: Final = ("all", "embedding", "matrices", "output")
COLUMNS: Final = (
    LabColumn("states", "states"),
    LabColumn("nbytes", "bytes", "bytes"),
    LabColumn("each", "bytes a parameter"),
    LabColumn("d", "d train", "nats"),
    LabColumn("held_out", "d held out", "nats"),
    LabColumn("seen", "against the floor"),
    LabColumn("pass", "update of matrices, one pass"),
    LabColumn("pass_embedding", "of the embedding"),
    LabColumn("zeroed", "v made zero", "share"),
    LabColumn("seconds", "a step", "seconds"),
    LabColumn("against", "v over fp32's"),
    LabColumn("judged", "judged"),
)


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """A run of each optimizer for each seed, of the twin, and of the twin from weights that differ
    by a millionth; and second moments that fall quiet."""
    runs = TrainedComparison(
        settings,
        model,
        settings["optimizers"],
        recipe_of,
        lambda name: _SECONDS.get(name, 0.3),
        twin=lambda subject, seed, name: recipe_of(name, seed, subject) if name == TWIN else null(),
        more=4,
    )
    quiet = LabPart("second moments", partial(ratchets, settings["beta2"]), Findings, 5)
    return [*runs.jobs(), quiet]


def recipe_of(name: str, seed: int, subject: LabSubject | None = None) -> Recipe:
    """A recipe whose run has the bytes of the optimizer's states in `nbytes` and its other figures
    in `facts`; with a `subject`, also those of `one_pass` on the first batch of the next seed.
    Training raises MissingLibrary if the library of the optimizer is not installed."""
    betas = TASKS["prose"].betas

    def ended(net: Any, optimizer: Any, run: TrainedRun) -> TrainedRun:
        facts: dict[str, float] = {}
        if subject is not None:
            facts |= one_pass(net, optimizer, next(subject.batches(seed + 1)), betas)
        states = state_bytes(name, optimizer, net.named_parameters())
        facts["each"] = states / sum(p.numel() for p in net.parameters() if p.requires_grad)
        return replace(run, nbytes={**run.nbytes, "states": states}, facts=facts)

    return Recipe(
        optimizer=lambda net, rate: make(name, net.parameters(), rate, betas),
        around=eagerly if name.startswith("torchao") else nullcontext,
        ended=ended,
    )


def one_pass(net: Any, optimizer: Any, ids: torch.Tensor, betas: Betas) -> dict[str, float]:
    """How much the next update changes if the moments first pass once through a map, for each map:
    |u' - u| / |u| by part of the model, and the share of second moments that the map makes zero."""
    loss_of(net, ids).backward()
    sums: defaultdict[tuple[str, str, str], float] = defaultdict(float)
    for name, parameter in net.named_parameters():
        state, part = optimizer.state.get(parameter), group_of(name, parameter)
        if not state or parameter.grad is None:
            continue
        g, step = parameter.grad.reshape(-1), float(state["step"]) + 1
        m, v = state["exp_avg"].reshape(-1), state["exp_avg_sq"].reshape(-1)
        exact = _update(m, v, g, step, betas)
        for kind in _MAPS:
            small = kind != "bf16" and (m.numel() < _SMALL or m.numel() % BLOCKS[kind])
            kept_m, kept_v = (m, v) if small else through(kind, m, v)
            made = _update(kept_m, kept_v, g, step, betas)
            of_map = {
                "off": float(((made - exact) ** 2).sum()),
                "norm": float((exact**2).sum()),
                "gone": float(((kept_v == 0) & (v > 0)).sum()),
                "there": float((v > 0).sum()),
            }
            for group in ("all", part):
                for what, amount in of_map.items():
                    sums[kind, group, what] += amount
    facts: dict[str, float] = {}
    for kind, group in {(kind, group): None for kind, group, _ in sums}:
        off, norm, gone, there = (sums[kind, group, at] for at in ("off", "norm", "gone", "there"))
        facts |= {f"pass {kind} {group}": (off / norm) ** 0.5} if norm else {}
        facts |= {f"zero {kind} {group}": gone / there} if there else {}
    return facts


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
    return map_named(kind, True)(m), map_named(kind, False)(v)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each optimizer, the curves, the single pass by part of the model, and which
    optimizer to use."""
    names = settings["optimizers"]
    runs = LabComparison(names, settings, outcomes)
    twin = next(iter(runs.runs(TWIN)), None)
    compared = {row.pop("recipe"): row for row in runs.rows()}
    rows: list[dict[str, Cell]] = []
    for name in (TWIN, *names):
        for run in runs.runs(name)[:1]:
            row: dict[str, Cell] = {"states": name, "seconds": run.seconds}
            row["nbytes"] = run.nbytes.get("states") if run.facts else None
            row["each"] = run.facts.get("each")
            rows.append(row | compared.get(name, {}) | _passed(name, twin))
    return findings(
        COLUMNS,
        rows,
        [runs.chart(f"states in few bits, lr {settings['lr']:g}"), _parts_heat(twin)],
        [_verdict(settings, runs, rows)],
        runs.floor,
        _notes(rows),
        spare=("against", "judged"),
        parts=[outcomes.get("second moments")],
    )


def _passed(name: str, twin: TrainedRun | None) -> dict[str, Cell]:
    """The figures of one pass of the twin's moments through the map of an optimizer."""
    kind = name.split()[-1]
    if twin is None or kind not in _MAPS:
        return {}
    return {
        "pass": twin.facts.get(f"pass {kind} matrices"),
        "pass_embedding": twin.facts.get(f"pass {kind} embedding"),
        "zeroed": twin.facts.get(f"zero {kind} all"),
    }


def _parts_heat(twin: TrainedRun | None) -> Heat | None:
    facts = {} if twin is None else twin.facts
    maps = tuple(kind for kind in _MAPS if f"pass {kind} all" in facts)
    values = tuple(tuple(facts.get(f"pass {m} {group}") for group in _GROUPS) for m in maps)
    title = "the next update after one pass through a map"
    return Heat(title, maps, _GROUPS, values, "relative error", log=True) if maps else None


def _verdict(
    settings: Mapping[str, Any], runs: LabComparison, rows: Sequence[Mapping[str, Cell]]
) -> str:
    if (answer := runs.without_answer()) is not None:
        return answer
    sizes = {str(row["states"]): size for row in rows if isinstance(size := row["each"], float)}
    by_seen: dict[str | None, list[str]] = {}
    for name, one in runs.compared.items():
        by_seen.setdefault(one.seen, []).append(name)
    said = []
    if well := [name for name in by_seen.get("no difference", ()) if name in sizes]:
        least = min(well, key=lambda name: round(sizes[name], 2))
        whole = f" instead of {sizes[TWIN]:.2f}" if TWIN in sizes else ""
        said.append(
            f"{least} takes {sizes[least]:.2f} bytes a parameter{whole}, with no visible "
            f"difference ({steps_counted(settings)}, {runs.counted}, lr {settings['lr']:g})"
        )
    if ill := [n for n, one in runs.compared.items() if one.seen in ("worse", "better")]:
        costs = [f"{n} ({runs.compared[n].difference:+.4f} nats)" for n in ill]
        said.append(f"{phrase(costs)} {'differ' if costs[1:] else 'differs'} from fp32")
    said += [f"{n} diverged, {runs.compared[n].diverged}" for n in by_seen.get("diverged", ())]
    return f"{'; '.join(said)}." if said else ""


def _notes(rows: Sequence[Mapping[str, Cell]]) -> Iterator[str]:
    if any(row["states"] == "bf16" for row in rows):
        yield "States in BF16 are emulated: rounded after each step of PyTorch's AdamW."
    if any(str(row["states"]).startswith("torchao") for row in rows):
        yield "torchao's optimizers ran without compiling, which costs them time."


def make(name: str, parameters: Iterable[torch.nn.Parameter], lr: float, betas: Betas) -> Any:
    """The optimizer of that name over the trainable parameters, without weight decay. Raises
    MissingLibrary if its library is not installed or no longer has it."""
    trained = [p for p in parameters if p.requires_grad]
    kind: Any = torch.optim.AdamW
    library, _, states = name.partition(" ")
    if library == "bitsandbytes":
        with importing("AdamW8bit", "bitsandbytes"):
            from bitsandbytes.optim import AdamW8bit as TheirAdamW8bit
        kind = TheirAdamW8bit
    elif library == "torchao":
        with importing("An optimizer of low-bit states", "torchao"):
            from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
        kind = {"8-bit": AdamW8bit, "fp8": AdamWFp8, "4-bit": AdamW4bit}[states]
    optimizer = kind(trained, lr=lr, betas=betas, eps=EPSILON, weight_decay=0.0)
    if name == "bf16":
        optimizer.register_step_post_hook(_round_states)
    return optimizer


def _round_states(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """Rounds the moments to BF16 after a step; they remain float32 tensors."""
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key].copy_(STORAGES["bf16"].nearest(state[key]))


def state_bytes(name: str, optimizer: Any, named: Named) -> int:
    """The bytes of the states, without the tables of levels: codes and scales, or numbers of four
    bytes. Where BF16 is emulated in float32, two bytes are counted."""
    tables = {table for table, _ in shared_tables(optimizer)}
    nbytes = sum(
        tensor.nbytes
        for state, tensor in optimizer_tensors(optimizer, named)
        if state not in tables and not state.endswith(".qmap")
    )
    return nbytes // 2 if name == "bf16" else nbytes
