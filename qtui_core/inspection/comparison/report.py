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
#: A weight this far below the total is mentioned.
STANDS_OUT_DB = 3.0
#: From this share of the squared difference on, one value is what two models differ in.
MOST = 0.9


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
    rest: list[tuple[int, str, str]] = [
        (alike, "is identical", "are identical"),
        (len(comparison.only_a), f"exists only in {a}", f"exist only in {a}"),
        (len(comparison.only_b), f"exists only in {b}", f"exist only in {b}"),
        (len(comparison.shapes), "has another shape", "have other shapes"),
        (len(comparison.unread), "could not be read", "could not be read"),
    ]
    said = (plural(n, f"tensor {one}", f"tensors {many}") for n, one, many in rest if n)
    return f"{'; '.join([where + _said(comparison), *said])}."


def _said(comparison: Comparison) -> str:
    broken = [r for r in comparison.pairs if r.difference.nonfinite]
    if broken:
        return _broken(comparison, broken)
    differing = [r for r in comparison.pairs if not r.difference.identical]
    if not differing:
        return _all_identical(comparison)
    if not any(r.error for r in differing):
        return f"{_same_values(comparison)}, as far as float32 tells"
    if comparison.sqnr_db is None:
        return _from_zero(comparison, differing)
    if alone := _one_value(comparison, differing):
        return alone
    if comparison.sqnr_db < UNRELATED_DB:
        return (
            f"{comparison.b.model} has almost nothing of {comparison.a.model} "
            f"({comparison.sqnr_db:z.1f} dB; worst is {quoted(differing[0].pair.name)}): check "
            f"that one was made from the other"
        )
    if any(r.pair.b.quantized for r in comparison.pairs):
        return _quantized(comparison)
    return _moved(comparison, differing)


def _broken(comparison: Comparison, broken: list[PairReport]) -> str:
    a, b = comparison.a.model, comparison.b.model
    count = sum(r.difference.nonfinite for r in broken)
    lost = sum(r.difference.lost for r in broken)
    theirs = f"in {a}"
    if lost:
        theirs = f"in {b}, {'' if lost == count else f'{lost:,} of them '}where {a} is finite"
    every = count == sum(r.difference.count for r in comparison.pairs)
    over = "nothing else is left to compare" if every else "every figure is over the finite rest"
    first = f"{theirs}, first in {quoted(broken[0].pair.name)}"
    wide = any("F64" in (r.pair.a.method, r.pair.b.method) for r in broken)
    return f"{not_finite(count, first, float64=wide)}, since {over}"


def _same_values(comparison: Comparison) -> str:
    said = f"{comparison.b.model} holds the same values as {comparison.a.model} in every weight"
    before, after = f"{comparison.bits_a:.2f}", f"{comparison.bits_b:.2f}"
    if before == after:
        return f"{said} that both have"
    return f"{said} that both have, stored at {after} bits per parameter instead of {before}"


def _from_zero(comparison: Comparison, differing: list[PairReport]) -> str:
    """Of weights that are zero in a and not in b, so that no error is relative to anything."""
    moved = [r for r in differing if r.error]
    first = quoted(moved[0].pair.name)
    if comparison.relative_mse is None:
        return (
            f"{comparison.a.model} is zero in every weight that both have and "
            f"{comparison.b.model} is not, first {first}: check that these are the models you mean"
        )
    return (
        f"{comparison.b.model} differs from {comparison.a.model} only in "
        f"{plural(len(moved), 'weight that is', 'weights that are')} zero there, first {first}"
    )


def _one_value(comparison: Comparison, differing: list[PairReport]) -> str:
    """Of models that differ in a single value, or nearly so; "" for others."""
    # Over the elements that were read.
    total = sum(r.difference.mse * (r.difference.count - r.difference.nonfinite) for r in differing)
    worst = max(differing, key=lambda r: r.difference.max_abs_error)
    found = worst.difference
    if found.max_abs_error**2 < MOST * total or worst.pair.info.elements == 1:
        return ""
    assert found.max_abs_error_index is not None
    row, column = found.max_abs_error_index
    return (
        f"{percent(min(1.0, found.max_abs_error**2 / total))} of the squared difference of "
        f"{comparison.b.model} from {comparison.a.model} is in one value, at ({row:,}, {column:,}) "
        f"of {quoted(worst.pair.name)}, which differs by {found.max_abs_error:.3g} "
        f"({comparison.sqnr_db:z.1f} dB in all): look at that value first"
    )


