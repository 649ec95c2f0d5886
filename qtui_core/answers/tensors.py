"""What a tensor is like, and what a scheme does to it."""

from __future__ import annotations

from qtui_core.dataclass import dataclass
from qtui_core.schemes.scheme import Scheme


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics over the finite elements of a tensor; None where there are none.

    Attributes:
        count: elements; `nan`, `inf` and `zeros` are counted among them, `finite` is the rest
            without NaN and infinities.
        std: population standard deviation.
        absmax: largest magnitude, 0.0 where no element is finite.
        kurtosis: fourth central moment over the square of the second: 3 for a normal
            distribution, 1.8 for a uniform one; None for constant tensors.
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
        """Mean of the squares, 0.0 where no element is finite."""
        if self.mean is None or self.std is None:
            return 0.0
        return self.mean**2 + self.std**2


@dataclass(frozen=True)
class Outlier:
    """Element [row, column] of the tensor seen as a matrix; `sigmas` is its distance from
    the mean in standard deviations, positive."""

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
    """Elements further than `sigma` standard deviations from the mean, or those of a magnitude
    of at least `threshold`.

    Attributes:
        sigma: how far is far, by standard deviations of the tensor; None where it was asked
            for a magnitude.
        share: of the finite elements, 0 to 1.
        energy_share: of the sum of squares, 0 to 1.
        top: the furthest, furthest first.
        columns: every column that has outliers, the one with most first. Empty for a tensor
            of one row, where a column is an element.
        column_total: columns of the tensor.
        threshold: how far is far, in the unit of the tensor, from zero; None where it was
            asked for standard deviations.
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
    """What a scheme does to a tensor. Errors are over the finite elements that stay finite.

    Attributes:
        scheme: what was done.
        shape: of the tensor.
        count: elements, the nonfinite ones included.
        nonfinite: NaN and infinities among them.
        saturated: finite elements beyond the largest number of a cast's format, or, kept in 16
            bits, of float16; they became that number.
        overflowed: finite elements that became infinite or NaN, where a scheme does not
            saturate. They are left out of every error below, and of the signal.
        signal: sum of squares of the elements that the errors are over.
        even_mse: of integers, the mse that values spread evenly between the levels would have,
            the mean of step² / 12 (under truncation / 3, stochastic rounding / 6); None of other
            formats and beside columns in 16 bits.
        outlier_columns: columns kept in 16 bits.
        subnormal: nonzero finite elements below the smallest normal number of a cast's
            format, where its steps no longer shrink with the value.
        mse: mean of (x - dequantized x)^2, in the square of the tensor's unit.
        relative_mse: mse over the mean square of the tensor; None for one without any
            nonzero finite element.
        sqnr_db: -10 log10(relative_mse), decibels; None where relative_mse is None or 0 (no
            error at all).
        max_abs_error: the largest |x - dequantized x|, and
        max_abs_error_index: where it is first, as (row, column) of the tensor seen as a
            matrix; None for a tensor without elements.
        bits_per_parameter, bytes: storage, scales and zero points counted.
        gaussian_mse, gaussian_relative_mse, gaussian_sqnr_db: what independent normal
            elements of the same mean square would give in a tensor of this shape; None where
            relative_mse is, and where there is no telling (see `gaussian_relative_mse`).
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
    overflowed: int = 0
    outlier_columns: int = 0
    signal: float = 0.0
    even_mse: float | None = None

    PRINTED = (
        "scheme",
        "bits_per_parameter",
        "mse",
        "relative_mse",
        "sqnr_db",
        "max_abs_error",
        "gaussian_relative_mse",
        "nonfinite",
        "saturated",
        "overflowed",
    )


@dataclass(frozen=True)
class LayerErrors:
    """Of the layer of one weight, over `tokens` tokens: `relative_mse` under each scheme, as
    `output_errors` defines it; 0 where the output is zero everywhere."""

    tokens: int
    relative_mse: tuple[float, ...]


@dataclass(frozen=True)
class RangeError:
    """The error on one text; `clipped` is the share of its finite elements outside a fixed
    range, or beyond the largest number of a cast; what became infinite is in no error.
    `sqnr_db` is None without any error, `relative_mse` without any signal."""

    sqnr_db: float | None
    relative_mse: float | None
    clipped: float
