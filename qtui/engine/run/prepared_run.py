"""Prepares a run: opens the model, finds the device, resolves the plan, predicts the memory.

Nothing here imports torch, because environment variables that choose the device must be set before.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from qtui.profiles import calibrated
from qtui_core.codec import printed
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.extras import EXTRAS, installed_version, require
from qtui_core.live.predict import predict, warning_of
from qtui_core.live.snapshot import Predicted, RecordingHeader
from qtui_core.loading.text import read_text
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.advice.report import report_of_plan
from qtui_core.memory.devices.device import Device, device_of_memory, find_device
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan, plan_as_run, resolve_for, within_positions
from qtui_core.memory.shape.description import ModelDescription, describe
from qtui_core.memory.shape.from_config import LANGUAGE_MODELS
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.models import ModelSource, open_model
from qtui_core.quantities import format_bytes, plural
from qtui_core.telemetry.machine import Machine, read_machine
from qtui_core.threads import chosen_threads
from qtui_core.training.limits import check_runnable, one_gpu, unused_options
from qtui_core.training.run.placement import Order, Placement, allocator_settings, place
from qtui_core.training.run.request import DEMO_NOTE, DEMO_TOKENS, NotBegun, RunRequest, on_cpu

#: Libraries whose versions a recording names.
_LIBRARIES: Final = ("torch", "transformers", "peft", "bitsandbytes", "nvidia-ml-py")


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start.

    Attributes:
        source: the open model.
        order: the model, plan and text of the run.
        header: the first line of its recording.
        advice: changes of the plan that would save memory.
        environment: variables to set before torch is imported.
        notes: sentences for the log.
    """

    source: ModelSource
    order: Order
    header: RecordingHeader
    advice: Sequence[Advice]
    environment: Mapping[str, str]
    notes: tuple[str, ...]


def prepare_run(request: RunRequest) -> PreparedRun:
    """Prepares a request for this machine.

    Raises MissingLibrary if a library of the run is not installed, UsageError for a plan that
    cannot run, here or anywhere, ModelError for a model that cannot be opened, NoGpu if the
    requested GPU does not exist, NotBegun if it may not take the memory that it needs.
    """
    require("A run", *EXTRAS["torch"])
    placement = place(request.device, os.environ)
    origin = "built-in text" if request.data is None else read_text(request.data, "training").origin
    source = open_model(request.model)
    try:
        model = describe(source)
        config = model.config
        _check_language_model(config)
        alone, note = one_gpu(request.plan)
        shape = model.read_shape(strict=True)
        if request.usual:
            alone = within_positions(shape.learned_positions, alone)
            if placement.device.kind == "cpu":
                alone = on_cpu(request.model, alone)
        # The size of workspaces depends on the installed version of torch.
        alone = replace(alone, torch=_release(installed_version("torch") or ""))
        plan = resolve_for(shape, alone)
        check_runnable(plan, placement.device.kind)
        _check_loaded(shape, plan)
        predicted, advice = _predicted(model, shape, plan, placement)
        if not request.taking and takes_from_others(predicted, placement):
            raise NotBegun(
                f"{predicted.warning} The run was not begun, because other processes need that "
                "memory."
            )
    except BaseException:
        source.close()
        raise
    versions = {name: version for name in _LIBRARIES if (version := installed_version(name))}
    header = RecordingHeader(
        made=datetime.now().astimezone().isoformat(timespec="seconds"),
        model=source.id,
        architecture=model.architecture,
        parameters=source.parameters or None,
        device=placement.device,
        versions={"qtui": installed_version("qtui") or "", **versions},
        plan=vars(plan) | {"lora_targets": list(plan.lora_targets)},
        steps=request.steps,
        data=origin,
        predicted=predicted,
    )
    order = Order(plan, placement, request.steps, request.data, request.text, request.ranges)
    settings = (
        allocator_settings(plan.segments, os.environ) if placement.device.kind == "cuda" else {}
    )
    unused = unused_options(request.plan, plan, placement.device.kind)
    shorter = DEMO_NOTE if DEMO_TOKENS == plan.sequence < request.plan.sequence else ""
    chosen = chosen_threads()
    bounded = f"It computes with at most {plural(chosen, 'thread')}." if chosen else ""
    notes = (note, shorter, unused, bounded, predicted.warning)
    return PreparedRun(
        source,
        order,
        header,
        advice,
        {**placement.environment, **settings},
        tuple(said for said in notes if said),
    )


