"""The parts of each level add up to measured minus estimated, whatever is unknown; and each part is
named after what was changed."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_runs import MIB, ON_CPU, ON_GPU, PREDICTED, run
from test_live_state import fold

from qtui_core.live.compare import GapPart, Level, explain, gap, largest_unexplained
from qtui_core.live.snapshot import PhaseEnded, PredictedPhase
from qtui_core.live.state import Measured, measured
from qtui_core.memory.replay.record import Component, Phase

REST = "activations, loss and temporaries"
BYTES = st.integers(0, 1 << 40)
MAYBE = st.none() | BYTES
HELD = st.dictionaries(st.sampled_from([c.value for c in Component]), BYTES, max_size=6)
COUNTED = st.sampled_from(["allocator", "tensors"])
PHASES = st.sampled_from(["import", "quantize", *Phase])
MARKS = st.builds(
    PhaseEnded,
    seconds=st.just(1.0),
    step=st.integers(0, 3),
    phase=PHASES,
    peak_allocated_bytes=BYTES,
    allocated_bytes=BYTES,
    held=HELD,
    peak_held=HELD,
    counted=COUNTED,
)
FOUND = st.builds(
    Measured,
    counted=COUNTED,
    peak=st.none() | MARKS,
    peak_reserved_bytes=MAYBE,
    process_bytes=MAYBE,
    device_used_bytes=MAYBE,
    context_bytes=MAYBE,
    early_context_bytes=MAYBE,
)
PREDICTIONS = st.builds(
    replace,
    st.just(PREDICTED),
    peak_allocated_bytes=BYTES,
    peak_phase=PHASES,
    peak_reserved_bytes=MAYBE,
    process_bytes=BYTES,
    context_bytes=BYTES,
    paged_bytes=st.sampled_from([0, MIB]),
    phases=st.lists(st.builds(PredictedPhase, PHASES, BYTES, HELD, HELD), max_size=4).map(tuple),
    counted=COUNTED,
)


@settings(max_examples=120)
@given(PREDICTIONS, FOUND)
def test_parts_sum_to_the_difference_whatever_is_unknown(predicted, found):
    levels = gap(predicted, found)
    assert [level.name for level in levels] == ["allocated", "reserved", "process", "device"]
    for level in levels:
        if level.bytes is None:
            assert level.why_not.endswith(".")
            assert level.parts == ()
        else:
            assert sum(part.bytes for part in level.parts) == level.bytes
            assert level.why_not == ""
            assert len({part.name for part in level.parts}) == len(level.parts)
            sizes = [abs(part.bytes) for part in level.parts]
            assert sizes == sorted(sizes, reverse=True)
    tensors = "tensors" in (found.counted, predicted.counted)
    if tensors:
        assert all(level.measured is None for level in levels[1:])
    elif found.process_bytes is not None:
        assert levels[2].bytes == found.process_bytes - predicted.process_bytes
    if found.peak is not None:
        allocated = found.peak.peak_allocated_bytes - predicted.peak_allocated_bytes
        assert levels[0].bytes == allocated
    assert explain(levels).endswith(".") or all(level.bytes is None for level in levels)


def parts(levels, name):
    level = next(level for level in levels if level.name == name)
    return {part.name: part.bytes for part in level.parts}


def test_each_level_names_what_was_put_into_it():
    levels = gap(PREDICTED, measured(fold(run())))
    # The runs of live_runs hold one MiB more than predicted, and workspaces are not told apart.
    assert parts(levels, "allocated") == {REST: MIB}
    assert parts(levels, "reserved") == {"the allocated gap": MIB}
    tighter = replace(PREDICTED, peak_reserved_bytes=100 * MIB)
    assert parts(gap(tighter, measured(fold(run()))), "reserved") == {
        "the allocated gap": MIB,
        "slack and fragmentation": 10 * MIB,
    }
    assert parts(levels, "process") == {
        "the reserved gap": MIB,
        "context and modules": (430 - 20 - 400) * MIB,
    }
    assert parts(levels, "device") == {
        "the process gap": 11 * MIB,
        "other processes and the driver": 500 * MIB,
    }
    assert largest_unexplained(levels)[1].name == "context and modules"
    assert "`qtui calibrate`" in explain(levels)
    more = tuple(
        replace(p, peak_held={**p.peak_held, "optimizer states": MIB}) for p in PREDICTED.phases
    )
    levels = gap(replace(PREDICTED, phases=more), measured(fold(run())))
    assert parts(levels, "allocated") == {"optimizer states": 3 * MIB, REST: -2 * MIB}
    # A container hides the process.
    levels = gap(PREDICTED, replace(measured(fold(run())), process_bytes=None))
    assert "container" in levels[2].why_not
    assert parts(levels, "device") == {"not told apart": 511 * MIB}


def test_what_a_phase_makes_is_not_told_apart():
    state = fold(told for told in run())
    peak = state.measured("backward").most
    found = replace(measured(state), peak=peak)
    levels = gap(replace(PREDICTED, peak_phase="backward"), found)
    rest = next(part for part in levels[0].parts if "activations" in part.name)
    assert rest.name == "gradients, activations, loss and temporaries"
    first = fold(run(1)).measured("optimizer").most  # in which its states are made
    assert "optimizer states" not in {p.name for p in gap(PREDICTED, Measured(peak=first))[0].parts}


def test_paged_states_are_what_the_process_grew_by_after_the_first_states():
    predicted = replace(
        PREDICTED, paged_bytes=30 * MIB, process_bytes=PREDICTED.process_bytes + 30 * MIB
    )
    found = replace(
        measured(fold(run())), early_context_bytes=405 * MIB, process_bytes=(521 + 20) * MIB
    )
    assert parts(gap(predicted, found), "process") == {
        "the reserved gap": MIB,
        "context and modules": 5 * MIB,
        "paged states": (541 - 540) * MIB - MIB - 5 * MIB,
    }


def test_on_a_cpu_tensors_are_compared_and_the_rest_is_said_not_to_be_there():
    levels = gap(ON_CPU.predicted, measured(fold(run(gpu=False))))
    assert levels[0].bytes == MIB
    found = parts(levels, "allocated")
    # These predictions were made with workspaces, which do not exist there.
    assert found["cuBLAS workspaces"] == -MIB
    assert sum(found.values()) == MIB
    for level in levels[1:]:
        assert "On a CPU" in level.why_not


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_gap_on_a_cpu_names_its_phase_and_no_cause_that_was_not_measured(phase):
    """Attention dropout and a fault of the estimate were told as attention's workspace."""
    held = {"weights": 40 * MIB, "activations": 160 * MIB}
    peak = PhaseEnded(1.0, 2, phase, 200 * MIB, 0, peak_held=held, counted="tensors")
    said = explain(gap(ON_CPU.predicted, Measured("tensors", peak=peak)), tensors=True)
    assert f"It is in the phase {phase}; its cause was not measured" in said
    assert "workspace" not in said.partition("It is in")[2]
    assert "LLM.int8" not in said


