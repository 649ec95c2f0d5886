"""Compares the weights that two checkpoints have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.inspection.census import take_census
from qtui_core.inspection.comparison.difference import Difference, difference
from qtui_core.inspection.comparison.pairing import Pair, Pairing, open_pair, pair_weights
from qtui_core.inspection.report import Census
from qtui_core.inspection.sample import Strip, limit_of, sample_rows
from qtui_core.inspection.sentences import describe_sample, in_a_sample, not_finite
from qtui_core.job import IDLE, Cancelled, Job
from qtui_core.models import ModelSource, row_elements, rows_of
from qtui_core.models.files.arrays import Float32
from qtui_core.models.quoting import quoted
from qtui_core.quant import Scheme, measure
from qtui_core.quant.measure import decibels
from qtui_core.quantities import plural

_STORED = (("tensor", "stored"), "method", ("bytes", "nbytes"), "bits_per_parameter")
_ROUNDED_TO = (
    "scheme",
    ("relative_mse", "scheme_relative_mse"),
    ("sqnr_db", "scheme_sqnr_db"),
)
_ROUNDED = (
    ("tensors", lambda both: len(both.rounded)),
    ("relative_mse", "rounded_relative_mse"),
    "stored_relative_mse",
    "gain_db",
)


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
        pairing: their weights, also those without a partner or of another shape.
        pairs: weights in both that were read, the largest relative error first.
        unread: (name, reason) of weights in both whose values could not be read.
    """

    a: Census
    b: Census
    pairing: Pairing
    pairs: tuple[PairReport, ...]
    unread: tuple[tuple[str, str], ...]

    PRINTED = (
        ("model", "a"),
        "sample",
        (
            "against",
            (
                ("model", "b"),
                ("notes", "pairing.notes"),
                "relative_mse",
                "sqnr_db",
                ("bits_per_parameter", "bits_b"),
                ("model_bits_per_parameter", "bits_a"),
                (
                    "plain_rounding",
                    lambda both: printed(both, _ROUNDED) if both.rounded else None,
                ),
                "identical",
                ("tensors", "pairs"),
                ("only_in_model", "pairing.only_a"),
                ("only_in_against", "pairing.only_b"),
                (
                    "other_shapes",
                    lambda both: [
                        dict(zip(("name", "shape", "against_shape"), row, strict=True))
                        for row in both.pairing.shapes
                    ],
                ),
                (
                    "not_read",
                    lambda both: [{"name": name, "reason": why} for name, why in both.unread],
                ),
            ),
        ),
    )

    @cached_property
    def read(self) -> tuple[int, int]:
        """Elements of the pairs that were read, and that there are."""
        sizes = [(r.difference.count, r.pair.info.elements) for r in self.pairs]
        return sum(n for n, _ in sizes), sum(n for _, n in sizes)

    @property
    def sample(self) -> str:
        return describe_sample(*self.read, " of the weights in both")

    @property
    def conclusion(self) -> str:
        return conclude_comparison(self)

    @cached_property
    def relative_mse(self) -> float | None:
        """Of all matrices, weighted by the energy of a; of all pairs if no matrix differs: norms
        have much energy and are seldom quantized, and would make the total look better. None if a
        is zero."""
        matrices = [r for r in self.pairs if r.is_matrix]
        counted = matrices if any(r.error for r in matrices) else self.pairs
        return _weighted([(r.difference.relative_mse, r.power) for r in counted])

    @property
    def sqnr_db(self) -> float | None:
        return decibels(self.relative_mse)

    @cached_property
    def bits_a(self) -> float:
        """Bits per parameter of the pairs. An expert counts its share of its stored tensor."""
        bits = sum(r.pair.a.bits_per_parameter * r.pair.info.elements for r in self.pairs)
        return bits / (self.read[1] or 1)

    @cached_property
    def bits_b(self) -> float:
        bits = sum(r.pair.b.bits_per_parameter * r.pair.info.elements for r in self.pairs)
        return bits / (self.read[1] or 1)

    @cached_property
    def rounded(self) -> list[PairReport]:
        """The pairs with a figure for plain rounding."""
        return [r for r in self.pairs if r.scheme_relative_mse is not None and r.power]

    @cached_property
    def rounded_relative_mse(self) -> float | None:
        """The error of plain rounding over these."""
        return _weighted([(r.scheme_relative_mse, r.power) for r in self.rounded])

    @cached_property
    def stored_relative_mse(self) -> float | None:
        """That of b over these."""
        return _weighted([(r.difference.relative_mse, r.power) for r in self.rounded])

    @property
    def gain_db(self) -> float | None:
        """By how many decibels b is better than plain rounding to its levels would be."""
        plain, stored = decibels(self.rounded_relative_mse), decibels(self.stored_relative_mse)
        return None if plain is None or stored is None else stored - plain

    @property
    def identical(self) -> int:
        return sum(1 for r in self.pairs if r.difference.identical)


