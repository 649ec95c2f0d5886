"""Reads sizes from config.json, with types, and a sentence for everything that is impossible.

A missing key gets the default of the transformers class if that is safe to assume (heads of keys
and values, biases). Sizes that define the model must be in a config.json.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.memory.formulas.size import named

#: Larger than any published size, and small enough that a product of three is still readable: the
#: largest vocabularies have 2^18 entries, the widest layers 2^17.
LARGEST_SIZE: Final = 1 << 24

#: The most heads or experts: the largest numbers of experts are some thousands.
LARGEST_COUNT: Final = 1 << 14

#: The most layers. The deepest published model has 1,000, and an estimate of this many still takes
#: seconds.
LARGEST_DEPTH: Final = 1 << 12

#: The most positions. Models with ten million exist.
LARGEST_LENGTH: Final = 1 << 40

#: The most characters of a word; names of classes are the longest.
_LONGEST_WORD: Final = 200
_WORD: Final = f"word in quotes, of {_LONGEST_WORD} characters at most"

Keys = str | tuple[str, ...]
#: Whether a value is of the right kind.
Fits = Callable[[object], bool]
#: A constant of a class, or the key of config.json that says it, and its default.
Flag = bool | tuple[str, bool]


class UnknownFamily(UsageError):
    """A family without a shape here. The model can still be traced if transformers knows it."""


@dataclass(frozen=True)
class Config:
    """A config.json, or a part of one.

    Attributes:
        values: as parsed.
        where: its name in a sentence.
    """

    values: Mapping[str, Any]
    where: str = "config.json"

    def needed(self, keys: Keys, *, most: int = LARGEST_SIZE) -> int:
        """A positive whole number that must be present. Of several keys the first that is present
        counts (GPT-2 has n_embd, others hidden_size)."""
        if self._key(keys) is None:
            names = (keys,) if isinstance(keys, str) else keys
            raise UsageError(
                f"{self.where} does not say {' or '.join(names)}. Without it nothing can be said "
                "of the model's size; take the config.json that belongs to the weights."
            )
        return self.size(keys, 0, most=most)

    def size(self, keys: Keys, default: int, *, least: int = 1, most: int = LARGEST_SIZE) -> int:
        """A whole number from `least` to `most`, or the default if there is none. In formulas it
        has the letter of its key, if the key has one."""
        key = self._key(keys)
        value = default if key is None else self._whole(key, self.values[key], least, most)
        return named(keys, value)

    def optional_size(
        self, keys: Keys, default: int | None = None, *, least: int = 1, most: int = LARGEST_SIZE
    ) -> int | None:
        """Like `size`, but null is allowed and gives None."""
        key = self._key(keys)
        if key is not None and self.values[key] is None:
            return None
        found = default if key is None else self._whole(key, self.values[key], least, most)
        return None if found is None else named(keys, found)

    def flag(self, keys: Keys, default: bool) -> bool:
        """true or false; null gives the default."""
        name = "true or false, without quotes"
        return bool(self._read(keys, default, lambda value: isinstance(value, bool), name))

    def number(self, keys: Keys, default: float | None) -> float | None:
        """A finite number; null gives None."""
        missing = default if self._key(keys) is None else None
        found = self._read(keys, missing, _is_number, "a number")
        return None if found is None else float(found)

    def probability(self, keys: Keys, default: float = 0.0) -> float:
        """A dropout rate, from 0 to below 1; null gives 0."""
        value = self.number(keys, default) or 0.0
        if not 0.0 <= value < 1.0:
            raise UsageError(
                f"{self._key(keys)} in {self.where} is {value:g}; a rate of dropout is at least "
                "0 and below 1."
            )
        return value

    def text(self, keys: Keys, default: str) -> str:
        """A string; null gives the default."""
        return str(self._read(keys, default, _is_word, f"a {_WORD}"))

    def each(self, key: str, kind: type, layers: int, usual: Iterable[Any]) -> tuple[Any, ...]:
        """A list with a value of a type for each layer; without one the `usual` list of the class.
        Raises UsageError if it is not as long as there are layers."""
        found = self.listed(key, kind)
        found = tuple(usual) if found is None else found
        if len(found) != layers:
            raise self.refuse(
                f"{key} names {len(found):,} layers, num_hidden_layers is {layers:,}."
            )
        return found

    def within(self, key: str) -> Config | None:
        """The object under a key; None if there is none."""
        found = self._read(key, None, _is_object, "an object in braces")
        return None if found is None else Config(found, f"{key} of {self.where}")

    def refuse(self, reason: str) -> UsageError:
        """The error for values that contradict each other."""
        return UsageError(f"{self.where} contradicts itself: {reason}")

    def _key(self, keys: Keys) -> str | None:
        names = (keys,) if isinstance(keys, str) else keys
        return next((name for name in names if name in self.values), None)

    def _read(self, keys: Keys, default: Any, fits: Fits, name: str) -> Any:
        """What stands under a key, the default if that is nothing or null."""
        key = self._key(keys)
        value = None if key is None else self.values[key]
        if value is None or fits(value):
            return default if value is None else value
        raise UsageError(f"{key} in {self.where} is {written(value)}; it must be {name}.")

    def _whole(self, key: str, value: object, least: int, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(
                f"{key} in {self.where} is {written(value)}; it must be a whole number, without "
                "quotes."
            )
        if value < least:
            raise UsageError(f"{key} in {self.where} is {value:,}; the least it can be is {least}.")
        if value > most:
            raise UsageError(
                f"{key} in {self.where} is {_short(value)}, more than any model has; the most that "
                f"is taken is {most:,}."
            )
        return value

    def listed(self, key: str, kind: type) -> tuple[Any, ...] | None:
        """A list of strings, whole numbers or numbers; None if there is none."""
        value, (fits, name) = self.values.get(key), _LISTED[kind]
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(map(fits, value)):
            raise UsageError(f"{key} in {self.where} must be a list of {name}.")
        return tuple(value)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    whole = is_whole(value) or isinstance(value, float)
    return whole and abs(cast(float, value)) <= 1e300


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_WORD


#: What a list of values of a type may have, and its name in a sentence.
_LISTED: Final[dict[type, tuple[Fits, str]]] = {
    str: (_is_word, _WORD.replace("word", "words")),
    int: (is_whole, "whole numbers"),
    float: (_is_number, "numbers"),
}


def flag(config: Config, value: Flag) -> bool:
    return value if isinstance(value, bool) else config.flag(*value)


def stored_dtype(config: Config) -> str | None:
    """The dtype of the checkpoint as config.json names it ("bfloat16"), else as its text_config
    does; None if neither says it, or says "auto"."""
    for part in (config, config.within("text_config")):
        for key in ("dtype", "torch_dtype"):
            name = "" if part is None else part.text(key, "")
            if name not in ("", "auto"):
                return name.removeprefix("torch.")
    return None


def written(value: object) -> str:
    """A value as JSON spells it: null and true, not None and True; shortened to what is
    readable."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    # reprlib goes a few levels deep, and repr fails at a thousand.
    text = reprlib.repr(value) if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _short(value: int) -> str:
    """A number as digits, or the number of its digits."""
    return f"{value:,}" if value < 10**18 else f"a number of {len(str(value))} digits"