def _check_language_model(config: Mapping[str, Any]) -> None:
    """Raises UsageError for a model whose class is not a language model."""
    named = config.get("architectures")
    if (
        isinstance(named, list)
        and named
        and not any(str(name).endswith(LANGUAGE_MODELS) for name in named)
    ):
        raise UsageError(
            f"config.json names {named[0]}, and a run learns to predict the tokens of a text, "
            "which that does not; name a language model under architectures in config.json."
        )


def _check_loaded(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError for packed weights that transformers cannot unpack for the plan."""
    packing = shape.packing
    unpacked = packing is not None and shape.packing_under(plan.quant) is None
    if packing and unpacked and (plan.quantized or not packing.dequantizes):
        raise UsageError(
            f"The checkpoint is stored as {packing.title}, and a run cannot load it for this plan; "
            "take the checkpoint that it was made from."
        )


def _predicted(
    model: ModelDescription, shape: ModelShape, plan: RunPlan, placement: Placement
) -> tuple[Predicted, Sequence[Advice]]:
    """The estimate for the header, and changes of the plan that would save memory."""
    device = _device_of(placement)
    tensors, used = placement.device.kind == "cpu", placement.used_bytes
    runs = plan_as_run(shape, plan, device)
    report = report_of_plan(model, shape, runs, device, asked=plan, wanted=plan)
    predicted = predict(
        report.estimate,
        tensors=tensors,
        advice=report.advice,
        warning="" if device is None else warning_of(report.estimate, device, used),
        memory=printed(report),
    )
    if tensors:
        peak, weights = predicted.peak_allocated_bytes, model.parameters
        warning = warning_on_host(peak, weights, plan.dtype or "fp32", read_machine())
        predicted = replace(predicted, warning=warning)
    return predicted, report.advice


def _device_of(placement: Placement) -> Device | None:
    """The GPU from the catalogue, with the memory that it has here; None for a CPU."""
    device = placement.device
    if device.kind != "cuda":
        return None
    capacity = device.capacity_bytes
    try:
        found = calibrated(find_device(device.name))
    except UsageError:
        return None if capacity is None else device_of_memory(capacity)
    return found if capacity is None else replace(found, allocatable=capacity)


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def takes_from_others(predicted: Predicted, placement: Placement) -> bool:
    """Whether a run needs more than is free: of the machine's memory, or of a GPU on which other
    processes compute. On a GPU of its own it takes memory from nobody, and may try."""
    if placement.device.kind == "cpu":
        return bool(predicted.warning)
    capacity = placement.device.capacity_bytes
    if not placement.shared or capacity is None:
        return False
    return bool(predicted.warning) and predicted.process_bytes > capacity - placement.used_bytes


def warning_on_host(peak_bytes: int, parameters: int | None, dtype: str, machine: Machine) -> str:
    """A sentence that warns if the tensors of a run need more memory than the machine has free;
    empty if they fit, or if the free memory is not known.

    `peak_bytes` is the estimated peak. On a CPU, all `parameters` are in memory in `dtype` before
    they are quantized, which may need more.
    """
    free = machine.free_memory
    needed = max(peak_bytes, (parameters or 0) * SIZES[dtype])
    if free is None or needed <= free:
        return ""
    return (
        f"This run may not fit: its tensors take {format_bytes(needed)}, and this machine has "
        f"{format_bytes(free)} free; the system may end it, or something else. Take a "
        f"smaller model, --batch or --seq."
    )