def _all_identical(comparison: Comparison) -> str:
    if any(r.pair.a.method != r.pair.b.method for r in comparison.pairs):
        return _same_values(comparison)
    count = len(comparison.pairs)
    weights = {1: "The one weight", 2: "Both weights"}.get(count, f"All {count:,} weights")
    verb = "is" if count == 1 else "are"
    return (
        f"{weights} that {comparison.a.model} and {comparison.b.model} share {verb} identical to "
        f"the bit"
    )


def _quantized(comparison: Comparison) -> str:
    said = (
        f"{comparison.b.model} keeps {comparison.sqnr_db:z.1f} dB of {comparison.a.model} at "
        f"{comparison.bits_b:.2f} bits per parameter"
    )
    if foreign := [r for r in comparison.pairs if _foreign(r)]:
        first = foreign[0]
        have = plural(len(foreign), "weight has", "weights have")
        return (
            f"{said}; {have} almost nothing of the original, the worst {quoted(first.pair.name)} "
            f"with {first.difference.sqnr_db:z.1f} dB where plain rounding ({first.scheme}) would "
            f"keep {first.scheme_sqnr_db:z.1f}: check the order of their rows, and that they were "
            f"made from it"
        )
    gain = comparison.gain_db
    if gain is not None and gain > NOTICEABLE_DB:
        said += f", {gain:.1f} dB more than plain rounding to its levels"
    elif gain is not None and gain < -NOTICEABLE_DB:
        said += (
            f", {-gain:.1f} dB less than plain rounding to its levels (calibration gives up "
            f"weights for the outputs of layers)"
        )
    elif gain is not None:
        said += ", as plain rounding to its levels would"
    return f"{said}; {_worst(comparison)}"


def _foreign(report: PairReport) -> bool:
    """Whether a weight has almost nothing in common with the original although its levels could
    hold it. Neither rounding nor calibration does that."""
    db, plain = report.difference.sqnr_db, report.scheme_sqnr_db
    return db is not None and plain is not None and db < UNRELATED_DB and plain >= 2 * UNRELATED_DB


def _worst(comparison: Comparison) -> str:
    worst = comparison.pairs[0]
    db, plain = worst.difference.sqnr_db, worst.scheme_sqnr_db
    if db is None:
        return f"worst is {quoted(worst.pair.name)}, which was zero and is not"
    said = f"worst is {quoted(worst.pair.name)} with {db:z.1f} dB"
    if (comparison.sqnr_db or 0.0) - db < STANDS_OUT_DB:
        return f"{said}, near the rest"
    if plain is not None and plain - db >= STANDS_OUT_DB:
        rounding = f"plain rounding ({worst.scheme}) would keep {plain:z.1f}"
        return f"{said}, where {rounding}: look at its map"
    held = worst.error / (sum(r.error for r in comparison.pairs) or 1.0)
    return f"{said}, and {percent(held)} of the squared error is in it"


def _moved(comparison: Comparison, differing: list[PairReport]) -> str:
    """Of models of which none is quantized: before and after training, or another dtype."""
    share = 100 * math.sqrt(comparison.relative_mse or 0.0)
    db = comparison.pairs[0].difference.sqnr_db
    far = "from zero" if db is None else f"by {100 * 10 ** (-db / 20):.2g}%"
    said = (
        f"{comparison.b.model} moved {len(differing):,} of "
        f"{plural(len(comparison.pairs), 'weight')}, by {share:.2g}% of the size of "
        f"{comparison.a.model} ({comparison.sqnr_db:z.1f} dB); "
        f"{quoted(comparison.pairs[0].pair.name)} moved furthest, {far}"
    )
    if comparison.a.quantization and not comparison.b.quantization:
        said += "; the first model is the quantized one: give the original first"
    return said
