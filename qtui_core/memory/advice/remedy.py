"""The change that makes a run fit, and the smallest GPU that it fits. Both are checked by
estimating again.

That a change lowers the peak enough does not yet mean that the run fits, as the allocator's cache
changes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from qtui_core.errors import UsageError
from qtui_core.memory.advice.capacity import Fit, fit_on
from qtui_core.memory.advice.changes import Advice
from qtui_core.memory.devices.finding import DEVICES
from qtui_core.memory.devices.outside_torch import cublas_workspace
from qtui_core.memory.plan.run_plan import RunPlan, has_flash

if TYPE_CHECKING:
    from qtui_core.memory.devices.device import Device
    from qtui_core.memory.estimate import Estimate

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
