"""What a device changes of a run: the kernels it has, and the workspaces of cuBLAS on it; and what
the allocator alone is told of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.workspaces import cublas_workspace
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.choices import UNPACKED
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.plan.refusals import check_against
from qtui_core.memory.replay.allocator import warm_up_bytes
from qtui_core.memory.replay.calls import RepeatedEvents, repeated_events
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    HAND_BACK,
    HOLD_BACK,
    PHASE,
    Component,
    Event,
    Label,
    Phase,
)
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.step.load_order import as_loaded
from qtui_core.memory.tape.blocks.loss.loss import UPCAST

#: The first compute capability with products of FP8.
_FP8: Final = (8, 9)
WARM_UP: Final = Label("caching_allocator_warmup", Component.TEMPORARIES)


def plan_on(plan: RunPlan, device: Device | None, shape: ModelShape | None = None) -> RunPlan:
    """The plan as it runs on a device: before Ampere there is no flash attention, and sdpa takes
    the memory-efficient kernel (check_flash_attention_hardware_support in
    ATen/native/transformers/cuda/sdp_utils.cpp); without products of FP8 transformers unpacks such
    a checkpoint (validate_environment of quantizer_finegrained_fp8.py)."""
    packing = None if shape is None else shape.packing
    if plan.quant == STORED and packing is not None and packing.method == "fp8":
        capability = None if device is None else device.capability
        if capability is not None and capability < _FP8:
            method = "lora" if plan.method == "qlora" else plan.method
            plan = replace(plan, method=method, quant=UNPACKED)
    if plan.attention != "sdpa" or has_flash(device):
        return plan
    return replace(plan, attention="efficient")


def plan_as_run(shape: ModelShape, plan: RunPlan, device: Device | None) -> RunPlan:
    """The plan as it runs on a device; nothing of `plan` is open. Raises UsageError where it is
    impossible for the model."""
    plan = plan_on(plan, device, shape)
    check_against(shape, plan)
    return plan


def has_flash(device: Device | None) -> bool:
    """Whether torch has flash attention on a device; it is taken to where nothing is known."""
    return device is None or device.capability is None or device.capability >= (8, 0)


def with_workspaces(
    events: Sequence[Event], plan: RunPlan, device: Device | None = None
) -> RepeatedEvents:
    """Events with the workspaces of cuBLAS in them, which no operation returns: that of the
    program's thread from the first forward pass on, that of autograd's from the first backward."""
    workspace = cublas_workspace(plan.torch, device, trains=plan.trains)
    found = repeated_events(events)
    if not workspace.kept:
        return found
    for phase in (Phase.FORWARD, Phase.BACKWARD)[: workspace.threads]:
        begun = next(_begins(found, phase), None)
        if begun is not None:
            label = Label(f"cuBLAS, {phase} thread", Component.WORKSPACES)
            found = found.inserted(*begun, workspace.each, label)
    return found


def _begins(events: RepeatedEvents, phase: Phase) -> Iterator[tuple[int, int]]:
    """(call, step) of each begin of a phase."""
    for number, call in enumerate(events.calls):
        for name, step, *_ in call.program.spans:
            if name == phase:
                yield number, step


def for_allocator(
    events: RepeatedEvents,
    plan: RunPlan,
    device: Device | None = None,
    shape: ModelShape | None = None,
) -> RepeatedEvents:
    """Events as the allocator is given them."""
    found = with_warm_up(as_loaded(events, plan), plan, device)
    return with_logits_held_back(found) if holds_logits_back(shape, plan) else found


def holds_logits_back(shape: ModelShape | None, plan: RunPlan) -> bool:
    """Whether a cross entropy that works in place leaves its float32 logits to no one before the
    backward pass is over.

    Calibrated, not explained: on an A100 the driver counted one such copy more than the blocks that
    such runs use at once, to 8 MiB in six of fourteen runs with batches of 4 to 16 (fms-a100_80gb
    12, 14, 36, 38, 80, 82 and fms-a100_80gb_liger 96, 97, 104, 105, 106, 112, 113, 114: torch 2.4,
    transformers 4.48 and 4.45), while max_memory_allocated had room for none. So it is taken to be
    freed and not to be had yet; where the device is full it is had after all (115). Llama-3-8B had
    the copy too (fms-a100_80gb_liger 8, 16, 17), PowerLM-3b, of the class of Granite, had not
    (fms-a100_80gb_granite 4 to 26: transformers 4.45). Nor had Mistral-7B before: with transformers
    4.43 and torch 2.4.0 4-bit runs took 16,809 and 27,953 MiB, with 4.44 and torch 2.4.1, and as
    much allocated, 18,809 and 31,953 MiB: 2,000 and 4,000 MiB more are one copy each. The code of
    the model that makes logits was the same in both.
    """
    if not plan.loss.startswith("in-place"):
        return False
    return plan.loss != "in-place" or shape is None or shape.family != "granite"


def logits_copy_bytes(shape: ModelShape | None, plan: RunPlan) -> int:
    """Bytes of the copy that may be held back, or not, whatever is taken; 0 with other losses."""
    if shape is None or not plan.loss.startswith("in-place") or not plan.trains:
        return 0
    return SIZES["fp32"] * plan.tokens * shape.vocabulary


def with_logits_held_back(events: RepeatedEvents) -> RepeatedEvents:
    """Events in which float32 logits are freed, and not to be had before the backward pass is
    over."""
    found: list[Event] = []
    upcast: set[object] = set()
    phase, held = "", False
    for event in events:
        kind = event[0]
        if kind == FREE and event[1] in upcast and phase != Phase.BACKWARD:
            found.append((HOLD_BACK, event[1]))
            held = True
            continue
        if kind == PHASE:
            if held and phase == Phase.BACKWARD:
                found.append((HAND_BACK,))
                held = False
            phase = event[1]
        elif kind == ALLOCATE and event[3] == UPCAST:
            upcast.add(event[1])
        found.append(event)
    return repeated_events(found)


def with_warm_up(
    events: RepeatedEvents, plan: RunPlan, device: Device | None = None
) -> RepeatedEvents:
    """Events with the one tensor of all weights that transformers makes and lets go of before it
    loads them to a GPU, so that they share its segment: a matter of the allocator alone. Weights
    that are quantized are always loaded so; others are taken to be loaded to the CPU first."""
    if not plan.quantized:
        return events
    begun = next(_begins(events, Phase.LOAD), None)
    if begun is None:
        return events
    nbytes = warm_up_bytes(_loaded(events), None if device is None else device.capacity_bytes)
    return events.inserted(*begun, nbytes, WARM_UP, freed=True)


def _loaded(events: RepeatedEvents) -> int:
    """Bytes of weights, unrounded, that are allocated before the second phase begins."""
    loaded, phases = 0, 0
    for call in events.calls:
        for kind, _, _, nbytes, what in call.program.steps:
            if kind == PHASE:
                phases += 1
            elif kind == ALLOCATE and what.component is Component.WEIGHTS:
                loaded += nbytes
            if phases > 1:
                return loaded
    return loaded
