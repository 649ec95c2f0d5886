"""A row of the table of options: what is said once of an option of a plan, and read by the command
line, the form, the text and the JSON of a plan, its check, its notes and its advice.

A row stands in the class of plans, as the default of its field (`RunPlan`). The functions below
make rows of the four kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from qtui_core.memory.plan.options import RunPlan

#: Headings under which options are shown, in order.
GROUPS: Final = ("run", "numbers", "adapters", "step", "machine")

Group = Literal["run", "numbers", "adapters", "step", "machine"]
Kind = Literal["choice", "switch", "whole", "share", "text", "names"]

#: Numbers of more digits are refused unread.
_MOST_DIGITS: Final = 12


#: What counts in every plan: each is true.
ALWAYS: Final = bool


@dataclass(frozen=True)
class Cheaper:
    """A value that saves memory, what it costs, and in which plans it is worth an estimate: of
    those in which the option counts and has another value."""

    value: Any
    cost: str
    where: Callable[[RunPlan], bool] = ALWAYS


@dataclass(frozen=True)
class PlanOption:
    """An option of a plan.

    Attributes:
        flag: on the command line.
        help: what `--help` says of it.
        group: under whose heading it is shown.
        kind: how its values are written.
        noun: what a refusal calls a value.
        allowed: the values there are; empty where they are not counted out.
        steps: the values that the keys of the form step through; empty for what is not on it.
        least, most: bounds of a whole number.
        read: what is typed, to a value in the one way it is written. Raises UsageError.
        typed: whether values beside `steps` can be typed on the form.
        label: on the form; empty for the name.
        metavar: what `--help` writes for a value.
        last: whether it is shown behind the others of its group.
        counts: whether it means anything in a plan with nothing left open.
        idle: what is noted of it where it is set and changes nothing; empty for no note.
        refused: why a plan with nothing left open cannot be with its value, empty where it can;
            None where every plan can.
        cheaper: values that save memory.
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
    name: str = ""
    default: Any = None

    def written(self, value: Any) -> str:
        """The option with a value, as it is typed: `--batch 4`, `--no-autocast`."""
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
        """A value in the one way it is written. Raises UsageError for what is none."""
        if self.read is None or value is None or self.kind not in ("text", "names"):
            return value
        return self.read(",".join(value) if isinstance(value, tuple) else value)

    def check(self, value: Any) -> None:
        """Raises UsageError for what is no value of the option."""
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


def _row(default: Any, row: PlanOption) -> Any:
    return field(default=default, metadata={"option": row})


def choice(
    default: str | None,
    flag: str,
    allowed: Sequence[str],
    help: str,
    *,
    noun: str,
    group: Group,
    steps: Sequence[str] = (),
    **more: Any,
) -> Any:
    """The row of an option with names for values; the form steps through all, or `steps`."""
    names = tuple(allowed)
    row = PlanOption(flag, help, group, "choice", noun, names, tuple(steps) or names, **more)
    return _row(default, row)


def switch(default: bool | None, flag: str, help: str, *, group: Group, **more: Any) -> Any:
    """The row of an option that is on or off."""
    return _row(default, PlanOption(flag, help, group, "switch", steps=(False, True), **more))


def whole(
    default: int,
    flag: str,
    help: str,
    *,
    noun: str,
    group: Group,
    least: int = 1,
    most: int,
    steps: Sequence[int],
    typed: bool = True,
    **more: Any,
) -> Any:
    """The row of an option that is a whole number. The most is far above what anyone runs, and low
    enough that a slip of the keyboard is told apart from a plan."""
    row = PlanOption(
        flag, help, group, "whole", noun, steps=tuple(steps), least=least, most=most,
        read=whole_number, typed=typed, metavar="N", **more,
    )  # fmt: skip
    return _row(default, row)


def text(
    default: Any,
    flag: str,
    metavar: str,
    help: str,
    *,
    group: Group,
    kind: Kind = "text",
    **more: Any,
) -> Any:
    """The row of an option of any other kind."""
    return _row(default, PlanOption(flag, help, group, kind, metavar=metavar, **more))


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
    """The same by group, in the order in which they are shown."""
    rows = sorted(options_of(plans), key=lambda option: option.last)
    return {group: tuple(row for row in rows if row.group == group) for group in GROUPS}


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


def powers(low: int, high: int) -> tuple[int, ...]:
    """The powers of two from one to another."""
    return tuple(1 << power for power in range(low.bit_length() - 1, high.bit_length()))
