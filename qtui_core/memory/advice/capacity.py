"""Whether an estimate fits a GPU, the largest batch or sequence that does, the smallest GPU that it
fits, and the change that makes it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.advice.changes import Advice
from qtui_core.memory.devices.device import DEVICES, Device, cublas_workspace
from qtui_core.memory.estimate import CACHED, PAGED, Estimate, estimate, estimate_peaks, process_on
from qtui_core.memory.plan.run_plan import RunPlan, has_flash, plan_on
from qtui_core.memory.replay.allocator import AllocatorSettings
from qtui_core.memory.replay.curve import Peaks
from qtui_core.memory.shape.model_shape import ModelShape

Verdict = Literal["fits", "tight", "no"]
Knob = Literal["batch", "seq"]

#: Sequences are tried in steps of an attention tile, for which kernels are fast.
SEQUENCE_STEP: Final = 64
_MOST: Final = {"batch": 1 << 20, "seq": 1 << 24}
_FIELDS: Final = {"batch": "batch", "seq": "sequence"}


@dataclass(frozen=True)
class Fit:
    """Whether a run fits a device.

    Attributes:
        gpu: name of the device.
        capacity_bytes: how much of its memory processes can have.
        verdict: "fits" if the process fits with the uncertainty of the estimate; "tight" if the
            tensors fit, but perhaps not the allocator's cache, paged states or the uncertainty;
            "no" if the tensors do not fit.
        headroom_bytes: capacity less the process; negative if the device is too small.
    """

    gpu: str
    capacity_bytes: int
    verdict: Verdict
    headroom_bytes: int


def fit_on(found: Estimate, device: Device, more: int = 0) -> Fit:
    """The verdict on one device, with its context and workspaces instead of those of the estimate's
    device. `more` is how many bytes more the plan takes there.

    A run is tight if it can go on only because the allocator gives back its cache, or because paged
    states leave the GPU.
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
    """The verdicts on devices, the smallest first. The allocator is not simulated again for each:
    its cache is taken to be the same as on the estimate's device.

    `peaks` estimates a plan on the estimate's device. If another device runs the plan differently
    (`plan_on`), the difference of the peaks is added. `wanted` is the plan with a value for every
    option, before the estimate's device changed what it cannot run.
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
                # Both plans are estimated without a device, as the estimate's device would change
                # this one again.
                weigh = partial(estimate_peaks, shape)
            known[runs] = weigh(runs).bytes - weigh(found.plan).bytes
        return known[runs]

    given_back = _given_back(found)
    return tuple(
        fit_on(found, device, more(device) + given_back)
        for device in sorted(devices, key=lambda device: device.capacity_bytes)
    )


def _given_back(found: Estimate) -> int:
    """Bytes of the cache that the allocator gave back because the estimate's device was full, and
    would keep on a larger device."""
    if not found.retries:
        return 0
    lasting = found.peak_allocated_bytes + sum(t.bytes for t in found.beyond if t.name == CACHED)
    return max(0, found.reserved_with(AllocatorSettings(found.plan.segments)) - lasting)


@dataclass(frozen=True)
class Largest:
    """The largest value of an option that fits.

    Attributes:
        option: "--batch" or "--seq".
        value: a multiple of `step`; None if not even `step` fits.
        gpu: the device that it fits.
        process_bytes: what the run takes with this value, or with `step` if nothing fits.
    """

    option: str
    value: int | None
    gpu: str
    process_bytes: int
    step: int

    PRINTED = ("option", "value", "gpu", "process_bytes")


def largest(shape: ModelShape, plan: RunPlan, knob: Knob, device: Device) -> Largest:
    """The largest batch or sequence whose verdict on a device is "fits".

    Raises UsageError if the plan is impossible even with the smallest value.
    """
    step = SEQUENCE_STEP if knob == "seq" else 1
    field = _FIELDS[knob]
    taken: dict[int, int] = {}

    def room(value: int) -> int | None:
        """Bytes to spare beyond the uncertainty; None if the plan is impossible."""
        try:
            changes: dict[str, Any] = {field: value * step}
            found = estimate(shape, replace(plan, **changes), device)
        except UsageError:
            if value == 1:
                raise
            return None
        taken[value] = found.process_bytes
        room = device.capacity_bytes - found.process_bytes - found.uncertainty_bytes
        # With retries it is tight, however much room they leave.
        return min(-1, room - _given_back(found)) if found.retries else room

    value = last_that_fits(room, _MOST[knob] // step)
    return Largest(
        f"--{knob}", None if value is None else value * step, device.name, taken[value or 1], step
    )


def last_that_fits(room: Callable[[int], int | None], most: int) -> int | None:
    """The last of 1, 2, ... `most` with a room of at least 0; room falls as numbers grow. None if 1
    has less. Memory grows almost linearly, so each guess is on the line through two known points;
    every third guess halves the interval."""
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


#: Makes a whole estimate of a plan on a device.
OnDevice = Callable[[RunPlan, "Device"], "Estimate"]

#: How many changes that train the same are tried, and how many others.
_TRIED_SAME: Final = 2
_TRIED_OTHERS: Final = 1
#: A GPU is checked again if the run leaves less than one part in this many of what it takes: with
#: the kernels of a T4 the allocator cached at most 1.4 % of it more, in 18 runs.
_NARROW: Final = 50


def remedy(found: Estimate, fit: Fit, advice: Sequence[Advice], again: OnDevice) -> Advice | None:
    """The first good change with which the run fits the estimate's device; None if no single change
    is enough. `again` estimates a changed plan.

    Expandable segments come first if only the allocator's cache is in the way.
    """
    device = found.device
    if device is None:
        return None
    for one in _worth_trying(found, fit, advice):
        try:
            changed = again(one.plan, device)
        except UsageError:
            continue  # possible in itself, but not on this device
        if fit_on(changed, device).verdict == "fits":
            if one.saves_bytes:
                return one
            return replace(one, saves_bytes=max(0, found.process_bytes - changed.process_bytes))
    return None


def _worth_trying(found: Estimate, fit: Fit, advice: Sequence[Advice]) -> Iterator[Advice]:
    plan = found.plan
    if fit.verdict == "tight" and plan.segments == "native":
        grown = replace(plan, segments="expandable")
        cost = "nothing in the result: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        yield Advice(plan.change_to(grown), grown, 0, cost, found.peak_phase, {})
    needed = found.uncertainty_bytes - fit.headroom_bytes
    enough = [one for one in advice if one.saves_bytes >= needed]
    same = [one for one in enough if plan.trains_like(one.plan)]
    yield from same[:_TRIED_SAME]
    yield from [one for one in enough if one not in same][:_TRIED_OTHERS]


def smallest_again(found: Estimate, verdicts: Sequence[Fit], again: OnDevice) -> tuple[Fit, ...]:
    """The verdicts up to the smallest device that the run fits. If it fits narrowly and the
    workspaces or kernels of that device differ from the estimate's, the verdict comes from an
    estimate on the device itself. Later verdicts are unchanged."""
    known = {device.name: device for device in DEVICES}
    judged = list(verdicts)
    for number, fit in enumerate(judged):
        device = known.get(fit.gpu)
        if fit.verdict != "fits" or device is None:
            continue
        spare = fit.headroom_bytes - found.uncertainty_bytes
        if spare * _NARROW < found.process_bytes and not _alike(found, device):
            judged[number] = fit_on(again(found.plan, device), device)
        if judged[number].verdict == "fits":
            break
    return tuple(judged)


def _alike(found: Estimate, device: Device) -> bool:
    """Whether a device has the workspaces and kernels of the estimate."""
    plan = found.plan
    sizes = {
        cublas_workspace(plan.torch, d, trains=plan.trains).each for d in (found.device, device)
    }
    return len(sizes) == 1 and (has_flash(found.device) == has_flash(device))
