"""A size that remembers its product: 1050673152 that knows it is B*S*V*4; and sums of products of
letters, with their text and their values.

A `Size` is an int in every operation. It also keeps its operands, and works out the sum of products
(`Expression`) only when it is asked for: a tape full of sizes costs little.

Letters enter where a configuration or a plan is read (`letter`). Products, sums and differences
keep them. An exact division divides the product; any other division gives a floor, and `-(-x // y)`
a ceil. Other operations (`max`, shifts, `int()`) give plain numbers, or one of their operands.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast

#: The order of letters in a product; other letters come after these.
_ORDER: Final = "LBSgCWPHGDREkVhIFMmqcneovwTbr"


class Letter(NamedTuple):
    """A letter, or a rounded quotient such as `ceil(h/64)`, and its value."""

    text: str
    value: int


#: Letters with their exponents, in the order of `_ORDER`.
Product = tuple[tuple[Letter, int], ...]

#: A coefficient: an int if possible, as Fractions take ten times as long.
Factor = int | Fraction


class Expression:
    """A sum of products: the coefficient of each product of letters. The empty product is a
    number."""

    def __init__(self, sums: Mapping[Product, Factor]) -> None:
        self.sums = {product: factor for product, factor in sums.items() if factor}

    def plus(self, other: Expression, times: int = 1) -> Expression:
        """This expression plus `times` the other."""
        sums = dict(self.sums)
        for product, factor in other.sums.items():
            sums[product] = sums.get(product, 0) + times * factor
        return Expression(sums)

    def times(self, other: Expression) -> Expression:
        """The product, multiplied out."""
        sums: dict[Product, Factor] = {}
        for one, factor in self.sums.items():
            for two, by in other.sums.items():
                product = _merged(one, two)
                sums[product] = _whole(sums.get(product, 0) + factor * by)
        return Expression(sums)

    def over(self, other: Expression) -> Expression:
        """The quotient, exact if the division is, else rounded down."""
        if not any(other.sums) or self.value % other.value == 0:
            found = self._divided(other)
            if found is not None and found.value == self.value // other.value:
                return found
        if self.value < 0:  # -(-x // y) rounds up
            return number(0).plus(_rounded("ceil", number(0).plus(self, -1), other), -1)
        return _rounded("floor", self, other)

    def _divided(self, other: Expression) -> Expression | None:
        """The quotient if it is a sum of products, else None."""
        if len(other.sums) == 1:
            return self.times(_inverse(*other.largest))
        found, rest = number(0), self
        for _ in range(len(self.sums)):
            part = Expression(dict([rest.largest])).times(_inverse(*other.largest))
            found, rest = found.plus(part), rest.plus(part.times(other), -1)
            if not rest.sums:
                return found
        return None

    @property
    def largest(self) -> tuple[Product, Factor]:
        """The product with the most letters, and its coefficient."""
        return max(self.sums.items(), key=lambda item: (sum(e for _, e in item[0]), item[0]))

    def nearly(self, value: int, off: Factor) -> Expression:
        """The largest products alone: as many as needed to differ from `value` by a whole number of
        at most `off`."""
        found: dict[Product, Factor] = {}
        left: Factor = value
        for product, factor in sorted(self.sums.items(), key=_size, reverse=True):
            if -off <= left <= off and left.denominator == 1:  # products over three GPUs are thirds
                break
            found[product] = factor
            left -= _value(product, factor)
        return Expression(found)

    @property
    def value(self) -> Factor:
        """Its value, with the values of the letters."""
        return sum(_value(product, factor) for product, factor in self.sums.items())

    @cached_property
    def text(self) -> str:
        """Its text, as in `B*S*h*4 + B*S*4`, the largest product first."""
        parts = sorted(self.sums.items(), key=_size, reverse=True)
        written = " + ".join(_written(product, factor) for product, factor in parts)
        return written.replace("+ -", "- ") or "0"


def number(value: int) -> Expression:
    """The expression of a number."""
    return Expression({(): value})


def symbol(name: str, value: int) -> Expression:
    """The expression of a letter."""
    return Expression({((Letter(name, value), 1),): 1})


def with_numbers(text: str, letters: Mapping[str, int]) -> str:
    """A formula with the values of the letters in place of the letters."""
    return re.sub(r"\b[A-Za-z]\b", lambda found: f"{letters[found[0]]:,}", text)


def _rounded(name: str, of: Expression, by: Expression) -> Expression:
    value = -(-of.value // by.value) if name == "ceil" else of.value // by.value
    return symbol(f"{name}({_bracketed(of)}/{_bracketed(by)})", int(value))


def _bracketed(part: Expression) -> str:
    text = part.text
    return text if re.fullmatch(r"\w+|[\d,]+", text) else f"({text})"


def _inverse(product: Product, factor: Factor) -> Expression:
    inverse = Fraction(1) / factor
    return Expression({tuple((one, -exponent) for one, exponent in product): _whole(inverse)})


def _whole(factor: Factor) -> Factor:
    return factor.numerator if factor.denominator == 1 else factor


def _merged(one: Product, two: Product) -> Product:
    if not one or not two:
        return one or two
    exponents = dict(one)
    for of, exponent in two:
        exponents[of] = exponents.get(of, 0) + exponent
    return tuple(sorted(((of, e) for of, e in exponents.items() if e), key=_place))


def _place(power: tuple[Letter, int]) -> tuple[int, str]:
    text = power[0].text
    single = text.removeprefix("(")[:1] if len(text) > 1 and text[0] == "(" else text
    return (_ORDER.find(single) if single in _ORDER else len(_ORDER), text)


def _size(item: tuple[Product, Factor]) -> Factor:
    value = _value(*item)
    return value if value >= 0 else -value


def _value(product: Product, factor: Factor) -> Factor:
    for of, exponent in product:
        power = of.value ** abs(exponent)
        factor = factor * power if exponent > 0 else Fraction(factor) / power
    return _whole(factor)


def _written(product: Product, factor: Factor) -> str:
    over = _repeated(product, 1)
    size = abs(factor.numerator)
    if size != 1 or not over:
        over.append(f"{size:,}")
    under = [f"{factor.denominator:,}"] if factor.denominator != 1 else []
    text = "/".join(("*".join(over), *under, *_repeated(product, -1)))
    return f"-{text}" if factor < 0 else text


def _repeated(product: Product, sign: int) -> list[str]:
    """The letters with exponents of one sign, each repeated as often as its exponent says."""
    return [of.text for of, exponent in product for _ in range(sign * exponent)]


Part = TypeVar("Part")

_new: Final = int.__new__


class Size(int):
    """An int that remembers how it was computed.

    Attributes:
        made: the operation and its operands, or "letter" and a name.
    """

    made: tuple[Any, ...]

    def __mul__(self, other: int) -> int:
        # Written out because most operations of a tape are products.
        value = int.__mul__(self, other)
        if value is NotImplemented:
            return value
        size = _new(Size, value)
        size.made = ("*", self, other)
        return size

    __rmul__ = __mul__

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Copies, and sizes sent to another process, are plain numbers."""
        return int, (int(self),)


