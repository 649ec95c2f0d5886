"""The facts that a verdict on several schemes and one tensor is drawn from."""

from __future__ import annotations

from functools import cached_property

from qtui_core.answers.tensors import ErrorReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.verdicts.equal_bits import TOLERANCE


@dataclass(frozen=True)
class Contender:
    """A scheme as it did on one tensor. The others are of the same tensor."""

    report: ErrorReport
    occupancy: Occupancy

    @property
    def name(self) -> str:
        return str(self.report.scheme)

    @property
    def db(self) -> float:
        """Signal to noise; infinite where nothing was lost."""
        return float("inf") if self.report.sqnr_db is None else self.report.sqnr_db

    @property
    def gaussian_db(self) -> float | None:
        return self.report.gaussian_sqnr_db

    @property
    def bits(self) -> float:
        return self.report.bits_per_parameter


@dataclass(frozen=True)
class Contest:
    """Schemes that were measured on one tensor, at least one.

    Attributes:
        contenders: the schemes. Only those at the bits of the first are compared.
        stats: of the tensor, where they are known.
        resized: whether groups have been made as large as equal bits ask for.
        stored_bits: bits per parameter that the tensor takes as it is.
    """

    contenders: tuple[Contender, ...]
    stats: TensorStatistics | None
    resized: bool
    stored_bits: float

    @property
    def first(self) -> Contender:
        return self.contenders[0]

    @property
    def saving(self) -> tuple[Contender, ...]:
        """Those that take fewer bits than what is stored."""
        return tuple(c for c in self.contenders if c.bits < self.stored_bits)

    @cached_property
    def equal(self) -> tuple[Contender, ...]:
        """Those at the bits of the first."""
        return tuple(c for c in self.contenders if abs(c.bits - self.first.bits) <= TOLERANCE)

    @cached_property
    def by_quality(self) -> list[Contender]:
        """Those at equal bits, the best first."""
        return sorted(self.equal, key=lambda c: -c.db)

    @property
    def best(self) -> Contender:
        return self.by_quality[0]

    @property
    def lead(self) -> float:
        """Decibels between the best and the second at equal bits."""
        return self.best.db - self.by_quality[1].db

    @property
    def integer(self) -> Contender | None:
        return self._best_of("int4")

    @property
    def normal(self) -> Contender | None:
        return self._best_of("nf4")

    def _best_of(self, name: str) -> Contender | None:
        return next((c for c in self.by_quality if c.report.scheme.format == name), None)
