"""What the verdicts mean together, from hand-made reports."""

from __future__ import annotations

import pytest
from every import every
from told_truly import faults_of

from qtui_core.conformance.convention import (
    Convention,
    KnownFault,
    Library,
    LibraryReport,
    Outcome,
    Probed,
    Verdict,
)
from qtui_core.conformance.findings import conclude, findings_of

EQUAL, VALUE, DIFFERS = Verdict.BYTE_EQUAL, Verdict.VALUE_EQUAL, Verdict.DIFFERS
LIBRARY = Library(
    "lib",
    "lib",
    "1.0",
    (
        Convention("lib.a", "a", EQUAL, "int4", "a()", "It does a"),
        Convention("lib.b", "b", VALUE, "int4", "b()", "It does b", "of its zeros"),
        Convention("lib.c", "c", DIFFERS, "int4", "c()", "It does c", "of its ties"),
    ),
    (
        KnownFault("lib.f", "f", "It loses x", "x is lost", "keep x"),
        KnownFault("lib.g", "g", "It loses y", "y is lost", "keep y"),
    ),
)


def findings(*verdicts, faults=(False, False), version="1.0"):
    outcomes = [
        Outcome(c.id, v, 10, message="lib.so is broken")
        for c, v in zip(LIBRARY.conventions, verdicts, strict=True)
    ]
    probed = [Probed(f.id, p, "1 became 0") for f, p in zip(LIBRARY.faults, faults, strict=True)]
    return findings_of(LIBRARY, LibraryReport("lib", version, tuple(outcomes), tuple(probed)))


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
    early = Library(
        "lib",
        "lib",
        "2.0",
        (Convention("lib.a", "a", EQUAL, "int4", "a()", "It does a", since="2.0"),),
    )
    report = LibraryReport("lib", "1.9", (Outcome("lib.a", DIFFERS, 10),))
    assert findings_of(early, report).broken == ()
    assert findings_of(early, LibraryReport("lib", "2.1", report.outcomes)).broken != ()


def test_agreement_is_counted():
    assert conclude([findings(EQUAL, VALUE, DIFFERS)]) == (
        "lib 1.0 agrees with qtui byte for byte in 1 convention and in value in 1, and "
        "differs for a known reason in 1; no known fault of it is on this machine."
    )


def test_what_there_is_none_of_is_not_counted():
    assert conclude([findings(EQUAL, EQUAL, EQUAL)]).startswith(
        "lib 1.0 agrees with qtui byte for byte in 3 conventions; no known fault"
    )
    failed = conclude([findings(*(Verdict.FAILED,) * 3)])
    assert failed.startswith(
        "3 conventions of lib 1.0 could not be checked (the first, lib.a: lib.so"
    )


def test_a_fault_comes_with_what_to_do():
    sentence = conclude([findings(EQUAL, VALUE, DIFFERS, faults=(False, True))])
    assert sentence.endswith("1 known fault is on this machine (lib: it loses y): keep y.")
    assert "2 known faults" in conclude([findings(EQUAL, VALUE, DIFFERS, faults=(True, True))])


def test_a_probe_that_failed_is_no_fault():
    found = findings(EQUAL, VALUE, DIFFERS, faults=(None, False))
    assert found.faults == ()
    assert [fault.id for fault, _ in found.unprobed] == ["lib.f"]


def test_the_sentence_is_true_in_every_state():
    def others(*verdicts, since=""):
        rows = [Convention(f"lib.{n}", n, DIFFERS, "int4", "", "", "", since) for n in "ab"]
        library = Library("lib", "lib", "1.0", tuple(rows[: len(verdicts)]))
        outcomes = [Outcome(c.id, v, 10) for c, v in zip(rows, verdicts, strict=False)]
        return findings_of(library, LibraryReport("lib", "1.0", tuple(outcomes)))

    nowhere = Verdict.NOT_INSTALLED
    cases = (
        ("lib 1.0 differs for a known reason in 2 conventions; no fault of it is known", [
            others(DIFFERS, DIFFERS)]),
        ("lib 1.0 differs for a known reason in 1 convention;", [others(DIFFERS)]),
        ("lib 1.0 differs in a version of before they were measured in 2", [
            others(DIFFERS, DIFFERS, since="2.0")]),
        ("; 1 known fault of it could not be looked for, and no other is on this machine.", [
            findings(EQUAL, VALUE, DIFFERS, faults=(None, False))]),
        ("; 2 known faults of it could not be looked for.", [
            findings(EQUAL, VALUE, DIFFERS, faults=(None, None))]),
        ("but 1 convention could not be checked (", [findings(Verdict.FAILED, VALUE, DIFFERS)]),
        ("lib is not installed, so", [findings(nowhere, nowhere, nowhere)]),
        ("None of lib, lib is installed", [findings(nowhere, nowhere, nowhere)] * 2),
        ("The 3 installed libraries that were asked agree", [findings(EQUAL, VALUE, DIFFERS)] * 3),
        ("were equal with lib 1.0 on another machine, so it is not the version: trust neither", [
            findings(DIFFERS, VALUE, DIFFERS, version="1.0+cpu")]),
    )  # fmt: skip

    def check(words, checked):
        said = conclude(checked)
        assert words in said
        assert said[0].isupper() or said.startswith(("lib", "qtui", "1", "3"))
        assert not faults_of(said)

    every(cases, check)


def test_a_disagreement_comes_before_everything_else():
    sentence = conclude([findings(DIFFERS, VALUE, DIFFERS, faults=(True, True), version="1.1")])
    assert sentence.startswith(
        "qtui disagrees with the installed libraries where it should be equal"
    )
    assert "lib 1.1: a" in sentence
    assert "equal with lib 1.0" in sentence
