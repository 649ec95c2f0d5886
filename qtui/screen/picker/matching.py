"""Which names have the typed letters, the best first, and where in a name they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

#: More matches than these are not sorted one by one, which would take longer than a key may: first
#: come those with the text as it is, and, if the others are not too many for that, those whose
#: parts begin with its letters.
SORTED: Final = 1_000
INITIALS: Final = 10_000
#: How far a name is that has the letters anywhere: farther than any other.
_SCATTERED: Final = 1_000_000


def folded(text: str) -> str:
    """`text` without the difference of capitals, each character in its place."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(low if len(low := each.lower()) == 1 else each for each in text)


class Letters:
    """What was typed: words, each of which a name must have, as letters in this order. A name is
    `folded` text.

    A match is the better, the nearer the letters are: a word as it is, at the start of a word of
    the name or inside; then letters that each begin a part of it or go on with it, as "l12q" in
    "layers.12.q_proj"; then any.
    """

    def __init__(self, text: str) -> None:
        self.words = folded(text).split()
        # Possessive and atomic: nothing is tried twice, however long the text and the name are.
        letters = [[re.escape(letter) for letter in word] for word in self.words]
        self._loose = [
            re.compile("".join(f"[^{each}]*+({each})" for each in word), re.DOTALL)
            for word in letters
        ]
        self._initial = [
            re.compile("".join(_begun(each, at) for at, each in enumerate(word)), re.DOTALL)
            for word in letters
        ]

    def among(self, names: Sequence[str], candidates: Iterable[int]) -> list[int]:
        """The candidates (places in `names`) whose names match, the best first; of equal ones the
        shorter, else in their order."""
        found = list(candidates)
        for loose, word in zip(self._loose, self.words, strict=True):
            match = loose.match
            if len(word) > 1:
                found = [at for at in found if match(names[at])]
            else:
                found = [at for at in found if word in names[at]]
        if not self.words:
            return found
        if len(found) <= SORTED:
            return sorted(found, key=lambda at: (self.rank(names[at]), len(names[at])))
        near = found
        for word in self.words:
            near = [at for at in near if word in names[at]]
        far = _without(found, near)
        if len(far) > INITIALS:
            return near + far
        begun = far
        for initial in self._initial:
            match = initial.match
            begun = [at for at in begun if match(names[at])]
        return near + begun + _without(far, begun)

    def rank(self, name: str) -> int:
        """How far a matching name is from the text: the worst of its words, from 0 on."""
        return max(map(self._rank, self.words, self._initial, (name,) * len(self.words)))

    def _rank(self, word: str, initial: re.Pattern[str], name: str) -> int:
        at = name.find(word)
        if at < 0:
            match = initial.match(name)
            return _SCATTERED if match is None else 2 + _jumps(match.regs[1:])
        while at > 0 and not _begins(name, at):
            at = name.find(word, at + 1)
        return 0 if at >= 0 else 1

    def marks(self, name: str) -> set[int]:
        """The places of the letters in a name; empty if it does not match."""
        found: set[int] = set()
        for word, initial, loose in zip(self.words, self._initial, self._loose, strict=True):
            at = name.find(word)
            if at >= 0:
                begun = (start for start in _places(word, name) if _begins(name, start))
                at = next(begun, at)
                found.update(range(at, at + len(word)))
                continue
            match = initial.match(name) or loose.match(name)
            if match is None:
                return set()
            found.update(match.start(group + 1) for group in range(len(word)))
        return found


def _jumps(spans: Sequence[tuple[int, int]]) -> int:
    return sum(before[1] != after[0] for before, after in pairwise(spans))


def _without(places: list[int], others: list[int]) -> list[int]:
    left = set(others)
    return [at for at in places if at not in left] if left else places


def _places(word: str, name: str) -> Iterable[int]:
    at = name.find(word)
    while at >= 0:
        yield at
        at = name.find(word, at + 1)


def _begun(letter: str, at: int) -> str:
    """The pattern of the typed letter at a place: right after the one before it, or where a part of
    the name begins, before which is no letter (of a digit: no digit)."""
    before = r"(?<!\d)" if letter.isdigit() else r"(?<![^\W\d_])" if letter.isalpha() else ""
    skipped = f"(?:|.*?{before})" if at else f".*?{before}"
    return f"(?>{skipped}({letter}))"


def _begins(name: str, at: int) -> bool:
    """Whether a part of the name begins at a place."""
    if not at:
        return True
    before, letter = name[at - 1], name[at]
    if letter.isdigit():
        return not before.isdigit()
    return not (letter.isalpha() and before.isalpha())
