"""Codes of several schemes side by side: how often each is used, the bits, and which scheme
wins."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from qtui.engine.requests import BudgetRequest, CodesRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.answers import NF4Construction
from qtui_core.errors import UsageError
from qtui_core.models.files.safetensors import MAX_SIZE
from qtui_core.quant import Scheme
from qtui_core.quant.codebook import construct_nf4
from qtui_core.quant.contest import Contender, verdict
from qtui_core.quant.gaussian import gaussian_relative_mse
from qtui_core.quant.granularities import at_equal_bits
from qtui_core.quant.measure import ErrorScan, decibels
from qtui_core.quant.occupancy import OccupancyScan
from qtui_core.quant.reading import Reducer
from qtui_core.quant.statistics import StatisticsScan
from qtui_core.quant.storage import bit_budget as budget_of
from qtui_core.schemes.scheme import check_side_by_side


def codebooks(session: Session, task: Task[CodesRequest]) -> CodesSideBySide:
    """Codes, density and error of each of `schemes`, and a sentence about all of them. `resized`
    says that they have been resized to equal bits already."""
    tensor, schemes = session.tensor_of(task), _once(task.asked.schemes)
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
    stored = session.stored_bits(task)
    sentence = verdict(found, stats, resized=task.asked.resized, stored_bits=stored)
    return CodesSideBySide(tuple(map(_column, found)), sentence)


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


def equal_bits(session: Session, task: Task[BudgetRequest]) -> AtEqualBits:
    """`schemes` resized to the bits per parameter of the first one in a tensor of `shape`."""
    schemes, shape = _once(task.asked.schemes), _shape_of(task.asked)
    if not schemes:
        return AtEqualBits(())
    wanted = budget_of(schemes[0], shape).bits_per_parameter
    return AtEqualBits(at_equal_bits(schemes, shape, wanted))


def bit_budget(session: Session, task: Task[BudgetRequest]) -> Budgets:
    """The bits of each of `schemes` by part in a tensor of `shape`, and its SQNR on Gaussian
    values."""
    shape = _shape_of(task.asked)
    budgets = tuple(
        SchemeBudget(budget_of(scheme, shape), decibels(gaussian_relative_mse(scheme, shape)))
        for scheme in _once(task.asked.schemes)
    )
    return Budgets(budgets)


def nf4_construction(session: Session, task: Task[object]) -> NF4Construction:
    """How the levels of NF4 are constructed."""
    return construct_nf4()


def _once(schemes: Sequence[Scheme]) -> list[Scheme]:
    """The schemes without repetitions."""
    return list(dict.fromkeys(schemes))


def _shape_of(asked: BudgetRequest) -> tuple[int, ...]:
    if any(size < 0 for size in asked.shape):
        raise UsageError(f"A shape has no size below 0; got {asked.shape}.")
    if math.prod(max(1, size) for size in asked.shape) > MAX_SIZE:
        raise UsageError("The shape has more than 2^63 elements, which no tensor has.")
    return asked.shape


OPERATIONS: OperationTable = {
    "codebooks": (codebooks, "view", CodesRequest),
    "equal_bits": (equal_bits, "quick", BudgetRequest),
    "bit_budget": (bit_budget, "quick", BudgetRequest),
    "nf4_construction": (nf4_construction, "quick", None),
}
