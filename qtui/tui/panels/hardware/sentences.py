"""The sentence below the picture of Hardware: what it means right now, and what to do."""

from __future__ import annotations

from qtui.report.numbers import format_bytes, plural
from qtui.tui.panels.hardware.live_view import NONE_HERE
from qtui.tui.panels.hardware.shown import HardwareShown, HardwareViewName
from qtui.tui.panels.hardware.words import rate, ratio, seconds, speed
from qtui_core.memory.compute.operation import Placed
from qtui_core.memory.devices.hierarchy import hierarchy
from qtui_core.memory.devices.rates import COPY, PRODUCT


def sentence_of(shown: HardwareShown) -> str:
    """Of the view that is shown."""
    return {
        HardwareViewName.GPUS: _of_gpus,
        HardwareViewName.HIERARCHY: _of_hierarchy,
        HardwareViewName.RATES: _of_rates,
        HardwareViewName.ROOFLINE: _of_operations,
        HardwareViewName.OPERATIONS: _of_operations,
    }[shown.view](shown)


def _of_gpus(shown: HardwareShown) -> str:
    if shown.gpus is None:
        return "The driver is being asked."
    if not shown.gpus:
        return (
            f"{NONE_HERE} The other views are of the {shown.device.name}, of the catalogue: choose "
            "the GPU that you have in mind with g, and look at Operations."
        )
    fullest = [each for each in shown.gpus if each.memory_total and each.memory_used is not None]
    lost = [each.label for each in shown.gpus if each.lost]
    if lost:
        return (
            f"The driver no longer reaches GPU {', '.join(lost)}: what ran there is gone. "
            "dmesg tells why (look for Xid); a reset or restart of the machine brings it back."
        )
    if not fullest:
        return "No GPU says how much memory it has: MIG without permission, or unified memory."
    free = max(fullest, key=lambda each: (each.memory_total or 0) - (each.memory_used or 0))
    left = (free.memory_total or 0) - (free.memory_used or 0)
    count = sum(len(each.processes or ()) for each in shown.gpus)
    busy = [each.gpu_percent for each in shown.gpus if each.gpu_percent is not None]
    parts = [f"Most memory is free on GPU {free.label}: {format_bytes(left)}"]
    if busy:
        parts.append(f"kernels ran in {sum(busy) / len(busy):.0f}% of the time")
    parts.append(f"{plural(count, 'process', 'processes')} on {plural(len(shown.gpus), 'GPU')}")
    return ", ".join(parts) + "."


def _of_hierarchy(shown: HardwareShown) -> str:
    device = shown.device
    levels = hierarchy(device)
    if not levels:
        return f"Only the memory of {device.name} is known. m asks CUDA and measures it."
    memory = levels[-1]
    fast = max((each for each in levels if each.bandwidth), key=lambda each: each.bandwidth or 0)
    text = (
        f"What stays in the {fast.name} of the {device.name} comes "
        f"{(fast.bandwidth or 0) / max(1, memory.bandwidth or 1):,.0f} times as fast as from its "
        f"memory, which holds {memory.bytes / max(1, fast.bytes):,.0f} times as much"
    )
    return (
        f"{text}; reading all of it once takes {seconds(memory.bytes / (memory.bandwidth or 1))}: "
        "use a byte again before it goes back, as fused kernels do."
    )


def _of_rates(shown: HardwareShown) -> str:
    device = shown.device
    if shown.measuring:
        return f"Measuring: {plural(len(shown.rates), 'rate')} so far."
    best = next(
        (each for each in shown.rates if each.what == PRODUCT and each.dtype == "bf16"), None
    )
    copied = next((each for each in shown.rates if each.what == COPY), None)
    facts = shown.facts
    if facts is not None and best is not None and best.per_second and copied is not None:
        share = best.share_of(device) if shown.measured_here else None
        of = "" if share is None else f", {share:.0%} of what is stated"
        where = f"the {device.name} here" if facts.kind == "cuda" else "this processor"
        return (
            f"Measured on {where}: bf16 products at {rate(best.per_second)}{of}, and copies at "
            f"{speed(copied.per_second)}; so a byte must be used "
            f"{ratio(best.per_second / (copied.per_second or 1))} times, or memory is waited for."
        )
    dtype = next((name for name in ("bf16", "fp16", "fp32") if name in device.rates), None)
    if dtype is None:
        return f"No rates are known of {device.name}. m measures it."
    stated = device.rates[dtype]
    return (
        f"The {device.name} does {rate(stated)} in {dtype} and reads {speed(device.bandwidth)}: "
        f"under {ratio(stated / device.bandwidth)} operations a byte it waits for memory. Larger "
        "batches give products more; Operations says which of the plan wait."
    )


def _of_operations(shown: HardwareShown) -> str:
    placed = shown.placed
    if not placed:
        return shown.why or f"The operations on {shown.device.name} are not known yet."
    whole = sum(each.seconds for each in placed)
    waits = sum(each.seconds for each in placed if each.presses == "memory")
    saved = sum(each.saves_seconds for each in placed)
    most = max(placed, key=lambda each: each.saves_seconds)
    text = (
        f"On the {shown.device.name} a step takes {seconds(whole)} at least, {waits / whole:.0%} "
        f"of it waiting for memory; {_longest(placed[0], whole)}"
    )
    if most.saves_seconds:
        text += (
            f"; fusing would spare {seconds(saved)}, most of it in {most.operation.name}: "
            f"{most.operation.fused}"
        )
    return text + "."


def _longest(each: Placed, whole: float) -> str:
    return f"the longest is {each.operation.name} with {each.seconds / whole:.0%}"
