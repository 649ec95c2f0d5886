"""What do low-bit optimizer states do to learning, and to parameters that have no gradient?

The optimizers are those of their  Each is compared with AdamW in float32 on the same
batches. Four things are read off after a run: the bytes of the states, how many of their codes are
used, how the next update changes if the moments pass once through the stored format, and whether
parameters move that never had a gradient.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

import torch

from qtui_core.errors import UsageError
from qtui_core.extras import MissingLibrary, importing
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
    "torchao 4-bit": 0.45, "muon": 0.6,
}  # fmt: skip
#: The optimizer that follows another rule, instead of storing fewer bits.
_OTHER: Final = "muon"
#: Tensors with fewer elements keep float32 states.
_SMALL: Final = 4096
#: Maps through which optimizers store their moments; these maps are emulated for one pass.
_MAPS: Final = ("bf16", "8-bit", "fp8", "4-bit")
_UNCOMPILED: Final = "torchao's optimizers ran without compiling, which costs them time."
#: Facts of a run that are cells of its row.
_READ_OFF: Final = ("each", "entropy_m", "entropy_v", "unused_v", "drifted", "drift")
Betas = tuple[float, float]
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
    LabColumn("entropy_m", "bits used of m"),
    LabColumn("entropy_v", "bits used of v"),
    LabColumn("unused_v", "codes of v unused"),
    LabColumn("drifted", "untouched that moved", "share"),
    LabColumn("drift", "farthest"),
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
    torchao = name.startswith("torchao")

    def takes(name: str, parameter: torch.nn.Parameter) -> bool:
        return group_of(name, parameter) == "matrices"

    def optimizer_of(net: Any, rate: float) -> Any:
        return make(name, net.named_parameters(), rate, betas, takes)

    def ended(net: Any, optimizer: Any, run: TrainedRun) -> TrainedRun:
        facts: dict[str, float] = {}
        for moment, counts in codes_of(optimizer).items():
            facts[f"entropy_{moment}"] = entropy(counts)
            facts[f"unused_{moment}"] = float((counts == 0).sum())
        facts["drifted"], facts["drift"] = drift(name)
        if subject is not None:
            facts |= one_pass(net, optimizer, next(subject.batches(seed + 1)), betas)
        states = state_bytes(name, optimizer, net.named_parameters())
        facts["each"] = states / sum(p.numel() for p in net.parameters() if p.requires_grad)
        notes = (_UNCOMPILED,) if torchao else ()
        return replace(run, nbytes={**run.nbytes, "states": states}, facts=facts, notes=notes)

    around = eagerly if torchao else nullcontext
    return Recipe(optimizer=optimizer_of, around=around, ended=ended)


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
                for what, found in of_map.items():
                    sums[kind, group, what] += found
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
    """A row for each optimizer, a row for each part of the model for the single pass, the curves,
    and which optimizer to use."""
    names, lr = settings["optimizers"], settings["lr"]
    runs = LabComparison(names, settings, outcomes)
    twin = runs.first(TWIN)
    compared = {row.pop("recipe"): row for row in runs.rows()}
    rows: list[dict[str, Cell]] = []
    for name in (TWIN, *names):
        if (own := runs.first(name)) is not None:
            row = {"states": name, "seconds": own.seconds} | _read_off(own)
            rows.append(row | compared.get(name, {}) | _passed(name, twin))
    of_bits = [name for name in names if name != _OTHER]  # beside another rule they would be flat
    return findings(
        COLUMNS,
        rows,
        [
            runs.chart(f"states in few bits, lr {lr:g}", of_bits),
            _parts_heat(twin),
            runs.chart(f"{_OTHER}, another rule, lr {lr:g}", (_OTHER,)),
        ],
        [_verdict(settings, runs, rows)],
        runs.floor,
        _notes(rows, outcomes),
        spare=("against", "judged"),
        parts=[outcomes.get("second moments")],
    )


def _read_off(run: TrainedRun) -> dict[str, Cell]:
    """The figures of an optimizer besides its losses; none of a run that ended before them."""
    cells: dict[str, Cell] = {key: run.facts.get(key) for key in _READ_OFF}
    if (unused := run.facts.get("unused_v")) is not None:
        cells["unused_v"] = int(unused)
    return {"nbytes": run.nbytes.get("states") if run.facts else None, **cells}


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
    found = {n: c for n, c in runs.compared.items() if n != _OTHER}
    at = {str(row["states"]): row for row in rows}
    sizes = {n: float(size) for n, row in at.items() if isinstance(size := row.get("each"), float)}
    well = [n for n in found if runs.seen(n) == "no difference" and n in sizes]
    said = []
    if well:  # the fewest bytes; of those that take as many, one that moves nothing by itself
        least = min(well, key=lambda n: (round(sizes[n], 2), bool(at[n].get("drifted"))))
        whole = f" instead of {sizes[TWIN]:.2f}" if TWIN in sizes else ""
        said.append(
            f"{least} takes {sizes[least]:.2f} bytes a parameter{whole}, with no visible "
            f"difference ({steps_counted(settings)}, {runs.counted}, lr {settings['lr']:g})"
        )
    if ill := [n for n in found if runs.seen(n) in ("worse", "better")]:
        costs = [f"{n} ({found[n].difference:+.4f} nats)" for n in ill]
        said.append(f"{phrase(costs)} {'differ' if costs[1:] else 'differs'} from fp32")
    said += [f"{n} diverged, {c.diverged}" for n, c in found.items() if c.diverged]
    return f"{'; '.join(said)}." if said else ""


def _notes(rows: Sequence[Mapping[str, Cell]], outcomes: Mapping[str, Any]) -> Iterator[str]:
    if moved := [str(row["states"]) for row in rows if row.get("drifted")]:
        move = "move" if moved[1:] else "moves"
        yield f"Here {phrase(moved)} {move} parameters that never had a gradient."
    names = {row["states"] for row in rows}
    if "bf16" in names:
        yield "States in BF16 are emulated: rounded after each step of PyTorch's AdamW."
    if _OTHER in names:
        yield (
            "Muon follows another rule, for the matrices within the blocks, with AdamW for the "
            "rest: its d shows how that rule learns, not what few bits cost."
        )
    runs = (run for run in outcomes.values() if isinstance(run, TrainedRun))
    yield from dict.fromkeys(note for run in runs for note in run.notes)


Named = Iterable[tuple[str, torch.nn.Parameter]]
#: Whether Muon takes a parameter, by its name.
Takes = Callable[[str, torch.nn.Parameter], bool]
#: The test for drift: elements whose gradient is zero, elements whose gradient is not, steps, and
#: the learning rate.
_UNTOUCHED: Final = 8192
_STEPS: Final = 100
_RATE: Final = 1e-3


class BothOptimizers:
    """Two optimizers as one. Each steps over its own parameters."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return dict(chain.from_iterable(part.state.items() for part in self._parts))

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)


