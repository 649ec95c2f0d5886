"""Answers about tensors and schemes, as data without numpy: they are sent to the screen as they
are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme

#: An element further than this many standard deviations from the mean is an outlier, where nobody
#: sets another limit.
OUTLIER_SIGMA = 6.0


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics over the finite elements of a tensor; None if there are none.

    Attributes:
        count: all elements, with `nan`, `inf` and `zeros`; `finite` is all but NaN and infinities.
        std: population standard deviation.
        absmax: largest magnitude, 0.0 if no element is finite.
        kurtosis: fourth central moment over the square of the second: 3 for a normal distribution,
            1.8 for a uniform one; None for constant tensors.
    """

    count: int
    finite: int
    nan: int
    inf: int
    zeros: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    absmax: float
    kurtosis: float | None

    PRINTED = ("min", "max", "mean", "std", "absmax", "kurtosis", "zeros", "nan", "inf")

    @property
    def mean_square(self) -> float:
        """Mean of the squares, 0.0 if no element is finite."""
        if self.mean is None or self.std is None:
            return 0.0
        return self.mean**2 + self.std**2


@dataclass(frozen=True)
class Outlier:
    """Element [row, column] of the tensor seen as a matrix. `sigmas` is its distance from the mean
    in standard deviations, not negative."""

    row: int
    column: int
    value: float
    sigmas: float


@dataclass(frozen=True)
class ColumnCount:
    """How many outliers a column has."""

    column: int
    count: int


@dataclass(frozen=True)
class OutlierReport:
    """Elements further than `sigma` standard deviations from the mean, or elements with a magnitude
    of at least `threshold`.

    Attributes:
        sigma: the distance that was asked for, in standard deviations of the tensor; None if a
            magnitude was asked for.
        share: of the finite elements, 0 to 1.
        energy_share: of the sum of squares, 0 to 1.
        top: the furthest outliers, furthest first.
        columns: all columns with outliers, the one with most first. Empty for a tensor of one row,
            where every column is a single element.
        column_total: the columns of the tensor.
        threshold: the magnitude that was asked for; None if standard deviations were asked for.
    """

    sigma: float | None
    count: int
    share: float
    energy_share: float
    top: tuple[Outlier, ...]
    columns: tuple[ColumnCount, ...]
    column_total: int
    threshold: float | None = None

    PRINTED = (("count_6sigma", "count"), "columns", "top")


@dataclass(frozen=True)
class ErrorReport:
    """What a scheme does to a tensor. Errors are over the finite elements.

    Attributes:
        scheme: the scheme.
        shape: the shape of the tensor.
        count: all elements, with NaN and infinities.
        nonfinite: NaN and infinities.
        saturated: finite elements beyond the largest number of a cast's format (of float16 in
            columns kept in 16 bits), which became that number.
        signal: sum of squares of the elements that the errors are over.
        outlier_columns: how many columns the scheme keeps in 16 bits.
        subnormal: nonzero finite elements below the smallest normal number of a cast's format,
            where its steps no longer shrink with the value.
        mse: mean of (x - dequantized x)^2, in the square of the tensor's unit.
        relative_mse: mse over the mean square of the tensor; None if all finite elements are zero.
        sqnr_db: -10 log10(relative_mse), decibels; None if relative_mse is None or 0 (no error).
        max_abs_error: the largest |x - dequantized x|.
        max_abs_error_index: its first occurrence, as (row, column) of the tensor seen as a matrix;
            None for a tensor without elements.
        bits_per_parameter, bytes: storage, with scales and zero points.
        gaussian_mse, gaussian_relative_mse, gaussian_sqnr_db: the expected error of independent
            normal elements with the same mean square in a tensor of this shape; None if
            relative_mse is None, or if `qtui_core.quant.gaussian_relative_mse` returns None.
        outliers: those that the scheme keeps apart: elements of at least the magnitude of its
            threshold, and the columns that they lie in, which are kept in 16 bits. Set by
            `measure`; None for a scheme that keeps none apart.
    """

    scheme: Scheme
    shape: tuple[int, ...]
    count: int
    nonfinite: int
    saturated: int
    subnormal: int
    mse: float
    relative_mse: float | None
    sqnr_db: float | None
    max_abs_error: float
    max_abs_error_index: tuple[int, int] | None
    bits_per_parameter: float
    bytes: int
    gaussian_mse: float | None
    gaussian_relative_mse: float | None
    gaussian_sqnr_db: float | None
    outlier_columns: int = 0
    signal: float = 0.0
    outliers: OutlierReport | None = None

    PRINTED = ("scheme", "bits_per_parameter", "mse", "relative_mse", "sqnr_db", "max_abs_error",
               "gaussian_relative_mse", "nonfinite", "saturated")  # fmt: skip


