"""The curve of a recording, compared with a recount of every event by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    EMPTY_CACHE,
    FORWARD,
    FREE,
    LAYER,
    OPERATION,
    OUTSIDE,
    PHASE,
    Component,
    Label,
    Phase,
)
from qtui_core.memory.replay.timeline import STACK, Timeline, draw, peaks_by_phase
from tests.support.slow_timeline import composition, live_peak

WEIGHT = Label("model.weight", Component.WEIGHTS)
STATE = Label("model.weight.exp_avg", Component.OPTIMIZER)
PLAIN = Label("mul")

#: A step by hand: a weight, an activation, a temporary, a gradient, a state.
STEP = (
    (PHASE, "load"),
    (ALLOCATE, 1, 1000, WEIGHT),
    (PHASE, "forward"),
    (LAYER, 0, FORWARD),
    (OPERATION, "mul", "mlp"),
    (ALLOCATE, 2, 600, PLAIN),
    (ALLOCATE, 3, 2048, PLAIN),
    (FREE, 3),
    (LAYER, OUTSIDE, FORWARD),
    (PHASE, "loss"),
    (ALLOCATE, 4, 512, Label("log_softmax", Component.LOSS)),
    (PHASE, "backward"),
    (LAYER, 0, BACKWARD),
    (OPERATION, "mul_backward", "mlp"),
    (ALLOCATE, 5, 1000, PLAIN),
    (FREE, 4),
    (FREE, 2),
    (PHASE, "optimizer"),
    (OPERATION, "step", ""),
    (ALLOCATE, 6, 4000, STATE),
    (PHASE, "between steps"),
    (FREE, 5),
)


@st.composite
def histories(draw_):
    """Events of several steps with random lifetimes, and the phase of each event."""
    events: list[tuple] = []
    alive: list[int] = []
    count = 0
    phases = ("load", "forward", "loss", "backward", "optimizer", "between steps")
    for phase in phases * draw_(st.integers(1, 2)):
        events.append((PHASE, phase))
        for _ in range(draw_(st.integers(0, 12))):
            if alive and draw_(st.booleans()):
                events.append((FREE, alive.pop(draw_(st.integers(0, len(alive) - 1)))))
            elif draw_(st.integers(0, 9)) == 0:
                events.append((EMPTY_CACHE,))
            else:
                count += 1
                label = draw_(st.sampled_from((WEIGHT, STATE, PLAIN)))
                events.append((ALLOCATE, count, draw_(st.integers(0, 10**6)), label))
                alive.append(count)
    return events


def alive_by_hand(events, number):
    """Ids and rounded bytes alive after an event."""
    sizes = {}
    for event in events[: number + 1]:
        if event[0] == ALLOCATE:
            sizes[event[1]] = (event[2] + 511) // 512 * 512
        elif event[0] == FREE:
            del sizes[event[1]]
    return sizes


@given(histories())
def test_live_bytes_and_peak_are_those_of_a_recount(events):
    timeline = Timeline(events)
    assert timeline.live == [sum(alive_by_hand(events, n).values()) for n in range(len(events))]
    assert max(timeline.live) == live_peak(events)
    for number in range(len(events)):
        alive = timeline.alive_at(number)
        assert sorted(a.bytes for a in alive) == sorted(alive_by_hand(events, number).values())
        assert sum(composition(alive).values()) == timeline.live[number]


@given(histories(), st.integers(1, 40), st.data())
def test_a_drawn_curve_loses_no_peak_and_sums_to_what_is_alive(events, points, data):
    timeline = Timeline(events)
    start = data.draw(st.integers(0, len(events)))
    curve = draw(timeline, start, points)
    assert len(curve.positions) == min(points, len(events) - start)
    assert list(curve.positions) == sorted(set(curve.positions))
    if curve.components:
        assert list(curve.totals) == [timeline.live[p] for p in curve.positions]
    if start < len(events):
        drawn = [timeline.live[p] for p in curve.positions]
        assert max(drawn) == max(timeline.live[start:])
    for index, position in enumerate(curve.positions):
        alive = composition(timeline.alive_at(position))
        rows = {c: row[index] for c, row in zip(curve.components, curve.bytes, strict=True)}
        assert {c: b for c, b in rows.items() if b} == {c: b for c, b in alive.items() if b}


@given(histories())
def test_peaks_of_phases_are_those_of_a_recount(events):
    timeline = Timeline(events)
    found = peaks_by_phase(timeline.spans, timeline.live)
    assert max((most for most, _ in found.values()), default=0) == live_peak(events)
    for name, (most, number) in found.items():
        inside = [n for s in timeline.spans if s.name == name for n in range(s.start, s.stop)]
        assert most == max(timeline.live[n] for n in inside)
        assert number == next(n for n in inside if timeline.live[n] == most)


def test_what_has_no_label_is_told_by_its_lifetime():
    timeline = Timeline(STEP)
    every = [a for number in range(len(STEP)) for a in timeline.alive_at(number)]
    by_size = {a.asked: a.component for a in every if a.label == PLAIN}
    assert by_size == {
        600: Component.ACTIVATIONS,
        2048: Component.TEMPORARIES,
        1000: Component.GRADIENTS,
    }
    # In the optimizer the gradient and the states are alive, the activation is not.
    assert composition(timeline.alive_at(19)) == {
        Component.WEIGHTS: 1024,
        Component.OPTIMIZER: 4096,
        Component.GRADIENTS: 1024,
    }


@pytest.mark.parametrize(
    ("born", "died", "component"),
    [
        ("load", "", Component.WEIGHTS),
        ("load", "load", Component.TEMPORARIES),
        ("forward", "loss", Component.ACTIVATIONS),
        ("forward", "", Component.ACTIVATIONS),
        ("loss", "backward", Component.LOSS),
        ("loss", "loss", Component.LOSS),
        ("loss", "", Component.LOSS),
        ("backward", "backward", Component.TEMPORARIES),
        ("backward", "", Component.GRADIENTS),
        ("optimizer", "between steps", Component.TEMPORARIES),
    ],
)
def test_lifetimes(born, died, component):
    phases = [phase.value for phase in Phase]
    events = [(PHASE, born), (ALLOCATE, 1, 1, PLAIN)]
    if died == born:
        events.append((FREE, 1))
    elif died:
        assert phases.index(died) > phases.index(born)
        events += [(PHASE, died), (FREE, 1)]
    timeline = Timeline(events)
    (allocation,) = timeline.alive_at(1)
    assert allocation.component is component
    assert timeline.held(1) == {component: 512}


def test_an_event_has_an_operation_with_its_place():
    timeline = Timeline(STEP)
    assert timeline.operation_at(1) == ""
    assert timeline.operation_at(6) == "mul of mlp in layer 0"
    assert timeline.operation_at(14) == "mul_backward of mlp in the backward of layer 0"
    # The loss has no operation yet, and the previous layer's must not be taken for its own.
    assert timeline.operation_at(10) == ""


def test_components_are_stacked_in_one_order():
    curve = draw(Timeline(STEP))
    assert list(curve.components) == [c for c in STACK if c in curve.components]
    assert set(STACK) == set(Component)


def test_a_recording_of_nothing_has_a_curve_of_nothing():
    timeline = Timeline(())
    assert draw(timeline).positions == ()


def test_freeing_what_is_not_alive_is_no_history():
    with pytest.raises(ValueError, match="buffer 7 is freed but not alive"):
        Timeline([(PHASE, "load"), (FREE, 7)])
    twice = [(PHASE, "load"), (ALLOCATE, 7, 1, PLAIN), (FREE, 7), (FREE, 7)]
    with pytest.raises(ValueError, match="buffer 7 is freed but not alive"):
        Timeline(twice)
    apart = [(LAYER, 0, "forward"), (ALLOCATE, 7, 1, PLAIN), (LAYER, 1, "forward"), (FREE, 7)]
    with pytest.raises(ValueError, match="buffer 7 is freed but not alive"):
        Timeline([*apart, (LAYER, 2, "forward"), (FREE, 7)])
