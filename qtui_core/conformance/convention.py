"""What a library is expected to do, and what it does. Standard library only.

A convention is a row: the two sides that are compared, the function of `checks` that runs them, and
the expected verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from qtui_core.codec import or_null
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
_STRENGTH = {BYTE_EQUAL: 2, VALUE_EQUAL: 1, DIFFERS: 0}


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
        numbers: the names in `data.numbers` of what is compared; without any, those of the check.
    """

    id: str
    check: str
    expected: Verdict
    ours: str
    theirs: str
    says: str
    why: str = ""
    since: str = ""
    numbers: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]

    def applies_to(self, version: str | None) -> bool:
        """Whether the convention says anything about this version of the library."""
        return not self.since or version is None or _numbers(version) >= _numbers(self.since)


@dataclass(frozen=True)
class Library:
    """A library that qtui is compared with: its name in pip, the module that is imported, and the
    version on which the expected verdicts were measured."""

    name: str
    module: str
    tested: str
    conventions: tuple[Convention, ...]


def library(name: str, module: str, tested: str, conventions: tuple[Convention, ...]) -> Library:
    """A library of the catalogue, whose rows are named without it."""
    rows = tuple(replace(row, id=f"{name}.{row.id}") for row in conventions)
    return Library(name, module, tested, rows)


@dataclass(frozen=True)
class Outcome:
    """What one check gave.

    Attributes:
        compared, different: codes.
        scales_different: scales and zero points with different bytes.
        values_different: decoded values.
        largest_difference: between two finite values, as a share of the largest magnitude in their
            tensor.
        example: the first difference, in words.
        message: of a failure.
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


def _if_compared(name: str) -> Callable[[Any], Any]:
    """For a row of PRINTED: reads a count of the outcome, None if no codes were compared."""
    return lambda finding: getattr(finding.outcome, name) if finding.outcome.compared else None


@dataclass(frozen=True)
class Finding:
    """A convention and its outcome; `applies` is whether it says anything of the version."""

    convention: Convention
    outcome: Outcome
    applies: bool = True

    PRINTED = (
        *((name, f"convention.{name}") for name in ("id", "says", "ours", "theirs", "expected")),
        ("verdict", "outcome.verdict"),
        "holds",
        ("why", or_null("convention.why")),
        ("codes_compared", or_null("outcome.compared")),
        ("codes_different", _if_compared("different")),
        ("scales_different", _if_compared("scales_different")),
        ("values_different", _if_compared("values_different")),
        ("largest_relative_difference", _if_compared("largest_difference")),
        ("example", or_null("outcome.example")),
        ("message", or_null("outcome.message")),
    )

    @property
    def holds(self) -> bool | None:
        """Whether the verdict is the expected one or stronger; None if nothing was compared, or if
        nothing is expected to be equal in this version."""
        verdict, expected = self.outcome.verdict, self.convention.expected
        if verdict not in _STRENGTH or expected is DIFFERS or not self.applies:
            return None
        return _STRENGTH[verdict] >= _STRENGTH[expected]


@dataclass(frozen=True)
class LibraryReport:
    """What was compared of one library.

    Attributes:
        version: None if it is not installed.
        outcomes: by id; every convention has one.
        seconds: that all of it took.
    """

    library: Library
    version: str | None
    outcomes: Mapping[str, Outcome]
    seconds: float = 0.0

    PRINTED = (
        ("library", "library.name"),
        "version",
        ("tested_version", "library.tested"),
        "seconds",
        ("conventions", "findings"),
    )

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(row, self.outcomes[row.id], row.applies_to(self.version))
            for row in self.library.conventions
        )

    @property
    def installed(self) -> bool:
        return len(self.of(Verdict.NOT_INSTALLED)) < len(self.library.conventions)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Conventions that were expected to be equal and are not."""
        return tuple(finding for finding in self.findings if finding.holds is False)

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """The conventions with this verdict."""
        return tuple(f for f in self.findings if f.outcome.verdict is verdict)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: `2.13.0+cpu` gives (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release.group().split(".")) if release else ()


def described(error: BaseException) -> str:
    """The class of an exception and the first line of its message."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