@pytest.mark.parametrize("more", [40, -40])
def test_slack_that_is_less_than_estimated_needs_not_be_made_smaller(more):
    found = measured(fold(run()))
    reserved = found.peak_reserved_bytes + more * MIB
    process = found.process_bytes + more * MIB
    found = replace(found, peak_reserved_bytes=reserved, process_bytes=process)
    said = explain(gap(PREDICTED, found))
    assert "slack and fragmentation" in said
    assert ("--segments expandable" in said) == (more > 0)
    assert "`qtui calibrate`" in said


def test_agreement_is_said():
    loss = next(phase for phase in PREDICTED.phases if phase.name == "loss")
    one = gap(PREDICTED, Measured(peak=PhaseEnded(1.0, 2, "loss", 90 * MIB, 0, held=loss.held)))
    exact = replace(
        PREDICTED, peak_allocated_bytes=91 * MIB, peak_reserved_bytes=111 * MIB,
        context_bytes=410 * MIB, process_bytes=521 * MIB,
    )  # fmt: skip
    several = gap(exact, replace(measured(fold(run())), device_used_bytes=None))
    for levels, said in (
        (one, "At the peak no part of a level (allocated) differs by more than 0.5%"),
        (several, "At the peak no part of a level (allocated, reserved, process) differs by"),
    ):
        assert levels[0].parts == ()
        assert explain(levels).startswith(said)


def test_a_cache_that_a_run_does_not_name_is_among_its_activations():
    phase = PredictedPhase("forward", 50, {}, {"weights": 40, "key-value cache": 10})
    predicted = replace(
        ON_CPU.predicted, phases=(phase,), peak_phase="forward", peak_allocated_bytes=50
    )
    mark = PhaseEnded(
        1.0, 1, "forward", 52, 0, peak_held={"weights": 40, "activations": 12}, counted="tensors"
    )
    levels = gap(predicted, Measured(counted="tensors", peak=mark))
    assert parts(levels, "allocated") == {"activations": 2}
    named = replace(mark, peak_held={"weights": 40, "key-value cache": 12})
    levels = gap(predicted, Measured(counted="tensors", peak=named))
    assert parts(levels, "allocated") == {"key-value cache": 2}


def test_what_to_do_depends_on_the_part_and_the_machine():
    def said(part, tensors=False):
        level = Level("allocated", 100, 150, (GapPart(part, 50),), phase="loss")
        return explain((level,), tensors=tensors)

    known = [component.value for component in Component if component.value != "workspaces"]
    parts_ = [*known, "cuBLAS workspaces", "slack and fragmentation", "paged states"]
    for part in (*parts_, "context and modules", "gradients, activations, loss and temporaries"):
        for tensors in (False, True):
            assert f"is {part}, 50 B more" in said(part, tensors)
            assert "Its parts are unknown" not in said(part, tensors)
    assert "--attention" in said("temporaries")
    assert "--attention" not in said("temporaries", tensors=True)
    assert "Its parts are unknown" in said("not told apart")
    less = (Level("process", 100, 40, (GapPart("context and modules", -60),)),)
    assert "60 B less than estimated" in explain(less)
    others = (Level("device", 100, 900, (GapPart("other processes and the driver", 800),)),)
    assert largest_unexplained(others) is None


@pytest.mark.parametrize("header", [ON_GPU, ON_CPU])
def test_nothing_measured_is_nothing_said(header):
    levels = gap(header.predicted, measured(fold([header])))
    assert levels[0].why_not == "No phase of the run has ended yet."
    assert explain(levels) == ""
