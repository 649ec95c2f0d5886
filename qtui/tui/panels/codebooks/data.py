"""What the engine answers, typed, for the Codebooks panel. No numpy here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from qtui.engine.protocol import Array
from qtui.screen.tensors.data import ErrorNumbers, build
from qtui_core.dataclass import dataclass

MOST_BARS = 16


@dataclass(frozen=True)
class CodeColumn:
    """A scheme on the chosen tensor. Sequences are in ascending order of the levels; `levels`
    are in units of the absmax of a group; `expected` and `expected_density` are the shares of
    a Gaussian tensor, empty where these are not known; `unused` and `unreachable` are bit
    patterns, `beyond` the elements outside the outermost levels."""

    scheme: str
    format: str
    bits: int
    has_zero_point: bool
    entropy_bits: float | None
    expected_entropy_bits: float | None
    unused: tuple[int, ...]
    unreachable: tuple[int, ...]
    beyond: int
    nonfinite: int
    error: ErrorNumbers
    codes: tuple[int, ...] = field(repr=False)
    levels: tuple[float, ...] = field(repr=False)
    counts: tuple[int, ...] = field(repr=False)
    expected: tuple[float, ...] = field(repr=False)
    density: tuple[int, ...] = field(repr=False)
    expected_density: tuple[float, ...] = field(repr=False)

    @classmethod
    def parse(cls, data: Mapping[str, Any], arrays: Mapping[str, Array], index: int) -> CodeColumn:
        def numbers(name: str) -> tuple[Any, ...]:
            sent = arrays.get(f"{name}{index}")
            return () if sent is None else tuple(sent.tolist())

        return build(
            cls,
            {
                **data,
                "unused": tuple(data["unused"]),
                "unreachable": tuple(data["unreachable"]),
                "error": build(ErrorNumbers, data["error"]),
                **{name: numbers(name) for name in _ARRAYS},
            },
        )

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def bars(self) -> tuple[Bar, ...]:
        """At most sixteen: neighbouring codes of a format with more are taken together."""
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


_ARRAYS = ("codes", "levels", "counts", "expected", "density", "expected_density")


@dataclass(frozen=True)
class Bar:
    """A code, or a run of neighbouring ones: how many elements have it, the share of all, and
    the share of a Gaussian tensor (None where it is not known); `never` where no element can
    have it."""

    codes: tuple[int, ...]
    levels: tuple[float, ...]
    count: int
    share: float
    expected: float | None
    never: bool


@dataclass(frozen=True)
class EqualRow:
    """A scheme brought to the bits per parameter of the first one. `exact` is `bits` as a
    fraction; `note` says why they are not equal, where they are not."""

    asked: str
    scheme: str
    bits: float
    exact: str
    difference: float
    equal: bool
    note: str


@dataclass(frozen=True)
class Budget:
    """Where the bits of a scheme go, per parameter by part, and what it would lose on a
    Gaussian tensor of the same shape."""

    scheme: str
    parts: Mapping[str, float]
    exact: Mapping[str, str]
    bits_per_parameter: float
    exact_bits_per_parameter: str
    overhead: float
    bytes: int
    gaussian_sqnr_db: float | None


@dataclass(frozen=True)
class SweepRow:
    """A block size, with its scales in 32 bits and with double quantization (None where that
    is not possible)."""

    size: int
    plain: Budget
    nested: Budget | None


@dataclass(frozen=True)
class Level:
    """One level of NF4 on its way; see `qtui_core.quant.coding.nf4_construction`."""

    code: int
    probability: float | None
    quantile: float
    derived: float
    published: float
    ulps: int
    float32_ulps: int


@dataclass(frozen=True)
class Step:
    """One step; `column` is the field of a level that it computes."""

    title: str
    sentence: str
    column: str


@dataclass(frozen=True)
class Construction:
    """How NF4 is made."""

    levels: tuple[Level, ...]
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Construction:
        return cls(
            tuple(build(Level, level) for level in data["levels"]),
            tuple(build(Step, step) for step in data["steps"]),
        )
