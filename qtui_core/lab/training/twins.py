"""Runs that differ in one thing only: they have the same start and the same batches in the same
order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from functools import partial
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.job import Job
from qtui_core.lab.numerics.rounding import Random, Storage
from qtui_core.lab.training.tasks import LabSubject, held_out_loss, loss_of
from qtui_core.loading.hooks import hooked
from qtui_core.training.model.optimizers import optimizer_tensors, tensor_parts

#: The number of last steps whose mean difference counts.
LAST: Final = 20
#: A difference must exceed the floor this many times.
FLOORS: Final = 3
#: Relative noise on the weights of the disturbed twin, which determines the floor.
NULL_NOISE: Final = 1e-6

#: Sequences that are looked through at once for what is not finite.
_ROWS: Final = 32


@dataclass(frozen=True)
class TrainedRun:
    """The record of a run.

    Attributes:
        losses: of each step, nats per token.
        held_before, held_after: held-out loss, nats per token; None if the run diverged or if it
            was not measured.
        seconds: of a step, the median.
        diverged: the first step, from 1, with a loss or a gradient that is not finite; 0 if there
            is none.
        first: the first tensor that was not finite at that step.
        nbytes: the counts of `held_bytes` at the last step.
        facts: other figures of the recipe, by name.
        notes: sentences, for example on what was converted.
    """

    losses: tuple[float, ...]
    held_before: float | None
    held_after: float | None
    seconds: float
    diverged: int = 0
    first: str = ""
    nbytes: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Recipe:
    """What makes a run differ from its twin in float32.

    Attributes:
        prepare: changes the model before its optimizer is made.
        optimizer: makes one for a model and a learning rate; None is PyTorch's AdamW.
        stepped: called after each step of the optimizer, with its number from 0.
        context: forward passes run in it, including those for the held-out loss.
        around: the whole run is in it.
        ended: adds what is read off the model and the optimizer to the record of a run.
    """

    prepare: Callable[[Any], Any] | None = None
    optimizer: Callable[[Any, float], Any] | None = None
    stepped: Callable[[Any, int], None] | None = None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    ended: Callable[[Any, Any, TrainedRun], TrainedRun] = lambda model, optimizer, run: run


def train(
    subject: LabSubject,
    recipe: Recipe,
    seed: int,
    steps: int,
    lr: float,
    job: Job,
    *,
    before: bool = False,
    after: bool = True,
) -> TrainedRun:
    """Trains with a recipe for `steps` steps. The held-out loss is measured before them with
    `before`, and after them unless `after` is false. `see` is called before each step; exceptions
    that it raises end the run."""
    with recipe.around():
        task = subject.task
        model = subject.fresh(seed)
        held_before = held_out_loss(model, subject.held_out) if before else None
        if recipe.prepare is not None:
            model = recipe.prepare(model) or model
        optimizer = (recipe.optimizer or partial(adamw, betas=task.betas))(model, lr)
        batches = subject.batches(seed)
        losses: list[float] = []
        seconds: list[float] = []
        nbytes: dict[str, int] = {}
        diverged, first, held_after = 0, "", None
        for step in range(steps):
            job.at(step, steps, repr(losses[-1]) if losses else "")
            began = time.perf_counter()
            set_rate(optimizer, task.rate(step, steps, lr))
            ids = next(batches)
            with recipe.context():
                loss = loss_of(model, ids)
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                first = first_not_finite(model, ids, recipe)
            else:
                loss.backward()
                if name := gradient_not_finite(model):
                    first = f"the gradient of {name}"
            if first:
                diverged = step + 1
                break
            if task.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), task.clip)
            optimizer.step()
            if step == steps - 1:
                nbytes = held_bytes(model, optimizer)
            optimizer.zero_grad(set_to_none=True)
            if recipe.stepped is not None:
                with torch.no_grad():
                    recipe.stepped(model, step)
            seconds.append(time.perf_counter() - began)
        if not diverged:
            job.at(steps, steps, repr(losses[-1]) if losses else "")
        if after and not diverged:
            with recipe.context():
                held_after = held_out_loss(model, subject.held_out)
            if not math.isfinite(held_after):
                diverged, first = steps, first_not_finite(model, subject.held_out, recipe)
                held_after = None
        median = sorted(seconds)[len(seconds) // 2] if seconds else 0.0
        run = TrainedRun(tuple(losses), held_before, held_after, median, diverged, first, nbytes)
        return recipe.ended(model, optimizer, run)


def held_bytes(model: Any, optimizer: Any) -> dict[str, int]:
    """The bytes of all weights, of the trained ones, and of their gradients and optimizer states. A
    tensor that wraps others counts as those."""
    named = dict(model.named_parameters())
    trained = {name: p for name, p in named.items() if p.requires_grad}
    gradients = {name: p.grad for name, p in trained.items() if p.grad is not None}
    return {
        kind: sum(part.nbytes for name, t in tensors for _, part in tensor_parts(name, t))
        for kind, tensors in (
            ("weights", named.items()),
            ("trained", trained.items()),
            ("gradients", gradients.items()),
            ("states", optimizer_tensors(optimizer, trained.items())),
        )
    }


def first_not_finite(model: Any, ids: torch.Tensor, recipe: Recipe) -> str:
    """The name of the first weight that is not finite; if all are, the first module in the order of
    a forward pass over `ids` whose output is not; else "the loss"."""
    ill = [str(name) for name, p in model.named_parameters() if not _finite(p.detach())]

    def look(name: str, x: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and not ill and not _finite(output):
            ill.append(f"the output of {name}")

    with hooked({name: m for name, m in model.named_modules() if name}, look), torch.no_grad():
        for part in () if ill else ids.split(_ROWS):
            with recipe.context():
                loss_of(model, part)
    return ill[0] if ill else "the loss"


def gradient_not_finite(model: Any) -> str:
    """The parameter whose gradient is not finite and came first: the last such one, as a backward
    pass goes from the end to the beginning. "" if all are finite."""
    for name, parameter in reversed(list(model.named_parameters())):
        # The sum is quick, and not finite where an element is not; a finite gradient may overflow.
        if parameter.grad is None or bool(torch.isfinite(parameter.grad.sum())):
            continue
        if not _finite(parameter.grad):
            return str(name)
    return ""


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor.float()).all())


def adamw(model: Any, lr: float, betas: tuple[float, float]) -> Any:
    """PyTorch's AdamW over the trainable parameters, without weight decay."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=lr, betas=betas, eps=1e-8, weight_decay=0.0)


