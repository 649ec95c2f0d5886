"""The document of `qtui inspect A --against B`, built from a `Comparison`."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.document import Column, Document, Facts, Section, Table, Tone
from qtui.report.inspection.document import reading_note
from qtui.report.numbers import format_decibels, format_shape, format_signed, format_value
from qtui_core.codec import printed
from qtui_core.inspection.comparison.compare import Comparison, PairReport
from qtui_core.inspection.comparison.difference import Difference
from qtui_core.inspection.report import Census
from qtui_core.quantities import format_bytes, plural

#: The most weights that a text report lists, and the most names of each kind of weight that was not
#: compared.
TEXT_PAIRS, LISTED_NAMES = 60, 20


def comparison_document(comparison: Comparison, *, all_tensors: bool) -> Document:
    """The report on two models. `all_tensors` lists every weight; otherwise a long list has only
    the TEXT_PAIRS worst."""
    sections = [Section("Models", (_models(comparison),))]
    if comparison.pairs:
        sections.append(_pair_section(comparison, all_tensors))
    left = _left_out(comparison, all_tensors)
    if left:
        sections.append(Section("Not compared", left))
    names = f"{comparison.a.model} --against {comparison.b.model}"
    return Document(
        title=f"qtui inspect {names}",
        sections=tuple(sections),
        conclusion=comparison.conclusion,
        data=printed(comparison),
    )


def _models(comparison: Comparison) -> Facts:
    pairs = [
        ("first (A)", _model(comparison.a)),
        ("second (B)", _model(comparison.b)),
        ("compared", f"{plural(len(comparison.pairs), 'weight')}. {comparison.sample}"),
    ]
    if comparison.pairs:
        pairs += [
            ("bits per parameter", f"A {comparison.bits_a:.3f}, B {comparison.bits_b:.3f}"),
            ("relative MSE, matrices", format_value(comparison.relative_mse, 3)),
            ("SQNR dB, matrices", format_decibels(comparison.sqnr_db)),
        ]
    if comparison.gain_db is not None:
        weights = plural(len(comparison.rounded), "quantized weight")
        pairs.append(
            ("against plain rounding", f"{format_signed(comparison.gain_db)} dB over {weights}")
        )
    pairs += [("note", note) for note in comparison.pairing.notes]
    return Facts(tuple(pairs))


def _model(census: Census) -> str:
    stored = f"{census.parameters:,} parameters in {format_bytes(census.nbytes)}"
    return f"{census.location}: {stored}. {census.quantization or ''}".strip()


def _pair_section(comparison: Comparison, all_tensors: bool) -> Section:
    pairs: Sequence[PairReport] = comparison.pairs
    title, notes = "Weights, worst first", []
    if not all_tensors and comparison.identical < len(pairs):
        pairs = [r for r in pairs if not r.difference.identical]
        if comparison.identical:
            notes.append(f"{plural(comparison.identical, 'identical weight')} not listed")
    if not all_tensors and len(pairs) > TEXT_PAIRS:
        title = f"Weights, the {TEXT_PAIRS} worst"
        notes.append(f"{len(pairs) - TEXT_PAIRS:,} more that differ")
        pairs = pairs[:TEXT_PAIRS]
    note = (
        "SQNR is the energy of A over that of B's error; bits count everything that is stored of a "
        "weight, also scales and tables."
    )
    columns = _COLUMNS
    if any(r.difference.nonfinite for r in pairs):
        note += " Lost: finite in A and NaN or infinite in B; no figure counts them."
    if comparison.rounded:
        note += " Plain dB is the SQNR of rounding A to the levels of B without calibration."
    else:
        columns = tuple(c for c in columns if c.title != _PLAIN)
    read_as = reading_note([r.pair.info for r in pairs])
    if read_as:
        note += f" {read_as}"
    if notes:
        note += f" {', '.join(notes)}: --format json, markdown or html lists all."
    total = sum(r.error for r in comparison.pairs)
    kept = [i for i, column in enumerate(_COLUMNS) if column in columns]
    table = Table(
        columns=columns,
        rows=tuple(tuple(_cells(r)[i] for i in kept) for r in pairs),
        tones=tuple(_tone(r) for r in pairs),
        bars=tuple(r.error / total if total else 0.0 for r in pairs),
        bar_title="share of the error",
        note=note,
    )
    return Section(title, (table,))


_PLAIN = "plain dB"
_COLUMNS = (
    Column("weight", key=True),
    Column("shape", numeric=True),
    Column("A"),
    Column("B"),
    *(
        Column(title, numeric=True)
        for title in (
            "bits B", "SQNR dB", _PLAIN, "relative MSE", "max |B-A|", "mean B-A", "cosine",
        )
    ),
)  # fmt: skip


def _cells(report: PairReport) -> tuple[str, ...]:
    """The cells of a weight, in the order of `_COLUMNS`."""
    pair, found = report.pair, report.difference
    kept = "equal" if found.mse == 0 else format_decibels(found.sqnr_db)
    return (
        pair.name,
        format_shape(pair.info.shape),
        pair.a.method,
        pair.b.method,
        f"{pair.b.bits_per_parameter:.3f}",
        ", ".join(p for p in ("identical" if found.identical else kept, _nonfinite(found)) if p),
        format_decibels(report.scheme_sqnr_db),
        format_value(found.relative_mse, 3),
        format_value(found.max_abs_error, 3),
        format_value(found.mean_shift, 2),
        "–" if found.cosine is None else f"{found.cosine:.6f}",
    )


def _nonfinite(found: Difference) -> str:
    """The counts of values that no figure includes; "" if there are none."""
    counts = ((found.lost, "lost"), (found.nonfinite - found.lost, "not finite in A"))
    return ", ".join(f"{count:,} {word}" for count, word in counts if count)


def _tone(report: PairReport) -> Tone:
    if report.difference.nonfinite:
        return "bad"
    if report.difference.identical:
        return "dim"
    gain = report.gain_db
    return "warn" if gain is not None and gain <= -3.0 else ""


def _left_out(comparison: Comparison, all_tensors: bool) -> tuple[Facts, ...]:
    pairs, pairing = [], comparison.pairing
    for names, model in (
        (pairing.only_a, comparison.a.model),
        (pairing.only_b, comparison.b.model),
    ):
        pairs += [(f"only in {model}", n) for n in _cut(names, all_tensors)]
    shapes = tuple(f"{n}: {format_shape(a)} and {format_shape(b)}" for n, a, b in pairing.shapes)
    pairs += [("of two shapes", s) for s in _cut(shapes, all_tensors)]
    pairs += [("not read", f"{name}: {reason}") for name, reason in comparison.unread]
    return (Facts(tuple(pairs)),) if pairs else ()


def _cut(names: Sequence[str], all_tensors: bool) -> list[str]:
    if all_tensors or len(names) <= LISTED_NAMES:
        return list(names)
    return [*names[:LISTED_NAMES], f"and {len(names) - LISTED_NAMES:,} more"]
