"""Codes of schemes side by side: how often each is used, at what bits, and who wins."""

from __future__ import annotations

import dataclasses
from typing import Any

from qtui.engine.operations.session import Session, array
from qtui.engine.protocol import Array
from qtui.engine.task import Result, Task
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme
from qtui_core.quant.bit_budget import bit_budget as budget_of
from qtui_core.quant.coding.nf4_construction import construct_nf4
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import decibels
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.verdicts.codebook_verdict import Contender, verdict
from qtui_core.quant.verdicts.equal_bits import at_equal_bits
from qtui_core.schemes.rules import check_side_by_side


def codebooks(session: Session, task: Task) -> Result:
    """Codes, density and error of each of `schemes`; the sentence is about all of them, and
    knows whether they were `resized` to equal bits."""
    tensor, schemes = session.tensor_of(task), schemes_of(task)
    check_side_by_side(schemes)
    found: list[Contender] = []
    data: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    stop = 0.0
    for index, scheme in enumerate(schemes):
        # Two readings of each, and one of the statistics.
        start, middle, stop = (n / (2 * len(schemes) + 1) for n in range(2 * index, 2 * index + 3))
        occupancy = session.occupancy_of(task, tensor, scheme, start, middle)
        report = session.errors_of(task, tensor, scheme, middle, stop)
        found.append(Contender(report, occupancy))
        data.append(_scheme_data(occupancy) | {"error": _report_data(report)})
        arrays |= {f"{name}{index}": value for name, value in _arrays(occupancy).items()}
    stats = session.statistics_of(task, tensor, stop, 1.0)
    resized = task.params.get("resized") is True
    stored = session.stored_bits(task)
    sentence = verdict(found, stats, resized=resized, stored_bits=stored)
    return Result({"schemes": data, "sentence": sentence}, arrays)


def _scheme_data(occupancy: Occupancy) -> dict[str, Any]:
    scheme = occupancy.scheme
    return {
        "scheme": str(scheme),
        "format": scheme.format,
        "bits": scheme.bits,
        "has_zero_point": not scheme.symmetric,
        "entropy_bits": occupancy.entropy_bits,
        "expected_entropy_bits": occupancy.expected_entropy_bits,
        "unused": occupancy.unused.tolist(),
        "unreachable": occupancy.unreachable.tolist(),
        "beyond": occupancy.beyond,
        "nonfinite": occupancy.nonfinite,
    }


def _arrays(occupancy: Occupancy) -> dict[str, Array]:
    sent = {
        "codes": array(occupancy.codes, "<i8"),
        "levels": array(occupancy.levels, "<f8"),
        "counts": array(occupancy.counts, "<i8"),
        "density": array(occupancy.density, "<i8"),
    }
    if occupancy.expected is not None:
        sent["expected"] = array(occupancy.expected, "<f8")
    if occupancy.expected_density is not None:
        sent["expected_density"] = array(occupancy.expected_density, "<f8")
    return sent


def _report_data(report: Any) -> dict[str, Any]:
    return {
        field.name: getattr(report, field.name)
        for field in dataclasses.fields(report)
        if field.name not in ("scheme", "shape")
    }


def equal_bits(session: Session, task: Task) -> Result:
    """`schemes` resized to the bits per parameter of the first one in a tensor of `shape`."""
    schemes, shape = schemes_of(task), _shape_of(task)
    if not schemes:
        return Result({"schemes": [], "bits": None})
    wanted = budget_of(schemes[0], shape).bits_per_parameter
    found = at_equal_bits(schemes, shape, wanted)
    return Result(
        {
            "bits": float(wanted),
            "schemes": [
                {
                    "asked": str(each.asked),
                    "scheme": str(each.scheme),
                    "bits": float(each.bits),
                    "exact": str(each.bits),
                    "difference": float(each.difference),
                    "equal": each.equal,
                    "note": each.note,
                }
                for each in found
            ],
        }
    )


def bit_budget(session: Session, task: Task) -> Result:
    """Where the bits of each of `schemes` go in a tensor of `shape`, and what each would lose
    on Gaussian values."""
    shape = _shape_of(task)
    data = []
    for scheme in schemes_of(task):
        budget = budget_of(scheme, shape)
        fractions = {part.name: budget.share(part) for part in budget.parts}
        relative = gaussian_relative_mse(scheme, shape)
        data.append(
            {
                "scheme": str(scheme),
                "parts": {name: float(share) for name, share in fractions.items()},
                "exact": {name: str(share) for name, share in fractions.items()},
                "bits_per_parameter": float(budget.bits_per_parameter),
                "exact_bits_per_parameter": str(budget.bits_per_parameter),
                "overhead": float(budget.overhead),
                "bytes": budget.bytes,
                "gaussian_sqnr_db": decibels(relative),
            }
        )
    return Result({"budgets": data})


def nf4_construction(session: Session, task: Task) -> Result:
    """How the levels of NF4 are made."""
    return Result(dataclasses.asdict(construct_nf4()))


def schemes_of(task: Task) -> list[Scheme]:
    """The schemes of a task, without repetitions."""
    texts = task.params.get("schemes")
    if not isinstance(texts, list):
        raise UsageError(f"The engine's {task.method} needs schemes as a list.")
    return list(dict.fromkeys(Scheme.parse(str(text)) for text in texts))


def _shape_of(task: Task) -> tuple[int, ...]:
    shape = task.params.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise UsageError(f"The engine's {task.method} needs a shape as a list of sizes.")
    return tuple(shape)


OPERATIONS = {
    "codebooks": (codebooks, "view"),
    "equal_bits": (equal_bits, "quick"),
    "bit_budget": (bit_budget, "quick"),
    "nf4_construction": (nf4_construction, "quick"),
}
