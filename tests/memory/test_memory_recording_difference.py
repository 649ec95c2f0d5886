"""Compares two recordings."""

from __future__ import annotations

import re

from qtui_core.memory.replay.record import (
    ALLOCATE,
    FREE,
    LAYER,
    OPERATION,
    PHASE,
    Label,
    Phase,
    Recording,
)
from tests.support.recording_difference import (
    first_difference,
    peaks,
    standing_bytes,
)


def recording(*events):
    return Recording(
        tuple(
            (*event, Label("x")) if event[0] == ALLOCATE and len(event) == 3 else event
            for event in events
        ),
        "tape",
    )


LOADED = ((PHASE, Phase.LOAD), (ALLOCATE, 1, 1000), (PHASE, Phase.FORWARD))


def test_recordings_that_differ_in_ids_and_in_what_stands_agree():
    a = recording(*LOADED, (ALLOCATE, 2, 600), (FREE, 2), (ALLOCATE, 3, 10))
    b = recording(
        (PHASE, Phase.LOAD), (ALLOCATE, 5, 7000), (PHASE, Phase.FORWARD),
        (ALLOCATE, 9, 600), (FREE, 9), (ALLOCATE, 8, 10),
    )  # fmt: skip
    assert first_difference(a, b) is None
    assert (standing_bytes(a), standing_bytes(b)) == (1024, 7168)


def test_the_first_other_size_is_named_with_its_operation():
    module = (OPERATION, "mm", "self_attn.q_proj")
    a = recording(*LOADED, (ALLOCATE, 2, 600), (LAYER, 4, "forward"), module, (ALLOCATE, 3, 512))
    b = recording(*LOADED, (ALLOCATE, 2, 600), (LAYER, 4, "forward"), module, (ALLOCATE, 3, 513))
    found = first_difference(a, b)
    assert found.startswith("After 1 allocations that agree (the last: x in no operation (forward")
    place = "x in mm of self_attn.q_proj (forward 1, layer 4)"
    assert f"one has {place}: 512 bytes" in found
    assert f"the other {place}: 513 bytes" in found


def test_what_is_freed_later_differs_at_the_next_allocation():
    a = recording(*LOADED, (ALLOCATE, 2, 600), (FREE, 2), (ALLOCATE, 3, 10))
    b = recording(*LOADED, (ALLOCATE, 2, 600), (ALLOCATE, 3, 10), (FREE, 2))
    assert re.findall(r"10 bytes, ([\d,]+) alive", first_difference(a, b)) == ["512", "1,536"]


def test_one_that_ends_early_differs():
    a = recording(*LOADED, (ALLOCATE, 2, 600))
    b = recording(*LOADED, (ALLOCATE, 2, 600), (ALLOCATE, 3, 10))
    assert "one has no more; the other x in no operation" in first_difference(a, b)
    assert first_difference(a, b, smallest=11) is None


def test_states_of_an_optimizer_may_come_in_any_order_but_must_be_there_after():
    ends = ((PHASE, Phase.FORWARD), (ALLOCATE, 9, 10))
    step = (PHASE, Phase.OPTIMIZER)
    a = recording(*LOADED, step, (ALLOCATE, 2, 600), (ALLOCATE, 3, 5000), *ends)
    b = recording(*LOADED, step, (ALLOCATE, 3, 5000), (ALLOCATE, 2, 600), *ends)
    c = recording(*LOADED, step, (ALLOCATE, 3, 5000), *ends)
    assert first_difference(a, b) is None
    assert first_difference(a, c) is not None


def test_peaks_of_each_phase_count_what_lives_from_before():
    a = recording(*LOADED, (ALLOCATE, 2, 600), (FREE, 2), (PHASE, Phase.BACKWARD), (ALLOCATE, 3, 1))
    assert peaks(a) == {"load 1": 1024, "forward 1": 2048, "backward 1": 1536}
