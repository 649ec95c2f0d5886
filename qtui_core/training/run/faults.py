"""Turns an exception, or a loss that is not a number, into the fault that a run reports."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

import torch

from qtui_core.errors import ModelError, QtuiError, memory_ran_out
from qtui_core.live.snapshot import Fault
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes
from qtui_core.telemetry.machine import address_limit, more_memory

OUT_OF_MEMORY: Final = "out of memory"
NOT_A_NUMBER: Final = "not a number"
DRIVER: Final = "driver"

#: How many components, and how many changes, a fault names at most.
_NAMED: Final = 5
_UNITS: Final = {"bytes": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
#: The wording of CUDA's allocator is "Tried to allocate 2.00 GiB", that of the CPU's "you tried to
#: allocate 4096 bytes".
_ASKED: Final = re.compile(r"tried to allocate ([\d.]+) (\w+)", re.IGNORECASE)
#: What a message says -> what to do. The first two are of scaled_dot_product_attention, if
#: sdpa_kernel leaves no usable backend.
_ATTENTION: Final = (
    "The attention that the plan names does not take these tensors (their type, a padding mask, or "
    "the size of a head). Use --attention sdpa."
)
_REMEDIES: Final = {
    "No available kernel": _ATTENTION,
    "No viable backend": _ATTENTION,
    "no kernel image is available": "A library is not built for this GPU: install a build of "
    "torch, or of bitsandbytes, that is.",
}
_RESTART: Final = (
    "Start a new run; if it fails again, `nvidia-smi` shows whether the driver still reaches the "
    "GPU."
)


def fault_of(
    error: BaseException,
    seconds: float,
    step: int,
    phase: str,
    held: Mapping[str, int],
    advice: Sequence[Advice],
) -> Fault:
    """The fault for an exception that ended the run. `held` is what each component held when it was
    raised; `advice` is for the plan as a whole."""
    kind, message = kind_of(error), str(error)
    where = f"in step {step}, {phase}" if step else f"in {phase}"
    if kind != OUT_OF_MEMORY:
        if isinstance(error, QtuiError):
            return Fault(seconds, step, phase, kind, message)
        first = printable((message.strip().splitlines() or [type(error).__name__])[0])
        remedy = next((do for words, do in _REMEDIES.items() if words in message), "")
        text = f"The run failed {where}: {type(error).__name__}: {first}. "
        if kind == DRIVER:
            text, remedy = f"CUDA failed {where}: {first}. ", remedy or _RESTART
        return Fault(seconds, step, phase, kind, text + (remedy or "The log has the rest."))
    requested, helping = asked_bytes(message), changes(advice, phase)
    parts = sorted(((n, b) for n, b in held.items() if b), key=lambda part: -part[1])[:_NAMED]
    wanted = "" if requested is None else f", when {format_bytes(requested)} more were requested"
    text = f"Memory ran out {where}{wanted}."
    if parts:
        text += f" The largest part is {parts[0][0]} ({format_bytes(parts[0][1])})."
    if helping:
        text += f" {helping[0][0]} would save {format_bytes(helping[0][1])} there."
    if "CUDA" not in message and not (helping and address_limit() is None):
        text += f" {more_memory()}"
    return Fault(seconds, step, phase, kind, text, True, requested, tuple(parts), helping)


def kind_of(error: BaseException) -> str:
    """The kind of fault that an exception is."""
    if isinstance(error, torch.OutOfMemoryError) or memory_ran_out(error):
        return OUT_OF_MEMORY
    named = "CUDA" in str(error) or "NVML" in str(error)
    if isinstance(error, RuntimeError) and (named or type(error).__name__ == "AcceleratorError"):
        return DRIVER
    return "model" if isinstance(error, ModelError) else "failure"


def asked_bytes(message: str) -> int | None:
    """The bytes that were requested according to an allocator's message; None if it does not
    say."""
    match = _ASKED.search(message)
    if match is None or match[2] not in _UNITS:
        return None
    return int(float(match[1]) * (1 << _UNITS[match[2]]))


def changes(advice: Sequence[Advice], phase: str) -> tuple[tuple[str, int], ...]:
    """(change, bytes that it saves in the phase) for the changes that save any, the largest first;
    none for a phase that the estimate does not have, such as imports."""
    saved = [(one.change, one.saves_by_phase.get(phase, 0)) for one in advice]
    return tuple(sorted((s for s in saved if s[1] > 0), key=lambda entry: -entry[1])[:_NAMED])


def not_a_number(seconds: float, step: int, loss: float, plan: RunPlan, rate: float) -> Fault:
    """The fault of a loss that is not a number, at a learning rate. The run continues, since its
    memory and time stay the same."""
    if "fp16" in (plan.dtype, plan.autocast_dtype if plan.autocast else None):
        use = "--dtype bf16" if plan.dtype == "fp16" else "--autocast-dtype bf16"
        why = f"Float16 has no numbers beyond 65,504: use {use}."
    elif step == 1:
        why = (
            "It is before any step: take another copy of the model (`qtui inspect` counts weights "
            "that are not finite), or --dtype fp32."
        )
    else:
        why = f"{plan.optimizer} at {rate:g} took too large steps: another --optimizer may help."
    text = (
        f"The loss of step {step} is {'NaN' if math.isnan(loss) else 'infinite'}. {why} The run "
        f"goes on, so that memory and time are measured, and counts as failed."
    )
    return Fault(seconds, step, "loss", NOT_A_NUMBER, text, fatal=False)
