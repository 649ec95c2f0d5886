"""The parts of the Train panel: dots, the position of measured values, and recordings that play."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any, cast

import pytest
import train_runs
from disks import room_for
from memory_estimator import GIB

from qtui.report.pictures.cells import ACROSS, DOWN
from qtui.screen.curve.chart import make_chart
from qtui.screen.curve.dots import Track, cells_of_track, joined
from qtui.screen.depth import Depth
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.text_picture import Canvas
from qtui.tui.panels.train.drawing import smaller
from qtui.tui.panels.train.levels import gap_text
from qtui.tui.panels.train.recordings import KEPT, Player, run_keeper
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.views.adapters_view import AdaptersView
from qtui.tui.panels.train.views.phases_view import phase_lines
from qtui.tui.panels.train.views.run_picture import Place
from qtui.tui.panels.train.views.tracks import overlay, stacked_prediction
from qtui_core.live.snapshot import AdaptersCompared, PhaseEnded, PredictedCurve
from qtui_core.live.state import RunEvent, RunRecording, RunState, after, read_recording, to_line

RECORDED = Path(__file__).parents[1] / "live" / "recordings" / "demo_qlora_cpu.jsonl"


def state_of(lines: Iterable[RunEvent]) -> RunState:
    return reduce(after, lines, RunState())


def lit(cells: dict[tuple[int, int], str]) -> set[tuple[int, int]]:
    """(dot from the ground, dot from the left) of every dot, read from the Unicode names of the
    dots: 1 to 3 and 7 are the left column from the top, 4 to 6 and 8 the right one."""
    order = {0: (3, 0), 1: (2, 0), 2: (1, 0), 3: (3, 1), 4: (2, 1), 5: (1, 1), 6: (0, 0), 7: (0, 1)}
    return {
        (row * DOWN + up, column * ACROSS + right)
        for (row, column), sign in cells.items()
        for bit, (up, right) in order.items()
        if (ord(sign) - 0x2800) >> bit & 1
    }


# Lines as dots


def test_a_level_is_one_dot_at_each_point() -> None:
    track = Track("peak", "level", (0, 1, 2, 3, 4, 5, 6, 7))
    assert lit(cells_of_track(track, 2, 7, ascii=False)) == {(at, at) for at in range(8)}


def test_a_line_joins_what_is_known_and_rises_without_holes() -> None:
    track = Track("line", "thin", (0, None, None, 15, None, 3, None, None))
    dots = lit(cells_of_track(track, 4, 15, ascii=False))
    assert {across for _, across in dots} == {0, 1, 2, 3, 4, 5}  # nothing after the last
    ends = {0: 0, 1: 5, 2: 10, 3: 15, 4: 9, 5: 3}
    for across, height in ends.items():
        assert (height, across) in dots
    for across in range(1, 6):
        column = sorted(up for up, at in dots if at == across)
        low, high = sorted((ends[across - 1], ends[across]))
        assert column == list(range(column[0], column[-1] + 1))
        assert column[0] <= low + 1
        assert column[-1] >= high - 1


def test_a_floor_is_left_out_and_what_is_outside_is_at_the_edge() -> None:
    track = Track("peak", "level", (90.0, 100.0, 115.0, 400.0))
    dots = lit(cells_of_track(track, 4, 15, floor=100.0, ascii=False))
    assert dots == {(0, 0), (0, 1), (15, 2), (15, 3)}


def test_strokes_differ_without_colours() -> None:
    values = (5.0,) * 16
    drawn = [
        lit(cells_of_track(Track("x", stroke, values), 2, 7, ascii=False))
        for stroke in ("thick", "thin", "dotted")
    ]
    assert len(drawn[0]) == 2 * len(drawn[1])
    assert len(drawn[2]) < len(drawn[1])
    signs = {
        next(iter(cells_of_track(Track("x", stroke, values), 2, 7, ascii=True).values()))
        for stroke in ("thick", "thin", "dotted", "level")
    }
    assert len(signs) == 4
    assert all(sign.isascii() for sign in signs)


def test_joined_leaves_what_was_measured() -> None:
    assert joined((None, 1, None, 3, None)) == [None, 1, 2, 3, None]
    assert joined(()) == []


# Where measured values lie


@pytest.mark.parametrize("width", [40, 77, 150])
def test_samples_lie_where_their_operations_are(width: int) -> None:
    """The hand-made run measures SHARE of what is predicted at each event it samples, and takes as
    long for each: so a line must be found at that height in the column of that event."""
    head = train_runs.header()
    assert head.predicted is not None
    curve = head.predicted.curve
    state = state_of([head, *train_runs.told(head, 4)])
    bands = make_chart(stacked_prediction(curve), width).bands
    places = [Place(band.name, band.start, band.stop) for band in bands]
    found = overlay(state, curve, places, width * ACROSS)
    tracks = {track.name: track.values for track in found.tracks}
    totals = [sum(column) for column in zip(*curve.bytes, strict=True)]
    for (_, start, stop), place in zip(curve.spans, places, strict=True):
        for event in range(start, stop, 5):
            share = (event + 0.5 - start) / (stop - start)
            at = int(ACROSS * (place.start + share * (place.stop - place.start)))
            # A mark ends a hair before its phase does, which may be the next point.
            height = max(v for v in tracks["allocated"][at : at + 2] if v is not None)
            assert height >= round(train_runs.SHARE * totals[event])
            near = totals[max(start, event - 6) : event + 7]
            assert height <= train_runs.SHARE * max(near) + 1
    assert set(tracks["reserved"]) <= {None, 9 * GIB}
    assert set(tracks["device"]) <= {None, 12 * GIB}


def test_the_peak_of_a_phase_is_exact_over_its_width() -> None:
    head = train_runs.header()
    assert head.predicted is not None
    curve = head.predicted.curve
    state = state_of([head, *train_runs.told(head, 2)])
    places = [Place(name, start, stop) for name, start, stop in curve.spans]
    found = overlay(state, curve, places, 200)
    peaks = next(track.values for track in found.tracks if track.name == "phase peak")
    totals = [sum(column) for column in zip(*curve.bytes, strict=True)]
    for _, start, stop in curve.spans:
        expected = round(train_runs.SHARE * max(totals[start:stop]))
        assert set(peaks[ACROSS * start : ACROSS * stop]) == {expected}


def test_parts_of_a_recorded_curve_sum_to_it() -> None:
    header = read_recording(RECORDED).header
    assert header.predicted is not None
    curve = header.predicted.curve
    assert stacked_prediction(curve).totals == tuple(map(sum, zip(*curve.bytes, strict=True)))


def test_components_of_a_later_version_are_drawn_as_temporaries() -> None:
    curve = PredictedCurve((0, 1), ("weights", "prefetched"), ((5, 5), (0, 2)), (("a", 0, 2),))
    assert stacked_prediction(curve).rows == (
        (5, 5),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 0),
        (0, 2),
    )


def test_a_load_that_differs_on_a_cpu_says_why() -> None:
    canvas = Canvas(78, 16, Drawing(Depth.NONE, ascii=True).glyphs)

    def text_of(state: RunState) -> str:
        return " ".join(put.text for line in phase_lines(state, canvas) for put in line)

    assert "before they are quantized" in text_of(state_of(read_recording(RECORDED)))
    assert "before they are quantized" not in text_of(state_of(train_runs.whole()))


@pytest.mark.parametrize("odds", [math.nan, math.inf, -1.0, 0.0])
def test_odds_that_are_none_have_no_bar(odds: float) -> None:
    told = AdaptersCompared(0.0, 1, 1.0, None, (("a", odds), ("b", 0.5)), (("a", 0.5),))
    canvas = Canvas(78, 12, Drawing(Depth.NONE, ascii=True).glyphs)
    first = AdaptersView(cast(Any, None)).draw(RunShown(RunState(adapters=told)), canvas)[1]
    assert not [put for put in first if put.tone == "bar" and put.column < 39 and put.text]


def test_the_first_step_is_left_out_once_there_are_others() -> None:
    head = train_runs.header()
    assert head.predicted is not None
    curve = head.predicted.curve
    places = [Place(name, start, stop) for name, start, stop in curve.spans]

    def known(steps: int, upto: float) -> int:
        """The points of the line of allocated bytes."""
        state = state_of([head, *train_runs.told(head, steps, upto=upto)])
        line = overlay(state, curve, places, 200).tracks[-1]
        assert line.name == "allocated"
        return sum(value is not None for value in line.values)

    assert 0 < known(2, upto=3.3) < known(1, upto=3.3)


def test_slow_steps_are_drawn_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last seconds contain only a few moments, the previous step is still drawn."""
    monkeypatch.setattr("qtui_core.live.state.RECENT", 5)
    head = train_runs.header()
    assert head.predicted is not None
    curve = head.predicted.curve
    places = [Place(name, start, stop) for name, start, stop in curve.spans]
    state = state_of([head, *train_runs.told(head, 3, upto=4.2)])
    assert len(state.recent) == 5
    line = overlay(state, curve, places, 200).tracks[-1]
    for _, start, stop in curve.spans:
        assert any(value is not None for value in line.values[ACROSS * start : ACROSS * stop])


