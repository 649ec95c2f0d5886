"""What of a plan can be changed: the fields of the form, their values, and how they are typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.plan.choices import (
    ALL_LINEAR,
    ATTENTION_KERNELS,
    KBIT_PREPARATIONS,
    KERNELS,
    LOOPS,
    METHODS,
    OPTIMIZERS,
    QUANT_STORAGES,
    QUANTS,
    SEGMENTS,
    parse_loss,
    parse_targets,
)
from qtui_core.memory.plan.run_plan import RunPlan

#: Fields that another method makes meaningless; they go back to what is usual for it.
OF_METHOD: Final = ("quant", "kbit_prep", "autocast", "checkpointing", "adapter_dtype", "dtype")

#: Numbers of more digits are refused unread.
_MOST_DIGITS: Final = 12


@dataclass(frozen=True)
class Knob:
    """A field of the plan.

    Attributes:
        field: of RunPlan.
        label: on the form.
        group: under whose heading it stands.
        values: that its keys step through, in order.
        parse: what is typed; None where nothing can be.
        wraps: whether the last value is followed by the first, as with names and not with numbers.
        shown: whether it means anything in a plan.
    """

    field: str
    label: str
    group: str
    values: tuple[Any, ...]
    parse: Callable[[str], Any] | None = None
    wraps: bool = True
    shown: Callable[[RunPlan], bool] = lambda plan: True

    def text(self, value: Any) -> str:
        """A value as the form shows it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if value is None:
            return "none"
        if isinstance(value, tuple):
            return ",".join(value)
        return f"{value:,}" if isinstance(value, int) else str(value)

    def stepped(self, value: Any, by: int) -> Any:
        """The next or previous value; the same at an end of a row of numbers."""
        values = self.values
        if self.wraps:
            at = values.index(value) if value in values else -1 if by > 0 else 0
            return values[(at + by) % len(values)]
        if by > 0:
            return next((each for each in values if each > value), value)
        return next((each for each in reversed(values) if each < value), value)


def whole_number(text: str) -> int:
    """ "4096", "4,096" or "4k". Raises UsageError for anything else."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    factor = 1024 if plain.endswith("k") else 1
    digits = plain.removesuffix("k")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(f"{text!r} is no whole number; write one such as 4096 or 4k.")
    if len(digits) > _MOST_DIGITS:
        raise UsageError(f"A number of {len(digits)} digits is more than any plan can have.")
    return int(digits) * factor


def share(text: str) -> float:
    """ "0.05". Raises UsageError for what is no number."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number; write one such as 0.05.") from None


def version(text: str) -> str:
    return text.strip()


def _powers(low: int, high: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))


def _trains(plan: RunPlan) -> bool:
    return plan.trains


def _adapts(plan: RunPlan) -> bool:
    return plan.adapts


def _quantizes(plan: RunPlan) -> bool:
    return plan.method in ("qlora", "inference")


_SEQUENCES: Final = (
    128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    49152, 65536, 98304, 131072,
)  # fmt: skip
_BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_ON_OFF: Final = (False, True)
_LOSSES: Final = (
    "stock",
    "stock-4.48",
    "tiled",
    "chunked:256",
    "fused",
    "in-place",
    "in-place-4.48",
)
_TARGETS: Final = (
    (ALL_LINEAR,),
    ("q_proj", "v_proj"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
)

KNOBS: Final = (
    Knob("method", "method", "run", METHODS),
    Knob("batch", "batch", "run", _BATCHES, whole_number, wraps=False),
    Knob("sequence", "sequence", "run", _SEQUENCES, whole_number, wraps=False),
    Knob("accumulation", "accumulation", "run", _powers(1, 256), whole_number, False, _trains),
    Knob("generate", "generate", "run", (0, *_powers(64, 65536)), whole_number, False,
         lambda plan: not plan.trains),
    Knob("loop", "loop", "run", LOOPS, shown=_trains),
    Knob("dtype", "dtype", "numbers", ("fp32", "bf16", "fp16")),
    Knob("autocast", "autocast", "numbers", _ON_OFF),
    Knob("autocast_dtype", "autocast to", "numbers", ("bf16", "fp16"),
         shown=lambda plan: bool(plan.autocast)),
    Knob("quant", "quant", "numbers", QUANTS, shown=_quantizes),
    Knob("quant_storage", "packed into", "numbers", QUANT_STORAGES,
         shown=lambda plan: plan.four_bits and plan.zero == 3),
    Knob("kbit_prep", "k-bit prep", "numbers", KBIT_PREPARATIONS,
         shown=lambda plan: plan.method == "qlora"),
    Knob("lora_rank", "rank", "adapters", _powers(1, 512), whole_number, False, _adapts),
    Knob("lora_targets", "targets", "adapters", _TARGETS, parse_targets, shown=_adapts),
    Knob("lora_dropout", "dropout", "adapters", (0.0, 0.05, 0.1), share, False, _adapts),
    Knob("adapter_dtype", "adapter dtype", "adapters", ("fp32", "bf16", "fp16"), shown=_adapts),
    Knob("optimizer", "optimizer", "step", OPTIMIZERS, shown=_trains),
    Knob("checkpointing", "checkpointing", "step", _ON_OFF, shown=_trains),
    Knob("reentrant", "reentrant", "step", _ON_OFF, shown=lambda plan: bool(plan.checkpointing)),
    Knob("kernels", "kernels", "step", KERNELS),
    Knob("attention", "attention", "step", ATTENTION_KERNELS),
    Knob("repeat_kv", "repeat k, v", "step", _ON_OFF),
    Knob("padding_mask", "padding mask", "step", _ON_OFF),
    Knob("loss", "loss", "step", _LOSSES, parse_loss, shown=_trains),
    Knob("gpus", "GPUs", "machine", _powers(1, 1024), whole_number, wraps=False),
    Knob("zero", "ZeRO", "machine", (0, 1, 2, 3), wraps=False,
         shown=lambda plan: plan.gpus > 1),
    Knob("tensor_parallel", "tensor par.", "machine", _powers(1, 64), whole_number, False,
         lambda plan: plan.gpus > 1),
    Knob("pipeline_parallel", "pipeline par.", "machine", _powers(1, 64), whole_number, False,
         lambda plan: plan.gpus > 1),
    Knob("segments", "segments", "machine", SEGMENTS),
)  # fmt: skip


def shown_knobs(plan: RunPlan) -> tuple[Knob, ...]:
    """Those that mean anything in a plan of which nothing is left open."""
    return tuple(knob for knob in KNOBS if knob.shown(plan))


def changed(plan: RunPlan, field: str, value: Any) -> RunPlan:
    """The plan with another value of a field, and of those that depend on it: a method has its
    own usual numbers; without other GPUs there is nothing to shard over."""
    changes: dict[str, Any] = {field: value}
    if field == "method":
        changes |= dict.fromkeys(OF_METHOD)
        if value != "inference":
            changes["generate"] = 0
        if value == "inference" and plan.zero in (1, 2):
            changes["zero"] = 0
    if field == "gpus" and value == 1:
        changes |= {"zero": 0, "tensor_parallel": 1, "pipeline_parallel": 1}
    return replace(plan, **changes)


def difference(before: RunPlan, after: RunPlan, knobs: Sequence[Knob] = KNOBS) -> str:
    """What was changed, in words: "batch 2 → 4". Both plans leave nothing open."""
    parts = []
    for knob in knobs:
        old, new = getattr(before, knob.field), getattr(after, knob.field)
        if old != new:
            parts.append(f"{knob.label} {knob.text(old)} → {knob.text(new)}")
    return ", ".join(parts)
