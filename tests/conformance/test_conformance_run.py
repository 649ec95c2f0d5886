"""Libraries that are missing, broken, slow or that kill their process; each gives a verdict."""

import time

import pytest
from stub_libraries import ABORTS, ABSENT, FRAGILE_GGUF, HANGS, NOISY, stub

from qtui_core.conformance.catalogue import find_library
from qtui_core.conformance.convention import Verdict
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


@pytest.mark.parametrize(
    ("text", "verdict", "message"),
    [
        (ABSENT, Verdict.NOT_INSTALLED, ""),
        ("import a_module_that_nobody_has", Verdict.FAILED, "a_module_that_nobody_has"),
        # What an import prints is no answer.
        (NOISY, Verdict.FAILED, "ImportError: libfoo.so.1: cannot open shared object file"),
        (ABORTS, Verdict.FAILED, "SIGABRT"),
        (HANGS, Verdict.FAILED, "within 1 seconds"),
    ],
    ids=["absent", "without a dependency", "noisy", "aborts", "hangs"],
)
def test_a_library_that_does_not_answer_is_never_passed(check, text, verdict, message):
    started = time.monotonic()
    report = check(text, timeout=1.0 if text == HANGS else 60.0)
    assert time.monotonic() - started < 120
    assert [outcome.verdict for outcome in report.outcomes.values()] == [verdict] * len(
        GGUF.conventions
    )
    assert message in next(iter(report.outcomes.values())).message
    assert report.broken == ()
    if verdict is Verdict.NOT_INSTALLED:
        assert (report.version, report.installed, report.of(Verdict.FAILED)) == (None, False, ())


def test_a_crash_in_one_convention_leaves_the_others_their_verdicts(check):
    report = check(FRAGILE_GGUF)
    messages = {id: outcome.message for id, outcome in report.outcomes.items()}
    assert messages.pop("gguf.q5_0") == "its process was ended by SIGABRT"
    assert set(messages.values()) == {"RuntimeError: made to fail"}
    assert report.broken == ()
    assert len(report.of(Verdict.FAILED)) == len(GGUF.conventions)


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
