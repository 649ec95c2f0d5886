"""What a library is expected to do, and what was found. Standard library only.

A convention is a row: the two sides that are compared, the function of `checks` that runs them, and
the expected verdict.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

from qtui_core.dataclass import dataclass


class Verdict(StrEnum):
    """The result for a convention. Only the first three come from a comparison."""

    BYTE_EQUAL = "byte-equal"
    """Codes, scales and zero points have the same bytes and decode to the same values."""
    VALUE_EQUAL = "value-equal"
    """Some bytes differ, and all values are the same."""
    DIFFERS = "differs"
    NOT_INSTALLED = "not-installed"
    FAILED = "failed"
    """The library raised, could not be imported, hung or ended its process."""


#: The verdicts that a row may expect.
BYTE_EQUAL: Final = Verdict.BYTE_EQUAL
VALUE_EQUAL: Final = Verdict.VALUE_EQUAL
DIFFERS: Final = Verdict.DIFFERS

#: How strong a verdict is; a convention holds if it is at least the expected one.
_STRENGTH = {Verdict.BYTE_EQUAL: 2, Verdict.VALUE_EQUAL: 1, Verdict.DIFFERS: 0}


@dataclass(frozen=True)
class Convention:
    """One thing that a library does, compared with what qtui does.

    Attributes:
        id: `LIBRARY.NAME`.
        check: the function of `checks/LIBRARY.py` that runs both sides.
        expected: the verdict on the tested version.
        ours: what qtui runs: the text of a scheme, or `encode FORMAT ROUNDING saturate|nosat` for a
            cast.
        theirs: the call of the library, as a person would write it.
        says: what the library does, a sentence without its full stop.
        why: the reason, if bytes differ.
        since: the first version of the library that this applies to; "" for any.
        numbers: for a cast, the names in `data.NUMBERS` of what is cast.
    """

    id: str
    check: str
    expected: Verdict
    ours: str
    theirs: str
    says: str
    why: str = ""
    since: str = ""
    numbers: tuple[str, ...] = ("every BF16", "ties")

    @property
    def library(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]

    @property
    def must_hold(self) -> bool:
        """Whether codes or values are expected to be equal."""
        return self.expected in (Verdict.BYTE_EQUAL, Verdict.VALUE_EQUAL)

    def applies_to(self, version: str | None) -> bool:
        """Whether the convention says anything about this version of the library."""
        return not self.since or version is None or _numbers(version) >= _numbers(self.since)


@dataclass(frozen=True)
class KnownFault:
    """Something that a library is known to do wrong on some machines or in some versions.

    Attributes:
        id: `LIBRARY.NAME`.
        probe: the function of `checks/LIBRARY.py` that looks for it.
        says: what the library does, a sentence without its full stop.
        consequence: what that means for the user.
        remedy: what to do, as an instruction.
    """

    id: str
    probe: str
    says: str
    consequence: str
    remedy: str


@dataclass(frozen=True)
class Library:
    """A library that qtui is compared with.

    Attributes:
        name: of the distribution, as in pip.
        module: what is imported.
        tested: the version on which the expected verdicts were measured.
    """

    name: str
    module: str
    tested: str
    conventions: tuple[Convention, ...]
    faults: tuple[KnownFault, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What was found about one convention.

    Attributes:
        compared: how many codes were compared.
        different: how many of them differ.
        scales_different: how many scales and zero points have different bytes.
        values_different: how many decoded values differ.
        largest_difference: between two finite values, as a share of the largest magnitude in their
            tensor.
        example: the first difference, in words.
        message: of a failure.
        seconds: how long the comparison took.
    """

    id: str
    verdict: Verdict
    compared: int = 0
    different: int = 0
    scales_different: int = 0
    values_different: int = 0
    largest_difference: float = 0.0
    example: str = ""
    message: str = ""
    seconds: float = 0.0

    def holds(self, convention: Convention) -> bool | None:
        """Whether the verdict is the expected one or stronger; None if nothing was compared or
        nothing is expected to be equal."""
        if self.verdict not in _STRENGTH or not convention.must_hold:
            return None
        return _STRENGTH[self.verdict] >= _STRENGTH[convention.expected]


@dataclass(frozen=True)
class Probed:
    """Whether a fault is present on this machine; None if the probe itself failed."""

    id: str
    present: bool | None
    detail: str = ""


@dataclass(frozen=True)
class LibraryReport:
    """Everything found about one library. `version` is None when it is not installed."""

    name: str
    version: str | None
    outcomes: tuple[Outcome, ...]
    faults: tuple[Probed, ...] = ()
    seconds: float = 0.0


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: `2.13.0+cpu` gives (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()
