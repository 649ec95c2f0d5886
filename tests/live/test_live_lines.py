"""Every kind of line is written and read; JSON is strict; and invalid lines are reported."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_by_types import instances_of

from qtui_core.live.snapshot import SCHEMA_VERSION, RecordingHeader, Sample, Snapshot
from qtui_core.live.state import KINDS, from_line, to_line
from qtui_core.recorded_lines import LineError


def _fixed(kind: type[Any]) -> dict[str, Any]:
    return {"schema_version": SCHEMA_VERSION} if kind is RecordingHeader else {}


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_line_says_what_was_said(name, data):
    told = data.draw(instances_of(KINDS[name], **_fixed(KINDS[name])))
    line = to_line(told)
    assert "\n" not in line
    json.loads(line, parse_constant=refuse)
    # repr, because NaN is not equal to itself.
    assert repr(from_line(line)) == repr(told)
    assert repr(from_line(line.encode())) == repr(told)


def test_every_kind_of_snapshot_has_a_name():
    assert set(KINDS.values()) >= set(get_args(Snapshot))


def test_what_later_versions_add_is_left_out():
    assert from_line('{"told":"weather","seconds":1.0}') is None
    line = json.loads(to_line(Sample(0.5, 1, "forward")))
    assert from_line(json.dumps({**line, "fan_percent": 40})) == Sample(0.5, 1, "forward")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "no line of JSON"),
        ("{", "no line of JSON"),
        (b"\xff\xfe", "no line of JSON"),
        ("[1]", "which kind"),
        ('{"told": 3}', "which kind"),
        ('{"told": "said", "seconds": 1}', "text is missing"),
        ('{"told": "said", "seconds": "soon", "text": "x"}', "seconds: 'soon' is no number"),
        ('{"told": "said", "seconds": true, "text": "x"}', "seconds: True is no number"),
        ('{"told": "phase begun", "seconds": 1, "step": 1.5, "phase": "loss"}', "step: 1.5"),
        ('{"told": "phase begun", "seconds": 1, "step": true, "phase": "loss"}', "step: True"),
        ('{"told": "header", "schema_version": 99}', "schema version 99"),
    ],
)
def test_what_is_no_line_is_a_sentence(line, says):
    with pytest.raises(LineError, match=says) as caught:
        from_line(line)
    assert str(caught.value).endswith(".")
