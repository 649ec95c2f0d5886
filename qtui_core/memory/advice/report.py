"""Everything that a memory report shows of an estimate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial

from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.memory.advice.capacity import Fit, Knob, Largest, fit_on, fits, largest
from qtui_core.memory.advice.changes import Advice, Cure, advise, cures, worthwhile
from qtui_core.memory.advice.notes import notes_of
from qtui_core.memory.advice.remedy import OnDevice, remedy, smallest_again
from qtui_core.memory.compute.totals import Compute, compute_of
from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.finding import DEVICES
from qtui_core.memory.estimate import Estimate, estimate, estimate_as_run, estimate_peaks
from qtui_core.memory.formulas.terms import Term
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.shape.description import ModelDescription
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.modules import parameter_count

#: A term of the peak, and the component that it is part of.
_PART = ("component", *Term.PRINTED)
#: The operations of a step, and the bound on its time on the requested GPU.
_COMPUTE = (
    ("parameters_in_products", "compute.matrix_parameters"),
    ("tokens", "compute.tokens"),
    ("six_n_d", lambda report: 6 * report.compute.matrix_parameters * report.compute.tokens),
    ("forward_operations", "compute.forward"),
    ("recompute_operations", "compute.recompute"),
    ("backward_operations", "compute.backward"),
    ("operations", "compute.total"),
    ("dtype", "compute.dtype"),
    ("gpu", lambda report: report.device and report.device.name),
    ("seconds_at_least", lambda report: report.seconds_on(report.device)),
)


@dataclass(frozen=True)
class MemoryReport:
    """Everything that a memory report shows.

    Attributes:
        model: as it was typed; location: where it was found; architecture: its class.
        estimate: the bytes.
        fits: on each GPU. If a GPU was requested, it comes first and `asked` is its name.
        device: the requested GPU, if any.
        advice: changes that save memory, best first.
        cures: for each way to run out of memory.
        compute: None if the model has no shape.
        largest: the largest batch or sequence, if requested.
        remedy: the change that makes the run fit the requested GPU; None if it fits or none was
            found.
        notes: on how the estimate was made.
        weighed: whether changes of the plan were estimated; not possible if the model is known from
            a trace only.
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
    weighed: bool = True

    PRINTED = (
        "model",
        "architecture",
        "parameters",
        ("origin", "estimate.origin"),
        ("plan", "estimate.plan"),
        ("resident_bytes", "estimate.resident_bytes"),
        ("peak_live_bytes", "estimate.peak_live_bytes"),
        ("peak_allocated_bytes", "estimate.peak_allocated_bytes"),
        ("peak_phase", "estimate.peak_phase"),
        ("peak_operation", "estimate.peak_operation"),
        ("peak_reserved_bytes", "estimate.peak_reserved_bytes"),
        ("process_bytes", "estimate.process_bytes"),
        ("uncertainty_bytes", "estimate.uncertainty_bytes"),
        ("retries", "estimate.retries"),
        ("components", "estimate.components"),
        ("terms", lambda report: [printed(term, _PART) for term in report.estimate.terms]),
        ("beyond_allocated", "estimate.beyond"),
        ("phases", "estimate.phases"),
        ("gpu", "asked"),
        "fits",
        "advice",
        "cures",
        ("compute", lambda report: report.compute and printed(report, _COMPUTE)),
        "largest",
        "notes",
    )

    @cached_property
    def parameters(self) -> int | None:
        """Parameters of the model; None if it has no shape."""
        shape = self.estimate.shape
        return None if shape is None else parameter_count(shape)

    def seconds_on(self, device: Device | None) -> float | None:
        """The lower bound on a step's time, seconds; None without a device, or if it has no units
        for the dtype."""
        if device is None or self.compute is None or self.compute.dtype not in device.rates:
            return None
        return self.compute.seconds_on(device)


def report_of(
    model: ModelDescription,
    found: Estimate,
    peaks: Callable[[RunPlan], Peaks] | None,
    *,
    here: Sequence[Device] = (),
    largest: Largest | None = None,
    asked: RunPlan | None = None,
    wanted: RunPlan | None = None,
    again: OnDevice | None = None,
) -> MemoryReport:
    """The report on an estimate of a model, on its device if it has one.

    Args:
        peaks: estimates the peaks of changed plans; None if they cannot be estimated, as after a
            trace of a family without a shape.
        here: GPUs of this machine, listed before those of the catalogue.
        asked: the plan as it was typed, if known.
        wanted: the same with a value for every option, before the device changed anything.
        again: makes a whole estimate of a plan on a device, which takes longer. With it, the remedy
            and the smallest suitable GPU are checked before they are reported.
    """
    advice: tuple[Advice, ...] = () if peaks is None else advise(found, peaks)
    cured = cures(found, advice)
    near = [] if found.device is None else [found.device]
    near += [device for device in here if device.name not in {each.name for each in near}]
    named = {device.name for device in near}
    rows = fits(found, DEVICES, peaks, wanted=wanted)
    verdicts = (
        *(fit_on(found, device) for device in near),
        *(fit for fit in rows if fit.gpu not in named),
    )
    remedied = None
    if again is not None and found.device is None:
        verdicts = smallest_again(found, verdicts, again)
    elif again is not None and verdicts[0].verdict != "fits":
        remedied = remedy(found, verdicts[0], advice, again)
    return MemoryReport(
        model=model.name,
        location=model.location,
        architecture=model.architecture,
        estimate=found,
        fits=verdicts,
        asked=None if found.device is None else found.device.name,
        device=found.device,
        advice=worthwhile(advice, found.peak_allocated_bytes),
        cures=cured,
        compute=None if found.shape is None else compute_of(found.shape, found.plan),
        largest=largest,
        remedy=remedied,
        notes=tuple(notes_of(model, found, asked, weighed=peaks is not None)),
        weighed=peaks is not None,
    )


def report_of_plan(
    model: ModelDescription,
    shape: ModelShape,
    plan: RunPlan,
    device: Device | None = None,
    knob: Knob | None = None,
    *,
    asked: RunPlan,
    wanted: RunPlan,
    peaks: Callable[[RunPlan], Peaks] | None = None,
) -> MemoryReport:
    """The report on a plan as it runs on a device, if there is one (`plan_as_run`); with a `knob`,
    also the largest value of it that fits. `asked`, `wanted` and `peaks` are as in `report_of`; by
    default `peaks` uses the tape."""
    peaks = peaks or peaks_on(shape, device)
    found = estimate_as_run(shape, plan, device)
    most = None
    if knob is not None and device is not None:
        most = largest(shape, wanted, knob, device)
    return report_of(
        model,
        found,
        peaks,
        largest=most,
        asked=asked,
        wanted=wanted,
        again=partial(estimate, shape),
    )


def peaks_on(shape: ModelShape, device: Device | None) -> Callable[[RunPlan], Peaks]:
    """The peaks of changed plans; each plan is estimated once."""

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        return estimate_peaks(shape, changed, device)

    return peaks
