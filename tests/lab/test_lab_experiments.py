"""Experiments that are run: their findings agree with theory and with other runs."""

from __future__ import annotations

import pytest
from lab_runs import conducted

from qtui_core.lab.results import JobDone, LabBegun, LabResult

pytestmark = pytest.mark.slow


def test_dead_terms_are_told_and_a_recorded_job_is_not_run_again():
    told, result = conducted("dead")
    assert isinstance(told[0], LabBegun)
    assert isinstance(result, LabResult)
    assert result.ended == "done"
    judged = {row["term"]: row["judged"] for row in result.findings.rows}
    assert judged == {
        "decay": "dead",
        "second moment": "dead",
        "average": "biased",
        "accumulation": "fine",
    }
    average = next(row for row in result.findings.rows if row["term"] == "average")
    assert average["reached"] == 0.25
    assert "Weight decay does nothing in BF16" in result.findings.verdict
    done = [each for each in told if isinstance(each, JobDone)]
    again, same = conducted("dead", done=done, check=lambda: pytest.fail("nothing is left to run"))
    assert same.findings == result.findings
    assert any(isinstance(each, JobDone) for each in again)


def test_no_term_is_dead_where_none_has_anything_to_do():
    _, result = conducted("dead", decay=0.0, beta2=0.95, ema=0.0, accumulation=1)
    assert "does nothing" not in result.findings.verdict
