"""Codes of schemes side by side: how often each is used, at what bits, and who wins."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qtui.engine.answers.codes import (
    AtEqualBits,
    Budgets,
    CodeColumn,
    CodesSideBySide,
    SchemeBudget,
)
from qtui.engine.operations.session import Session
from qtui.engine.task import Result, Task
from qtui_core.errors import UsageError
from qtui_core.quant import Scheme
from qtui_core.quant.bit_budget import bit_budget as budget_of
from qtui_core.quant.coding.nf4_construction import construct_nf4
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.measure import ErrorScan, decibels
from qtui_core.quant.scan.occupancy import OccupancyScan
from qtui_core.quant.scan.reducer import Reducer
from qtui_core.quant.scan.statistics import StatisticsScan
from qtui_core.quant.verdicts.codebook_verdict import Contender, verdict
from qtui_core.quant.verdicts.equal_bits import at_equal_bits
from qtui_core.schemes.combinations import check_side_by_side


def codebooks(session: Session, task: Task) -> Result:
    """Codes, density and error of each of `schemes`; the sentence is about all of them, and
    knows whether they were `resized` to equal bits."""
    tensor, schemes = session.tensor_of(task), schemes_of(task)
    check_side_by_side(schemes)
    found: list[Contender] = []
    asked: list[Reducer[Any]] = [
        *map(OccupancyScan, schemes),
        *map(ErrorScan, schemes),
        StatisticsScan(),
    ]
    *results, stats = session.find(task, tensor, asked)
    count = len(schemes)
    for occupancy, report in zip(results[:count], results[count:], strict=True):
        found.append(Contender(report, occupancy))
    resized = task.params.get("resized") is True
    stored = session.stored_bits(task)
    sentence = verdict(found, stats, resized=resized, stored_bits=stored)
    return Result(CodesSideBySide(tuple(map(_column, found)), sentence))


def _column(contender: Contender) -> CodeColumn:
    occupancy = contender.occupancy
    return CodeColumn(
        error=contender.report,
        entropy_bits=occupancy.entropy_bits,
        expected_entropy_bits=occupancy.expected_entropy_bits,
        unused=_numbers(occupancy.unused),
        unreachable=_numbers(occupancy.unreachable),
        beyond=occupancy.beyond,
        nonfinite=occupancy.nonfinite,
        codes=_numbers(occupancy.codes),
        levels=_numbers(occupancy.levels),
        counts=_numbers(occupancy.counts),
        expected=_numbers(occupancy.expected),
        density=_numbers(occupancy.density),
        expected_density=_numbers(occupancy.expected_density),
    )


def _numbers(array: npt.NDArray[Any] | None) -> tuple[Any, ...]:
    return () if array is None else tuple(array.tolist())


def equal_bits(session: Session, task: Task) -> Result:
    """`schemes` resized to the bits per parameter of the first one in a tensor of `shape`."""
    schemes, shape = schemes_of(task), _shape_of(task)
    if not schemes:
        return Result(AtEqualBits(()))
    wanted = budget_of(schemes[0], shape).bits_per_parameter
    return Result(AtEqualBits(at_equal_bits(schemes, shape, wanted)))


def bit_budget(session: Session, task: Task) -> Result:
    """Where the bits of each of `schemes` go in a tensor of `shape`, and what each would lose
    on Gaussian values."""
    shape = _shape_of(task)
    budgets = tuple(
        SchemeBudget(budget_of(scheme, shape), decibels(gaussian_relative_mse(scheme, shape)))
        for scheme in schemes_of(task)
    )
    return Result(Budgets(budgets))


def nf4_construction(session: Session, task: Task) -> Result:
    """How the levels of NF4 are made."""
    return Result(construct_nf4())


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
