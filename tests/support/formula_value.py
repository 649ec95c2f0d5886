"""Evaluates the text of a formula: letters, whole numbers, arithmetic operators, and rounding
functions."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor

_SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_ROUNDED = {"ceil": ceil, "floor": floor, "r512": lambda size: ceil(size / 512) * 512}


def value_of(formula: str, letters: Mapping[str, int]) -> Fraction:
    """The exact value of a formula such as `L*r512(B*S*4) + 1,024`.

    Raises KeyError for a letter without a value, ValueError for a text that is no formula.
    """
    text = re.sub(r"(?<=\d),(?=\d{3})", "", formula).removesuffix(" in smaller terms")
    try:
        return _value(ast.parse(text, mode="eval").body, letters)
    except SyntaxError as error:
        raise ValueError(f"{formula!r} is no formula") from error


def _value(part: ast.expr, letters: Mapping[str, int]) -> Fraction:
    match part:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name(id=name):
            return Fraction(letters[name])
        case ast.BinOp(left=left, op=sign, right=right):
            return _SIGNS[type(sign)](_value(left, letters), _value(right, letters))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, letters)
        case ast.Call(func=ast.Name(id=name), args=[argument]):
            return Fraction(_ROUNDED[name](_value(argument, letters)))
    raise ValueError(f"{ast.unparse(part)!r} is no part of a formula")
