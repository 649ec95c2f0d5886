"""Does a run survive weights of low precision? This uses the user's model, text and learning rate.

Ten batches show which changes AdamW wants. The share of them that each stored tensor receives
decides whether weights may be stored in a format; `underflow` judges by the same rule. Terms that
multiply a weight by a number close to one have no effect at all below a threshold (`dead`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.job import Job
from qtui_core.lab.catalog import FLOATS
from qtui_core.lab.numerics.products import layer_of
from qtui_core.lab.numerics.rounding import STORAGES, Random, Storage
from qtui_core.lab.numerics.walks import thresholds
from qtui_core.lab.results import (
    Cell,
    Findings,
    LabChart,
    LabColumn,
    LabLine,
    LabPart,
    findings,
)
from qtui_core.lab.training.tasks import LabSubject, LabTask, loss_of, subject_of
from qtui_core.lab.training.twins import Recipe, first_not_finite
from qtui_core.models.opening import open_model
from qtui_core.quantities import format_bytes, phrase, plural

#: The number of batches from which u is computed, and eps of AdamW.
UPDATE_STEPS: Final = 10
EPSILON: Final = 1e-8
#: (Number of elements with a wanted update, number of those that do not change, sum of
#: (w'-w)·delta, sum of delta²).
Sums = tuple[int, int, float, float]
#: A format is good enough for a run if every tensor keeps more than this share of a step.
ENOUGH: Final = 0.9
#: The learning rates that are tried: four per decade.
RATES: Final = tuple(round(10 ** (-6 + i / 4), 10) for i in range(17))
#: Tensors with at most this share of the elements are worth keeping in fp32 alone.
_FEW: Final = 0.1


@dataclass(frozen=True)
class UpdateShares:
    """The shares of one tensor's update in one format: kept and lost, at each of RATES and at the
    learning rate of the run."""

    tensor: str
    stored: str
    matrix: bool
    elements: int
    kept: tuple[float, ...]
    lost: tuple[float, ...]
    kept_here: float
    lost_here: float


def wanted_updates(
    subject: LabSubject,
    job: Job,
    chosen: Callable[[str], bool] = lambda name: True,
    most: int | None = None,
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """(weight, u) of every chosen parameter, float32, where u = m^/(sqrt(v^) + eps) of AdamW after
    ten batches. The weights are not changed, so that one u serves all rates and formats.

    With `most`, both are one-dimensional: of a tensor with more elements than that, every k-th
    element, k whole, at least `most` of them.
    """
    model = subject.start()
    first, second = subject.task.betas

    def sampled(tensor: torch.Tensor) -> torch.Tensor:
        """A float32 copy of the elements that are examined."""
        if most is not None:
            tensor = tensor.reshape(-1)[:: max(1, tensor.numel() // most)]
        return tensor.detach().to(torch.float32, copy=True)

    trained = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(chosen(name))
        if parameter.requires_grad:
            trained[name] = parameter
    weights = {name: sampled(p) for name, p in trained.items()}
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}
    batches = subject.batches(0)
    for step in range(UPDATE_STEPS):
        job.at(step, UPDATE_STEPS)
        ids = next(batches)
        loss = loss_of(model, ids)
        if not math.isfinite(float(loss.detach())):
            ill = first_not_finite(model, ids, Recipe())
            raise ModelError(f"The model's loss is not finite ({ill}), so updates say nothing.")
        loss.backward()
        for name, parameter in trained.items():
            if parameter.grad is None:
                continue
            m, v = moments[name]
            gradient = sampled(parameter.grad)
            m.mul_(first).add_(gradient, alpha=1 - first)
            v.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            parameter.grad = None
    bias, square = 1 - first**UPDATE_STEPS, 1 - second**UPDATE_STEPS
    return {
        name: (weights[name], (m / bias) / ((v / square).sqrt() + EPSILON))
        for name, (m, v) in moments.items()
    }


def reach(
    storage: Storage,
    weight: torch.Tensor,
    update: torch.Tensor,
    scale: torch.Tensor | None = None,
    random: Random = None,
) -> Sums:
    """How much of one tensor's update arrives, with the weight first rounded to the format: by its
    own scale, or by the one given for a part of a tensor. With `random` stochastically."""
    scale = storage.scale_of(weight) if scale is None else scale
    stored = storage.nearest(weight, scale)
    arrived = (storage.rounded(stored + update, random, scale) - stored).double()
    wanted, delta = update != 0, update.double()
    lost = wanted & (arrived == 0)
    sums = float((arrived * delta).sum()), float((delta * delta).sum())
    return int(wanted.sum()), int(lost.sum()), *sums


def shares_of(
    name: str, whole: torch.Tensor, weight: torch.Tensor, u: torch.Tensor, lr: float, stored: str
) -> UpdateShares:
    """What a format keeps of the update `lr * u` of the elements `weight` of a `whole` tensor."""
    scale = STORAGES[stored].scale_of(whole.detach().float())
    kept, lost = [], []
    for rate in (*RATES, lr):
        wanted, missed, arrived, due = reach(STORAGES[stored], weight, -rate * u, scale)
        kept.append(arrived / due if due else 1.0)
        lost.append(missed / (wanted or 1))
    rates, here = (tuple(kept[:-1]), tuple(lost[:-1])), (kept[-1], lost[-1])
    return UpdateShares(name, stored, whole.dim() > 1, whole.numel(), *rates, *here)


def drawn_share(
    storage: Storage, wanted: Sequence[tuple[torch.Tensor, torch.Tensor]], lr: float
) -> float:
    """The share of a step of all (weight, u) that arrives with stochastic rounding."""
    random = torch.Generator().manual_seed(0)
    sums = [reach(storage, weight, -lr * u, None, random) for weight, u in wanted]
    whole = sum(due for *_, due in sums)
    return sum(arrived for *_, arrived, _ in sums) / whole if whole else 1.0


def enough_from(shares: Sequence[UpdateShares]) -> float | None:
    """The lowest of RATES from which on every tensor keeps ENOUGH; None if there is none."""
    least = None
    for at in reversed(range(len(RATES))):
        if any(share.kept[at] <= ENOUGH for share in shares):
            break
        least = RATES[at]
    return least


def too_little(shares: Sequence[UpdateShares]) -> list[UpdateShares]:
    """The tensors that keep too little at the rate of the run."""
    return [share for share in shares if share.kept_here <= ENOUGH]


def kept_words(short: Sequence[UpdateShares]) -> str:
    """What tensors keep that keep too little, as `lm_head.weight keeps 5% of a step`: the worst
    matrix, and all norms and biases together."""
    matrices = sorted((s for s in short if s.matrix), key=lambda s: s.kept_here)
    said = [f"{matrices[0].tensor} keeps {kept_text(matrices[0].kept_here)}"] if matrices else []
    if matrices[1:]:
        said[0] += f" (the least of {plural(len(matrices), 'matrix', 'matrices')})"
    if vectors := [s.kept_here for s in short if not s.matrix]:
        many = plural(len(vectors), "norm or bias", "norms and biases")
        most = "" if max(vectors) < 0.005 else " or less"
        said.append(f"{many} {'keep' if vectors[1:] else 'keeps'} {kept_text(max(vectors))}{most}")
    return f"{phrase(said)} of a step"


def kept_text(share: float) -> str:
    """A share that says 100% only if it is all."""
    return f"{share if share >= 1 else min(share, 0.99):.0%}"


def cures_of(
    shares: Sequence[UpdateShares], short: Sequence[UpdateShares], stored: str, drawn: float | None
) -> str:
    """What was run and is enough where `stored` is not, with its bytes: the tensors that are short
    in fp32, if they are few; stochastic rounding, which kept the share `drawn`; fp32 weights."""
    more = STORAGES["fp32"].nbytes - STORAGES[stored].nbytes
    few = sum(s.elements for s in short)
    cures = []
    if short and few <= _FEW * sum(s.elements for s in shares):
        what = short[0].tensor if len(short) == 1 else f"those {len(short)}"
        cures.append(f"{what} in fp32 ({format_bytes(int(more * few))} more)")
    if drawn is not None and drawn > ENOUGH:
        cures.append(f"stochastic rounding (no byte more, kept {min(drawn, 1.0):.0%})")
    return phrase([*cures, f"fp32 weights ({more:g} bytes more a parameter)"], "or")


#: In a model with more parameters than this only some layers are tried.
_WHOLE: Final = 100_000_000
#: How many elements of each tensor are tried.
_ELEMENTS: Final = 1 << 16
COLUMNS: Final = (
    LabColumn("tensor", "tensor"),
    LabColumn("stored", "stored as"),
    LabColumn("kept", "kept", "share"),
    LabColumn("lost", "lost", "share"),
    LabColumn("enough", "survives from lr"),
)


@dataclass(frozen=True)
class Survival:
    """The shares of the tensors that were tried, in each format.

    Attributes:
        tried, tensors: how many tensors were tried, and how many the model has.
        drawn: by format, the share of a step that all of them keep with stochastic rounding.
        dtype: in which the gradients were computed.
    """

    tried: int
    tensors: int
    shares: tuple[UpdateShares, ...]
    drawn: Mapping[str, float]
    dtype: str = "fp32"


def jobs(settings: Mapping[str, Any], model: str) -> list[LabPart]:
    """One job: most of the work is the gradients."""
    return [LabPart("tensors", partial(tensors, settings, model), Survival, 6)]


def tensors(settings: Mapping[str, Any], model: str, job: Job) -> Survival:
    """The shares of each tensor. In a large model only the first, the last and every eighth layer,
    and the tensors outside of layers, are tried."""
    betas, lr = (settings["beta1"], settings["beta2"]), settings["lr"]
    task = LabTask("prose", settings["batch"], settings["sequence"], None, False, betas=betas)
    large = open_model(model).parameters > _WHOLE
    subject = subject_of(task, model, settings["text"], large)
    parameters = dict(subject.start().named_parameters())
    chosen = _some_layers(list(parameters)) if large else lambda name: True
    wanted = wanted_updates(subject, job, chosen, _ELEMENTS)
    shares = []
    for number, (name, (weight, u)) in enumerate(wanted.items()):
        job.at(number, len(wanted))
        if not bool(torch.isfinite(weight).all()):
            raise UsageError(f"{name} holds numbers that are not finite, so nothing can be said.")
        shares += [shares_of(name, parameters[name], weight, u, lr, at) for at in FLOATS]
    drawn = {at: drawn_share(STORAGES[at], [*wanted.values()], lr) for at in FLOATS}
    return Survival(len(wanted), len(parameters), tuple(shares), drawn, subject.dtype)


def _some_layers(names: list[str]) -> Callable[[str], bool]:
    """Whether a parameter is tried, by its name: those of the first, the last and every eighth
    layer, and those outside of layers."""
    numbers = sorted({n for name in names if (n := layer_of(name)) is not None})
    kept = {None, *numbers[::8], *numbers[-1:]}
    return lambda name: layer_of(name) in kept


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each tensor and format at the learning rate of the run, the kept shares over the
    rates, and whether the run survives."""
    survival: Survival | None = outcomes.get("tensors")
    if survival is None:
        return findings()
    rows: list[dict[str, Cell]] = [
        {
            "tensor": share.tensor,
            "stored": share.stored,
            "kept": share.kept_here,
            "lost": share.lost_here,
            "enough": enough_from([share]),
        }
        for share in sorted(survival.shares, key=lambda k: (FLOATS.index(k.stored), k.kept_here))
    ]
    lines = tuple(
        LabLine(stored, tuple(map(min, zip(*kept, strict=True))), RATES)
        for stored in FLOATS
        if (kept := [s.kept for s in survival.shares if s.stored == stored and s.matrix])
    )
    picture = LabChart("kept by the worst matrix", "lr", "kept", lines, log_x=True)
    verdict, states = _verdict(settings, survival), _of_states(settings, settings["store"])
    some = (
        f"{survival.tried:,} of {survival.tensors:,} tensors were tried: those of the first, the "
        f"last and every eighth layer, and those that belong to no layer."
    )
    stored = f"Gradients were computed in {survival.dtype.upper()}, as the model is stored."
    notes = [
        states if settings["lr"] and states not in verdict else "",
        some if survival.tried < survival.tensors else "",
        stored if survival.dtype != "fp32" else "",
    ]
    return findings(COLUMNS, rows, [picture if lines else None], [verdict], notes=notes)


