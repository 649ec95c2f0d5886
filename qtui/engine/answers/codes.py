"""Codes of schemes side by side."""

from __future__ import annotations

from dataclasses import field

from qtui_core.answers import BitBudget, EqualBits, ErrorReport
from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme

MOST_BARS = 16


@dataclass(frozen=True)
class CodeColumn:
    """The codes of one scheme on a tensor.

    Attributes:
        unused, unreachable: bit patterns that this tensor could use but does not, and bit patterns
            that no tensor uses.
        beyond: how many elements lie outside the outermost levels.
        codes, levels, counts: bit patterns, their levels in units of the absmax of a group, and how
            many elements have each; in ascending order of the levels.
        density: how many elements lie in each of equal bins over the range of a group.
        expected, expected_density: the shares of codes and bins for a Gaussian tensor; empty if
            they are not known.
    """

    error: ErrorReport
    entropy_bits: float | None
    expected_entropy_bits: float | None
    unused: tuple[int, ...]
    unreachable: tuple[int, ...]
    beyond: int
    nonfinite: int
    codes: tuple[int, ...] = field(repr=False)
    levels: tuple[float, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)
    expected: tuple[float, ...] = field(repr=False)
    density: tuple[int, ...] = field(repr=False)
    expected_density: tuple[float, ...] = field(repr=False)

    @property
    def scheme(self) -> Scheme:
        return self.error.scheme

    @property
    def name(self) -> str:
        """The scheme as text."""
        return str(self.scheme)

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def bars(self) -> tuple[Bar, ...]:
        """At most sixteen bars: if there are more codes, neighbouring ones share a bar."""
        size = max(1, len(self.codes) // MOST_BARS)
        total = max(1, self.total)
        bars = []
        for start in range(0, len(self.codes), size):
            part = slice(start, start + size)
            count = sum(self.counts[part])
            expected = sum(self.expected[part]) if self.expected else None
            never = set(self.codes[part]) <= set(self.unreachable)
            bars.append(
                Bar(self.codes[part], self.levels[part], count, count / total, expected, never)
            )
        return tuple(bars)


@dataclass(frozen=True)
class Bar:
    """A code or several neighbouring ones: how many elements have them, their share of all
    elements, and the expected share of a Gaussian tensor (None if unknown). `never` says that no
    element can have them."""

    codes: tuple[int, ...]
    levels: tuple[float, ...]
    count: int
    share: float
    expected: float | None
    never: bool


@dataclass(frozen=True)
class CodesSideBySide:
    """Schemes on one tensor, and the sentence about all of them."""

    columns: tuple[CodeColumn, ...]
    sentence: str


@dataclass(frozen=True)
class AtEqualBits:
    """Schemes brought to the bits per parameter of the first one."""

    schemes: tuple[EqualBits, ...]


@dataclass(frozen=True)
class SchemeBudget:
    """Where the bits of a scheme go, and what it would lose on a Gaussian tensor of the same
    shape."""

    budget: BitBudget
    gaussian_sqnr_db: float | None

    @property
    def name(self) -> str:
        """The scheme as text."""
        return str(self.budget.scheme)

    @property
    def bits(self) -> float:
        """Bits for each element."""
        return float(self.budget.bits_per_parameter)

    @property
    def overhead(self) -> float:
        """Bits for each element beyond those of its code."""
        return float(self.budget.overhead)

    @property
    def parts(self) -> dict[str, float]:
        """Bits for each element by part."""
        return {part.name: float(self.budget.share(part)) for part in self.budget.parts}


@dataclass(frozen=True)
class Budgets:
    """The budgets of several schemes in a tensor of one shape."""

    budgets: tuple[SchemeBudget, ...]


@dataclass(frozen=True)
class SweepRow:
    """A block size, with its scales in 32 bits and with double quantization."""

    size: int
    plain: SchemeBudget
    nested: SchemeBudget
