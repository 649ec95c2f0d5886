"""Reading layer by layer gives the same as reading event by event."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, pairwise

import pytest
from every import in_parts, left_out, over

from qtui_core.memory.replay.allocator import AllocatorSettings, simulate
from qtui_core.memory.replay.folding import repeated_events
from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    PHASE,
    Component,
    Event,
    Label,
    RepeatedEvents,
)
from qtui_core.memory.replay.timeline import Timeline
from qtui_core.memory.step.device_events import with_workspaces
from qtui_core.memory.step.run import record_step
from tests.memory.test_memory_unfolding import GEMMA3, GPT2, LLAMA, PLANS, planned, shape_of
from tests.support.slow_timeline import buffers_of, composition, live_after, operation_at

CASES = [
    *((LLAMA, 9, name) for name in PLANS),
    *((GPT2, 8, name) for name in ("full", "lora", "full, manual")),
    *((GEMMA3, 15, name) for name in ("qlora", "full, checkpoints, tied", "inference")),
]


SEGMENTS = ("native", "expandable")


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case[0]['model_type']}, {case[2]}"
)
def recorded(request) -> RepeatedEvents:
    config, layers, name = request.param
    shape = shape_of(config, layers)
    plan = planned(PLANS[name], shape)
    events = with_workspaces(record_step(shape, plan).events, plan)
    assert len({id(call.program) for call in events.calls}) < len(events.calls)
    return events


def test_calls_written_out_are_as_many_events_as_they_say(recorded):
    assert len(recorded) == len(list(recorded)) == len(recorded.written)
    assert recorded[3] == recorded.written[3]
    ids = [event[1] for event in recorded if event[0] == ALLOCATE]
    assert len(ids) == len(set(ids))
    alive: set[int] = set()
    for event in recorded:
        if event[0] == ALLOCATE:
            alive.add(event[1])
        elif event[0] == FREE:
            alive.remove(event[1])


def test_live_bytes_and_tops_are_those_of_the_events(recorded):
    timeline = Timeline(recorded)
    live = live_after(recorded)
    assert timeline.live == live
    starts = [n for n, event in enumerate(recorded) if event[0] == PHASE]
    assert [(span.start, span.stop) for span in timeline.spans] == list(
        pairwise((*starts, len(live)))
    )
    for span, (most, at) in zip(timeline.spans, timeline.tops, strict=True):
        assert most == max(live[span.start : span.stop])
        assert at == live.index(most, span.start)
        assert timeline.operation_at(at) == operation_at(recorded, at)


def test_components_are_those_of_the_events(recorded):
    timeline, buffers = Timeline(recorded), buffers_of(recorded)
    for component in Component:
        change = [0] * (len(recorded) + 1)
        for buffer in buffers:
            if buffer.component is component:
                change[buffer.start] += buffer.bytes
                change[buffer.stop] -= buffer.bytes
        told = [*accumulate(change[:-1])]
        assert timeline.bytes_of((component,)) == told
        for number in range(0, len(recorded), 97):
            assert timeline.held(number).get(component, 0) == told[number]


@in_parts(3)
def test_what_is_alive_is_told_as_the_events_tell_it(recorded, parts):
    timeline = Timeline(recorded)
    buffers = buffers_of(recorded)
    moments = {at for _, at in timeline.tops} | {span.stop - 1 for span in timeline.spans}
    for moment in moments | set(range(0, len(recorded), parts * len(recorded) // 23)):
        alive = timeline.alive_at(moment)
        found: Counter[tuple[object, ...]] = Counter()
        for a in alive:
            said = (a.bytes, a.asked, a.component, a.label.what, a.born, a.died)
            said += (a.operation, a.module)
            found[said] += a.copies
        told = Counter(
            (b.bytes, b.asked, b.component, b.what, b.born, b.died, b.operation, b.module)
            for b in buffers
            if b.start <= moment < b.stop
        )
        assert found == told
        assert sum(composition(alive).values()) == timeline.live[moment]


@in_parts(2)
@over("segments", SEGMENTS)
def test_the_allocator_finds_the_same_either_way(recorded, segments, parts):
    if left_out(parts, (segments, SEGMENTS), (len(recorded) % 2, (0, 1))):
        return
    settings = AllocatorSettings(segments)
    run, events = simulate(recorded, settings), list(recorded)
    assert run == simulate(events, settings)
    # If the device becomes full in the middle, the event is named for which there was no room.
    full = AllocatorSettings(segments, run.peak.reserved // 2)
    assert simulate(recorded, full) == simulate(events, full)


def test_events_that_are_calls_already_stay():
    events: list[Event] = [(PHASE, "load"), (ALLOCATE, 5, 700, Label("w", Component.WEIGHTS))]
    calls = repeated_events(events)
    assert list(calls) == events
    assert repeated_events(calls) is calls
    more = calls.inserted(0, 0, 9, Label("first"), freed=True)
    kinds = [event[0] for event in more]
    assert kinds == [PHASE, ALLOCATE, FREE, ALLOCATE]
    assert more[1][2:] == (9, Label("first"))
    assert more[2][1] == more[1][1] != more[3][1]
    assert calls[-1] == events[-1]