def set_rate(optimizer: Any, lr: float) -> None:
    """Sets the learning rate of the next step. Compiled optimizers keep it in a tensor."""
    for group in optimizer.param_groups:
        kept = group["lr"]
        group["lr"] = kept.fill_(lr) if isinstance(kept, torch.Tensor) else lr


def null() -> Recipe:
    """The recipe of the disturbed twin: float32 with weights that differ by a millionth. The
    difference that this makes is the floor."""

    def disturb(model: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.mul_(1 + NULL_NOISE * noise.to(parameter.device))

    return Recipe(prepare=disturb)


def stored_weights(storage: Storage, random: Random) -> Recipe:
    """A recipe whose weights are rounded to a format at the start and after each step,
    stochastically with numbers of `random`. All else is float32."""

    @torch.no_grad()
    def onto_grid(model: Any, random: Random = None) -> None:
        for parameter in model.parameters():
            parameter.copy_(storage.rounded(parameter, random))

    return Recipe(onto_grid, stepped=lambda model, step: onto_grid(model, random))


def paired(run: TrainedRun, twin: TrainedRun, last: int = LAST) -> list[float]:
    """The loss of each of the last steps minus the twin's loss on the same batch, nats per token.
    Empty if either run diverged or they did not run the same steps."""
    if run.diverged or twin.diverged or len(run.losses) != len(twin.losses):
        return []
    return [a - b for a, b in zip(run.losses, twin.losses, strict=True)][-last:]


def difference(run: TrainedRun, twin: TrainedRun, last: int = LAST) -> float | None:
    """The mean of `paired`; None if that is empty."""
    pairs = paired(run, twin, last)
    return sum(pairs) / len(pairs) if pairs else None


def apart(one: TrainedRun | None, other: TrainedRun | None, key: str) -> float | None:
    """How far two runs on the same batches differ: the difference of a fact of both, or that of
    their losses while they train if it is larger, because a single pair of numbers may be near by
    chance. None if one is unknown or has no such fact."""
    if one is None or other is None or key not in one.facts or key not in other.facts:
        return None
    trained = abs(difference(one, other) or 0.0)
    return max(abs(one.facts[key] - other.facts[key]), trained)
