"""The facts from which a verdict on several schemes and one tensor follows."""

from __future__ import annotations

from functools import cached_property

from qtui_core.answers.tensors import ErrorReport, TensorStatistics
from qtui_core.dataclass import dataclass
from qtui_core.quant.scan.occupancy import Occupancy
from qtui_core.quant.verdicts.equal_bits import TOLERANCE


@dataclass(frozen=True)
class Contender:
    """A scheme and its measurements. All contenders were measured on the same tensor."""

    report: ErrorReport
    occupancy: Occupancy

    @property
    def name(self) -> str:
        return str(self.report.scheme)

    @property
    def db(self) -> float:
        """The SQNR in decibels; infinite if there is no error."""
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
        contenders: the schemes. Only those with the bits of the first are compared.
        stats: of the tensor, if known.
        resized: whether group sizes have been changed for equal bits already.
        stored_bits: bits per parameter of the tensor as it is stored.
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
        """The contenders that take fewer bits than the stored values."""
        return tuple(c for c in self.contenders if c.bits < self.stored_bits)

    @cached_property
    def equal(self) -> tuple[Contender, ...]:
        """The contenders with the bits of the first."""
        return tuple(c for c in self.contenders if abs(c.bits - self.first.bits) <= TOLERANCE)

    @cached_property
    def by_quality(self) -> list[Contender]:
        """The contenders with equal bits, the best first."""
        return sorted(self.equal, key=lambda c: -c.db)

    @property
    def best(self) -> Contender:
        return self.by_quality[0]

    @property
    def lead(self) -> float:
        """Decibels between the best and the second with equal bits."""
        return self.best.db - self.by_quality[1].db

    @property
    def integer(self) -> Contender | None:
        return self._best_of("int4")

    @property
    def normal(self) -> Contender | None:
        return self._best_of("nf4")

    def _best_of(self, name: str) -> Contender | None:
        return next((c for c in self.by_quality if c.report.scheme.format == name), None)