# Recordings that play


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def playing(lines: list[RunEvent]) -> tuple[Player, Clock]:
    clock = Clock()
    head, *snapshots = lines
    return Player(RunRecording(head, tuple(snapshots)), clock), clock  # type: ignore[arg-type]


@pytest.mark.parametrize("by", [0, 1, 2])
def test_a_replay_knows_what_a_live_run_knew_at_that_moment(by: int) -> None:
    lines = train_runs.whole()
    player, clock = playing(lines)
    player.faster(by)
    speed = (1, 4, 16)[by]
    for tick in range(1, 12):
        clock.now = tick / speed
        player.advance()
        head, *told = lines
        assert player.state == state_of([head, *(each for each in told if each.seconds <= tick)])
    assert player.ended


def test_a_paused_replay_stays_where_it_is() -> None:
    player, clock = playing(train_runs.whole())
    clock.now = 3.0
    player.pause(True)
    before = player.state
    clock.now = 100.0
    assert not player.advance()
    player.pause(False)
    assert player.state == before
    clock.now = 100.5
    player.advance()
    assert player.seconds == pytest.approx(3.5)


def test_a_jump_goes_to_where_a_step_begins() -> None:
    player, _ = playing(train_runs.whole())
    for step in (3, 1, 5, 2):
        player.jump(step)
        assert (player.state.step, player.state.phase) == (step, "forward")
        assert len(player.state.steps) == step - 1
    player.jump(99)
    assert player.ended
    player.jump(0)
    assert player.state.step == 0
    assert not player.state.steps


