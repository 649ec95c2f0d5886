"""What the Numerics panel says about a run in each of its states, and what it knows of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab_findings import CHART, HEAT, HISTOGRAM, PICTURES, result
from scripted_lab import events

from qtui.report.pictures.glyphs import UNICODE
from qtui.screen.widgets.text_picture import Canvas
from qtui.tui.panels.numerics.experiment_list import experiment_lines
from qtui.tui.panels.numerics.export import command_of
from qtui.tui.panels.numerics.lab_run import LabPhase, LabRun
from qtui.tui.panels.numerics.recordings import kept_of, lab_keeper
from qtui.tui.panels.numerics.sentences import sentence_of
from qtui.tui.panels.numerics.shown import NumericsShown, form_fields, stepped
from qtui_core.errors import UsageError
from qtui_core.lab.catalog import EXPERIMENTS, cost_text, experiment_named
from qtui_core.lab.recording import parse_lab_recording, read_lab_recording
from qtui_core.lab.results import LabChart, LabFault, StepProgress

VERDICT = result().findings.verdict
UNDERFLOW = experiment_named("underflow")


def of(shown: NumericsShown, parts: int) -> LabRun:
    """A run of the made-up experiment after so many reports."""
    run = LabRun(len(shown.kept) + 1, UNDERFLOW, dict(UNDERFLOW.settle({})), "demo")
    shown.keep(run)
    for each in events(dict(run.settings))[:parts]:
        run.hear(each)
    return run


def test_the_sentence_in_every_state() -> None:
    shown = NumericsShown("demo")
    assert sentence_of(shown) == (
        f"{UNDERFLOW.question} r runs it on demo: {cost_text(UNDERFLOW.seconds)}, by how busy two "
        "cores are."
    )
    run = of(shown, 0)
    assert "loads torch" in sentence_of(shown)
    run = of(shown, 3)
    assert sentence_of(shown) == "0 of 2 parts are done."
    run = of(shown, 6)
    assert sentence_of(shown) == f"After 1 of 2 parts: {VERDICT}"
    run.phase = LabPhase.PAUSED
    assert sentence_of(shown) == f"Paused after 1 of 2 parts; Space resumes. {VERDICT}"
    run.phase = LabPhase.STOPPING
    assert sentence_of(shown) == "Stopping after the current step: 1 of 2 parts are done."
    run.hear(replace(result(jobs=2, done=1), ended="stopped"))
    assert sentence_of(shown) == (
        f"Stopped after 1 of 2 parts. c runs the remaining parts. {VERDICT}"
    )
    run = of(shown, 8)
    assert sentence_of(shown) == VERDICT
    run = of(shown, 1)
    run.hear(LabFault("The model has no linear layers."))
    assert sentence_of(shown) == "The experiment failed: The model has no linear layers."
    run = of(shown, 6)
    run.hear(result(jobs=2, done=1, ended="failed", fault="It was killed (out of memory?)."))
    assert sentence_of(shown) == (
        f"The experiment failed: It was killed (out of memory?). c runs the remaining parts. "
        f"{VERDICT}"
    )
    run = of(shown, 6)
    run.hear(result(jobs=3, done=2))
    assert sentence_of(shown) == f"1 of 3 parts failed, as the notes say. {VERDICT}"
    run = of(shown, 1)
    run.phase = LabPhase.STOPPING
    run.hear(LabFault("The experiment was stopped before its first result."))
    assert sentence_of(shown).startswith("Stopped before there was a result.")


def test_a_recording_plays_from_its_start_and_says_what_it_said() -> None:
    shown = NumericsShown("demo")
    run = of(shown, 0)
    lines = list(map(_line, events(dict(run.settings))))
    run.play(parse_lab_recording(lines))
    seen = []
    while run.phase is LabPhase.PLAYING:
        seen.append(sentence_of(shown))
        run.play_on()
    assert seen[0] == "The recording plays: 0 of 2 parts are done."
    assert f"The recording plays, after 1 of 2 parts: {VERDICT}" in seen
    assert sentence_of(shown) == VERDICT
    run.play(parse_lab_recording(lines[:-2]))
    run.play_on(to_end=True)
    assert run.phase is LabPhase.STOPPED
    assert "stops before the experiment did" in sentence_of(shown)


def _line(each: object) -> str:
    from qtui_core.lab.recording import LAB_LINES

    return LAB_LINES.to_line(each)  # type: ignore[arg-type]


def test_what_is_done_is_counted_by_parts_and_their_steps() -> None:
    shown = NumericsShown("demo")
    assert of(shown, 1).share == 0
    assert of(shown, 2).share == 0.25
    assert of(shown, 4).share == 0.5
    assert of(shown, 6).share == 0.5 + 10 / 40 / 2
    assert of(shown, 8).share == 1


def test_until_there_are_findings_the_steps_are_the_picture() -> None:
    shown = NumericsShown("demo")
    of(shown, 3)
    picture = shown.drawn
    assert isinstance(picture, LabChart)
    assert [(line.name, line.x, line.y) for line in picture.lines] == [
        ("fp32", (20.0, 40.0), (1.5, 1.25))
    ]
    assert shown.drawn is picture  # a key that changes a setting draws it once
    shown.run.hear(StepProgress("bf16", 10, 40, 1.5))
    assert [line.name for line in shown.drawn.lines] == ["fp32", "bf16"]
    of(shown, 5)
    assert shown.pictures == PICTURES


def test_an_earlier_run_is_drawn_behind_and_can_be_another_or_none() -> None:
    shown = NumericsShown("demo")
    runs = [of(shown, 8), of(shown, 3), of(shown, 8), of(shown, 8)]
    assert shown.earlier == [runs[2], runs[0]]  # one that found nothing is left out
    assert shown.faint is runs[2]
    assert shown.drawn_behind == CHART
    shown.behind = 2
    assert shown.faint is runs[0]
    shown.behind = 0
    assert shown.drawn_behind is None
    shown.show(runs[0])
    assert shown.earlier == []


def test_a_histogram_is_scaled_and_a_heat_map_is_not() -> None:
    shown = NumericsShown("demo")
    of(shown, 8)
    shown.picture = PICTURES.index(HISTOGRAM)
    shown.scale(3)
    assert shown.drawn == replace(HISTOGRAM, shift=3.0)
    shown.picture = PICTURES.index(HEAT)
    assert shown.drawn == HEAT


def test_every_setting_of_every_experiment_is_a_line_and_steps_to_values_that_it_takes() -> None:
    shown = NumericsShown("demo")
    for place, experiment in enumerate(EXPERIMENTS):
        shown.choose(place)
        assert [line.key for line in form_fields(shown)] == [s.name for s in experiment.settings]
        for row in experiment.settings:
            value = row.default
            for by in (1, 1, -1, 1):
                value = stepped(row, value, by)
                assert row.check(value) == value
            shown.set(row, value)
        assert experiment.settle(shown.settings) == shown.settings


def test_a_value_that_is_none_is_refused_and_the_usual_one_is_no_change() -> None:
    shown = NumericsShown("demo")
    row = UNDERFLOW.settings[0]
    with pytest.raises(UsageError, match="between"):
        shown.set(row, 7.0)
    shown.set(row, 1e-3)
    assert [line.chosen for line in form_fields(shown)].count(True) == 1
    shown.set(row, row.default)
    assert not any(line.chosen for line in form_fields(shown))


def test_the_command_makes_the_run_again() -> None:
    """Read by the very command line."""
    settings = UNDERFLOW.settle({"lr": 1e-3, "seeds": (0, 1)})
    run = LabRun(1, UNDERFLOW, dict(settings), "gpt2")
    assert command_of(run) == "qtui lab underflow gpt2 --lr 0.001 --seeds 0,1"
    words = command_of(run).split()[4:]
    rows = {row.flag: row for row in UNDERFLOW.settings}
    pairs = zip(words[::2], words[1::2], strict=True)
    given = {rows[flag].name: rows[flag].read(text) for flag, text in pairs}
    assert UNDERFLOW.settle(given) == settings


def test_a_run_is_recorded_beside_others_and_the_oldest_go(tmp_path: Path) -> None:
    every = events({"lr": 1e-5})
    for _ in range(2):
        with lab_keeper("underflow", tmp_path) as keeper:
            for each in every:
                keeper.write(each)
            assert not keeper.complaint
            assert keeper.path is not None
    found = kept_of("underflow", tmp_path)
    assert len(found) == 2
    assert kept_of("under", tmp_path) == []
    recording = read_lab_recording(found[0])
    assert [recording.begun, *recording.events] == every
    for number in range(70):
        (tmp_path / f"lab-dead-20200101-{number:06}.jsonl").write_text("x")
    (tmp_path / "mine.jsonl").write_text("x")
    with lab_keeper("underflow", tmp_path) as keeper:
        keeper.write(every[0])
    assert len(list(tmp_path.glob("lab-*.jsonl"))) == 60
    assert (tmp_path / "mine.jsonl").exists()


def test_a_disk_that_takes_nothing_stops_the_recording_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with lab_keeper("dead", tmp_path / "file") as keeper:
        for each in events({}):
            keeper.write(each)
    assert keeper.complaint.startswith("The run is not recorded: ")
    assert keeper.path is None


def test_a_failed_experiment_has_a_mark_of_its_own() -> None:
    def mark(run_parts: int, *more: object) -> tuple[str, str]:
        shown = NumericsShown("demo")
        run = of(shown, run_parts)
        for each in more:
            run.hear(each)  # type: ignore[arg-type]
        canvas = Canvas(40, len(EXPERIMENTS), UNICODE)
        line = experiment_lines(shown, None, False, canvas)[EXPERIMENTS.index(UNDERFLOW)]
        return line[1].text, str(line[1].tone)

    assert mark(8) == (UNICODE.on, "best")
    assert mark(1, LabFault("The model has no linear layers.")) == ("!", "warning")
