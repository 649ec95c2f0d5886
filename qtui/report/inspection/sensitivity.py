"""The sections of `qtui inspect --sensitivity`: the assignment, the frontier, its curve."""

from __future__ import annotations

from dataclasses import replace

from qtui.report.document import Block, Column, Document, Facts, Picture, Section, Table
from qtui.report.faces.plot import PlotSeries, curve_svg
from qtui.report.numbers import format_decibels, format_value
from qtui_core.codec import printed
from qtui_core.inspection.sensitivity.report import AS_STORED, FrontierPoint, Sensitivity
from qtui_core.quantities import format_bytes, plural

#: The most tensors that a text report lists.
TEXT_TENSORS = 40
#: The most points of the frontier in the table; the curve and the JSON have all.
TABLE_POINTS = 16
_ERRORS = {
    "weights": "squared error of the weights over their energy, summed over all matrices",
    "outputs": (
        "squared error of each layer's output over the square of that output, the mean over layers"
    ),
}


def with_sensitivity(document: Document, found: Sensitivity, *, all_tensors: bool) -> Document:
    """The report of an inspection with the assignment added; its conclusion is the assignment's."""
    sections = [
        *document.sections,
        Section("Sensitivity: which scheme for which tensor", tuple(_blocks(found, all_tensors))),
    ]
    return replace(
        document,
        sections=tuple(sections),
        conclusion=found.conclusion,
        data={**document.data, "sensitivity": printed(found)},
    )


def _blocks(found: Sensitivity, all_tensors: bool) -> list[Block]:
    point = found.point
    gap = "the least possible: no assignment in the budget has less"
    if not found.exact:
        share = point.relative_error / found.bound - 1 if found.bound else 0.0
        gap = f"at most {share:.2%} above the least possible (linear relaxation)"
    pairs = [
        ("error counted", f"{_ERRORS[found.by]}{_tokens(found)}"),
        ("not measured", "which tensors matter most to the loss of the model"),
        ("budget", f"{found.budget:,} bytes ({format_bytes(found.budget)})"),
        (
            "assignment",
            f"{point.nbytes:,} bytes, {point.bits_per_parameter:.3f} bits per parameter, "
            f"{_quality(point)}",
        ),
        ("its error is", gap),
    ]
    if found.unweighed:
        names = ", ".join(found.unweighed[:3])
        more = f" and {len(found.unweighed) - 3} more" if len(found.unweighed) > 3 else ""
        pairs.append(("by weights alone", f"{names}{more}: their layers had no finite input"))
    blocks: list[Block] = [Facts(tuple(pairs))]
    if found.uniform:
        blocks.append(_uniform(found))
    blocks.append(_frontier(found))
    blocks += _curve(found)
    blocks.append(_choices(found, all_tensors))
    return blocks


def _tokens(found: Sensitivity) -> str:
    if found.tokens is None:
        return ""
    least, most = found.tokens
    count = plural(most, "token") if least == most else f"{least:,} to {most:,} tokens"
    return f", on {count} of the calibration text"


def _quality(point: FrontierPoint) -> str:
    return "no error" if point.sqnr_db is None else f"{point.sqnr_db:z.2f} dB"


def _quality_title(found: Sensitivity) -> str:
    """The heading for the SQNR, which is that of the weights or that of the layers' outputs."""
    return "outputs dB" if found.by == "outputs" else "SQNR dB"


def _uniform(found: Sensitivity) -> Table:
    return Table(
        columns=(
            Column("one scheme for all", key=True),
            Column("bits/param", numeric=True),
            Column("bytes", numeric=True),
            Column(_quality_title(found), numeric=True),
            Column("assigned, same bytes", numeric=True),
            Column("gain dB", numeric=True),
        ),
        rows=tuple(
            (
                u.scheme,
                f"{u.point.bits_per_parameter:.3f}",
                format_bytes(u.point.nbytes),
                format_decibels(u.point.sqnr_db),
                format_decibels(u.assigned.sqnr_db),
                _gain(u.point, u.assigned),
            )
            for u in found.uniform
        ),
        note="The best assignment that takes no more bytes than one scheme for every tensor.",
    )


def _gain(before: FrontierPoint, after: FrontierPoint) -> str:
    if before.sqnr_db is None or after.sqnr_db is None:
        return "–"
    return f"{after.sqnr_db - before.sqnr_db:z.2f}"


def _frontier(found: Sensitivity) -> Table:
    step = max(1, -(-len(found.frontier) // TABLE_POINTS))
    # Counted from the last point, in which every tensor is as stored.
    points = found.frontier[::-step][::-1]
    if points[0] != found.frontier[0]:
        points = (found.frontier[0], *points)
    best = max((p.sqnr_db or 0.0 for p in points), default=0.0)
    return Table(
        columns=(
            Column("bits/param", numeric=True, key=True),
            Column("bytes", numeric=True),
            Column("relative error", numeric=True),
            Column(_quality_title(found), numeric=True),
        ),
        rows=tuple(
            (
                f"{p.bits_per_parameter:.3f}",
                format_bytes(p.nbytes),
                format_value(p.relative_error, 3),
                format_decibels(p.sqnr_db),
            )
            for p in points
        ),
        bars=tuple(
            1.0 if p.sqnr_db is None else p.sqnr_db / best if best > 0 else 0.0 for p in points
        ),
        bar_title="dB",
        note="The frontier: the least error for a number of bytes.",
    )


def _curve(found: Sensitivity) -> list[Block]:
    points = tuple(
        (p.bits_per_parameter, p.sqnr_db) for p in found.frontier if p.sqnr_db is not None
    )
    if len(points) < 2:
        return []
    alone = [(u.scheme, u.point) for u in found.uniform if u.point.sqnr_db is not None]
    svg = curve_svg(
        (
            PlotSeries("frontier", points),
            PlotSeries(
                "one scheme for all",
                tuple((p.bits_per_parameter, p.sqnr_db or 0.0) for _, p in alone),
                line=False,
                labels=tuple(scheme for scheme, _ in alone),
            ),
        ),
        "bits per parameter",
        "SQNR of outputs, dB" if found.by == "outputs" else "SQNR, dB",
    )
    caption = "The frontier (line), and one scheme for every tensor (points)."
    return [Picture(svg, caption)]


def _choices(found: Sensitivity, all_tensors: bool) -> Table:
    # Rounded: a scheme takes slightly more bits on a small tensor.
    chosen = sorted(
        found.choices, key=lambda c: (-round(8 * c.nbytes / max(1, c.parameters), 1), -c.error)
    )
    note = "Sorted by bits per parameter, then by error."
    if not all_tensors and len(chosen) > TEXT_TENSORS:
        note += f" {plural(len(chosen) - TEXT_TENSORS, 'more tensor')}: --json lists all."
        chosen = chosen[:TEXT_TENSORS]
    total = found.point.relative_error
    largest = max((c.error for c in found.choices), default=0.0)
    return Table(
        columns=(
            Column("tensor", key=True),
            Column("scheme"),
            Column("bits/param", numeric=True),
            Column("bytes", numeric=True),
            Column("of the error", numeric=True),
        ),
        rows=tuple(
            (
                c.name,
                c.scheme or AS_STORED,
                f"{8 * c.nbytes / c.parameters:.3f}" if c.parameters else "–",
                format_bytes(c.nbytes),
                f"{c.error / total:.1%}" if total else "–",
            )
            for c in chosen
        ),
        bars=tuple(c.error / largest if largest else 0.0 for c in chosen),
        bar_title="beside the largest",
        note=note,
    )