def _weighted(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """The mean of (relative error, energy), weighted by energy; None without energy."""
    power = sum(energy for _, energy in pairs)
    return sum((error or 0.0) * energy for error, energy in pairs) / power if power else None


#: Dtypes that float32 does not hold exactly: their values may differ though they are equal as
#: float32.
_WIDER = frozenset({"F64", "I64", "U64", "I32", "U32"})


def compare_models(
    a: ModelSource,
    b: ModelSource,
    *,
    full: bool = False,
    pattern: str | None = None,
    job: Job = IDLE,
) -> Comparison:
    """Decodes every weight that both models have, and measures how far b's is from a's.

    Args:
        a, b: open models; errors are relative to a.
        full: read every element; otherwise a bounded, evenly spread sample of rows of each weight.
        pattern: shell pattern of names, in either model.

    Memory is bounded by two samples or, with `full`, by chunks of half a million elements; a weight
    that its library decodes only as a whole takes its full size once.

    Raises:
        ModelError: no weight matches, or none of the matching ones could be read.
        UsageError: nothing matches `pattern`, or a library that decodes is not installed.
    """
    pairing = pair_weights(a, b, pattern)
    origin = "hub" if "hub" in (a.origin, b.origin) else a.origin
    infos = [pair.info for pair in pairing.pairs]
    limit = limit_of(origin, infos, full=full)
    reports: list[PairReport] = []
    unread: list[tuple[str, str]] = []
    parts = job.parts([info.elements for info in infos])
    for pair, part in zip(pairing.pairs, parts, strict=True):
        named, shape = part.part(0.0, 1.0, pair.name), (rows_of(pair.info), row_elements(pair.info))
        strips = sample_rows(*shape, limit, origin).strips
        try:
            reports.append(_compare_pair(a, b, pair, strips, named))
        except (UsageError, Cancelled):
            raise  # a missing library would fail every other weight too
        except QtuiError as error:
            unread.append((pair.name, str(error)))
        named.at(1.0)
    if unread and not reports:
        raise ModelError(unread[0][1])
    reports.sort(key=_badness, reverse=True)
    return Comparison(take_census(a), take_census(b), pairing, tuple(reports), tuple(unread))


def _compare_pair(
    a: ModelSource, b: ModelSource, pair: Pair, strips: Sequence[Strip], job: Job
) -> PairReport:
    rows_a, rows_b = open_pair(a, b, pair)
    whole = sum(stop - start for start, stop in strips) == rows_a.shape[0]
    rounds = pair.b.scheme is not None and not pair.a.quantized and len(pair.info.shape) >= 2
    kept: list[Float32] | None = [] if rounds and not whole else None
    job.at(0.0)
    measured = difference(rows_a, rows_b, strips, job.part(0.0, 0.7), kept)
    if measured.identical and pair.a.method in _WIDER:
        # Values of dtypes wider than float32 are equal only if their stored bytes are.
        measured.identical = pair.b.method == pair.a.method and all(
            a.read_rows(pair.a.stored, *strip) == b.read_rows(pair.b.stored, *strip)
            for strip in strips
        )
    if rounds:
        assert pair.b.scheme is not None
        try:
            scheme = Scheme.parse(pair.b.scheme)
            values = rows_a if kept is None else np.concatenate(kept)
            plain = measure(values, scheme, job=job.part(0.7, 1.0))
            return PairReport(pair, measured, str(scheme), plain.relative_mse)
        except UsageError:
            pass  # a scheme that has no coder
    return PairReport(pair, measured)


def _badness(report: PairReport) -> tuple[int, float]:
    """A key that orders weights: first those with values that are not finite, then by relative
    error; identical ones last."""
    measured = report.difference
    if measured.nonfinite:
        return (2, measured.lost)
    if measured.relative_mse is None:
        return (1, math.inf) if measured.mse else (0, 0.0)
    return (1, measured.relative_mse)


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
    pairing = comparison.pairing
    alike = comparison.identical if comparison.identical < len(comparison.pairs) else 0
    rest = [
        (alike, "is identical", "are identical"),
        (len(pairing.only_a), f"exists only in {a}", f"exist only in {a}"),
        (len(pairing.only_b), f"exists only in {b}", f"exist only in {b}"),
        (len(pairing.shapes), "has another shape", "have other shapes"),
        (len(comparison.unread), "could not be read", "could not be read"),
    ]
    said = (plural(n, f"tensor {one}", f"tensors {many}") for n, one, many in rest if n)
    return f"{'; '.join([in_a_sample(*comparison.read) + _said(comparison), *said])}."


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
    if plain is None or plain - db < STANDS_OUT_DB:
        near = (comparison.sqnr_db or 0.0) - db < STANDS_OUT_DB
        return f"{said}{', near the rest' * near}"
    keeps = f"where plain rounding ({worst.scheme}) would keep {plain:z.1f}"
    return f"{said}, {keeps}: check the order of its rows, and that it was made from the other"
