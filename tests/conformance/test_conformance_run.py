"""Libraries that are missing, broken, slow or that kill their process; each gives a verdict."""

from __future__ import annotations

import os
import time

import pytest
from stub_libraries import ABORTS, ABSENT, FRAGILE_GGUF, HANGS, NOISY, stub

from qtui_core.child_environment import child_environment
from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.convention import Verdict
from qtui_core.conformance.findings import conclude, findings_of
from qtui_core.conformance.run import check_libraries

GGUF = find_library("gguf")


def check(folder, text, library=GGUF, timeout=60.0):
    folder.mkdir(exist_ok=True)
    paths = [
        stub(folder, library.module, text)["PYTHONPATH"],
        child_environment().get("PYTHONPATH"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    return check_libraries([library], timeout=timeout, environment=environment)[0]


def verdicts(report):
    return {outcome.verdict for outcome in report.outcomes}


def test_a_hidden_library_is_not_installed_and_never_passed(tmp_path):
    report = check(tmp_path, ABSENT)
    assert report.version is None
    assert verdicts(report) == {Verdict.NOT_INSTALLED}
    assert len(report.outcomes) == len(GGUF.conventions)
    findings = findings_of(GGUF, report)
    assert not findings.installed
    assert findings.broken == findings.failed == ()
    assert "nothing to compare" in conclude([findings])


def test_a_library_that_misses_a_dependency_failed_and_is_not_missing(tmp_path):
    report = check(tmp_path, "import a_module_that_nobody_has")
    assert verdicts(report) == {Verdict.FAILED}
    assert "a_module_that_nobody_has" in report.outcomes[0].message


def test_what_an_import_prints_is_no_answer(tmp_path):
    report = check(tmp_path, NOISY)
    assert verdicts(report) == {Verdict.FAILED}
    assert report.outcomes[0].message == "ImportError: libfoo.so.1: cannot open shared object file"


def test_an_import_that_ends_the_process_failed(tmp_path):
    report = check(tmp_path, ABORTS)
    assert verdicts(report) == {Verdict.FAILED}
    assert "SIGABRT" in report.outcomes[0].message


def test_an_import_that_hangs_is_given_up(tmp_path):
    started = time.monotonic()
    report = check(tmp_path, HANGS, timeout=1.0)
    assert time.monotonic() - started < 120
    assert verdicts(report) == {Verdict.FAILED}
    assert "within 1 seconds" in report.outcomes[0].message


def test_a_crash_in_one_convention_leaves_the_others_their_verdicts(tmp_path):
    report = check(tmp_path, FRAGILE_GGUF)
    messages = {outcome.id: outcome.message for outcome in report.outcomes}
    assert verdicts(report) == {Verdict.FAILED}
    assert messages.pop("gguf.q5_0") == "its process was ended by SIGABRT"
    assert set(messages.values()) == {"RuntimeError: made to fail"}


def test_a_failure_is_told_and_disagrees_with_nobody(tmp_path):
    findings = findings_of(GGUF, check(tmp_path, FRAGILE_GGUF))
    assert findings.broken == ()
    assert len(findings.failed) == len(GGUF.conventions)
    sentence = conclude([findings])
    assert "could not be checked" in sentence
    assert "gguf.q4_0" in sentence


def test_libraries_come_back_in_the_order_they_were_named(tmp_path):
    libraries = [find_library(name) for name in ("gfloat", "ml_dtypes", "gguf")]
    for library in libraries:
        stub(tmp_path, library.module, ABSENT)
    stub(tmp_path, "gfloat", f"import time; time.sleep(1)\n{ABSENT}")  # the last to be done
    environment = {**os.environ, **stub(tmp_path, "never_asked", ABSENT)}
    seen = []
    reports = check_libraries(
        libraries, environment=environment, progress=lambda *told: seen.append(told)
    )
    assert seen[-1][2] == "gfloat"
    assert [report.name for report in reports] == ["gfloat", "ml_dtypes", "gguf"]
    assert [told[:2] for told in seen] == [(1, 3), (2, 3), (3, 3)]
    assert {told[2] for told in seen} == {"gfloat", "ml_dtypes", "gguf"}


def test_a_child_that_cannot_be_started_is_an_error_and_not_a_verdict(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        check_libraries([GGUF])