def test_a_jump_back_tells_only_what_lies_between_kept_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And finds what was known there when it was told for the first time."""
    monkeypatch.setattr("qtui.tui.panels.train.recordings.KEPT_EVERY", 50)
    lines = train_runs.whole(12)
    player, _ = playing(lines)
    player.read_through()
    assert player.seconds == 0.0
    assert player.state == state_of(lines[:1])
    told: list[RunEvent] = []

    def count(state: RunState, each: RunEvent) -> RunState:
        told.append(each)
        return after(state, each)

    monkeypatch.setattr("qtui.tui.panels.train.recordings.after", count)
    for seconds in (13.0, 9.3, 9.4, 1.0, 12.7, 0.0, 5.5):
        told.clear()
        player.seek(seconds)
        assert len(told) < 50
        known = [line for line in lines[1:] if line.seconds <= seconds]  # type: ignore[union-attr]
        assert player.state == state_of([lines[0], *known])


def test_a_replay_begins_where_the_libraries_are_imported() -> None:
    recording = read_recording(RECORDED)
    imported = next(
        each.seconds
        for each in recording.snapshots
        if isinstance(each, PhaseEnded) and each.phase == "import"
    )
    clock = Clock()
    player = Player(recording, clock)
    player.read_through()
    assert player.seconds == imported > 1
    player.advance()
    assert player.state == state_of(
        [recording.header, *(each for each in recording.snapshots if each.seconds <= imported)]
    )
    clock.now = 0.5
    player.advance()
    assert player.seconds == imported + 0.5
    player.restart()
    assert player.seconds == imported


def test_a_real_recording_plays_to_its_end() -> None:
    recording = read_recording(RECORDED)
    clock = Clock()
    player = Player(recording, clock)
    clock.now = 1e6
    player.advance()
    assert player.ended
    assert player.state == state_of(recording)
    assert player.state.steps[0].loss is not None
    assert math.isfinite(player.state.steps[0].loss)


# Recordings that are kept


def test_a_run_is_recorded_and_the_oldest_recording_goes(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        (tmp_path / f"run-20200101-0000{number:02}.jsonl").touch()
    (tmp_path / "mine.jsonl").touch()
    (tmp_path / "run-0-mine.jsonl").touch()
    lines = train_runs.whole(2)
    with run_keeper(tmp_path) as keeper:
        for told in lines:
            keeper.write(told)
    assert keeper.path is not None
    assert [to_line(told) for told in read_recording(keeper.path)] == list(map(to_line, lines))
    assert (tmp_path / "run-0-mine.jsonl").exists()
    assert len(list(tmp_path.glob("run-2*.jsonl"))) == KEPT
    assert (tmp_path / "mine.jsonl").exists()
    assert not (tmp_path / "run-20200101-000000.jsonl").exists()


def test_a_disk_that_fills_up_is_said_and_what_is_there_is_whole(tmp_path: Path) -> None:
    lines = train_runs.whole(2)
    header = len(to_line(lines[0])) + 1
    with room_for(header + 2000), run_keeper(tmp_path / "runs") as keeper:
        keeper.write(lines[0])
        assert not keeper.complaint
        for told in lines[1:]:
            keeper.write(told)
    assert keeper.complaint == "The recording is cut off: File too large."
    assert keeper.path is not None
    found = read_recording(keeper.path)
    assert found.snapshots == tuple(lines[1 : len(found.snapshots) + 1])
    assert found.complaint == "The recording stops before the run did; all of it is shown."


def test_a_recording_that_is_deleted_is_said_and_not_pointed_at(tmp_path: Path) -> None:
    lines = train_runs.whole(1)
    with run_keeper(tmp_path / "runs") as keeper:
        keeper.write(lines[0])
        shutil.rmtree(tmp_path / "runs")
        keeper.write(lines[1])
    assert keeper.path is None
    assert keeper.complaint.startswith("The run is not recorded: the file was deleted")


def test_a_clock_that_is_put_back_costs_no_recording(tmp_path: Path) -> None:
    """The recording of this run looks older than all the others, of which the oldest goes."""
    for number in range(KEPT):
        (tmp_path / f"run-29990101-0000{number:02}.jsonl").touch()
    with run_keeper(tmp_path) as keeper:
        for told in train_runs.whole(1):
            keeper.write(told)
    assert (keeper.complaint, len(list(tmp_path.iterdir()))) == ("", KEPT)
    assert keeper.path is not None
    assert read_recording(keeper.path).complaint == ""
    assert not (tmp_path / "run-29990101-000000.jsonl").exists()


def test_a_disk_without_room_keeps_older_recordings(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        (tmp_path / f"run-20200101-0000{number:02}.jsonl").touch()
    before = sorted(tmp_path.iterdir())
    with room_for(100), run_keeper(tmp_path) as keeper:
        for told in train_runs.whole(1):
            keeper.write(told)
    assert keeper.path is None
    assert keeper.complaint == (
        f"The run is not recorded: File too large (in the folder '{tmp_path}')."
    )
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with run_keeper(tmp_path / "file" / "runs") as keeper:
        keeper.write(train_runs.header())
    assert keeper.path is None
    assert "not recorded" in keeper.complaint


# Small things


def test_gaps_in_words() -> None:
    assert gap_text(100, 97, "-") == "+3.0%"
    assert gap_text(100, 103, "-") == "-3.0%"
    assert gap_text(1000, 1000, "-") == "0.0%"
    assert gap_text(None, 97, "-") == ""
    assert gap_text(100, None, "-") == ""


@pytest.mark.parametrize("batch", [1, 2, 17, 32, 33, 300])
def test_smaller_batches(batch: int) -> None:
    found = list(smaller(batch))
    assert found == sorted(found)
    assert all(each < batch for each in found)
    if 1 < batch <= 32:
        assert found == list(range(1, batch))
    if batch > 1:
        assert found[0] == 1


def test_hand_made_lines_are_lines_of_a_recording(tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.out_of_memory())
    assert read_recording(path).complaint == ""
    assert all(json.loads(line) for line in path.read_text().splitlines())
