"""What the verdicts mean together, from hand-made reports."""

import pytest
from told_truly import faults_of

from qtui_core.conformance.convention import Convention, Library, LibraryReport, Outcome, Verdict
from qtui_core.conformance.findings import conclude

EQUAL, VALUE, DIFFERS = Verdict.BYTE_EQUAL, Verdict.VALUE_EQUAL, Verdict.DIFFERS
ROWS = (
    Convention("lib.a", "a", EQUAL, "int4", "a()", "It does a"),
    Convention("lib.b", "b", VALUE, "int4", "b()", "It does b", "of its zeros"),
    Convention("lib.c", "c", DIFFERS, "int4", "c()", "It does c", "of its ties"),
)
LIBRARY = Library("lib", "lib", "1.0", ROWS)


def report_on(library, *verdicts, version="1.0"):
    outcomes = {
        row.id: Outcome(row.id, verdict, 10, message="lib.so is broken")
        for row, verdict in zip(library.conventions, verdicts, strict=True)
    }
    return LibraryReport(library, version, outcomes)


def findings(*verdicts, version="1.0"):
    return report_on(LIBRARY, *verdicts, version=version)


@pytest.mark.parametrize(
    ("verdicts", "broken"),
    [
        ((EQUAL, VALUE, DIFFERS), []),
        ((EQUAL, EQUAL, EQUAL), []),  # better than promised
        ((VALUE, VALUE, DIFFERS), ["lib.a"]),
        ((DIFFERS, DIFFERS, DIFFERS), ["lib.a", "lib.b"]),
        ((Verdict.FAILED, VALUE, DIFFERS), []),
        ((Verdict.NOT_INSTALLED,) * 3, []),
    ],
)
def test_a_promise_is_broken_by_a_weaker_verdict_only(verdicts, broken):
    assert [f.convention.id for f in findings(*verdicts).broken] == broken


def test_nothing_is_promised_of_a_version_before_the_first():
    row = Convention("lib.a", "a", EQUAL, "int4", "a()", "It does a", since="2.0")
    early = Library("lib", "lib", "2.0", (row,))
    assert report_on(early, DIFFERS, version="1.9").broken == ()
    assert report_on(early, DIFFERS, version="2.1").broken != ()


def others(*verdicts, since=""):
    rows = [Convention(f"lib.{n}", n, DIFFERS, "int4", "", "", "", since) for n in "ab"]
    return report_on(Library("lib", "lib", "1.0", tuple(rows[: len(verdicts)])), *verdicts)


NOWHERE, FAILED = Verdict.NOT_INSTALLED, Verdict.FAILED
WHERE = ": `qtui doctor --library NAME` says where and why."


@pytest.mark.parametrize(
    ("said", "checked"),
    [
        ("lib 1.0 agrees with qtui byte for byte in 1 convention and in value in 1, and differs "
         f"for a known reason in 1{WHERE}", [findings(EQUAL, VALUE, DIFFERS)]),
        ("lib 1.0 agrees with qtui byte for byte in 3 conventions.", [findings(*[EQUAL] * 3)]),
        (f"lib 1.0 differs for a known reason in 2 conventions{WHERE}", [others(DIFFERS, DIFFERS)]),
        (f"lib 1.0 differs for a known reason in 1 convention{WHERE}", [others(DIFFERS)]),
        (f"lib 1.0 differs in a version of before they were measured in 2 conventions{WHERE}",
         [others(DIFFERS, DIFFERS, since="2.0")]),
        ("3 conventions of lib 1.0 could not be checked (the first, lib.a: lib.so is broken).",
         [findings(*[FAILED] * 3)]),
        ("lib 1.0 agrees with qtui in value in 1 convention, and differs for a known reason in 1, "
         "but 1 convention could not be checked (the first, lib.a: lib.so is broken)" + WHERE,
         [findings(FAILED, VALUE, DIFFERS)]),
        ("lib is not installed, so there is nothing to compare qtui with.",
         [findings(*[NOWHERE] * 3)]),
        ("None of lib, lib is installed, so there is nothing to compare qtui with.",
         [findings(*[NOWHERE] * 3)] * 2),
        ("The 3 installed libraries that were asked agree with qtui byte for byte in 3 conventions "
         "and in value in 3, and differ for a known reason in 3" + WHERE,
         [findings(EQUAL, VALUE, DIFFERS)] * 3),
        ("qtui disagrees with the installed libraries where it should be equal (lib 1.1: a); they "
         "were equal with lib 1.0, so compare results with that version before you trust either "
         "side.",
         [findings(DIFFERS, VALUE, DIFFERS, version="1.1")]),
        ("qtui disagrees with the installed libraries where it should be equal (lib 1.0+cpu: a); "
         "they were equal with lib 1.0 on another machine, so it is not the version: trust "
         "neither side before you know why.",
         [findings(DIFFERS, VALUE, DIFFERS, version="1.0+cpu")]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)  # fmt: skip
def test_the_sentence_is_true_in_every_state(said, checked):
    assert conclude(checked) == said
    assert not faults_of(said)
