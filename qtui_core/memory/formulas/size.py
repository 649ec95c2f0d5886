"""A size that remembers the product it is: 1050673152 that knows it is B*S*V*4.

A `Size` is an int in all that it does. It also keeps what it was made of, and works out the sum of
products that this is only when its expression is asked for: a tape full of sizes costs little.

Letters enter where a configuration and a plan are read (`letter`). They go through products, sums
and differences. An exact division divides the product; any other leaves a floor, `-(-x // y)` a
ceil. Other operations (`max`, shifts, `int()`) give plain numbers, or one of their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import is_dataclass, replace
from typing import Any, Final, TypeVar, cast

from qtui_core.memory.formulas import expression as formulas
from qtui_core.memory.formulas.expression import Expression

Part = TypeVar("Part")

_new: Final = int.__new__


class Size(int):
    """An int that remembers what it was made of.

    Attributes:
        made: the operation that gave it and its operands, or "letter" and a name.
    """

    made: tuple[Any, ...]

    def __mul__(self, other: int) -> int:
        # Written out, for most operations of a tape are products.
        value = int.__mul__(self, other)
        if value is NotImplemented:
            return value
        size = _new(Size, value)
        size.made = ("*", self, other)
        return size

    __rmul__ = __mul__

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Copies, and what goes to another process, are plain numbers."""
        return int, (int(self),)


def _remember(name: str, sign: str) -> None:
    """Lets an operation of int remember its operands."""
    compute: Callable[..., Any] = getattr(int, name)

    def method(self: Size, *others: int) -> int:
        value = compute(self, *others)
        if value is NotImplemented:
            return value
        size = _new(Size, value)
        size.made = (sign, *others, self) if name.startswith("__r") else (sign, self, *others)
        return size

    setattr(Size, name, method)


for _name, _sign in (
    ("__add__", "+"),
    ("__radd__", "+"),
    ("__sub__", "-"),
    ("__rsub__", "-"),
    ("__floordiv__", "//"),
    ("__rfloordiv__", "//"),
    ("__neg__", "neg"),
):
    _remember(_name, _sign)


def letter(name: str, value: int) -> Size:
    """A size that formulas call by a letter."""
    size = _new(Size, value)
    size.made = ("letter", name)
    return size


def expression_of(size: int) -> Expression:
    """The sum of products that a size is; of a plain number, itself."""
    if not isinstance(size, Size):
        return formulas.number(size)
    unseen = [size]
    while unseen:
        sign, *operands = (last := unseen[-1]).made
        if sign == "letter":
            last.__dict__["known"] = formulas.letter(operands[0], int(last))
        waiting = [o for o in operands if isinstance(o, Size) and "known" not in o.__dict__]
        if waiting:
            unseen += waiting
            continue
        if sign != "letter":
            last.__dict__["known"] = _applied(sign, [_known(operand) for operand in operands])
        unseen.pop()
    return _known(size)


def factors_of(size: int) -> list[list[Any]] | None:
    """The letters of a product with their values and exponents, and its number; None of what is no
    product. In JSON they go to another process, which makes the size of them (`product_of`)."""
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
    """The size of `factors_of`."""
    size = 1
    for name, value, exponent in factors:
        for _ in range(exponent):
            size = size * (letter(name, value) if name else value)
    return size


def letters_in(sizes: Iterable[int]) -> dict[str, int]:
    """The letters that sizes are made of, with their values."""
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
    """The same with numbers for sizes: of a tuple or a dataclass in all its parts, each part that
    stands in several places once."""
    known = {} if known is None else known
    if isinstance(value, Size):
        return cast(Part, int(value))
    if id(value) not in known:
        if isinstance(value, tuple):
            known[id(value)] = tuple([plain(part, known) for part in value])
        elif is_dataclass(value) and not isinstance(value, type):
            parts = {name: getattr(value, name) for name in value.__dataclass_fields__}
            known[id(value)] = replace(value, **{n: plain(v, known) for n, v in parts.items()})
        else:
            return value
    return known[id(value)]


def _known(size: int) -> Expression:
    return size.__dict__["known"] if isinstance(size, Size) else formulas.number(size)


def _applied(sign: str, operands: list[Expression]) -> Expression:
    match sign, operands:
        case "*", [one, two]:
            return one.times(two)
        case "+", [one, two]:
            return one.plus(two)
        case "-", [one, two]:
            return one.plus(two, -1)
        case "neg", [one]:
            return formulas.number(0).plus(one, -1)
        case "//", [one, two]:
            return one.over(two)
    raise ValueError(sign)
