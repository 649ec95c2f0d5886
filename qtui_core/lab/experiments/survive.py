"""Does a run survive weights of low precision? This uses the user's model, text and learning rate.

Ten batches show which changes the optimizer wants. The share of them that each stored tensor
receives decides whether weights may be stored in a format. Terms that multiply a weight by a number
close to one have no effect at all below a threshold (`dead`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.experiments.dead import thresholds
from qtui_core.lab.experiments.underflow import ENOUGH, kept_text
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine
from qtui_core.lab.training.tasks import LabTask, subject_of
from qtui_core.lab.training.twins import See
from qtui_core.lab.training.updates import reach, wanted_updates
from qtui_core.models.opening import open_model
from qtui_core.quantities import phrase

STORED: Final = ("bf16", "fp16", "e4m3")
#: The learning rates that are tried: four per decade.
RATES: Final = tuple(round(10 ** (-6 + i / 4), 10) for i in range(17))
#: In a model with more parameters than this only some layers are tried.
_WHOLE: Final = 100_000_000
#: How many elements of each tensor are tried.
_ELEMENTS: Final = 1 << 16
_BYTES: Final = {"stochastic rounding": 0, "Kahan summation": 2, "fp32 masters": 4}


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


@dataclass(frozen=True)
class Survival:
    """The shares of the tensors that were tried.

    Attributes:
        looked_at: how many tensors were tried.
        tensors: how many the model has.
        shares: of each tensor and format.
        dtype: in which the gradients were computed.
    """

    looked_at: int
    tensors: int
    shares: tuple[UpdateShares, ...]
    dtype: str = "fp32"


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """One job: most of the work is the gradients."""
    names = ("text", "lr", "beta1", "beta2", "batch", "sequence")
    arguments = {name: settings[name] for name in names} | {"model": model}
    return [Job("tensors", tensors, arguments, Survival, 6)]


def tensors(
    see: See,
    *,
    model: str,
    text: str | None,
    lr: float,
    beta1: float,
    beta2: float,
    batch: int,
    sequence: int,
) -> Survival:
    """The shares of each tensor. In a large model only the first, the last and every eighth layer,
    and the tensors outside of layers, are tried."""
    task = LabTask("prose", batch, sequence, None, False, betas=(beta1, beta2))
    large = open_model(model).parameters > _WHOLE
    subject = subject_of(task, model, text, large)
    parameters = dict(subject.start().named_parameters())
    chosen = _some_layers(list(parameters)) if large else lambda name: True
    wanted = wanted_updates(subject, see, chosen, _ELEMENTS)
    shares = []
    for number, (name, (weight, u)) in enumerate(wanted.items()):
        see(number, len(wanted), None)
        if not bool(torch.isfinite(weight).all()):
            raise UsageError(f"{name} holds numbers that are not finite, so nothing can be said.")
        shares += _shares(name, parameters[name], weight, u, lr)
    return Survival(len(wanted), len(parameters), tuple(shares), subject.dtype)


def _some_layers(names: list[str]) -> Callable[[str], bool]:
    """A function that tells from its name whether a parameter is tried: those of the first, the
    last and every eighth layer, and those outside of layers."""
    numbers = sorted({n for name in names if (n := layer_of(name)) is not None})
    kept = set(numbers[::8]) | set(numbers[-1:])
    return lambda name: layer_of(name) is None or layer_of(name) in kept


def layer_of(name: str) -> int | None:
    """The number of the layer that a parameter belongs to: the first number in its name."""
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def _shares(
    name: str, parameter: torch.Tensor, weight: torch.Tensor, u: torch.Tensor, lr: float
) -> list[UpdateShares]:
    """What each format keeps of the update `lr * u` of the elements `weight` of a parameter."""
    found = []
    values = parameter.detach().float()
    for stored in STORED:
        kept, lost = [], []
        scale = STORAGES[stored].scale_of(values)
        for rate in (*RATES, lr):
            wanted, missed, arrived, whole = reach(STORAGES[stored], weight, -rate * u, scale)
            kept.append(arrived / whole if whole else 1.0)
            lost.append(missed / wanted if wanted else 0.0)
        found.append(
            UpdateShares(
                name,
                stored,
                parameter.dim() > 1,
                parameter.numel(),
                tuple(kept[:-1]),
                tuple(lost[:-1]),
                kept[-1],
                lost[-1],
            )
        )
    return found


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each tensor and format at the learning rate of the run, the kept shares over the
    rates, and whether the run survives."""
    found: Survival | None = outcomes.get("tensors")
    if found is None:
        return Findings((), ())
    columns = (
        LabColumn("tensor", "tensor"),
        LabColumn("stored", "stored as"),
        LabColumn("kept", "kept", "share"),
        LabColumn("lost", "lost", "share"),
        LabColumn("enough", "survives from lr"),
    )
    order = sorted(found.shares, key=lambda k: (STORED.index(k.stored), k.kept_here))
    rows: list[dict[str, Cell]] = [
        {
            "tensor": share.tensor,
            "stored": share.stored,
            "kept": share.kept_here,
            "lost": share.lost_here,
            "enough": _enough(share),
        }
        for share in order
    ]
    lines = tuple(
        LabLine(stored, tuple(map(min, zip(*kept, strict=True))), RATES)
        for stored in STORED
        if (kept := [s.kept for s in found.shares if s.stored == stored and s.matrix])
    )
    picture = LabChart("kept by the worst matrix", "lr", "kept", lines, log_x=True)
    verdict, states = _verdict(settings, found), _of_states(settings, settings["store"])
    notes = [states] if settings["lr"] and states not in verdict else []
    if found.looked_at < found.tensors:
        notes.append(
            f"{found.looked_at:,} of {found.tensors:,} tensors were tried: those of the first, the "
            f"last and every eighth layer, and those that belong to no layer."
        )
    if found.dtype != "fp32":
        notes.append(f"Gradients were computed in {found.dtype.upper()}, as the model is stored.")
    pictures = (picture,) if lines else ()
    return Findings(columns, tuple(rows), pictures, verdict, notes=tuple(notes))


