import pytest

from qtui_core.job import Cancelled, Job


def test_a_part_reports_within_its_share_of_the_whole():
    heard: list[tuple[float, float, str]] = []
    whole = Job(lambda done, total, words: heard.append((done, total, words)))
    whole.at(1, 4, "read")
    whole.part(0.5, 1.0).part(0.5, 1.0).at(2, 4, "measured")
    whole.part(0.5, 0.5).at(1)
    assert heard == [(1, 4, "read"), (0.875, 1.0, "measured")]


def test_work_ends_at_the_next_report_of_any_part_once_it_is_cancelled():
    stopped = False
    job = Job(cancelled=lambda: stopped)
    job.part(0.0, 0.5).at(0.5)
    stopped = True
    for part in (job, job.part(0.0, 0.5), job.part(0.0, 0.0)):
        with pytest.raises(Cancelled):
            part.at(1.0)
        with pytest.raises(Cancelled):
            part.check()