def _remember(name: str, sign: str) -> None:
    """Makes an operation of int remember its operands."""
    compute: Callable[..., Any] = getattr(int, name)

    def method(self: Size, *others: int) -> int:
        value = compute(self, *others)
        if value is NotImplemented:
            return value
        size = _new(Size, value)
        size.made = (sign, *others, self) if name.startswith("__r") else (sign, self, *others)
        return size

    setattr(Size, name, method)


for _name, _sign in {"add": "+", "sub": "-", "floordiv": "//"}.items():
    _remember(f"__{_name}__", _sign)
    _remember(f"__r{_name}__", _sign)
_remember("__neg__", "neg")


def letter(name: str, value: int) -> Size:
    """A size with a letter in formulas."""
    size = _new(Size, value)
    size.made = ("letter", name)
    return size


def expression_of(size: int) -> Expression:
    """The sum of products of a size; for a plain number, the number."""
    if not isinstance(size, Size):
        return number(size)
    unseen = [size]
    while unseen:
        sign, *operands = (last := unseen[-1]).made
        if sign == "letter":
            last.__dict__["known"] = symbol(operands[0], int(last))
        waiting = [o for o in operands if isinstance(o, Size) and "known" not in o.__dict__]
        if waiting:
            unseen += waiting
            continue
        if sign != "letter":
            last.__dict__["known"] = _APPLIED[sign](*map(_known, operands))
        unseen.pop()
    return _known(size)