def _enough(share: UpdateShares) -> float | None:
    """The lowest rate from which on enough is always kept; None if there is none."""
    least = None
    for rate, kept in zip(reversed(RATES), reversed(share.kept), strict=True):
        if kept <= ENOUGH:
            break
        least = rate
    return least


def _verdict(settings: Mapping[str, Any], found: Survival) -> str:
    lr, stored = settings["lr"], settings["store"]
    name = stored.upper()
    matrices = [s for s in found.shares if s.stored == stored and s.matrix]
    if not matrices:
        return "No matrix of the model is trained, so there is nothing to survive."
    if not lr:
        return "At lr 0 no weight changes, so there is nothing to survive."
    dead = _dead(settings, stored)
    worst = min(matrices, key=lambda s: s.kept_here)
    if worst.kept_here > ENOUGH and not dead:
        return (
            f"The run survives {name} weights at lr {lr:g}: every matrix keeps "
            f"{kept_text(worst.kept_here)} of a step or more. {_of_states(settings, stored)}"
        ).rstrip()
    said = []
    if worst.kept_here <= ENOUGH:
        said.append(f"{worst.tensor} keeps {kept_text(worst.kept_here)} of a step")
    said += dead
    rates = [_enough(share) for share in matrices]
    known = [rate for rate in rates if rate is not None]
    from_lr = ""
    if worst.kept_here <= ENOUGH:
        from_lr = (
            f" From lr {max(known):.2g} on every matrix keeps {ENOUGH:.0%}."
            if len(known) == len(rates)
            else f" No lr up to {RATES[-1]:g} is enough for every matrix."
        )
    cures = [f"{cure} ({nbytes})" for cure, nbytes in _BYTES.items()]
    cures[0] = cures[0].replace(")", " bytes more a parameter)").capitalize()
    return (
        f"At lr {lr:g} the run does not survive {name} weights: {' and '.join(said)}. "
        f"{phrase(cures, 'or')} would do.{from_lr}"
    )


def _of_states(settings: Mapping[str, Any], stored: str) -> str:
    """Whether the second moment can fall: PyTorch's AdamW stores it in the format of the weight."""
    bits = STORAGES[stored].mantissa_bits
    assert bits is not None
    least, _ = thresholds(bits)
    share = 1 - settings["beta2"]
    if not 0 < share < least:
        return ""
    more = 2 * (STORAGES["fp32"].nbytes - STORAGES[stored].nbytes)
    return (
        f"Keep its states in fp32 ({more:g} bytes more): in {stored.upper()} the second moment "
        f"never falls (1 − beta2 = {share:.2g}, less than {least:.2g})."
    )


def _dead(settings: Mapping[str, Any], stored: str) -> list[str]:
    """Sentences, without full stops, on the terms that have no effect."""
    bits = STORAGES[stored].mantissa_bits
    assert bits is not None
    least, _ = thresholds(bits)
    share = settings["lr"] * settings["decay"]
    if not 0 < share < least:
        return []
    return [f"weight decay does nothing (lr × decay = {share:.2g}, less than {least:.2g})"]
