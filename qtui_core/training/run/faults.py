"""Turns an exception into the fault that a run reports, and finds the weights that make a loss that
is not finite."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import torch
from torch import nn

from qtui_core.errors import ModelError, QtuiError, memory_ran_out
from qtui_core.live.snapshot import Fault
from qtui_core.memory.advice.fit import Advice
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.models.quoting import printable
from qtui_core.quantities import format_bytes
from qtui_core.telemetry.machine import address_limit, more_memory
from qtui_core.training.model.quantized import quantized_tensors

OUT_OF_MEMORY: Final = "out of memory"
NOT_A_NUMBER: Final = "not a number"
DRIVER: Final = "driver"
MODEL: Final = "model"
FAILURE: Final = "failure"

#: How many components, and how many changes, a fault names at most.
_NAMED: Final = 5
_UNITS: Final = {"bytes": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
#: The wording of CUDA's allocator is "Tried to allocate 2.00 GiB", that of the CPU's "you tried to
#: allocate 4096 bytes".
_ASKED: Final = re.compile(r"tried to allocate ([\d.]+) (\w+)", re.IGNORECASE)
#: From scaled_dot_product_attention, if sdpa_kernel leaves no usable backend.
_NO_ATTENTION: Final = ("No available kernel", "No viable backend")
_NO_KERNEL: Final = "no kernel image is available"


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
    kind = kind_of(error)
    where = f"in step {step}, {phase}" if step else f"in {phase}"
    first = printable((str(error).strip().splitlines() or [type(error).__name__])[0])
    if kind != OUT_OF_MEMORY:
        text = str(error) if isinstance(error, QtuiError) else _told(kind, where, error, first)
        return Fault(seconds, step, phase, kind, text)
    asked = asked_bytes(str(error))
    helping = changes(advice, phase)
    parts = sorted(((n, b) for n, b in held.items() if b), key=lambda part: -part[1])[:_NAMED]
    wanted = "" if asked is None else f", when {format_bytes(asked)} more were requested"
    text = f"Memory ran out {where}{wanted}."
    if parts:
        text += f" The largest part is {parts[0][0]} ({format_bytes(parts[0][1])})."
    if helping:
        text += f" {helping[0][0]} would save {format_bytes(helping[0][1])} there."
    if "CUDA" not in str(error) and not (helping and address_limit() is None):
        text += f" {more_memory()}"
    return Fault(seconds, step, phase, kind, text, True, asked, tuple(parts), helping)


def kind_of(error: BaseException) -> str:
    """The kind of fault that an exception is."""
    if isinstance(error, torch.OutOfMemoryError) or memory_ran_out(error):
        return OUT_OF_MEMORY
    named = "CUDA" in str(error) or "NVML" in str(error)
    if isinstance(error, RuntimeError) and (named or type(error).__name__ == "AcceleratorError"):
        return DRIVER
    return MODEL if isinstance(error, ModelError) else FAILURE


def asked_bytes(said: str) -> int | None:
    """The bytes that were requested according to an allocator's message; None if it does not
    say."""
    match = _ASKED.search(said)
    if match is None or match[2] not in _UNITS:
        return None
    return int(float(match[1]) * (1 << _UNITS[match[2]]))


def changes(advice: Sequence[Advice], phase: str) -> tuple[tuple[str, int], ...]:
    """(change, bytes that it saves in the phase) for the changes that save any, the largest first;
    none for a phase that the estimate does not have, such as imports."""
    found = [(each.change, each.saves_by_phase.get(phase, 0)) for each in advice]
    helping = [(change, saved) for change, saved in found if saved > 0]
    return tuple(sorted(helping, key=lambda entry: -entry[1])[:_NAMED])


def not_a_number(
    seconds: float, step: int, loss: float, plan: RunPlan, rate: float, broken: Sequence[str] = ()
) -> Fault:
    """The fault of a loss that is not a number. The run continues, since its memory and time stay
    the same.

    Args:
        broken: frozen weights that are not finite.
        rate: the learning rate.
    """
    what = "NaN" if math.isnan(loss) else "infinite"
    text = (
        f"The loss of step {step} is {what}. {_why_no_number(step, plan, rate, broken)} The run "
        f"goes on, so that memory and time are measured, and counts as failed."
    )
    return Fault(seconds, step, "loss", NOT_A_NUMBER, text, fatal=False)


def _why_no_number(step: int, plan: RunPlan, rate: float, broken: Sequence[str]) -> str:
    if broken:
        more = " and others" if len(broken) > 1 else ""
        return (
            f"{printable(broken[0])}{more} of the model, which no step changes, hold values that "
            f"are not finite: take another copy of the model."
        )
    if "fp16" in (plan.dtype, plan.autocast_dtype if plan.autocast else None):
        use = "--dtype bf16" if plan.dtype == "fp16" else "--autocast-dtype bf16"
        return f"Float16 has no numbers beyond 65,504: use {use}."
    if step == 1:
        return (
            f"No step has changed the model's weights yet, so they are not finite, or what is "
            f"computed from them overflows {plan.dtype}: take another copy, or --dtype fp32."
        )
    return (
        f"Steps of {plan.optimizer} at a learning rate of {rate:g} were too large for this model: "
        f"another --optimizer or --dtype fp32 may help."
    )


def _told(kind: str, where: str, error: BaseException, first: str) -> str:
    if any(words in str(error) for words in _NO_ATTENTION):
        return (
            f"The run failed {where}: the attention that the plan names does not take these "
            "tensors (their type, a padding mask, or the size of a head). Use --attention sdpa."
        )
    if kind == DRIVER and _NO_KERNEL in str(error):
        return (
            f"CUDA failed {where}: {first}. A library is not built for this GPU: install a "
            "build of torch, or of bitsandbytes, that is."
        )
    if kind == DRIVER:
        return (
            f"CUDA failed {where}: {first}. This process can no longer use the GPU; "
            "start a new run. If it fails again, `nvidia-smi` shows whether the driver "
            "still reaches the GPU."
        )
    return f"The run failed {where}: {type(error).__name__}: {first}. The log has the rest."


#: Elements that are examined at a time.
_AT_ONCE: Final = 1 << 22


def not_finite(model: nn.Module, most: int = 3) -> tuple[str, ...]:
    """The names of up to `most` frozen parameters, or constants of quantized ones, that contain an
    infinity or NaN. Trainable parameters are not examined, because one step spoils all of them.

    Reads copies on the host, so that it allocates no bytes on the device, which would be counted.
    """
    return tuple(islice((name for name, tensor in _frozen(model) if not _finite(tensor)), most))


def _frozen(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    for name, tensor in chain(parameters, quantized_tensors(model)):
        if tensor.is_floating_point():
            yield name.removeprefix("base_model.model."), tensor


def _finite(tensor: torch.Tensor) -> bool:
    parts = tensor.detach().cpu().reshape(-1).split(_AT_ONCE)
    return all(bool(torch.isfinite(part).all()) for part in parts)
