"""Evaluates the text of a formula: letters, whole numbers, arithmetic operators, and rounding
functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil, floor

_KNOWN = {
    "Fraction": Fraction,
    "ceil": ceil,
    "floor": floor,
    "r512": lambda size: ceil(size / 512) * 512,
}


def value_of(formula: str, letters: Mapping[str, int]) -> Fraction:
    """The exact value of a formula such as `L*r512(B*S*4) + 1,024`."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", formula).removesuffix(" in smaller terms")
    exact = re.sub(r"(?<!\w)\d+", r"Fraction(\g<0>)", text)
    return Fraction(eval(exact, _KNOWN | {name: Fraction(n) for name, n in letters.items()}))
