"""The JSON of `qtui memory`: bytes as integers under the keys that scripts rely on."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.changes import Advice, Cure
from qtui_core.memory.advice.fit import Fit, Largest
from qtui_core.memory.compute.totals import Compute
from qtui_core.memory.devices.device import Device
from qtui_core.memory.estimate import Estimate
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.refusals import not_built_in


@dataclass(frozen=True)
class MemoryReport:
    """Everything a report of memory shows.

    Attributes:
        model: as it was asked for; location: where it was found; architecture: its class.
        estimate: the bytes.
        fits: on each GPU, the one that was asked for first, if any: then `asked` is its name.
        device: that was asked for, if any.
        advice: changes that save, best first.
        cures: for each kind of running out of memory.
        compute: None where the model has no shape.
        largest: of a knob, where it was asked for.
        remedy: the change that makes it fit the GPU that was asked for, where it does not and one
            was found.
        notes: what the reader should know of how it was made.
    """

    model: str
    location: str
    architecture: str
    estimate: Estimate
    fits: tuple[Fit, ...]
    asked: str | None
    device: Device | None
    advice: tuple[Advice, ...]
    cures: tuple[Cure, ...]
    compute: Compute | None
    largest: Largest | None = None
    remedy: Advice | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def parameters(self) -> int | None:
        """Of the model; None where it has no shape."""
        shape = self.estimate.shape
        return None if shape is None else shape.parameters

    @property
    def weighed(self) -> bool:
        """Whether changes of the plan were estimated: not where only a trace tells of the model."""
        shape = self.estimate.shape
        return shape is not None and not not_built_in(shape, self.estimate.plan)


def memory_data(report: MemoryReport) -> dict[str, Any]:
    """The `memory` object of the JSON."""
    estimate = report.estimate
    return {
        "model": report.model,
        "architecture": report.architecture,
        "parameters": report.parameters,
        "origin": estimate.origin,
        "plan": asdict(estimate.plan),
        "resident_bytes": estimate.resident_bytes,
        "peak_live_bytes": estimate.peak_live_bytes,
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "peak_phase": estimate.peak_phase,
        "peak_operation": estimate.peak_operation,
        "peak_reserved_bytes": estimate.peak_reserved_bytes,
        "process_bytes": estimate.process_bytes,
        "uncertainty_bytes": estimate.uncertainty_bytes,
        "retries": estimate.retries,
        "components": [_term(term) for term in estimate.components],
        "terms": [{"component": term.component, **_term(term)} for term in estimate.terms],
        "beyond_allocated": [_term(term) for term in estimate.beyond],
        "phases": [
            {
                "name": phase.name,
                "allocated_bytes": phase.allocated_bytes,
                "live_bytes": phase.live_bytes,
                "operation": phase.operation,
            }
            for phase in estimate.phases
        ],
        "gpu": report.asked,
        "fits": [
            {
                "gpu": fit.gpu,
                "capacity_bytes": fit.capacity_bytes,
                "verdict": fit.verdict,
                "headroom_bytes": fit.headroom_bytes,
            }
            for fit in report.fits
        ],
        "advice": [
            {
                "change": advice.change,
                "saves_bytes": advice.saves_bytes,
                "cost": advice.cost,
                "peak_phase": advice.peak_phase,
            }
            for advice in report.advice
        ],
        "cures": [
            {
                "kind": cure.kind,
                "symptom": cure.symptom,
                "needs_bytes": cure.needs_bytes,
                "change": cure.change or None,
                "saves_bytes": cure.saves_bytes,
            }
            for cure in report.cures
        ],
        "compute": compute_data(report),
        "largest": report.largest
        and {
            "option": report.largest.option,
            "value": report.largest.value,
            "gpu": report.largest.gpu,
            "process_bytes": report.largest.process_bytes,
        },
        "notes": list(report.notes),
    }


def compute_data(report: MemoryReport) -> dict[str, Any] | None:
    """Operations of a step, and the bound on its time on the GPU that was asked for."""
    compute = report.compute
    if compute is None:
        return None
    return {
        "parameters_in_products": compute.matrix_parameters,
        "tokens": compute.tokens,
        "six_n_d": 6 * compute.matrix_parameters * compute.tokens,
        "forward_operations": compute.forward,
        "recompute_operations": compute.recompute,
        "backward_operations": compute.backward,
        "operations": compute.total,
        "dtype": compute.dtype,
        "gpu": report.device and report.device.name,
        "seconds_at_least": seconds_on(report, report.device),
    }


def seconds_on(report: MemoryReport, device: Device | None) -> float | None:
    """The bound on a step's time; None without a device, or where it has no units for the type."""
    if device is None or report.compute is None or report.compute.dtype not in device.rates:
        return None
    return report.compute.seconds_on(device)


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "bytes": term.bytes,
        "formula": term.formula,
        "numbers": term.numbers,
        "basis": term.basis,
        "source": term.source,
        "count": term.count,
    }