def make(name: str, named: Named, lr: float, betas: tuple[float, float], takes: Takes) -> Any:
    """The optimizer of that name over named parameters, without weight decay. Raises MissingLibrary
    if its library is not installed or no longer has it."""
    listed = [(each, p) for each, p in named if p.requires_grad]
    trained = [p for _, p in listed]
    settings: dict[str, Any] = {"lr": lr, "betas": betas, "eps": EPSILON, "weight_decay": 0.0}
    match name:
        case "fp32" | "bf16":
            optimizer = torch.optim.AdamW(trained, **settings)
            if name == "bf16":
                optimizer.register_step_post_hook(_round_states)
            return optimizer
        case "bitsandbytes 8-bit":
            with importing("AdamW8bit", "bitsandbytes"):
                from bitsandbytes.optim import AdamW8bit
            return AdamW8bit(trained, **settings)
        case "torchao 8-bit" | "torchao fp8" | "torchao 4-bit":
            with importing("An optimizer of low-bit states", "torchao"):
                from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
            kinds = {"8-bit": AdamW8bit, "fp8": AdamWFp8, "4-bit": AdamW4bit}
            return kinds[name.removeprefix("torchao ")](trained, **settings)
        case "muon":
            if not hasattr(torch.optim, "Muon"):
                raise MissingLibrary(
                    f"Muon came with PyTorch 2.9 and this is {torch.__version__}: "
                    f"pip install -U torch."
                )
            matrices = [p for each, p in listed if p.dim() == 2 and takes(each, p)]
            if not matrices:
                raise UsageError("Muon takes matrices alone, and the model has none.")
            chosen = set(map(id, matrices))
            muon = torch.optim.Muon(
                matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )
            rest = [p for p in trained if id(p) not in chosen]
            return BothOptimizers(muon, torch.optim.AdamW(rest, **settings)) if rest else muon
    raise UsageError(f"There is no optimizer {name!r}.")


def _round_states(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """Rounds the moments to BF16 after a step; they remain float32 tensors."""
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key].copy_(STORAGES["bf16"].nearest(state[key]))


def state_bytes(name: str, optimizer: Any, named: Named) -> int:
    """The bytes of the states, without the tables of levels: codes and scales, or numbers of four
    bytes. Where BF16 is emulated in float32, two bytes are counted."""
    tables = {each for each, _ in shared_tables(optimizer)}
    found = sum(
        tensor.numel() * tensor.element_size()
        for each, tensor in optimizer_tensors(optimizer, named)
        if each not in tables and not each.endswith(".qmap")
    )
    return found // 2 if name == "bf16" else found


def codes_of(optimizer: Any) -> dict[str, torch.Tensor]:
    """How often each code occurs in "m" and "v": int64 counts `[2^bits]`. Empty for states that are
    not codes."""
    found: dict[str, list[torch.Tensor]] = {}
    bits = 8
    for state in optimizer.state.values():
        for moment, keys in (("m", ("exp_avg", "state1")), ("v", ("exp_avg_sq", "state2"))):
            held = next((state[key] for key in keys if key in state), None)
            codes: Any = getattr(held, "codes", held)
            if held is None or codes.element_size() != 1:
                continue
            flat = codes.view(torch.uint8).reshape(-1)
            if codes.numel() * 2 == held.numel():  # two 4-bit codes in a byte
                flat, bits = torch.cat([flat >> 4, flat & 15]), 4
            found.setdefault(moment, []).append(torch.bincount(flat, minlength=2**bits))
    return {moment: torch.stack(counts).sum(0) for moment, counts in found.items()}


def entropy(counts: torch.Tensor) -> float:
    """The entropy of codes with these counts, in bits."""
    share = counts[counts > 0].double() / counts.sum()
    return float(-(share * share.log2()).sum())


def drift(name: str) -> tuple[float, float]:
    """The share of parameters that moved in a hundred steps at a rate of 0.001 although their
    gradient was always zero, and how far the farthest one moved. Each of them shares a block with
    parameters that have a gradient."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2 * _UNTOUCHED // 128, 128, generator=generator) * 0.02
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make(name, [("matrix", parameter)], _RATE, (0.9, 0.95), lambda name, p: True)
    touched = torch.arange(start.numel()).view_as(start) % 2 == 1
    for _ in range(_STEPS):
        noise = torch.randn(start.shape, generator=generator) * 1e-3
        parameter.grad = noise * touched
        optimizer.step()
    moved = (parameter.detach() - start)[~touched].abs()
    most = float(moved.max())
    return (float((moved > 0).double().mean()), most) if math.isfinite(most) else (1.0, math.inf)
