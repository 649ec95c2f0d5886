"""A size that remembers its product: 1050673152 that knows it is B*S*V*4.

A `Size` is an int in every operation. It also keeps its operands, and works out the sum of products
only when it is asked for: a tape full of sizes costs little.

Letters enter where a configuration or a plan is read (`letter`). Products, sums and differences
keep them. An exact division divides the product; any other division gives a floor, and `-(-x // y)`
a ceil. Other operations (`max`, shifts, `int()`) give plain numbers, or one of their operands.
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
    """A size with a letter in formulas."""
    size = _new(Size, value)
    size.made = ("letter", name)
    return size


def expression_of(size: int) -> Expression:
    """The sum of products of a size; for a plain number, the number."""
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
