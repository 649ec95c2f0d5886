"""From MODEL and a plan to everything that a report of memory shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from qtui.report.memory_data import MemoryReport
from qtui_core.errors import ModelError
from qtui_core.memory.advice import advise, cures, worthwhile
from qtui_core.memory.compute import compute_of
from qtui_core.memory.curve import Peaks
from qtui_core.memory.devices import DEVICES, Device, device_of_memory, find_device, parse_memory
from qtui_core.memory.estimate import Estimate, estimate, estimate_peaks, has_flash
from qtui_core.memory.fit import Knob, fit_on, fits, largest
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.shape import ModelShape
from qtui_core.models import ModelSource, open_model


def report_of(
    model: str,
    plan: RunPlan,
    *,
    gpu: str | None,
    vram: str | None,
    knob: Knob | None,
    trace: bool,
) -> MemoryReport:
    """Opens the model, estimates the plan and what changes of it would do.

    Raises ModelError for a model that cannot be had or has no configuration, UsageError for a
    family without a shape, an impossible plan or an unknown GPU.
    """
    device = chosen_device(gpu, vram)
    with open_model(model) as source:
        return report_on(source, plan, device=device, knob=knob, trace=trace)


def chosen_device(gpu: str | None, vram: str | None) -> Device | None:
    """The device that --gpu or --vram means. Raises UsageError for an unknown one."""
    if gpu is not None:
        return find_device(gpu)
    return None if vram is None else device_of_memory(parse_memory(vram))


def report_on(
    source: ModelSource,
    plan: RunPlan,
    *,
    device: Device | None = None,
    knob: Knob | None = None,
    trace: bool = False,
) -> MemoryReport:
    """The report on an open model."""
    config = config_of(source)
    shape = ModelShape.from_config(config)
    found = estimate(shape, plan, device)

    @cache
    def peaks(changed: RunPlan) -> Peaks:
        return estimate_peaks(shape, changed, device)

    advice = advise(found, peaks)
    expandable = None
    if found.plan.segments == "native":
        expandable = estimate(shape, replace(found.plan, segments="expandable"), device)
    verdicts = fits(found, DEVICES, peaks)
    if device is not None:
        asked = fit_on(found, device)
        verdicts = (asked, *(fit for fit in verdicts if fit.gpu != device.name))
    return MemoryReport(
        model=source.id,
        location=source.location,
        estimate=found,
        fits=verdicts,
        asked=None if device is None else device.name,
        device=device,
        advice=worthwhile(advice, found.peak_allocated_bytes),
        cures=cures(found, advice, expandable),
        compute=compute_of(shape, found.plan),
        largest=None if knob is None or device is None else largest(shape, plan, knob, device),
        notes=tuple(_notes(source, found)),
    )


def config_of(source: ModelSource) -> Mapping[str, Any]:
    """config.json of a model. Raises ModelError where there is none."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    return source.config


def _notes(source: ModelSource, found: Estimate) -> list[str]:
    notes = list(found.shape.notes)
    config = source.config or {}
    if config.get("auto_map"):
        notes.append(
            "The model brings code of its own, which is not executed; the estimate is that of the "
            f"class of transformers for {found.shape.family}."
        )
    if source.quantization is not None:
        notes.append(
            "The checkpoint is quantized already; the estimate is of its unquantized original, "
            "stored as the plan says."
        )
    longest = found.shape.max_positions
    if longest is not None and found.plan.sequence + found.plan.generate > longest:
        notes.append(
            f"The sequence is longer than the {longest:,} positions that the model was made for."
        )
    if found.plan.attention == "efficient" and not has_flash(found.device):
        name = "This GPU" if found.device is None else found.device.name
        notes.append(f"{name} has no flash attention: sdpa takes the efficient kernel there.")
    return notes
