"""What all verdicts together mean: which libraries agree with qtui, and which do not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qtui_core.conformance.convention import (
    BYTE_EQUAL,
    DIFFERS,
    VALUE_EQUAL,
    LibraryReport,
    Verdict,
)
from qtui_core.quantities import plural


def conclude(checked: Sequence[LibraryReport]) -> str:
    """One sentence: whether the installed libraries can be trusted, and what to do."""
    here = [report for report in checked if report.installed]
    if not here:
        names = [report.library.name for report in checked]
        none = f"None of {', '.join(names)} is" if len(names) > 1 else f"{names[0]} is not"
        return f"{none} installed, so there is nothing to compare qtui with."
    if broken := [report for report in here if report.broken]:
        return _disagreement(broken)
    opening = _agreement(here)
    if failed := [finding for report in here for finding in report.of(Verdict.FAILED)]:
        where = "" if opening else f" of {_libraries(here)}"
        opening += (
            f"{', but ' if opening else ''}{plural(len(failed), 'convention')}{where} could not be "
            f"checked (the first, {failed[0].convention.id}: "
            f"{failed[0].outcome.message.rstrip('.')})"
        )
    if any(report.of(DIFFERS) for report in here):
        return f"{opening}: `qtui doctor --library NAME` says where and why."
    return f"{opening}."


def same_version(version: str | None, tested: str) -> bool:
    """Whether two versions are the same, apart from a local build tag (`2.13.0+cpu`)."""
    return (version or "").partition("+")[0] == tested


def _disagreement(broken: Sequence[LibraryReport]) -> str:
    parts = "; ".join(
        f"{report.library.name} {report.version}: "
        f"{_listed([finding.convention.name for finding in report.broken])}"
        for report in broken
    )
    tested = _listed([f"{report.library.name} {report.library.tested}" for report in broken])
    advice = "so compare results with that version before you trust either side"
    if all(same_version(report.version, report.library.tested) for report in broken):
        tested += " on another machine"
        advice = "so it is not the version: trust neither side before you know why"
    return (
        f"qtui disagrees with the installed libraries where it should be equal ({parts}); "
        f"they were equal with {tested}, {advice}."
    )


def _libraries(here: Sequence[LibraryReport]) -> str:
    if len(here) <= 2:
        return _listed(
            [f"{report.library.name} {report.version or ''}".rstrip() for report in here]
        )
    return f"the {len(here)} installed libraries that were asked"


def _agreement(here: Sequence[LibraryReport]) -> str:
    """Where the libraries agree with qtui and where they differ; "" if nothing was compared."""
    agree, differ = ("agrees", "differs") if len(here) == 1 else ("agree", "differ")
    bytes_equal, values_equal, differing = (
        [finding for report in here for finding in report.of(verdict)]
        for verdict in (BYTE_EQUAL, VALUE_EQUAL, DIFFERS)
    )
    equal = ((bytes_equal, "byte for byte in"), (values_equal, "in value in"))
    parts = [" and ".join(f"{how} {len(rows)}" for rows, how in equal if rows)]
    parts = [f"{agree} with qtui {part}" for part in parts if part]
    # What holds for later versions only may differ for any reason.
    known = sum(finding.applies for finding in differing)
    unknown = len(differing) - known
    parts += [f"{differ} for a known reason in {known}"] * bool(known)
    parts += [f"{differ} in a version of before they were measured in {unknown}"] * bool(unknown)
    if not parts:
        return ""
    text = f"{_libraries(here)} {', and '.join(parts)}"
    text = re.sub(r" in (\d+)", lambda m: f" in {plural(int(m[1]), 'convention')}", text, count=1)
    return f"The{text.removeprefix('the')}" if len(here) > 2 else text


def _listed(names: Sequence[str], most: int = 3) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