def factors_of(size: int) -> list[list[Any]] | None:
    """The letters of a product with their values and exponents, and its coefficient; None if the
    size is no single product. As JSON they go to another process, where `product_of` restores the
    size."""
    if not isinstance(size, Size):
        return None
    sums = expression_of(size).sums
    if len(sums) != 1:
        return None
    ((product, factor),) = sums.items()
    if factor.denominator != 1 or any(exponent < 1 for _, exponent in product):
        return None
    return [*([of.text, of.value, exponent] for of, exponent in product), ["", int(factor), 1]]


def product_of(factors: list[list[Any]]) -> int:
    """The size that `factors_of` describes."""
    size = 1
    for name, value, exponent in factors:
        for _ in range(exponent):
            size = size * (letter(name, value) if name else value)
    return size


def letters_in(sizes: Iterable[int]) -> dict[str, int]:
    """The letters in some sizes, with their values."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    unseen: list[Any] = list(sizes)
    while unseen:
        size = unseen.pop()
        if isinstance(size, Size) and id(size) not in seen:
            seen.add(id(size))
            sign, *operands = size.made
            if sign == "letter":
                found[operands[0]] = int(size)
            else:
                unseen += operands
    return found


def plain(value: Part, known: dict[int, Any] | None = None) -> Part:
    """A copy with numbers in place of sizes, in all parts of a tuple or dataclass. A part that is
    used in several places is copied once."""
    known = {} if known is None else known
    if isinstance(value, Size):
        return cast(Part, int(value))
    if id(value) not in known:
        if isinstance(value, tuple):
            make = getattr(type(value), "_make", tuple)  # a NamedTuple stays one
            known[id(value)] = make([plain(part, known) for part in value])
        elif is_dataclass(value) and not isinstance(value, type):
            parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
            known[id(value)] = replace(value, **{n: plain(v, known) for n, v in parts.items()})
        else:
            return value
    return known[id(value)]


def _known(size: int) -> Expression:
    return size.__dict__["known"] if isinstance(size, Size) else number(size)


#: What an operation makes of the expressions of its operands.
_APPLIED: Final[Mapping[str, Callable[..., Expression]]] = {
    "*": Expression.times, "+": Expression.plus, "//": Expression.over,
    "-": lambda one, two: one.plus(two, -1), "neg": lambda one: number(0).plus(one, -1),
}  # fmt: skip


_LINES: Final = Path(__file__).with_name("letters.csv").read_text(encoding="utf-8").splitlines()
#: Letter -> (its meaning, its keys in config.json), in the order of a report.
_LETTERS: Final = {name: (meaning, keys) for name, meaning, keys in csv.reader(_LINES[2:])}
MEANINGS: Final = {name: meaning for name, (meaning, _) in _LETTERS.items()}
_KEYS: Final = {key: name for name, (_, keys) in _LETTERS.items() for key in keys.split()}


def letters_of(config: Mapping[str, object]) -> dict[str, int]:
    """The letters that have a value in a config.json. Of several keys for a letter, the first one
    counts."""
    found: dict[str, int] = {}
    for key, name in _KEYS.items():
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            found.setdefault(name, letter(name, value))
    return found


def named(keys: str | tuple[str, ...], value: int) -> int:
    """The value of a key of config.json as a letter; a plain number if the key has no letter. Of
    several keys for the same thing, the first has the letter."""
    name = _KEYS.get(keys if isinstance(keys, str) else keys[0])
    return value if name is None else letter(name, value)