@dataclass(frozen=True)
class PredictionErrors:
    """What quantizing one tensor, and nothing else, does to the predictions of the model.

    Attributes:
        by: whether it was measured, or estimated from gradients.
        text: what the model read, in words.
        window, scored: tokens of a window, and how many at its end are scored.
        windows: how many.
        nats: name of a tensor -> [scheme][window], the mean KL divergence from the original over
            the scored tokens of the window, nats a token.
    """

    by: Literal["fisher", "kl"]
    text: str
    window: int
    scored: int
    windows: int
    nats: Mapping[str, tuple[tuple[float, ...], ...]]


@dataclass(frozen=True)
class RangeError:
    """The error on one text. `clipped` is the share of its finite elements outside a fixed range,
    or beyond the largest number of a cast; elements that became infinite are left out of the error.
    `sqnr_db` is None if there is no error, `relative_mse` if there is no signal."""

    sqnr_db: float | None
    relative_mse: float | None
    clipped: float


@dataclass(frozen=True)
class BitPart:
    """`count` numbers of `bits` bits each, stored one after another and padded to a whole byte."""

    name: str
    count: int
    bits: int

    @property
    def bytes(self) -> int:
        return -(-self.count * self.bits // 8)


@dataclass(frozen=True)
class BitBudget:
    """What is stored of a tensor of `shape` under `scheme`. The first part is the codes; parts that
    the scheme does not have are left out."""

    scheme: Scheme
    shape: tuple[int, ...]
    parts: tuple[BitPart, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bits_per_parameter(self) -> Fraction:
        """Stored bits per element, exact; for an empty tensor the bits of a code."""
        count = math.prod(self.shape)
        return Fraction(8 * self.bytes, count) if count else Fraction(self.scheme.bits)

    @property
    def overhead(self) -> Fraction:
        """Stored bits per element besides its code."""
        return self.bits_per_parameter - self.scheme.bits

    def share(self, part: BitPart) -> Fraction:
        """Bits of one part per element, exact; 0 for an empty tensor."""
        count = math.prod(self.shape)
        return Fraction(8 * part.bytes, count) if count else Fraction(0)


@dataclass(frozen=True)
class EqualBits:
    """A scheme with the group size that comes nearest to the wanted bits per parameter.

    Attributes:
        original: the scheme before the group size was changed.
        scheme: the scheme to compare; `original` itself if it has no group size.
        bits: its exact bits per parameter.
        difference: `bits` less the wanted bits.
        equal: whether they are equal within the tolerance.
        note: why they are not equal, a clause without a full stop; empty if they are.
    """

    original: Scheme
    scheme: Scheme
    bits: Fraction
    difference: Fraction
    equal: bool
    note: str


@dataclass(frozen=True)
class NF4Level:
    """One level of NF4 at each step of its construction. `code` is its place in ascending order.

    Attributes:
        probability: P(X < quantile) of a standard normal X; None for zero, which is added.
        quantile: the quantile for that probability, in float64.
        derived: the quantile divided by the largest one, in float64.
        published: the float32 constant in libraries.
        ulps: how many float32 numbers the rounded `derived` is above `published`.
    """

    code: int
    probability: float | None
    quantile: float
    derived: float
    published: float
    ulps: int


@dataclass(frozen=True)
class NF4Step:
    """One step of the construction. `column` is the field of NF4Level that it computes."""

    title: str
    sentence: str
    column: str


@dataclass(frozen=True)
class NF4Construction:
    """The levels in ascending order, and the steps in the order in which they are done."""

    offset: float
    levels: tuple[NF4Level, ...]
    steps: tuple[NF4Step, ...]

    @property
    def exact(self) -> int:
        """How many of the published constants float64 arithmetic reproduces exactly."""
        return sum(level.ulps == 0 for level in self.levels)
