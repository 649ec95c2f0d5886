"""Does a run survive weights of low precision? This uses the user's model, text and learning rate.

Ten batches show which changes the optimizer wants. The share of them that each stored tensor
receives decides whether weights may be stored in a format. Terms that multiply a weight by a number
close to one have no effect at all below a threshold (`dead`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.catalog import FLOATS
from qtui_core.lab.numerics.products import layer_of
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.numerics.walks import thresholds
from qtui_core.lab.results import Cell, Findings, Job, LabChart, LabColumn, LabLine, See, findings
from qtui_core.lab.training import updates
from qtui_core.lab.training.tasks import LabTask, subject_of
from qtui_core.models.opening import open_model

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
    shares: tuple[updates.UpdateShares, ...]
    drawn: Mapping[str, float]
    dtype: str = "fp32"


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """One job: most of the work is the gradients."""
    return [Job("tensors", partial(tensors, settings, model), Survival, 6)]


def tensors(settings: Mapping[str, Any], model: str, see: See) -> Survival:
    """The shares of each tensor. In a large model only the first, the last and every eighth layer,
    and the tensors outside of layers, are tried."""
    betas, lr = (settings["beta1"], settings["beta2"]), settings["lr"]
    task = LabTask("prose", settings["batch"], settings["sequence"], None, False, betas=betas)
    large = open_model(model).parameters > _WHOLE
    subject = subject_of(task, model, settings["text"], large)
    parameters = dict(subject.start().named_parameters())
    chosen = _some_layers(list(parameters)) if large else lambda name: True
    wanted = updates.wanted_updates(subject, see, chosen, _ELEMENTS)
    shares = []
    for number, (name, (weight, u)) in enumerate(wanted.items()):
        see(number, len(wanted), None)
        if not bool(torch.isfinite(weight).all()):
            raise UsageError(f"{name} holds numbers that are not finite, so nothing can be said.")
        shares += [updates.shares_of(name, parameters[name], weight, u, lr, at) for at in FLOATS]
    drawn = {at: updates.drawn_share(STORAGES[at], [*wanted.values()], lr) for at in FLOATS}
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
    found: Survival | None = outcomes.get("tensors")
    if found is None:
        return findings()
    rows: list[dict[str, Cell]] = [
        {
            "tensor": share.tensor,
            "stored": share.stored,
            "kept": share.kept_here,
            "lost": share.lost_here,
            "enough": updates.enough_from([share]),
        }
        for share in sorted(found.shares, key=lambda k: (FLOATS.index(k.stored), k.kept_here))
    ]
    lines = tuple(
        LabLine(stored, tuple(map(min, zip(*kept, strict=True))), updates.RATES)
        for stored in FLOATS
        if (kept := [s.kept for s in found.shares if s.stored == stored and s.matrix])
    )
    picture = LabChart("kept by the worst matrix", "lr", "kept", lines, log_x=True)
    verdict, states = _verdict(settings, found), _of_states(settings, settings["store"])
    some = (
        f"{found.tried:,} of {found.tensors:,} tensors were tried: those of the first, the last "
        f"and every eighth layer, and those that belong to no layer."
    )
    stored = f"Gradients were computed in {found.dtype.upper()}, as the model is stored."
    notes = [
        states if settings["lr"] and states not in verdict else "",
        some if found.tried < found.tensors else "",
        stored if found.dtype != "fp32" else "",
    ]
    return findings(COLUMNS, rows, [picture if lines else None], [verdict], notes=notes)


def _verdict(settings: Mapping[str, Any], found: Survival) -> str:
    lr, stored = settings["lr"], settings["store"]
    name = stored.upper()
    shares = [s for s in found.shares if s.stored == stored]
    if not any(share.matrix for share in shares):
        return "No matrix of the model is trained, so there is nothing to survive."
    if not lr:
        return "At lr 0 no weight changes, so there is nothing to survive."
    short, dead = updates.too_little(shares), _dead(settings, stored)
    if not short and not dead:
        return (
            f"The run survives {name} weights at lr {lr:g}: every tensor keeps "
            f"{updates.kept_text(min(s.kept_here for s in shares))} of a step or more. "
            f"{_of_states(settings, stored)}"
        ).rstrip()
    from_lr = ""
    if short:
        least = updates.enough_from(shares)
        from_lr = f" No lr up to {updates.RATES[-1]:g} is enough for every tensor."
        if least is not None:
            from_lr = f" From lr {least:.2g} on every tensor keeps {updates.ENOUGH:.0%}."
    # A decay that multiplies the stored weight, as PyTorch's AdamW does, is rounded away before
    # any update is rounded stochastically.
    few = [] if dead or found.tried < found.tensors else short
    cures = updates.cures_of(shares, few, stored, None if dead else found.drawn[stored])
    would = "" if _dead(settings, "fp32") else f"; {cures} would do"
    said = ", and ".join(filter(None, (updates.kept_words(short) if short else "", dead)))
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
