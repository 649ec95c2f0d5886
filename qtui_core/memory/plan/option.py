"""A row of the table of plan options, and the values that rows can have. The command line, the
form, the text and the JSON of a plan, its check, its notes and its advice all read it.

The row is the default of the option's field in the class of plans (`RunPlan`). The functions below
make rows of the four kinds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.devices.outside_torch import parse_version
from qtui_core.memory.shape.packings import STORED

if TYPE_CHECKING:
    from qtui_core.memory.plan.options import RunPlan

Method = Literal["full", "lora", "qlora", "inference"]
Optimizer = Literal[
    "adamw", "adamw-fused", "adamw8bit", "paged-adamw8bit", "paged-adamw", "adamw4bit", "sgd"
]
KbitPrep = Literal["none", "norms", "all"]
AttentionKernel = Literal["sdpa", "flash", "efficient", "eager"]
Loop = Literal["trainer", "manual"]
Segments = Literal["native", "expandable"]
Kernels = Literal["torch", "fused", "liger"]
Loss = Literal["stock", "stock-4.48", "tiled", "fused", "in-place", "in-place-4.48"]

METHODS: Final = get_args(Method)
OPTIMIZERS: Final = get_args(Optimizer)
KBIT_PREPARATIONS: Final = get_args(KbitPrep)
ATTENTION_KERNELS: Final = get_args(AttentionKernel)
LOOPS: Final = get_args(Loop)
SEGMENTS: Final = get_args(Segments)
KERNELS: Final = get_args(Kernels)
LOSSES: Final = get_args(Loss)
#: How bitsandbytes can store frozen weights; "-dq" also quantizes the block absmaxes.
QUANTS: Final = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8")
#: Types in which bitsandbytes can store packed 4-bit weights (bnb_4bit_quant_storage), its default
#: first.
QUANT_STORAGES: Final = ("uint8", "bf16", "fp16", "fp32")
#: These, and a checkpoint that another library packed.
STORAGES: Final = (*QUANTS, STORED)
#: Types of a key-value cache, first that of activations (vLLM calls it auto, too).
KV_DTYPES: Final = ("auto", "bf16", "fp8", "int8", "int4")
#: A quantized checkpoint that is unpacked while it is loaded.
UNPACKED: Final = "none"
#: All linear layers except the one that gives logits.
ALL_LINEAR: Final = "all-linear"


def parse_targets(text: str) -> tuple[str, ...]:
    """The modules that get adapters: names separated by commas, or "all-linear".

    Raises UsageError for an empty list, for something that is no name, and for all-linear beside
    names.
    """
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise UsageError(
            f"No module is named to put adapters on; write {ALL_LINEAR}, or names with commas "
            "between, such as q_proj,v_proj."
        )
    if ALL_LINEAR in names and len(names) > 1:
        raise UsageError(
            f"{ALL_LINEAR} already takes every linear layer; leave out "
            f"{', '.join(name for name in names if name != ALL_LINEAR)}."
        )
    for name in names:
        if name != ALL_LINEAR and not name.replace(".", "_").isidentifier():
            raise UsageError(
                f"{name!r} is no name of a module; names are like q_proj or mlp.down_proj."
            )
    return names


def parse_torch(text: str) -> str:
    """The canonical text of a torch version. Raises UsageError if it is not a version."""
    parse_version(text)
    return text.strip()


def without_logits(loss: str) -> bool:
    """Whether a loss takes the head's input and weight, so that the logits of all tokens are never
    computed at once."""
    return loss in ("tiled", "fused")


#: The headings of options, in order.
GROUPS: Final = ("run", "numbers", "adapters", "step", "machine")

Group = Literal["run", "numbers", "adapters", "step", "machine"]
Kind = Literal["choice", "switch", "whole", "share", "text", "names"]

#: Numbers with more digits are refused without parsing.
_MOST_DIGITS: Final = 12


#: `counts` of an option that matters in every plan, as `bool` of any plan is True.
ALWAYS: Final = bool


def any_value(one: Any, other: Any) -> bool:
    """`alike` of an option that changes memory and time, and nothing that is learned."""
    return True


@dataclass(frozen=True)
class Cheaper:
    """A value that saves memory, what it costs, and in which plans it is estimated: those in which
    the option counts and has another value."""

    value: Any
    cost: str
    where: Callable[[RunPlan], bool] = ALWAYS


@dataclass(frozen=True)
class PlanOption:
    """An option of a plan.

    Attributes:
        flag: on the command line.
        help: its text in `--help`.
        group: the heading under which it is shown.
        kind: how its values are written.
        noun: what errors call a value.
        allowed: the possible values; empty if they are not enumerated.
        steps: the values that the keys of the form step through; empty for options that are not on
            the form.
        least, most: bounds of a whole number.
        read: turns what is typed into the canonical value. Raises UsageError.
        typed: whether the form accepts other values than `steps`.
        label: on the form; empty for the name.
        metavar: the placeholder for a value in `--help`.
        last: whether it is shown after the others of its group.
        counts: whether it matters in a plan in which every option has a value.
        idle: the reason to note if it is set and changes nothing; empty for no note.
        refused: why its value is impossible in a plan in which every option has a value, empty if
            it is possible; None if it always is.
        cheaper: values that save memory.
        alike: whether two of its values train the same parameters to the same numbers, but for the
            order of sums.
        name, default: of its field.
    """

    flag: str
    help: str
    group: Group
    kind: Kind
    noun: str = ""
    allowed: tuple[Any, ...] = ()
    steps: tuple[Any, ...] = ()
    least: int = 0
    most: int = 0
    read: Callable[[str], Any] | None = None
    typed: bool = False
    label: str = ""
    metavar: str = ""
    last: bool = False
    counts: Callable[[RunPlan], bool] = ALWAYS
    idle: str = ""
    refused: Callable[[RunPlan], str] | None = None
    cheaper: tuple[Cheaper, ...] = ()
    alike: Callable[[Any, Any], bool] = operator.eq
    name: str = ""
    default: Any = None

    def written(self, value: Any) -> str:
        """The option with a value as it is typed: `--batch 4`, `--no-autocast`."""
        if isinstance(value, bool):
            return self.flag if value else self.off
        if value is None:
            value = "none"
        return f"{self.flag} {','.join(value) if isinstance(value, tuple) else value}"

    @property
    def off(self) -> str:
        """The flag that turns a switch off."""
        return self.flag.replace("--", "--no-", 1)

    def normal(self, value: Any) -> Any:
        """The canonical form of a value. Raises UsageError if it is invalid."""
        if self.read is None or value is None or self.kind not in ("text", "names"):
            return value
        return self.read(",".join(value) if isinstance(value, tuple) else value)

    def check(self, value: Any) -> None:
        """Raises UsageError if `value` is not a value of the option."""
        if self.allowed and value is not None and value not in self.allowed:
            names = ", ".join(map(str, self.allowed))
            raise UsageError(f"{value!r} is no {self.noun} that is known; use {names}.")
        if self.kind == "whole":
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{self.noun} is a whole number, not {value!r}.")
            if not self.least <= value <= self.most:
                raise UsageError(
                    f"{self.noun} is between {self.least} and {self.most:,}; {value:,} is not."
                )


def _row(default: Any, flag: str, help: str, kind: Kind, *, group: Group, **more: Any) -> Any:
    return field(default=default, metadata={"option": PlanOption(flag, help, group, kind, **more)})


def choice(default: str | None, flag: str, allowed: Sequence[str], help: str, **more: Any) -> Any:
    """The row of an option whose values are names. The form steps through all, or through
    `steps`."""
    names = tuple(allowed)
    return _row(default, flag, help, "choice", **{"allowed": names, "steps": names} | more)


def switch(default: bool | None, flag: str, help: str, **more: Any) -> Any:
    """The row of an option that is on or off."""
    return _row(default, flag, help, "switch", steps=(False, True), **more)


def whole(default: int, flag: str, help: str, *, most: int, **more: Any) -> Any:
    """The row of an option that is a whole number. `most` is far above what anyone runs, and low
    enough to catch typing errors."""
    usual: dict[str, Any] = {"least": 1, "read": whole_number, "typed": True, "metavar": "N"}
    return _row(default, flag, help, "whole", most=most, **usual | more)


def text(
    default: Any, flag: str, metavar: str, help: str, *, kind: Kind = "text", **more: Any
) -> Any:
    """The row of an option of any other kind."""
    return _row(default, flag, help, kind, metavar=metavar, **more)


def options_of(plans: type) -> tuple[PlanOption, ...]:
    """The rows of a class of plans, in the order of its fields."""
    return _rows(plans)


@cache
def _rows(plans: type) -> tuple[PlanOption, ...]:
    return tuple(
        replace(each.metadata["option"], name=each.name, default=each.default)
        for each in fields(plans)
    )


def grouped_options(plans: type) -> Mapping[str, tuple[PlanOption, ...]]:
    """The rows by group, in the order in which they are shown."""
    rows = sorted(options_of(plans), key=lambda option: option.last)
    return {group: tuple(row for row in rows if row.group == group) for group in GROUPS}


def whole_number(text: str) -> int:
    """The number in a text such as "4096", "4,096" or "4k". Raises UsageError for anything else."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    factor = 1024 if plain.endswith("k") else 1
    digits = plain.removesuffix("k")
    if not (digits.isascii() and digits.isdigit()):
        raise UsageError(f"{text!r} is no whole number; write one such as 4096 or 4k.")
    if len(digits) > _MOST_DIGITS:
        raise UsageError(f"A number of {len(digits)} digits is more than any plan can have.")
    return int(digits) * factor


def share(text: str) -> float:
    """The number in a text such as "0.05". Raises UsageError if it is not a number."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no number; write one such as 0.05.") from None


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from `low` to `high`."""
    return tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))
