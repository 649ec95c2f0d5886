"""Sums of products of letters, with their text and their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import cached_property
from typing import Final, NamedTuple

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
        if other.is_number or self.value % other.value == 0:
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
        """The largest products alone: as many as needed to differ from `value` by at most `off`."""
        found: dict[Product, Factor] = {}
        left: Factor = value
        for product, factor in sorted(self.sums.items(), key=_size, reverse=True):
            if -off <= left <= off:
                break
            found[product] = factor
            left -= _value(product, factor)
        return Expression(found)

    @property
    def is_number(self) -> bool:
        """Whether it has no letters."""
        return not any(self.sums)

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


def letter(name: str, value: int) -> Expression:
    """The expression of a letter."""
    return Expression({((Letter(name, value), 1),): 1})


def with_numbers(text: str, letters: Mapping[str, int]) -> str:
    """A formula with the values of the letters in place of the letters."""
    return re.sub(r"\b[A-Za-z]\b", lambda found: f"{letters[found[0]]:,}", text)


def _rounded(name: str, of: Expression, by: Expression) -> Expression:
    value = -(-of.value // by.value) if name == "ceil" else of.value // by.value
    return letter(f"{name}({_bracketed(of)}/{_bracketed(by)})", int(value))


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


def total(expressions: Iterable[Expression]) -> Expression:
    """The sum of expressions."""
    sums: dict[Product, Factor] = {}
    for expression in expressions:
        for product, factor in expression.sums.items():
            sums[product] = sums.get(product, 0) + factor
    return Expression(sums)
