"""The state of a run as it reports, its series, and where moments lie on the predicted curve."""

import math
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_runs import BEFORE, CURVE, MIB, ON_GPU, PEAKS, STEP, run

from qtui_core.live.compare import aligned
from qtui_core.live.snapshot import (
    End,
    Fault,
    LogMessage,
    PhaseBegun,
    PhaseEnded,
    Sample,
    State,
    StepTaken,
)
from qtui_core.live.state import (
    FAULTS,
    LOG,
    MOST,
    RECENT,
    SPANS,
    Moment,
    RunState,
    Series,
    after,
    from_line,
    to_line,
)


def fold(told, state=None):
    *_, last = accumulate(told, after, initial=state or RunState())
    return last


def test_a_run_is_followed_from_header_to_end():
    states = list(accumulate(run(), after, initial=RunState()))
    statuses = [state.status for state in states]
    assert list(dict.fromkeys(statuses)) == ["waiting", "starting", "running", "done"]
    last = states[-1]
    assert last.over
    assert last.losses == pytest.approx((4.9, 4.8, 4.7))
    assert [phase.name for phase in last.phases] == [*BEFORE, *STEP]
    for name, found in zip([*BEFORE, *STEP], last.phases, strict=True):
        assert found.most.peak_allocated_bytes == (PEAKS[name] + 1) * MIB
        assert (found.first.step, found.last.step) == ((1, 3) if name in STEP else (0, 0))
    assert len(last.spans) == len(BEFORE) + 3 * len(STEP)
    assert all(span.ended == pytest.approx(span.begun + 0.4) for span in last.spans)
    most = max(PEAKS.values()) + 1
    assert (last.most_reserved, last.most_process, last.most_device) == (
        (most + 20) * MIB,
        (most + 430) * MIB,
        (most + 930) * MIB,
    )
    assert last.log[-1].text == "step 3"
    assert last.seconds == pytest.approx(0.4 * len(last.spans))
    assert fold(from_line(to_line(told)) for told in run()) == last  # a replay
    assert after(last, ON_GPU) == RunState(header=ON_GPU, status="starting")  # another run


def test_pausing_and_going_on():
    state = fold([ON_GPU, PhaseBegun(1.0, 1, "forward"), State(2.0, "paused")])
    assert state.status == "paused"
    assert after(state, State(3.0, "running")).status == "running"
    assert after(state, State(3.0, "napping")).status == "paused"  # of a later version


def test_the_fault_that_ended_a_run_stays_before_all_others():
    mild = Fault(1.0, 1, "forward", "not a number", "The loss is no number.", fatal=False)
    fatal = Fault(2.0, 2, "loss", "out of memory", "There is no more.", asked_bytes=MIB)
    state = fold([ON_GPU, mild, fatal, replace(mild, seconds=3.0), End(4.0, "failed")])
    assert state.fault == fatal
    assert [fault.kind for fault in state.faults].count("not a number") == 2
    assert (state.status, state.log[-1]) == ("failed", LogMessage(3.0, mild.text))


def test_nothing_grows_with_the_length_of_a_run_but_the_steps():
    def long():
        yield ON_GPU
        mild = Fault(0.0, 1, "loss", "not a number", "No.", fatal=False)
        for step in range(1, 1500):
            yield PhaseBegun(float(step), step, "forward")
            yield Sample(step + 0.1, step, "forward", step)
            yield PhaseEnded(step + 0.2, step, "forward", step, step)
            yield StepTaken(step + 0.2, step, math.nan, 0.1, 1)
            yield mild

    state = fold(long())
    assert (len(state.recent), len(state.spans)) == (RECENT, SPANS)
    assert (len(state.log), len(state.faults)) == (LOG, FAULTS)
    assert len(state.history.moments) <= MOST
    assert len(state.steps) == 1499
    assert len(state.phases) == 1


@settings(max_examples=25)
@given(st.lists(st.none() | st.integers(0, 10**9), min_size=1, max_size=3 * MOST))
def test_a_thinned_series_keeps_every_peak(levels):
    series = Series()
    for index, level in enumerate(levels):
        series = series.add(Moment(float(index), 0, "", level, device=index))
    assert len(series.moments) <= MOST
    covered = [levels[i : i + series.stride] for i in range(0, len(levels), series.stride)]
    assert len(covered) == len(series.moments)
    for start, (part, moment) in enumerate(zip(covered, series.moments, strict=True)):
        assert moment.allocated == max((x for x in part if x is not None), default=None)
        assert moment.seconds == start * series.stride


def test_turns_of_a_phase_are_counted_in_each_step():
    told = [ON_GPU]
    for number, (step, name) in enumerate(
        [(1, "forward"), (1, "backward"), (1, "forward"), (2, "forward")]
    ):
        told.append(PhaseBegun(float(number), step, name))
    state = fold(told)
    assert [span.turn for span in state.spans] == [0, 0, 1, 0]
    assert [span.ended for span in state.spans] == [1.0, 2.0, 3.0, None]


def test_moments_lie_where_their_share_of_the_phase_is():
    twice = replace(CURVE, spans=(*CURVE.spans, ("forward", 130, 140)))
    assert aligned(fold(run()), twice) == aligned(fold(run()), CURVE)
    positions = [at for at, moment in aligned(fold(run()), CURVE) if moment.step == 2]
    # Samples at one quarter and three quarters, and the mark at the end of each phase.
    expected = [100 + 6 * i + 6 * share for i in range(5) for share in (0.25, 0.75, 1.0)]
    assert positions == pytest.approx(expected)


def test_a_phase_that_lasts_is_measured_by_the_time_before():
    begun = [ON_GPU, PhaseBegun(0.0, 1, "forward"), PhaseEnded(2.0, 1, "forward", 1, 1)]
    again = [PhaseBegun(2.0, 2, "forward"), Sample(2.5, 2, "forward", 1)]
    for more, at in (([], 101.5), ([Sample(9.0, 2, "forward", 1)], 106)):
        assert aligned(fold([*begun, *again, *more]), CURVE)[-1][0] == pytest.approx(at)
    first = aligned(fold([ON_GPU, PhaseBegun(0.0, 1, "forward"), Sample(5.0, 1, "forward")]), CURVE)
    assert [at for at, _ in first] == [103]
    # A second forward pass of the step lies on the second one of the curve, a third there too.
    curve = replace(CURVE, spans=(*CURVE.spans, ("forward", 130, 140)))
    passes = [PhaseBegun(3.0, 2, "forward"), PhaseBegun(4.0, 2, "forward")]
    state = fold([*begun, *again, *passes, Sample(4.5, 2, "forward")])
    assert [at for at, _ in aligned(state, curve)][-1] == pytest.approx(135)
