"""From MODEL and a plan to everything that a report of memory shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from qtui.report.memory_data import MemoryReport
from qtui_core.errors import ModelError
from qtui_core.memory.advice import Advice, advise, cures, worthwhile
from qtui_core.memory.compute import compute_of
from qtui_core.memory.curve import Peaks
from qtui_core.memory.devices import DEVICES, Device, device_of_memory, find_device, parse_memory
from qtui_core.memory.estimate import (
    Estimate,
    estimate,
    estimate_recording,
)
from qtui_core.memory.families import UnknownFamily
from qtui_core.memory.fit import Knob, fit_on, fits, largest
from qtui_core.memory.on_device import has_flash, plan_on
from qtui_core.memory.peaks import estimate_peaks
from qtui_core.memory.plan import RunPlan, resolve
from qtui_core.memory.shape import ModelShape
from qtui_core.models import ModelSource


def chosen_device(gpu: str | None, vram: str | None) -> Device | None:
    """The device that --gpu or --vram means. Raises UsageError for an unknown one."""
    if gpu is not None:
        return find_device(gpu)
    return None if vram is None else device_of_memory(parse_memory(vram))


def report_on(
    source: ModelSource, plan: RunPlan, device: Device | None = None, knob: Knob | None = None
) -> MemoryReport:
    """The report on an open model, from its shape.

    Raises ModelError for a model without a configuration, UsageError for a family without a shape
    and for a plan that cannot be.
    """
    shape = ModelShape.from_config(config_of(source))
    return _report(source, estimate(shape, plan, device), plan, knob)


def report_on_trace(
    source: ModelSource, plan: RunPlan, device: Device | None = None
) -> MemoryReport:
    """The same from a trace of the class of transformers, also for a family without a shape.

    Raises ModelError and UsageError for what cannot be built, QtuiError where the trace fails.
    """
    from qtui.engine.asked_trace import trace

    config = config_of(source)
    shape = None
    try:
        shape = ModelShape.from_config(config)
    except UnknownFamily:
        # What a trace is for: the class says what the model is.
        stored = config.get("dtype") or config.get("torch_dtype")
    else:
        stored = shape.dtype
    resolved = plan_on(resolve(plan, None if stored is None else str(stored)), device)
    found = estimate_recording(trace(config, resolved), shape, resolved, device)
    return _report(source, found, plan, None)


def config_of(source: ModelSource) -> Mapping[str, Any]:
    """config.json of a model. Raises ModelError where there is none."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    return source.config


def _report(source: ModelSource, found: Estimate, plan: RunPlan, knob: Knob | None) -> MemoryReport:
    shape, device = found.shape, found.device
    advice: tuple[Advice, ...] = ()
    verdicts = fits(found, DEVICES)
    most = None
    if shape is not None:

        @cache
        def peaks(changed: RunPlan) -> Peaks:
            return estimate_peaks(shape, changed, device)

        advice = advise(found, peaks)
        verdicts = fits(found, DEVICES, peaks)
        if knob is not None and device is not None:
            most = largest(shape, plan, knob, device)
    if device is not None:
        verdicts = (fit_on(found, device), *(fit for fit in verdicts if fit.gpu != device.name))
    return MemoryReport(
        model=source.id,
        location=source.location,
        architecture=source.architecture or "a model",
        estimate=found,
        fits=verdicts,
        asked=None if device is None else device.name,
        device=device,
        advice=worthwhile(advice, found.peak_allocated_bytes),
        cures=cures(found, advice),
        compute=None if shape is None else compute_of(shape, found.plan),
        largest=most,
        notes=tuple(_notes(source, found)),
    )


def _notes(source: ModelSource, found: Estimate) -> list[str]:
    notes: list[str] = []
    shape, plan = found.shape, found.plan
    config = source.config or {}
    if shape is None:
        notes.append("Changes are not weighed: a trace is of one plan.")
    else:
        notes += shape.notes
        longest = shape.max_positions
        if longest is not None and plan.sequence + plan.generate > longest:
            notes.append(
                f"The sequence is longer than the {longest:,} positions the model was made for."
            )
    if config.get("auto_map"):
        notes.append(
            "The model brings code of its own, which is never executed; the estimate is of the "
            f"class of transformers for {config.get('model_type')!r}."
        )
    if source.quantization is not None:
        notes.append(
            "The checkpoint is quantized already; the estimate is of its unquantized original, "
            "stored as the plan says."
        )
    if plan.attention == "efficient" and not has_flash(found.device):
        name = "This GPU" if found.device is None else found.device.name
        notes.append(f"{name} has no flash attention: sdpa takes the efficient kernel there.")
    return notes
