"""The result of comparing two checkpoints, as data, and its sentence."""

from __future__ import annotations

import math

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.inspection.comparison.difference import Difference, DifferenceMap
from qtui_core.inspection.comparison.pairing import Pair
from qtui_core.inspection.report import Census
from qtui_core.inspection.sentences import in_a_sample, not_finite
from qtui_core.models.quoting import quoted
from qtui_core.quant.measure import decibels
from qtui_core.quantities import percent, plural

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
    worst_map: DifferenceMap | None
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


#: Below this SQNR the two are hardly the same weights: the error is a quarter of the energy or
#: more.
UNRELATED_DB = 6.0
#: From this difference on, a published file is noticeably better or worse than plain rounding.
NOTICEABLE_DB = 0.3
#: A weight this far below the total, or below plain rounding, is mentioned.
STANDS_OUT_DB = 3.0


def conclude_comparison(comparison: Comparison) -> str:
    """What b kept of a, at what size, where it is worst, and what to do; then what was not
    compared."""
    a, b = comparison.a.model, comparison.b.model
    if not comparison.pairs:
        return (
            f"{a} and {b} have weights of the same names and no "
            f"two of one shape: nothing was compared."
        )
    where = in_a_sample(
        sum(r.difference.count for r in comparison.pairs),
        sum(r.pair.info.elements for r in comparison.pairs),
    )
    alike = comparison.identical if comparison.identical < len(comparison.pairs) else 0
    rest = [
        (alike, "is identical", "are identical"),
        (len(comparison.only_a), f"exists only in {a}", f"exist only in {a}"),
        (len(comparison.only_b), f"exists only in {b}", f"exist only in {b}"),
        (len(comparison.shapes), "has another shape", "have other shapes"),
        (len(comparison.unread), "could not be read", "could not be read"),
    ]
    said = (plural(n, f"tensor {one}", f"tensors {many}") for n, one, many in rest if n)
    return f"{'; '.join([where + _said(comparison), *said])}."


def _said(comparison: Comparison) -> str:
    a, b, pairs = comparison.a.model, comparison.b.model, comparison.pairs
    if broken := [r for r in pairs if r.difference.nonfinite]:
        lost = sum(r.difference.lost for r in broken)
        count = lost or sum(r.difference.nonfinite for r in broken)
        where = f"in {b}, where {a} is finite" if lost else f"in {a}"
        where += f", first in {quoted(broken[0].pair.name)}"
        wide = any("F64" in (r.pair.a.method, r.pair.b.method) for r in broken)
        return f"{not_finite(count, where, float64=wide)}, and no figure counts them"
    differing = [r for r in pairs if not r.difference.identical]
    if not any(r.error for r in differing):
        if not differing and all(r.pair.a.method == r.pair.b.method for r in pairs):
            weights = plural(len(pairs), "weight is", "weights are")
            return f"{weights} identical to the bit in {a} and {b}"
        before, after = f"{comparison.bits_a:.2f}", f"{comparison.bits_b:.2f}"
        size = "" if before == after else f", at {after} bits per parameter instead of {before}"
        far = ", as far as float32 tells" if differing else ""
        return f"{b} holds the same values as {a} in every weight that both have{size}{far}"
    worst, db = pairs[0], comparison.sqnr_db
    name = quoted(worst.pair.name)
    if db is None:
        return f"{b} differs from {a} where that is zero, first in {name}: check that they belong"
    if db < UNRELATED_DB:
        return (
            f"{b} has almost nothing of {a} ({db:z.1f} dB; worst is {name}): check that one was "
            f"made from the other"
        )
    if any(r.pair.b.quantized for r in pairs):
        size = f"{comparison.bits_b:.2f} bits per parameter{_gain(comparison.gain_db)}"
        return f"{b} keeps {db:z.1f} dB of {a} at {size}; {_worst(comparison)}"
    # Before and after training, or another dtype.
    moved, of_worst = comparison.relative_mse or 0.0, worst.difference.relative_mse
    said = (
        f"{b} moved {len(differing):,} of {plural(len(pairs), 'weight')}, by "
        f"{100 * math.sqrt(moved):.2g}% of the size of {a} ({db:z.1f} dB); {name} moved furthest, "
        f"{'from zero' if of_worst is None else f'by {100 * math.sqrt(of_worst):.2g}%'}"
    )
    if comparison.a.quantization and not comparison.b.quantization:
        said += "; the first model is the quantized one: give the original first"
    return said


def _gain(gain: float | None) -> str:
    """How a quantized file is beside plain rounding. Calibration gives up weights for the outputs
    of layers."""
    if gain is None:
        return ""
    if abs(gain) <= NOTICEABLE_DB:
        return ", as plain rounding to its levels would"
    return (
        f", {abs(gain):.1f} dB {'more' if gain > 0 else 'less'} than plain rounding to its levels"
    )


def _worst(comparison: Comparison) -> str:
    worst = comparison.pairs[0]
    db, plain = worst.difference.sqnr_db, worst.scheme_sqnr_db
    if db is None:
        return f"worst is {quoted(worst.pair.name)}, which was zero and is not"
    said = f"worst is {quoted(worst.pair.name)} with {db:z.1f} dB"
    if plain is not None and plain - db >= STANDS_OUT_DB:
        keeps = f"where plain rounding ({worst.scheme}) would keep {plain:z.1f}"
        return f"{said}, {keeps}: check the order of its rows, and that it was made from the other"
    if (comparison.sqnr_db or 0.0) - db < STANDS_OUT_DB:
        return f"{said}, near the rest"
    held = worst.error / (sum(r.error for r in comparison.pairs) or 1.0)
    return f"{said}, and {percent(held)} of the squared error is in it"
