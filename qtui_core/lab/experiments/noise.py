"""Does the noise of a format average out over a batch, as the noise of the data does?

For N micro batches with exact gradients g_i and quantized gradients q_i, the errors are e_i = q_i -
g_i. The part of |e_i|² that does not average out over any batch is b, the mean of <e_i, e_j> over i
!= j; the rest averages out. The noise of the data is the variance of g_i. Both are computed from
two N x N matrices of inner products, without a fit. At the batch size where the noise of the data
has fallen to b, a larger batch no longer helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from qtui_core.dataclass import dataclass
from qtui_core.lab.job import Job
from qtui_core.lab.numerics.gradients import gradients_of, quantized
from qtui_core.lab.numerics.operands import TILES
from qtui_core.lab.numerics.products import SCHEMES, inner_linears
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.results import Cell, Findings, LabChart, LabColumn, LabLine
from qtui_core.lab.training.tasks import TASKS, subject_of
from qtui_core.lab.training.twins import See
from qtui_core.quantities import phrase

#: Half the width of a confidence interval, in standard errors.
_ERRORS: Final = 2.0
#: Training is reported to stall where the norm of the gradient is less than so many times that of
#: the noise which quantization adds to it (Chmiel et al., FP4 All the Way, 2025).
STALLS: Final = math.sqrt(3)


@dataclass(frozen=True)
class Noise:
    """The noise that a scheme adds to the gradient.

    Attributes:
        tokens: of a micro batch.
        batch: variance of the exact gradient over the micro batches.
        fixed, averaged: b, and the part of |e|² that averages out.
        fixed_error, batch_error: standard errors of `fixed` and `batch`, by the jackknife.
        norm: of the gradient of all data, from the products of different micro batches, in which
            the noise of the batch cancels.
    """

    tokens: int
    batch: float
    batch_error: float
    fixed: float
    fixed_error: float
    averaged: float
    norm: float


def jobs(settings: Mapping[str, Any], model: str) -> list[Job]:
    """A job for each scheme. Each computes the exact gradients again, which costs less than sharing
    them between processes."""
    shared = {"model": model, "text": settings["text"], "micro": settings["micro"]}
    return [
        Job(scheme, noise, shared | {"scheme": scheme}, Noise, 0.9 * settings["micro"])
        for scheme in settings["schemes"]
    ]


def noise(see: See, *, model: str, text: str | None, micro: int, scheme: str) -> Noise:
    """The noise of one scheme. Raises ModelError for a model without linear layers besides its
    head."""
    subject = subject_of(TASKS["prose"], model, text)
    net = subject.start()
    names = inner_linears(net)
    batches = subject.batches(0)
    random = torch.Generator().manual_seed(0)
    exact, errors = [], []
    for number in range(micro):
        see(number, micro, None)
        ids = next(batches)
        gradient, _ = gradients_of(net, ids)
        with quantized(net, dict.fromkeys(names, SCHEMES[scheme]), random):
            made, _ = gradients_of(net, ids)
        exact.append(gradient)
        errors.append(made - gradient)
    return measured(_gram(exact), _gram(errors), subject.task.batch * subject.task.sequence)


def _gram(rows: list[torch.Tensor]) -> torch.Tensor:
    """The inner products of all pairs of rows, float64 `[N, N]`."""
    whole = torch.stack(rows)
    return (whole @ whole.T).double()


def measured(exact: torch.Tensor, errors: torch.Tensor, tokens: int) -> Noise:
    """The noise from the inner products of the exact gradients and those of their errors, each `[N,
    N]`."""
    fixed, fixed_error = _jackknife(errors, _off_diagonal)
    batch, batch_error = _jackknife(exact, lambda g: float(g.diagonal().mean()) - _off_diagonal(g))
    averaged = float(errors.diagonal().mean()) - fixed
    norm = math.sqrt(max(0.0, _off_diagonal(exact)))
    return Noise(tokens, batch, batch_error, fixed, fixed_error, averaged, norm)


def _off_diagonal(gram: torch.Tensor) -> float:
    count = gram.shape[0]
    return float((gram.sum() - gram.diagonal().sum()) / (count * (count - 1)))


def _jackknife(gram: torch.Tensor, of: Any) -> tuple[float, float]:
    """The figure `of(gram)` and its standard error, computed by leaving out one micro batch at a
    time."""
    count = gram.shape[0]
    parts = []
    for left in range(count):
        kept = [i for i in range(count) if i != left]
        parts.append(of(gram[kept][:, kept]))
    mean = sum(parts) / count
    return of(gram), math.sqrt((count - 1) / count * sum((p - mean) ** 2 for p in parts))


def usable(found: Noise) -> tuple[float | None, float | None, float | None]:
    """The tokens of the batch at which the noise of the data equals what the format adds to every
    batch, and both ends of its confidence interval; None for a value that is not finite."""

    def at(fixed: float) -> float | None:
        return found.batch / fixed * found.tokens if fixed > 0 else None

    spread = _ERRORS * found.fixed_error
    return at(found.fixed), at(found.fixed + spread), at(found.fixed - spread)


def conclude(settings: Mapping[str, Any], outcomes: Mapping[str, Any]) -> Findings:
    """A row for each scheme, both kinds of noise over the batch size, and the largest useful batch
    of each scheme."""
    found: dict[str, Noise] = {s: outcomes[s] for s in settings["schemes"] if s in outcomes}
    columns = (
        LabColumn("scheme", "scheme"),
        LabColumn("noise", "noise / batch's"),
        LabColumn("fixed", "fixed / batch's"),
        LabColumn("tokens", "usable batch, tokens"),
        LabColumn("low", "at least"),
        LabColumn("stalls", "gradient / noise"),
    )
    rows: list[dict[str, Cell]] = []
    for scheme, one in found.items():
        at, low, _ = usable(one)
        added = one.fixed + one.averaged
        rows.append(
            {
                "scheme": scheme,
                "noise": added / one.batch if one.batch else None,
                "fixed": one.fixed / one.batch if one.batch else None,
                "tokens": None if at is None else round(at),
                "low": None if low is None else round(low),
                "stalls": one.norm / math.sqrt(added) if added > 0 else None,
            }
        )
    verdict, notes = _verdict(found), tuple(_stalled(found))
    return Findings(columns, tuple(rows), _pictures(found), verdict, notes=notes)


def _pictures(found: Mapping[str, Noise]) -> tuple[LabChart, ...]:
    if not found:
        return ()
    tokens = next(iter(found.values())).tokens
    sizes = tuple(float(tokens * 2**i) for i in range(15))
    first = next(iter(found.values()))
    lines = [
        LabLine("the batch", tuple(first.batch * tokens / n for n in sizes), sizes, faint=True)
    ]
    stalls = (first.norm / STALLS) ** 2
    ends = (sizes[0], sizes[-1])
    lines.append(LabLine("|gradient|²/3: stalls above", (stalls,) * 2, ends, faint=True))
    lines += [
        LabLine(
            scheme, tuple(max(one.fixed, 0.0) + one.averaged * tokens / n for n in sizes), sizes
        )
        for scheme, one in found.items()
    ]
    title = "noise of the gradient over the tokens of a batch"
    return (LabChart(title, "tokens", "|error|²", tuple(lines), log_x=True, log_y=True),)


def _verdict(found: Mapping[str, Noise]) -> str:
    ends: list[str] = []
    unseen = []
    if alike := [one for one in found.values() if one.batch <= _ERRORS * one.batch_error]:
        if any(one.norm or one.averaged for one in alike):
            return (
                "The gradients of these micro batches hardly differ, or there are too few of them "
                "to see it, so no usable batch can be given: take more with --micro, or a longer "
                "--text."
            )
        return "Every gradient is zero here, so no format adds noise to it."
    for scheme, one in found.items():
        at, low, _ = usable(one)  # the upper end is another one with every text
        if at is None or low is None:
            unseen.append(scheme)
            continue
        tokens = "" if ends else " tokens"
        ends.append(f"{_tokens(at)}{tokens} (at least {_tokens(low)}) in {scheme}")
    said = []
    if ends:
        said.append(
            f"A larger batch helps up to {', '.join(ends)}. {_cure(found)} Beyond, the format's "
            f"own noise is the larger."
        )
    if unseen:
        add = "add" if unseen[1:] else "adds"
        said.append(
            f"{phrase(unseen)} {add} no noise that stays in a large batch, as far as these micro "
            f"batches can show."
        )
    return " ".join(said)


def _cure(found: Mapping[str, Noise]) -> str:
    """What to do where a larger batch than that of the worst scheme is wanted: the scheme of the
    fewest bytes whose interval lies wholly above the worst one's, and its cost."""
    spans = {scheme: usable(one) for scheme, one in found.items()}
    least = min(spans, key=lambda scheme: spans[scheme][0] or math.inf)
    end = spans[least][2] or math.inf
    wider = {s: low or math.inf for s, (_, low, _) in spans.items() if (low or math.inf) > end}
    best = min(wider, key=lambda scheme: (_nbytes(scheme), -wider[scheme]), default=None)
    if best is None:
        return "For more tokens take more steps, at no byte more."
    more = _nbytes(best) - _nbytes(least)
    cost = f"{more:.2g} bytes more" if more > 0 else "no byte more"
    return f"For more tokens take {best} ({cost} a number than {least})."


def _nbytes(scheme: str) -> float:
    """The bytes of a number of an operand, with the scales of groups."""
    operand = SCHEMES[scheme].x
    rows, along = TILES.get(operand.scales, (0, 0))
    return STORAGES[operand.storage].nbytes + (1 / along if rows == 1 and along < 128 else 0.0)


def _stalled(found: Mapping[str, Noise]) -> list[str]:
    """The schemes whose noise is so near to the gradient that training is reported to stall, and
    from which batch on it is not."""
    said = []
    for scheme, one in found.items():
        most = (one.norm / STALLS) ** 2
        if one.fixed + one.averaged <= most:
            continue
        spare = most - max(one.fixed, 0.0)
        least = one.averaged / spare * one.tokens if spare > 0 else math.inf
        end = "whatever the batch" if math.isinf(least) else f"below {_tokens(least)} tokens"
        said.append(f"{scheme} {end}")
    if not said:
        return []
    return [f"Training is reported to stall where |gradient| < √3 |noise|: {'; '.join(said)}."]


def _tokens(count: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.3g}"
