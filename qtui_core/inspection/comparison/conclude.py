"""The sentence at the end of a comparison of two checkpoints."""

from __future__ import annotations

import math

from qtui_core.inspection.comparison.report import Comparison, PairReport
from qtui_core.models.quoting import quoted
from qtui_core.quantities import percent, plural

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
    """What b kept of a, at what size, where it is worst, and what to do."""
    a, b = comparison.a.model, comparison.b.model
    where = _where(comparison)
    rest = _rest(comparison)
    broken = [r for r in comparison.pairs if r.difference.nonfinite]
    if broken:
        count = sum(r.difference.nonfinite for r in broken)
        values, they = ("value is", "it comes") if count == 1 else ("values are", "they come")
        over = "every figure is over the finite rest"
        if count == sum(r.difference.count for r in comparison.pairs):
            over = "nothing else is left to compare"
        beyond = "NaN or infinite"
        if any("F64" in (r.pair.a.method, r.pair.b.method) for r in broken):
            beyond = "NaN, infinite or beyond the range of float32"
        lost = sum(r.difference.lost for r in broken)
        theirs = f"in {a}"
        if lost:
            theirs = f"in {b}, {'' if lost == count else f'{lost:,} of them '}where {a} is finite"
        return (
            f"{where}{count:,} {values} {beyond} {theirs}, first in "
            f"{quoted(broken[0].pair.name)}: find out where {they} from, since "
            f"{over}{rest}."
        )
    if not comparison.pairs:
        return (
            f"{a} and {b} have weights of the same names and no two of one shape: nothing was "
            f"compared."
        )
    differing = [r for r in comparison.pairs if not r.difference.identical]
    if not differing:
        return f"{where}{_all_identical(comparison)}{_rest(comparison, identical=False)}."
    if not any(r.error for r in differing):
        return f"{where}{_same_values(comparison)}, as far as float32 tells{rest}."
    if comparison.sqnr_db is None:
        return f"{where}{_from_zero(comparison, differing)}{rest}."
    alone = _one_value(comparison, differing)
    if alone:
        return f"{where}{alone}{rest}."
    if comparison.sqnr_db < UNRELATED_DB:
        return (
            f"{where}{b} has almost nothing of {a} ({comparison.sqnr_db:z.1f} dB; worst is "
            f"{quoted(differing[0].pair.name)}): check that one was made from the other{rest}."
        )
    if any(r.pair.b.quantized for r in comparison.pairs):
        return f"{where}{_quantized(comparison)}{rest}."
    return f"{where}{_moved(comparison, differing)}{rest}."


def _where(comparison: Comparison) -> str:
    """The beginning of a sentence that is about a sample; "" for whole tensors."""
    read = sum(r.difference.count for r in comparison.pairs)
    there = sum(r.pair.info.elements for r in comparison.pairs)
    return "" if read == there else f"In a sample of {percent(read / there)} of the elements: "


def _same_values(comparison: Comparison) -> str:
    """The words for equal values, and for the bits that they are stored in if these differ."""
    said = f"{comparison.b.model} holds the same values as {comparison.a.model} in every weight"
    before, after = f"{comparison.bits_a:.2f}", f"{comparison.bits_b:.2f}"
    if before == after:
        return f"{said} that both have"
    return f"{said} that both have, stored at {after} bits per parameter instead of {before}"


def _from_zero(comparison: Comparison, differing: list[PairReport]) -> str:
    """The words for a difference that is relative to nothing: what differs is zero in a."""
    moved = [r for r in differing if r.error]
    first = quoted(moved[0].pair.name)
    if comparison.relative_mse is None:
        return (
            f"{comparison.a.model} is zero in every weight that both have and "
            f"{comparison.b.model} is not, first {first}: check that these are the models you mean"
        )
    are = "weight that is" if len(moved) == 1 else "weights that are"
    return (
        f"{comparison.b.model} differs from {comparison.a.model} only in {len(moved):,} {are} zero "
        f"there, first {first}"
    )


def _one_value(comparison: Comparison, differing: list[PairReport]) -> str:
    """The words for models that differ in a single value, or nearly so; "" for others."""
    total = sum(_seen_error(r) for r in differing)
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


