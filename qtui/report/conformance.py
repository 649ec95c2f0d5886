"""Sections of a report that compare the conventions of libraries with qtui's."""

from __future__ import annotations

from collections.abc import Sequence

from qtui.report.document import Column, Facts, Section, Table, Tone
from qtui_core.conformance.catalogue import LIBRARIES
from qtui_core.conformance.convention import Finding, LibraryReport, Outcome, Verdict
from qtui_core.conformance.findings import same_version
from qtui_core.extras import install_command
from qtui_core.quantities import plural

#: Verdict -> its tone, if it is the expected verdict.
_TONES: dict[Verdict, Tone] = {
    Verdict.BYTE_EQUAL: "good",
    Verdict.VALUE_EQUAL: "good",
    Verdict.DIFFERS: "warn",
    Verdict.NOT_INSTALLED: "dim",
    Verdict.FAILED: "bad",
}
_NAMES = {"qtui", *(library.module for library in LIBRARIES)}


def conformance_sections(checked: Sequence[LibraryReport], *, details: bool) -> list[Section]:
    """A section for each library with a table of its conventions and reasons for differences; with
    `details` it describes every convention in full."""
    missing = [s for s in checked if not s.installed]
    sections = [_section(s, details) for s in checked if s.installed]
    if missing:
        listed = ", ".join(
            f"{s.library.name} ({plural(len(s.findings), 'convention')})" for s in missing
        )
        install = install_command(*(s.library.name for s in missing))
        remedy = f"`{install}` in this environment has them compared too."
        sections.append(Section("Not installed, so not compared", (listed, remedy)))
    return sections


def _section(report: LibraryReport, details: bool) -> Section:
    shown = [f for f in report.findings if details or f.outcome.verdict is not Verdict.BYTE_EQUAL]
    explain = _explain_fully if details else _explain
    notes = tuple((f.convention.name, explain(f)) for f in shown)
    title = "What they are" if details else "Why not all are equal to the byte"
    blocks: list[Table | Facts | str] = [_table(report.findings, title if notes else "")]
    if notes:
        blocks.append(Facts(notes))
    version = report.version or "of unknown version"
    tested = "" if same_version(version, report.library.tested) else (
        f", expectations measured with {report.library.tested}"
    )  # fmt: skip
    return Section(f"{report.library.name} {version} next to qtui{tested}", tuple(blocks))


def _table(findings: Sequence[Finding], note: str) -> Table:
    return Table(
        columns=(
            Column("convention", key=True),
            Column("verdict"),
            Column("codes differing", numeric=True),
            Column("qtui's side"),
        ),
        rows=tuple(
            (
                f.convention.name,
                _verdict(f),
                _share(f.outcome),
                f.convention.ours.removeprefix("encode "),
            )
            for f in findings
        ),
        tones=tuple("bad" if f.holds is False else _TONES[f.outcome.verdict] for f in findings),
        note=note,
    )


def _verdict(finding: Finding) -> str:
    verdict = str(finding.outcome.verdict)
    return f"{verdict}, not {finding.convention.expected}" if finding.holds is False else verdict


def _share(outcome: Outcome) -> str:
    if outcome.compared == 0:
        return "refused" if outcome.verdict is Verdict.DIFFERS else "–"
    if outcome.different == 0 and outcome.values_different:
        return plural(outcome.values_different, "value")
    return f"{outcome.different:,} of {outcome.compared:,}"


def _explain(finding: Finding) -> str:
    """Why a convention is not byte-equal, in a line or two."""
    outcome, convention = finding.outcome, finding.convention
    if outcome.verdict is Verdict.FAILED:
        return outcome.message
    if finding.holds is False:
        return f"{_sentence(convention.says)} {_figures(outcome)}."
    return " ".join(_sentence(part) for part in (convention.says, convention.why) if part)


def _sentence(text: str) -> str:
    """The text with a full stop, and with a capital unless it starts with a library's name."""
    first = text.partition(" ")[0].strip(",:;")
    capital = text if first in _NAMES else text[0].upper() + text[1:]
    return f"{capital}."


def _explain_fully(finding: Finding) -> str:
    outcome, convention = finding.outcome, finding.convention
    parts = [_sentence(convention.says)]
    if convention.why and outcome.verdict is not Verdict.BYTE_EQUAL:
        parts.append(_sentence(convention.why))
    parts.append(f"There: {convention.theirs}.")
    if outcome.verdict is Verdict.FAILED:
        parts.append(f"Failed: {outcome.message.rstrip('.')}.")
    elif figures := _figures(outcome):
        parts.append(f"{figures}.")
    return " ".join(parts)


def _figures(outcome: Outcome) -> str:
    parts = []
    if outcome.different:
        verb = "differs" if outcome.different == 1 else "differ"
        parts.append(f"{outcome.different:,} of {plural(outcome.compared, 'code')} {verb}")
    if outcome.scales_different:
        parts.append(plural(outcome.scales_different, "scale or zero point differs",
                            "scales or zero points differ"))  # fmt: skip
    if outcome.values_different:
        by = ""
        if outcome.largest_difference:
            by = f", by at most {outcome.largest_difference * 100:.2g}% of the largest magnitude"
        parts.append(plural(outcome.values_different, "value differs", "values differ") + by)
    if outcome.example:
        parts.append(outcome.example)
    return "; ".join(parts)
