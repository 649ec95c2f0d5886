"""The change that makes a run fit, and the smallest GPU that it fits: both are estimated again.

That a change saves enough of the peak does not yet say that the run fits: what the allocator keeps
changes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from qtui_core.errors import UsageError
from qtui_core.memory.advice.changes import Advice
from qtui_core.memory.advice.fit import Fit, fit_on
from qtui_core.memory.devices.workspaces import cublas_workspace
from qtui_core.memory.plan.run_plan import RunPlan, has_flash

if TYPE_CHECKING:
    from qtui_core.memory.devices.device import Device
    from qtui_core.memory.estimate import Estimate

#: A whole estimate of a plan on a device.
OnDevice = Callable[[RunPlan, "Device"], "Estimate"]

#: How many changes that train the same, and how many others, are tried.
_TRIED_SAME: Final = 2
_TRIED_OTHERS: Final = 1
#: A GPU is judged again where the run leaves less than one part in this many of what it takes:
#: with the kernels of a T4 the allocator kept at most 1.4 % of it more, in 18 runs.
_NARROW: Final = 50


def remedy(found: Estimate, fit: Fit, advice: Sequence[Advice], again: OnDevice) -> Advice | None:
    """The first change worth trying with which the run fits the estimate's device; None where no
    single one is enough. `again` estimates a changed plan.

    Expandable segments come first where only what the allocator keeps is in the way.
    """
    device = found.device
    if device is None:
        return None
    for one in _worth_trying(found, fit, advice):
        try:
            changed = again(one.plan, device)
        except UsageError:
            continue  # Possible in itself, not together with this device.
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


def smallest_again(
    found: Estimate, verdicts: Sequence[Fit], devices: Sequence[Device], again: OnDevice
) -> tuple[Fit, ...]:
    """The verdicts up to the smallest device that the run fits, held against an estimate on the
    device itself where the run fits narrowly and workspaces or kernels there are not those of the
    estimate; the verdicts after it as they are."""
    known = {device.name: device for device in devices}
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
    """Whether a device has the workspaces and kernels that the estimate counts."""
    plan = found.plan
    sizes = {
        cublas_workspace(plan.torch, d, trains=plan.trains).each for d in (found.device, device)
    }
    return len(sizes) == 1 and (has_flash(found.device) == has_flash(device))


__all__ = ["OnDevice", "remedy", "smallest_again"]
