"""Shorthands that only tests need."""

from __future__ import annotations

from typing import Unpack

from qtui_core.conformance.catalogue import LIBRARIES
from qtui_core.conformance.convention import Convention
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.unfolding import peak_levels
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.run import record_repeated
from qtui_core.quant.scan.occupancy import DENSITY_BINS, Occupancy, OccupancyScan
from qtui_core.quant.scan.scan import scan
from qtui_core.quant.segments.elements import ModelExtent, TensorLike
from qtui_core.quant.segments.parallel import Watch
from qtui_core.schemes.scheme import Scheme


def find_convention(id: str) -> Convention:
    """The convention of the catalogue with that id."""
    every = (each for library in LIBRARIES for each in library.conventions)
    return next(each for each in every if each.id == id)


def record_peaks(shape: ModelShape, plan: RunPlan) -> tuple[tuple[str, int], ...]:
    """(phase, most bytes alive in it, each buffer rounded) for the phases of a run, in order. The
    step is a later one, not the first. Events of repeated layers are not written out."""
    return record_repeated(shape, plan, lambda events, folds: tuple(peak_levels(events, folds)))


def code_occupancy(
    x: TensorLike,
    scheme: Scheme,
    *,
    bins: int = DENSITY_BINS,
    model_absmax: ModelExtent | None = None,
    **watch: Unpack[Watch],
) -> Occupancy:
    """Counts the codes of a tensor under a scheme of up to 8 bits."""
    found = OccupancyScan(scheme, bins)
    scan(x, [found], model_absmax=model_absmax, **watch)
    return found.result()
