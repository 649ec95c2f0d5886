"""The settings of experiments as rows of a table, which the command line, the form of the panel,
the check and the JSON all read. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError

Kind = Literal["whole", "number", "choice", "several", "wholes", "numbers", "text"]
#: The types that the value of a setting can have: several names, or several numbers, are a tuple.
Value = int | float | str | tuple[Any, ...] | None

#: The most characters of a setting that are read.
_LONGEST: Final = 4096
#: The most values of a setting that takes several.
_MOST: Final = 64


@dataclass(frozen=True)
class Setting:
    """A setting of an experiment.

    Attributes:
        name: in JSON and Python, with `_` for the `-` of the flag.
        kind: what it takes: a whole number, a number, one of `allowed`, several of them, several
            numbers, or a text.
        default: None if nothing is chosen.
        help: one line.
        least, most: the bounds of its numbers, inclusive.
        allowed: the names of a choice.
        steps: the values that the keys of the form step through.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    least: float = -math.inf
    most: float = math.inf
    allowed: tuple[str, ...] = ()
    steps: tuple[Any, ...] = ()

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.name.replace('_', '-')}"

    def but(self, default: Value, **more: Any) -> Setting:
        """The same setting with another default, for an experiment that needs one."""
        return replace(self, default=default, **more)

    def read(self, text: str) -> Value:
        """The value that was typed. Raises UsageError if it is not valid."""
        text = text.strip()
        if len(text) > _LONGEST:
            raise UsageError(f"{self.flag} has {len(text):,} characters; {_LONGEST:,} are read.")
        parts = [part.strip() for part in text.split(",") if part.strip()]
        try:
            return self.check(tuple(map(self._type, parts)) if self._many else self._type(text))
        except ValueError:
            raise UsageError(f"{self.flag} takes {_CALLED[self._type]}, not {text!r}.") from None

    def check(self, value: Any) -> Value:
        """The value itself. Raises UsageError if it is not valid."""
        if value is None and self.default is None:
            return None
        if not self._many:
            return self._checked(value)
        if not isinstance(value, tuple | list) or not value:
            raise UsageError(f"{self.flag} takes one or more values, with commas between them.")
        if len(value) > _MOST:
            raise UsageError(f"{self.flag} takes {_MOST} values at most, not {len(value):,}.")
        values = tuple(map(self._checked, value))
        if len(set(values)) < len(values):
            raise UsageError(f"{self.flag} names a value twice.")
        return values

    def written(self, value: Value) -> str:
        """A value as it would be typed."""
        if isinstance(value, tuple):
            return ",".join(map(self.written, value))
        if isinstance(value, float):
            short = f"{value:g}"
            return short if float(short) == value else repr(value)
        return str(value)

    @property
    def _many(self) -> bool:
        return self.kind in ("several", "wholes", "numbers")

    @property
    def _type(self) -> type[Any]:
        """Of one value."""
        return {"whole": int, "wholes": int, "number": float, "numbers": float}.get(self.kind, str)

    def _checked(self, value: Any) -> Any:
        if self.kind in ("choice", "several"):
            if value not in self.allowed:
                raise UsageError(
                    f"{self.flag} has no {value!r}; it takes {', '.join(self.allowed)}."
                )
            return value
        kinds = (int, float) if self._type is float else self._type
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise UsageError(f"{self.flag} takes {_CALLED[self._type]}, not {value!r}.")
        if self.kind != "text" and not self.least <= value <= self.most:  # also refuses NaN
            written = "a number of that size" if abs(value) > 1e300 else f"{value:g}"
            raise UsageError(
                f"{self.flag} is between {self.least:g} and {self.most:g}; {written} is not."
            )
        return self._type(value)


_CALLED: Final = {int: "a whole number", float: "a number", str: "a text"}


def settle(rows: Iterable[Setting], given: Mapping[str, Any]) -> dict[str, Value]:
    """Every setting of an experiment with its value: the given one, or its default.

    Raises UsageError for a name that the experiment does not have, or an invalid value.
    """
    known = {row.name: row for row in rows}
    unknown = sorted(given.keys() - known.keys())
    if unknown:
        names = ", ".join(known) or "none"
        raise UsageError(f"The experiment has no setting {unknown[0]!r}; it has {names}.")
    return {
        name: row.check(given[name]) if name in given else row.default
        for name, row in known.items()
    }