def _seen_error(report: PairReport) -> float:
    """The squared difference over the elements that were read."""
    return report.difference.mse * (report.difference.count - report.difference.nonfinite)


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
    foreign = [r for r in comparison.pairs if _foreign(r)]
    if foreign:
        return f"{said}; {_foreign_words(foreign)}"
    gain = comparison.gain_db
    if gain is not None:
        if gain > NOTICEABLE_DB:
            said += f", {gain:.1f} dB more than plain rounding to its levels"
        elif gain < -NOTICEABLE_DB:
            said += (
                f", {-gain:.1f} dB less than plain rounding to its levels (calibration gives up "
                f"weights for the outputs of layers)"
            )
        else:
            said += ", as plain rounding to its levels would"
    return f"{said}; {_worst(comparison)}"


def _foreign(report: PairReport) -> bool:
    """Whether a weight has almost nothing in common with the original although its levels could
    hold it. Neither rounding nor calibration does that."""
    db, plain = report.difference.sqnr_db, report.scheme_sqnr_db
    return db is not None and plain is not None and db < UNRELATED_DB and plain >= 2 * UNRELATED_DB


def _foreign_words(foreign: list[PairReport]) -> str:
    first = foreign[0]
    have = "1 weight has" if len(foreign) == 1 else f"{len(foreign):,} weights have"
    return (
        f"{have} almost nothing of the original, the worst {quoted(first.pair.name)} with "
        f"{first.difference.sqnr_db:z.1f} dB where plain rounding ({first.scheme}) would keep "
        f"{first.scheme_sqnr_db:z.1f}: check the order of their rows, and that they were made "
        f"from it"
    )


def _worst(comparison: Comparison) -> str:
    worst = comparison.pairs[0]
    db = worst.difference.sqnr_db
    whole = comparison.sqnr_db or 0.0
    name = quoted(worst.pair.name)
    if db is None:
        return f"worst is {name}, which was zero and is not"
    if whole - db < STANDS_OUT_DB:
        return f"worst is {name} with {db:z.1f} dB, near the rest"
    scheme = worst.scheme_sqnr_db
    if scheme is not None and scheme - db >= STANDS_OUT_DB:
        return (
            f"worst is {name} with {db:z.1f} dB, where plain rounding ({worst.scheme}) would keep "
            f"{scheme:z.1f}: look at its map"
        )
    total = sum(r.error for r in comparison.pairs)
    most = max(comparison.pairs, key=lambda r: r.error)
    held = percent(most.error / total) if total else "0%"
    if most is worst:
        return f"worst is {name} with {db:z.1f} dB, and {held} of the squared error is in it"
    return (
        f"worst is {name} with {db:z.1f} dB, and the largest part of the squared error, {held}, is "
        f"in {quoted(most.pair.name)}"
    )


def _moved(comparison: Comparison, differing: list[PairReport]) -> str:
    """The sentence for models of which none is quantized: before and after training, or another
    dtype."""
    share = 100 * math.sqrt(comparison.relative_mse or 0.0)
    total = sum(r.error for r in differing)
    most = max(differing, key=lambda r: r.error)
    held = most.error / total if total else 0.0
    worst = comparison.pairs[0]
    said = (
        f"{comparison.b.model} moved {len(differing):,} of "
        f"{plural(len(comparison.pairs), 'weight')}, by "
        f"{share:.2g}% of the size of {comparison.a.model} ({comparison.sqnr_db:z.1f} dB)"
    )
    db = worst.difference.sqnr_db
    far = "from zero" if db is None else f"by {100 * 10 ** (-db / 20):.2g}%"
    said += f"; {quoted(worst.pair.name)} moved furthest, {far}"
    if len(differing) > 1 and most is not worst:
        said += (
            f", and {quoted(most.pair.name)} holds the largest part of the change ({percent(held)})"
        )
    if comparison.a.quantization and not comparison.b.quantization:
        said += "; the first model is the quantized one: give the original first"
    return said


def _rest(comparison: Comparison, *, identical: bool = True) -> str:
    """What was not compared, and what did not differ."""
    parts = []
    if identical and comparison.identical:
        parts.append(_count(comparison.identical, "is identical", "are identical"))
    for names, model in ((comparison.only_a, comparison.a), (comparison.only_b, comparison.b)):
        if names:
            parts.append(f"{_count(len(names), 'exists', 'exist')} only in {model.model}")
    if comparison.shapes:
        parts.append(_count(len(comparison.shapes), "has another shape", "have other shapes"))
    if comparison.unread:
        parts.append(_count(len(comparison.unread), "could not be read", "could not be read"))
    return "".join(f"; {part}" for part in parts)


def _count(count: int, one: str, many: str) -> str:
    return f"1 tensor {one}" if count == 1 else f"{count:,} tensors {many}"
