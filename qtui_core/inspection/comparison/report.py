"""The result of comparing two checkpoints, as data."""

from __future__ import annotations

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.inspection.comparison.difference import Difference, DifferenceMap
from qtui_core.inspection.comparison.pairing import Pair
from qtui_core.inspection.report import Census
from qtui_core.quant.measure import decibels

_STORED = (("tensor", "stored"), "method", ("bytes", "nbytes"), "bits_per_parameter")
_ROUNDED_TO = (
    "scheme",
    ("relative_mse", "scheme_relative_mse"),
    ("sqnr_db", "scheme_sqnr_db"),
)
_ROUNDED = (
    ("tensors", "rounded"),
    ("relative_mse", "rounded_relative_mse"),
    "stored_relative_mse",
    "gain_db",
)
_OTHER_SHAPE = ("name", "shape", "against_shape")


@dataclass(frozen=True)
class PairReport:
    """One weight in both models.

    Attributes:
        difference: of b from a, over the rows that were read.
        scheme: the scheme that rounds a to the levels in which b is stored, without calibration;
            None if there is none, or a is quantized itself.
        scheme_relative_mse: the error of that scheme on a.
    """

    pair: Pair
    difference: Difference
    scheme: str | None = None
    scheme_relative_mse: float | None = None

    PRINTED = (
        ("name", "pair.name"),
        ("shape", "pair.info.shape"),
        ("read_as", "pair.info.reading"),
        ("matrix", "pair.info.matrix"),
        ("parameters", "pair.info.elements"),
        ("sampled_parameters", "difference.count"),
        ("stored", lambda report: printed(report.pair.a, _STORED)),
        ("against_stored", lambda report: printed(report.pair.b, _STORED)),
        ("", "difference"),
        (
            "plain_rounding",
            lambda report: (
                None if report.scheme_relative_mse is None else printed(report, _ROUNDED_TO)
            ),
        ),
    )

    @property
    def is_matrix(self) -> bool:
        return len(self.pair.info.shape) >= 2

    @property
    def scheme_sqnr_db(self) -> float | None:
        return decibels(self.scheme_relative_mse)

    @property
    def gain_db(self) -> float | None:
        """By how many decibels b is better than plain rounding of a."""
        if self.scheme_sqnr_db is None or self.difference.sqnr_db is None:
            return None
        return self.difference.sqnr_db - self.scheme_sqnr_db

    @property
    def power(self) -> float:
        """Sum of squares of the weight in a, estimated from the sample for the whole."""
        return self.difference.mean_square * self.pair.info.elements

    @property
    def error(self) -> float:
        """Sum of squared differences, estimated from the sample for the whole."""
        return self.difference.mse * self.pair.info.elements


@dataclass(frozen=True)
class WorstMap:
    """Where the weight of that name differs."""

    name: str
    map: DifferenceMap

    PRINTED = (
        ("tensor", "name"),
        ("rows", "map.rows"),
        ("column_edges", "map.column_edges"),
        ("max_abs_error", lambda worst: worst.map.cells.tolist()),
    )


@dataclass(frozen=True)
class Comparison:
    """Two checkpoints compared.

    Attributes:
        pairs: weights in both that were read, the largest relative error first.
        only_a, only_b: names without a partner.
        shapes: (name, shape in a, shape in b) of weights whose shapes differ.
        unread: (name, reason) of weights in both whose values could not be read.
        relative_mse: of all matrices, weighted by the energy of a (of all pairs if no matrix
            differs); None if a is zero.
        bits_a, bits_b: bits per parameter of the pairs.
        rounded: how many pairs have a figure for plain rounding.
        rounded_relative_mse, stored_relative_mse: over those pairs, the error of plain rounding,
            and that of b.
        worst_map: of the first pair that differs and is a matrix.
    """

    a: Census
    b: Census
    pairs: tuple[PairReport, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    unread: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    sample: str
    relative_mse: float | None
    bits_a: float
    bits_b: float
    rounded: int
    rounded_relative_mse: float | None
    stored_relative_mse: float | None
    worst_map: WorstMap | None
    conclusion: str

    PRINTED = (
        ("model", "a"),
        "sample",
        (
            "against",
            (
                ("model", "b"),
                "notes",
                "relative_mse",
                "sqnr_db",
                ("bits_per_parameter", "bits_b"),
                ("model_bits_per_parameter", "bits_a"),
                (
                    "plain_rounding",
                    lambda found: (
                        None if found.rounded_relative_mse is None else printed(found, _ROUNDED)
                    ),
                ),
                "identical",
                ("tensors", "pairs"),
                ("only_in_model", "only_a"),
                ("only_in_against", "only_b"),
                (
                    "other_shapes",
                    lambda found: [
                        dict(zip(_OTHER_SHAPE, row, strict=True)) for row in found.shapes
                    ],
                ),
                (
                    "not_read",
                    lambda found: [{"name": name, "reason": why} for name, why in found.unread],
                ),
                "worst_map",
            ),
        ),
    )

    @property
    def sqnr_db(self) -> float | None:
        return decibels(self.relative_mse)

    @property
    def gain_db(self) -> float | None:
        """By how many decibels b is better than plain rounding to its levels would be."""
        plain, stored = decibels(self.rounded_relative_mse), decibels(self.stored_relative_mse)
        return None if plain is None or stored is None else stored - plain

    @property
    def identical(self) -> int:
        return sum(1 for r in self.pairs if r.difference.identical)
