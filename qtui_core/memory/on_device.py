"""What a device changes of a run: the kernels it has, and the workspaces of cuBLAS on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtui_core.memory.device import Device
from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import ALLOCATE, PHASE, Component, Event, Label, Phase
from qtui_core.memory.workspaces import cublas_workspace


def plan_on(plan: RunPlan, device: Device | None) -> RunPlan:
    """The plan as torch runs it on a device: before Ampere there is no flash attention, and sdpa
    takes the memory-efficient kernel (check_flash_attention_hardware_support in
    ATen/native/transformers/cuda/sdp_utils.cpp)."""
    if plan.attention != "sdpa" or has_flash(device):
        return plan
    return replace(plan, attention="efficient")


def has_flash(device: Device | None) -> bool:
    """Whether torch has flash attention on a device; it is taken to where nothing is known."""
    return device is None or device.capability is None or device.capability >= (8, 0)


def with_workspaces(
    events: Sequence[Event], plan: RunPlan, device: Device | None = None
) -> list[Event]:
    """Events with the workspaces of cuBLAS in them, which no operation returns: that of the
    program's thread from the first forward pass on, that of autograd's from the first backward."""
    workspace = cublas_workspace(plan.torch, device, trains=plan.trains)
    found = list(events)
    if not workspace.kept:
        return found
    for phase in (Phase.FORWARD, Phase.BACKWARD)[: workspace.threads]:
        number = next((i for i, e in enumerate(found) if e[0] == PHASE and e[1] == phase), None)
        if number is not None:
            label = Label(f"cuBLAS, {phase} thread", Component.WORKSPACES)
            found.insert(number + 1, (ALLOCATE, label.what, workspace.each, label))
    return found
