"""The sections of `qtui inspect --sensitivity`: the assignment, the frontier, its curve."""

from __future__ import annotations

from dataclasses import replace

from qtui.report.document import Block, Column, Document, Facts, Picture, Section, Table, figures
from qtui.report.faces.plot import PlotSeries, curve_svg
from qtui.report.numbers import format_decibels, format_value
from qtui_core.codec import printed
from qtui_core.evaluation.sensitivity.report import AS_STORED, FrontierPoint, Sensitivity
from qtui_core.quantities import format_bytes, plural

#: The most tensors that a text report lists.
TEXT_TENSORS = 40
#: The most points of the frontier in the table; the curve and the JSON have all.
TABLE_POINTS = 16
_ERRORS = {
    "weights": "squared error of the weights over their energy, summed over all matrices",
    "fisher": (
        "KL divergence of the model with one tensor quantized, estimated from gradients: half of "
        "the sum of g² Δw²; summed over tensors"
    ),
    "kl": "KL divergence of the model with one tensor quantized, measured; summed over tensors",
}
_AXES = {
    "weights": "SQNR, dB",
    "fisher": "estimated KL, nats a token",
    "kl": "KL of single tensors, summed, nats a token",
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
        share = point.error / found.bound - 1 if found.bound else 0.0
        gap = f"at most {share:.2%} above the least possible (linear relaxation)"
    pairs = [
        ("objective", f"{found.by}: {_ERRORS[found.by]}"),
        *((("read", found.read),) if found.read else ()),
        *((("by weights because", found.because),) if found.because else ()),
        ("budget", f"{found.budget:,} bytes ({format_bytes(found.budget)})"),
        (
            "assignment",
            f"{point.nbytes:,} bytes, {point.bits_per_parameter:.3f} bits per parameter, "
            f"{_quality(found)}",
        ),
        ("its error is", gap),
    ]
    blocks: list[Block] = [Facts(tuple(pairs))]
    if found.uniform:
        blocks.append(_uniform(found))
    blocks.append(_frontier(found))
    blocks += _curve(found)
    blocks.append(_choices(found, all_tensors))
    return blocks


def _quality(found: Sensitivity) -> str:
    point = found.point
    if not point.error:
        return "no error"
    if not point.nats:
        return f"{point.sqnr_db:z.2f} dB"
    stderr = "" if found.stderr is None else f" ± {found.stderr:.1g}"
    return f"{point.error:.3g}{stderr} nats a token"


def _quality_title(found: Sensitivity) -> str:
    """The heading for the error of an assignment."""
    return "KL sum" if found.point.nats else "SQNR dB"


def _error(point: FrontierPoint) -> str:
    if point.nats:
        return format_value(point.error, 3)
    return format_decibels(point.sqnr_db)


def _uniform(found: Sensitivity) -> Table:
    return Table(
        columns=(
            Column("one scheme for all", key=True),
            *figures("bits/param", "bytes"),
            Column(_quality_title(found), numeric=True),
        ),
        rows=tuple(
            (
                u.scheme,
                f"{u.point.bits_per_parameter:.3f}",
                format_bytes(u.point.nbytes),
                _error(u.point),
            )
            for u in found.uniform
        ),
    )


def _frontier(found: Sensitivity) -> Table:
    step = max(1, -(-len(found.frontier) // TABLE_POINTS))
    # Counted from the last point, in which every tensor is as stored.
    points = found.frontier[::-step][::-1]
    if points[0] != found.frontier[0]:
        points = (found.frontier[0], *points)
    nats = found.point.nats
    best = max((_height(p) for p in points), default=0.0)
    whole = 0.0 if nats else 1.0
    bars = ((_height(p) / best if best > 0 else 0.0) if p.error else whole for p in points)
    return Table(
        columns=(
            Column("bits/param", numeric=True, key=True),
            Column("bytes", numeric=True),
            *([] if nats else [Column("relative error", numeric=True)]),
            Column(_quality_title(found), numeric=True),
        ),
        rows=tuple(
            (
                f"{p.bits_per_parameter:.3f}",
                format_bytes(p.nbytes),
                *([] if nats else [format_value(p.error, 3)]),
                _error(p),
            )
            for p in points
        ),
        bars=tuple(bars),
        bar_title="KL" if nats else "dB",
        note="The frontier: the least error for a number of bytes.",
    )


def _height(point: FrontierPoint) -> float:
    """What is drawn of a point: nats, or decibels."""
    return point.error if point.nats else point.sqnr_db or 0.0


def _curve(found: Sensitivity) -> list[Block]:
    points = tuple((p.bits_per_parameter, _height(p)) for p in found.frontier if p.error)
    if len(points) < 2:
        return []
    alone = [(u.scheme, u.point) for u in found.uniform if u.point.error]
    svg = curve_svg(
        (
            PlotSeries("frontier", points),
            PlotSeries(
                "one scheme for all",
                tuple((p.bits_per_parameter, _height(p)) for _, p in alone),
                line=False,
                labels=tuple(scheme for scheme, _ in alone),
            ),
        ),
        "bits per parameter",
        _AXES[found.by],
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
    total = found.point.error
    largest = max((c.error for c in found.choices), default=0.0)
    return Table(
        columns=(
            Column("tensor", key=True),
            Column("scheme"),
            *figures("bits/param", "bytes", "of the error"),
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
