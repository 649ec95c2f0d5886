"""Shorthands that only tests need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qtui_core.conformance.catalogue import LIBRARIES
from qtui_core.conformance.convention import Convention
from qtui_core.formats import Exact, Format, decode, encode
from qtui_core.job import Job
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Event
from qtui_core.memory.replay.timeline import Timeline
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.run import record_step
from qtui_core.quant.columns import ColumnScan, ColumnStatistics
from qtui_core.quant.elements import ModelExtent, TensorLike
from qtui_core.quant.layout import matrix_shape
from qtui_core.quant.maps import MapKind, TensorMap, tensor_map
from qtui_core.quant.occupancy import DENSITY_BINS, Occupancy, OccupancyScan
from qtui_core.quant.plan import scan
from qtui_core.schemes.scheme import Scheme


def find_convention(id: str) -> Convention:
    """The convention of the catalogue with that id."""
    every = (each for library in LIBRARIES for each in library.conventions)
    return next(each for each in every if each.id == id)


def record_peaks(shape: ModelShape, plan: RunPlan) -> tuple[tuple[str, int], ...]:
    """(phase, most bytes alive in it, each buffer rounded) for the phases of a run, in order. The
    step is a later one, not the first."""
    return tops(record_step(shape, plan, 1, steady=True).events)


def tops(events: Sequence[Event]) -> tuple[tuple[str, int], ...]:
    """(phase, most bytes alive in it, each buffer rounded) for the phases of events, in order."""
    timeline = Timeline(events)
    both = zip(timeline.spans, timeline.tops, strict=True)
    return tuple((span.name, live) for span, (live, _) in both)


def code_occupancy(
    x: TensorLike,
    scheme: Scheme,
    *,
    bins: int = DENSITY_BINS,
    model_absmax: ModelExtent | None = None,
    **more: Any,
) -> Occupancy:
    """Counts the codes of a tensor under a scheme of up to 8 bits."""
    found = OccupancyScan(scheme, bins)
    scan(x, [found], model_absmax=model_absmax, **more)
    return found.result()


class Rows:
    """A tensor that returns rows on request and records what was requested."""

    def __init__(self, array: Any, shape: tuple[int, ...] | None = None) -> None:
        self.array, self.shape = array, shape or array.shape
        self.asked: list[tuple[int, int]] = []

    def rows(self, start: int, stop: int) -> Any:
        self.asked.append((start, stop))
        rows = self.array
        if rows.ndim > 1:
            rows = rows.reshape(-1, matrix_shape(self.shape)[1])
        return rows[start:stop].copy()


def error_map(
    x: TensorLike, scheme: Scheme, rows_out: int, columns_out: int, **more: Any
) -> TensorMap:
    """The largest |error| of a scheme in each cell, over the whole tensor."""
    return tensor_map(x, MapKind.ERROR, (scheme,), rows_out, columns_out, **more)


def column_statistics(x: TensorLike) -> ColumnStatistics:
    """Largest magnitude and root mean square of each column."""
    found = ColumnScan()
    scan(x, [found])
    return found.result()


def heard_by(shares: list[float], **more: Any) -> Job:
    """A job that appends the share that is done to a list; other arguments are those of Job."""
    return Job(lambda done, total, words: shares.append(done / total), **more)


def round_value(fmt: Format, *how: Any, **more: Any) -> Exact:
    """A value rounded to a number of the format; arguments are those of `encode`."""
    return decode(fmt, encode(fmt, *how, **more)).value


def allocated_in(found: Estimate, phase: str) -> int:
    """The most bytes allocated in a phase, 0 if the run has no phase of that name."""
    return max((each.allocated_bytes for each in found.phases if each.name == phase), default=0)
