"""The section on compute of `qtui memory`: operations by the rule of thumb C = 6ND, those of the
plan, and the least time they take."""

from __future__ import annotations

from qtui.report.document import Facts
from qtui_core.memory.advice.report import MemoryReport
from qtui_core.memory.compute.totals import Compute
from qtui_core.memory.devices.finding import DEVICES

#: The GPUs whose times are shown if no GPU was named.
_TIMED = ("RTX 4090", "A100 SXM4 80GB", "H100 SXM5 80GB")


def compute_facts(report: MemoryReport, compute: Compute) -> Facts:
    """The operations by the rule C = 6ND (Kaplan et al. 2020; 2ND without a backward pass), the
    operations of the plan, and their least time on a device."""
    plan = report.estimate.plan
    times, step = (6, "step") if plan.trains else (2, "prompt" if plan.generate else "pass")
    rule = times * compute.matrix_parameters * compute.tokens
    parts = f"{compute.total:.3g}: "
    if plan.trains:
        parts += (
            f"forward {compute.forward:.3g}, computed again {compute.recompute:.3g}, backward "
            f"{compute.backward:.3g}; "
        )
    parts += f"attention is {compute.attention:.3g} of it"
    if plan.generate:
        parts += "; the prompt alone, not what is generated after it"
    pairs = [
        (
            f"C = {times}ND",
            f"{times} x {compute.matrix_parameters:,} parameters in products x "
            f"{compute.tokens:,} tokens = {rule:.3g}",
        ),
        ("of this plan", parts),
    ]
    devices = [report.device] if report.device else [d for d in DEVICES if d.name in _TIMED]
    for device in devices:
        seconds = report.seconds_on(device)
        if seconds is not None:
            pairs.append(
                (
                    f"on {device.name}",
                    f"no less than {seconds:.3g} s a {step}: a bound, at the highest rate of "
                    f"{compute.dtype} that the vendor states; real ones take two to five times "
                    "as long",
                )
            )
        elif device.rates:
            known = ", ".join(device.rates)
            pairs.append(
                (
                    f"on {device.name}",
                    f"no bound: its vendor states no rate of {compute.dtype} but of {known}",
                )
            )
    return Facts(tuple(pairs))
