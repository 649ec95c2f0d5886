"""Libraries that are missing, broken, slow or that kill their process; each gives a verdict."""

from __future__ import annotations

import time

import pytest
from stub_libraries import ABORTS, ABSENT, FRAGILE_GGUF, HANGS, NOISY, stub

from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.convention import Verdict
from qtui_core.conformance.findings import conclude
from qtui_core.conformance.run import check_libraries
from qtui_core.job import Job

GGUF = find_library("gguf")


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks GGUF with a stub in its place."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def check(text, timeout=60.0):
        stub(tmp_path, GGUF.module, text)
        return check_libraries([GGUF], timeout=timeout)[0]

    return check


def first_message(report):
    return next(iter(report.outcomes.values())).message


def verdicts(report):
    return {outcome.verdict for outcome in report.outcomes.values()}


def test_a_hidden_library_is_not_installed_and_never_passed(check):
    report = check(ABSENT)
    assert report.version is None
    assert verdicts(report) == {Verdict.NOT_INSTALLED}
    assert len(report.outcomes) == len(GGUF.conventions)
    assert not report.installed
    assert report.broken == report.of(Verdict.FAILED) == ()
    assert "nothing to compare" in conclude([report])


def test_a_library_that_misses_a_dependency_failed_and_is_not_missing(check):
    report = check("import a_module_that_nobody_has")
    assert verdicts(report) == {Verdict.FAILED}
    assert "a_module_that_nobody_has" in first_message(report)


def test_what_an_import_prints_is_no_answer(check):
    report = check(NOISY)
    assert verdicts(report) == {Verdict.FAILED}
    assert first_message(report) == "ImportError: libfoo.so.1: cannot open shared object file"


def test_an_import_that_ends_the_process_failed(check):
    report = check(ABORTS)
    assert verdicts(report) == {Verdict.FAILED}
    assert "SIGABRT" in first_message(report)


def test_an_import_that_hangs_is_given_up(check):
    started = time.monotonic()
    report = check(HANGS, timeout=1.0)
    assert time.monotonic() - started < 120
    assert verdicts(report) == {Verdict.FAILED}
    assert "within 1 seconds" in first_message(report)


def test_a_crash_in_one_convention_leaves_the_others_their_verdicts(check):
    report = check(FRAGILE_GGUF)
    messages = {id: outcome.message for id, outcome in report.outcomes.items()}
    assert verdicts(report) == {Verdict.FAILED}
    assert messages.pop("gguf.q5_0") == "its process was ended by SIGABRT"
    assert set(messages.values()) == {"RuntimeError: made to fail"}


def test_a_failure_disagrees_with_nobody(check):
    report = check(FRAGILE_GGUF)
    assert report.broken == ()
    assert len(report.of(Verdict.FAILED)) == len(GGUF.conventions)
    sentence = conclude([report])
    assert "could not be checked" in sentence
    assert "gguf.q4_0" in sentence


def test_libraries_come_back_in_the_order_they_were_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    libraries = [find_library(name) for name in ("torchao", "torch", "gguf")]
    for library in libraries:
        stub(tmp_path, library.module, ABSENT)
    stub(tmp_path, "torchao", f"import time; time.sleep(2)\n{ABSENT}")  # the last to be done
    seen = []
    reports = check_libraries(libraries, job=Job(lambda *now: seen.append(now)))
    assert [report.library.name for report in reports] == ["torchao", "torch", "gguf"]
    assert seen == [(1, 3, "torch"), (2, 3, "gguf"), (3, 3, "torchao")]