def _verdict(settings: Mapping[str, Any], survival: Survival) -> str:
    lr, stored = settings["lr"], settings["store"]
    name = stored.upper()
    shares = [s for s in survival.shares if s.stored == stored]
    if not any(share.matrix for share in shares):
        return "No matrix of the model is trained, so there is nothing to survive."
    if not lr:
        return "At lr 0 no weight changes, so there is nothing to survive."
    short, dead = too_little(shares), _dead(settings, stored)
    if not short and not dead:
        return (
            f"The run survives {name} weights at lr {lr:g}: every tensor keeps "
            f"{kept_text(min(s.kept_here for s in shares))} of a step or more. "
            f"{_of_states(settings, stored)}"
        ).rstrip()
    from_lr = ""
    if short:
        least = enough_from(shares)
        from_lr = f" No lr up to {RATES[-1]:g} is enough for every tensor."
        if least is not None:
            from_lr = f" From lr {least:.2g} on every tensor keeps {ENOUGH:.0%}."
    # A decay that multiplies the stored weight, as PyTorch's AdamW does, is rounded away before
    # any update is rounded stochastically.
    few = [] if dead or survival.tried < survival.tensors else short
    cures = cures_of(shares, few, stored, None if dead else survival.drawn[stored])
    would = "" if _dead(settings, "fp32") else f"; {cures} would do"
    said = ", and ".join(filter(None, (kept_words(short) if short else "", dead)))
    return f"At lr {lr:g} the run does not survive {name} weights: {said}{would}.{from_lr}"


def _of_states(settings: Mapping[str, Any], stored: str) -> str:
    """Whether the second moment can fall: PyTorch's AdamW stores it in the format of the weight."""
    share, least = 1 - settings["beta2"], _never_acts(stored)
    if not 0 < share < least:
        return ""
    more = 2 * (STORAGES["fp32"].nbytes - STORAGES[stored].nbytes)
    return (
        f"Keep its states in fp32 ({more:g} bytes more): in {stored.upper()} the second moment "
        f"never falls (1 − beta2 = {share:.2g}, less than {least:.2g})."
    )


def _dead(settings: Mapping[str, Any], stored: str) -> str:
    """Whether the decay has no effect, as a part of a sentence."""
    share, least = settings["lr"] * settings["decay"], _never_acts(stored)
    if not 0 < share < least:
        return ""
    return f"weight decay does nothing (lr × decay = {share:.2g}, less than {least:.2g})"


def _never_acts(stored: str) -> float:
    """The share below which a term that multiplies a number of this format has no effect."""
    return thresholds(STORAGES[stored].mantissa_bits or 0)[0]
