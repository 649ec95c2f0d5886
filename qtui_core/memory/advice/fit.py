"""Whether an estimate fits a GPU, and the largest batch or sequence that does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import Device
from qtui_core.memory.devices.process import CACHED, PAGED
from qtui_core.memory.estimate import Estimate, estimate, process_on
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.replay.allocator import AllocatorSettings
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.replay.peaks import estimate_peaks
from qtui_core.memory.step.on_device import plan_on

if TYPE_CHECKING:
    from qtui_core.memory.shape.model_shape import ModelShape

Verdict = Literal["fits", "tight", "no"]
Knob = Literal["batch", "seq"]

#: Sequences are searched in steps of this, which kernels like and a tile of attention is.
SEQUENCE_STEP: Final = 64
_MOST: Final = {"batch": 1 << 20, "seq": 1 << 24}
_FIELDS: Final = {"batch": "batch", "seq": "sequence"}


@dataclass(frozen=True)
class Fit:
    """A verdict.

    Attributes:
        gpu: name of the device.
        capacity_bytes: that it has for processes.
        verdict: "fits" with the uncertainty of the estimate; "tight" where the tensors fit and
            what the allocator keeps, paged states or the uncertainty may not; "no" where the
            tensors do not.
        headroom_bytes: capacity less the process; negative where it is too small.
    """

    gpu: str
    capacity_bytes: int
    verdict: Verdict
    headroom_bytes: int


def fit_on(found: Estimate, device: Device, more: int = 0) -> Fit:
    """The verdict on one device, whose context and workspaces take the place of the estimate's.
    `more` bytes are what the plan takes there besides.

    A run that goes on only because the allocator gives back its cache is tight, and so is one whose
    paged states have to leave the GPU.
    """
    headroom = device.capacity_bytes - process_on(found, device) - more
    gives_back = found.retries > 0 and device is found.device
    if headroom >= found.uncertainty_bytes and not gives_back:
        verdict: Verdict = "fits"
    elif headroom + sum(t.bytes for t in found.beyond if t.name in (CACHED, PAGED)) >= 0:
        verdict = "tight"
    else:
        verdict = "no"
    return Fit(device.name, device.capacity_bytes, verdict, headroom)


def fits(
    found: Estimate,
    devices: Iterable[Device],
    peaks: Callable[[RunPlan], Peaks] | None = None,
    *,
    wanted: RunPlan | None = None,
) -> tuple[Fit, ...]:
    """The verdicts on devices, the smallest first. Of another device than the estimate's the
    allocator is not run again: what it keeps is taken to be the same.

    `peaks` estimates a plan on the estimate's device: where another device runs the plan in
    another way (`plan_on`), the difference of the peaks is counted there. `wanted` is the plan
    before the estimate's own device had its say; nothing of it is open.
    """
    plan, shape = found.plan, found.shape
    if wanted is not None:
        plan = replace(plan, attention=wanted.attention, method=wanted.method, quant=wanted.quant)
    known = {found.plan: 0}

    def more(device: Device) -> int:
        runs = plan_on(plan, device, shape)
        if peaks is None or shape is None:
            return 0
        if runs not in known:
            weigh = peaks
            if plan_on(runs, found.device, shape) != runs:
                # This device would run it in its own way, so it is asked of none.
                weigh = partial(estimate_peaks, shape)
            known[runs] = weigh(runs).bytes - weigh(found.plan).bytes
        return known[runs]

    given_back = _given_back(found)
    return tuple(
        fit_on(found, device, more(device) + given_back)
        for device in sorted(devices, key=lambda device: device.capacity_bytes)
    )


def _given_back(found: Estimate) -> int:
    """Bytes of its cache that the allocator gave back because the estimate's device had no more,
    and would keep on a larger one."""
    if not found.retries:
        return 0
    lasting = found.peak_allocated_bytes + sum(t.bytes for t in found.beyond if t.name == CACHED)
    return max(0, found.reserved_with(AllocatorSettings(found.plan.segments)) - lasting)


@dataclass(frozen=True)
class Largest:
    """The largest value of an option that fits.

    Attributes:
        option: "--batch" or "--seq".
        value: None where not even `step` fits.
        gpu: where.
        process_bytes: that the run takes with it; with the least value where nothing fits.
        step: the value is a multiple of it.
    """

    option: str
    value: int | None
    gpu: str
    process_bytes: int
    step: int


def largest(shape: ModelShape, plan: RunPlan, knob: Knob, device: Device) -> Largest:
    """The largest batch or sequence whose verdict on a device is "fits".

    Raises UsageError where the plan cannot be even at the least value.
    """
    step = SEQUENCE_STEP if knob == "seq" else 1
    field = _FIELDS[knob]
    taken: dict[int, int] = {}

    def room(value: int) -> int | None:
        """Bytes to spare beyond the uncertainty; None where the plan cannot be."""
        try:
            changes: dict[str, Any] = {field: value * step}
            found = estimate(shape, replace(plan, **changes), device)
        except UsageError:
            if value == 1:
                raise
            return None
        taken[value] = found.process_bytes
        room = device.capacity_bytes - found.process_bytes - found.uncertainty_bytes
        # With retries it is tight, however much is left after them.
        return min(-1, room - _given_back(found)) if found.retries else room

    value = last_that_fits(room, _MOST[knob] // step)
    return Largest(
        f"--{knob}",
        None if value is None else value * step,
        device.name,
        taken[value or 1],
        step,
    )


def last_that_fits(room: Callable[[int], int | None], most: int) -> int | None:
    """The last of 1, 2, ... `most` with room of at least 0, for a room that falls; None where 1
    has none. Memory is nearly a line in what is asked for, so that each guess is taken from a
    line through two known points, and few are needed; every third halves what is left."""
    spare = room(1)
    if spare is None or spare < 0:
        return None
    if most == 1:
        return 1
    low, low_room = 1, spare
    high, high_room = 2, room(2)
    while high_room is not None and high_room >= 0 and high < most:
        slope = (low_room - high_room) / (high - low)
        ahead = int(high_room / slope) if slope > 0 else most
        low, low_room = high, high_room
        high = min(most, low + max(1, min(ahead + 1, 31 * low)))
        high_room = room(high)
    if high_room is not None and high_room >= 0:
        return high
    turn = 0
    while high - low > 1:
        turn += 1
        middle = (low + high) // 2
        if high_room is not None and turn % 3:
            share = low_room / (low_room - high_room)
            middle = min(high - 1, max(low + 1, low + int(share * (high - low))))
        spare = room(middle)
        if spare is not None and spare >= 0:
            low, low_room = middle, spare
        else:
            high, high_room = middle, spare
    return low
