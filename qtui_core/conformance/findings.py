"""What all verdicts together mean: which libraries agree, which do not, and which faults are
present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qtui_core.codec import or_null, printed
from qtui_core.conformance.convention import (
    Convention,
    KnownFault,
    Library,
    LibraryReport,
    Outcome,
    Probed,
    Verdict,
)
from qtui_core.dataclass import dataclass
from qtui_core.quantities import plural


def _where_compared(name: str) -> Callable[[Any], Any]:
    """For a row of PRINTED: reads a count of the outcome, None if no codes were compared."""
    return lambda found: getattr(found.outcome, name) if found.outcome.compared else None


@dataclass(frozen=True)
class Finding:
    """A convention and what was found about it. `holds` is None if nothing was expected to be equal
    in this version, or nothing was compared; `applies` is whether it says anything of it."""

    convention: Convention
    outcome: Outcome
    holds: bool | None
    applies: bool = True

    PRINTED = (
        ("id", "convention.id"),
        ("says", "convention.says"),
        ("ours", "convention.ours"),
        ("theirs", "convention.theirs"),
        ("expected", "convention.expected"),
        ("verdict", "outcome.verdict"),
        "holds",
        ("why", or_null("convention.why")),
        ("codes_compared", or_null("outcome.compared")),
        ("codes_different", _where_compared("different")),
        ("scales_different", _where_compared("scales_different")),
        ("values_different", _where_compared("values_different")),
        ("largest_relative_difference", _where_compared("largest_difference")),
        ("example", or_null("outcome.example")),
        ("message", or_null("outcome.message")),
    )


#: A fault, and whether it is present on this machine.
_FAULT = (
    ("id", lambda pair: pair[0].id),
    ("present", lambda pair: pair[1].present),
    ("says", lambda pair: pair[0].says),
    ("consequence", lambda pair: pair[0].consequence),
    ("remedy", lambda pair: pair[0].remedy),
    ("detail", lambda pair: pair[1].detail or None),
)


@dataclass(frozen=True)
class LibraryFindings:
    """A library and everything that was found about it.

    Attributes:
        probed: every fault that was looked for, and whether it is present on this machine.
    """

    library: Library
    report: LibraryReport
    findings: tuple[Finding, ...]
    probed: tuple[tuple[KnownFault, Probed], ...]

    PRINTED = (
        ("library", "library.name"),
        ("version", "report.version"),
        ("tested_version", "library.tested"),
        ("seconds", "report.seconds"),
        ("conventions", "findings"),
        ("faults", lambda found: [printed(pair, _FAULT) for pair in found.probed]),
    )

    @property
    def faults(self) -> tuple[tuple[KnownFault, Probed], ...]:
        """The faults that are present on this machine, each with the figure that shows it."""
        return tuple(pair for pair in self.probed if pair[1].present)

    @property
    def unprobed(self) -> tuple[tuple[KnownFault, Probed], ...]:
        """The faults whose probe failed."""
        return tuple(pair for pair in self.probed if pair[1].present is None)

    @property
    def installed(self) -> bool:
        return any(f.outcome.verdict is not Verdict.NOT_INSTALLED for f in self.findings)

    @property
    def broken(self) -> tuple[Finding, ...]:
        """Conventions that were expected to be equal and are not."""
        return tuple(f for f in self.findings if f.holds is False)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.outcome.verdict is Verdict.FAILED)

    def count(self, verdict: Verdict) -> int:
        return sum(f.outcome.verdict is verdict for f in self.findings)


def findings_of(library: Library, report: LibraryReport) -> LibraryFindings:
    """The report on a library together with what was expected of it."""
    by_id = {outcome.id: outcome for outcome in report.outcomes}
    findings = []
    for convention in library.conventions:
        outcome = by_id[convention.id]
        applies = convention.applies_to(report.version)
        holds = outcome.holds(convention) if applies else None
        findings.append(Finding(convention, outcome, holds, applies))
    faults = {fault.id: fault for fault in library.faults}
    probed = tuple((faults[found.id], found) for found in report.faults)
    return LibraryFindings(library, report, tuple(findings), probed)


def conclude(checked: Sequence[LibraryFindings]) -> str:
    """One sentence: whether the installed libraries can be trusted, and what to do."""
    here = [s for s in checked if s.installed]
    if not here:
        names = [s.library.name for s in checked]
        none = f"None of {', '.join(names)} is" if len(names) > 1 else f"{names[0]} is not"
        return f"{none} installed, so there is nothing to compare qtui with."
    broken = [(s, s.broken) for s in here if s.broken]
    if broken:
        parts = "; ".join(
            f"{s.library.name} {s.report.version}: {_listed([f.convention.name for f in found])}"
            for s, found in broken
        )
        tested = _listed([f"{s.library.name} {s.library.tested}" for s, _ in broken])
        advice = (
            f"they were equal with {tested}, so compare results with that version before you trust "
            f"either side"
        )
        if all(same_version(s.report.version or "", s.library.tested) for s, _ in broken):
            advice = (
                f"they were equal with {tested} on another machine, so it is not the version: "
                f"trust neither side before you know why"
            )
        return (
            f"qtui disagrees with the installed libraries where it should be equal ({parts}); "
            f"{advice}."
        )
    opening = _agreement(here)
    if failed := sum(len(s.failed) for s in here):
        first = next(s.failed[0] for s in here if s.failed)
        where = "" if opening else f" of {_libraries(here)}"
        opening += (
            f"{', but ' if opening else ''}{plural(failed, 'convention')}{where} could not be "
            f"checked (the first, {first.convention.id}: "
            f"{first.outcome.message.rstrip('.')})"
        )
    return f"{opening}; {_faults(here)}."


def same_version(version: str, tested: str) -> bool:
    """Whether two versions are the same, apart from a local build tag (`2.13.0+cpu`)."""
    return version.partition("+")[0] == tested


def _libraries(here: Sequence[LibraryFindings]) -> str:
    if len(here) <= 2:
        return _listed([f"{s.library.name} {s.report.version or ''}".rstrip() for s in here])
    return f"the {len(here)} installed libraries that were asked"


def _agreement(here: Sequence[LibraryFindings]) -> str:
    """Where the libraries agree with qtui and where they differ; "" if nothing was compared."""
    names = _libraries(here)
    agree, differ = ("agrees", "differs") if len(here) == 1 else ("agree", "differ")
    counts = {verdict: sum(s.count(verdict) for s in here) for verdict in Verdict}
    equal: list[str] = []
    for verdict, how in ((Verdict.BYTE_EQUAL, "byte for byte"), (Verdict.VALUE_EQUAL, "in value")):
        if count := counts[verdict]:
            noun = "" if equal else " convention" if count == 1 else " conventions"
            equal.append(f"{how} in {count}{noun}")
    parts = [f"{agree} with qtui {' and '.join(equal)}"] if equal else []
    # What holds for later versions only may differ for any reason.
    differing = [f for s in here for f in s.findings if f.outcome.verdict is Verdict.DIFFERS]
    known = sum(f.applies for f in differing)
    for count, why in (
        (known, "for a known reason"),
        (len(differing) - known, "in a version of before they were measured"),
    ):
        if count:
            noun = "" if parts else " convention" if count == 1 else " conventions"
            parts.append(f"{differ} {why} in {count}{noun}")
    if not parts:
        return ""
    return f"{names.replace('the ', 'The ', 1) if len(here) > 2 else names} {', and '.join(parts)}"


def _faults(here: Sequence[LibraryFindings]) -> str:
    whose = "it" if len(here) == 1 else "them"
    faults = [(s.library.name, fault) for s in here for fault, _ in s.faults]
    if not any(s.library.faults for s in here):
        return f"no fault of {whose} is known"
    unprobed = sum(len(s.unprobed) for s in here)
    unknown = f"{plural(unprobed, 'known fault')} of {whose} could not be looked for"
    if not faults:
        if not unprobed:
            return f"no known fault of {whose} is on this machine"
        found = any(known.present is False for s in here for _, known in s.probed)
        return f"{unknown}{', and no other is on this machine' if found else ''}"
    name, first = faults[0]
    what = first.says[0].lower() + first.says[1:] if first.says[1:2].islower() else first.says
    if len(faults) == 1:
        return f"1 known fault is on this machine ({name}: {what}): {first.remedy}"
    return (
        f"{len(faults)} known faults are on this machine, to begin with {name} ({what}): "
        f"{first.remedy}"
    )


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = list(names[:most])
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
