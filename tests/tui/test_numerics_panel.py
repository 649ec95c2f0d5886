"""The Numerics panel: its keys, a run in another process, recordings, exports and layouts."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from lab_findings import PICTURES, result
from screens import Running, idle, resized, screen_lines, screen_text, settled, until
from scripted_lab import events

from qtui.engine.lab.client import lab_client
from qtui.tui.panels.numerics.lab_run import LabPhase
from qtui.tui.panels.numerics.panel import NumericsPanel
from qtui_core.lab.catalog import EXPERIMENTS
from qtui_core.lab.recording import LAB_LINES

CONFIGS = Path(__file__).parents[1] / "memory" / "configs"
SCRIPT = Path(__file__).parents[1] / "support" / "scripted_lab.py"
VERDICT = result().findings.verdict


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The made-up experiment in place of the real child."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPT.parent))
    _as(monkeypatch, "all")
    return monkeypatch


def _as(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setattr(NumericsPanel, "COMMAND", (sys.executable, str(SCRIPT), mode))


async def test_it_asks_its_question_with_the_cost_before_anything_runs(running: Running) -> None:
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        regions = set()
        for place, experiment in enumerate(EXPERIMENTS):
            await settled(pilot)
            text = screen_text(pilot.app)
            assert experiment.question in text
            assert f"{experiment.seconds} to {4 * experiment.seconds} s" in panel.sentence
            assert all(row.name.replace("_", " ")[:12] in text for row in experiment.settings)
            assert panel.shown.place == place
            regions.add((panel.body.list.region, panel.body.form.region))
            await pilot.press("down")
        assert panel.shown.place == 0
        assert len(regions) == 1  # another experiment lays nothing out anew
        assert (
            panel.runs.process.child.pid is None
        )  # nobody looks ahead here, and nothing was asked


@pytest.mark.parametrize("size", [(60, 20), (80, 24)])
async def test_what_settings_mean_is_not_cut(running: Running, size: tuple[int, int]) -> None:
    async with running(size, start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await settled(pilot)
        told = " ".join(panel.body.picture.text.split())
        assert "r runs it, 50 to 200 s, on demo." in told
        assert f"lr {EXPERIMENTS[0].settings[0].help}" in told
        assert size == (60, 20) or "Seeds, with commas between; each is a run more." in told


async def test_escape_goes_back_to_the_list(running: Running) -> None:
    async with running(start_panel="numerics") as pilot:
        body = pilot.app.panel.body
        await settled(pilot)
        for there, part in (("v", body.picture), ("enter", body.form)):
            await pilot.press(there)
            assert pilot.app.focused is part
            assert "Esc Back" in screen_lines(pilot.app)[-1]
            await pilot.press("escape")
            assert pilot.app.focused is body.list
            assert "Esc Back" not in screen_lines(pilot.app)[-1]


async def test_the_list_answers_a_key_before_what_stands_beside_it(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        drawn = []
        monkeypatch.setattr(panel, "draw", lambda: drawn.append(panel.shown.place))
        for _ in range(3):  # as quickly as no screen is painted between two of them
            panel.action_move(1)
        listed = panel.body.list.text.splitlines()
        assert [line.split()[1] for line in listed if line.startswith("▸")] == ["lossscale"]
        assert drawn == []
        await settled(pilot)
        assert drawn == [3]


async def test_settings_are_turned_typed_and_refused(running: Running) -> None:
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await pilot.press("enter", "right")
        assert panel.shown.settings["lr"] == 1e-4
        await pilot.press("enter", "ctrl+u", "7", "enter")
        assert "--lr is between 0 and 1" in panel.sentence
        await pilot.press("ctrl+u", *"0.002", "enter")
        assert panel.shown.settings["lr"] == 0.002
        assert panel.body.form.has_focus
        await pilot.press("down", "left")
        assert panel.shown.settings["store"] == "int8"
        await pilot.press("backspace", "up", "backspace")
        assert panel.shown.settings == EXPERIMENTS[0].settle({})


@pytest.mark.parametrize("alone", [True, False])
async def test_a_model_without_weights_is_refused_before_a_process_starts(
    running: Running, tmp_path: Path, alone: bool
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes((CONFIGS / "qwen2.5-1.5b.json").read_bytes())
    model = str(config if alone else tmp_path)
    async with running(start_panel="numerics", model=model) as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.shown.missing_weights)
        assert panel.shown.missing_weights in panel.sentence
        assert "r runs it" not in screen_text(pilot.app)
        await pilot.press("r")
        assert panel.sentence == panel.shown.missing_weights
        assert panel.shown.run is None
        assert panel.runs.process.child.pid is None


async def test_the_rest_of_a_run_is_done_on_its_own_model(
    running: Running, scripted: pytest.MonkeyPatch
) -> None:
    _as(scripted, "late")
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await pilot.press("r")
        await until(pilot, lambda: panel.shown.run is not None and panel.shown.run.can_go_on)
        panel.shown.model = "another"
        panel.action_go_on()
        assert panel.shown.run.model == "demo"
        await idle(pilot)


async def test_a_run_is_told_recorded_kept_and_exported(
    running: Running, scripted: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await pilot.press("r")
        await until(pilot, lambda: bool(panel.shown.run and panel.shown.run.over))
        await idle(pilot)
        assert panel.sentence == VERDICT
        text = screen_text(pilot.app)
        assert PICTURES[0].title in text
        assert "A nearest  0.009" in text
        await pilot.press("enter", "right", "r")  # the same with another lr
        await until(pilot, lambda: len(panel.shown.kept) == 2 and panel.shown.run.over)
        await idle(pilot)
        assert "the run before" in screen_text(pilot.app)
        assert "dotted: run 1 lr 1e-05" in screen_text(pilot.app)
        await pilot.press("b")
        assert "the run before" not in screen_text(pilot.app)
        await pilot.press("m")
        assert "picture 2 of 6" in screen_text(pilot.app)
        await pilot.press("v")
        await settled(pilot)
        assert "+0.0090" in screen_text(pilot.app)
        assert "fp8 is emulated." in screen_text(pilot.app)
        await pilot.press("v")
        await settled(pilot)
        assert "run 2  done" in screen_text(pilot.app)
        await pilot.press("up")
        assert panel.shown.run.number == 1
        await pilot.press("e")
        await settled(pilot)
        files = {path.suffix: path for path in tmp_path.glob("qtui-numerics-*")}
        data = json.loads(files[".json"].read_text())
        assert data["command"] == "qtui lab underflow"
        assert data["result"]["rows"][0]["d"] == 0.009
        rows = list(csv.reader(files[".csv"].read_text().splitlines()))
        assert rows[0] == ["recipe", "d_nats", "kept_share", "size_bytes"]
        svg = " ".join(ElementTree.fromstring(files[".svg"].read_text()).itertext())
        assert PICTURES[1].title in svg
        recorded = panel.shown.run.path
        assert recorded is not None
        assert len(recorded.read_text().splitlines()) == len(events({}))
        assert panel.copy_text().startswith("qtui lab underflow\n")


async def test_runs_of_earlier_sessions_are_kept_with_those_of_this_one(
    running: Running, scripted: pytest.MonkeyPatch
) -> None:
    async def session(number: int) -> None:
        async with running(start_panel="numerics") as pilot:
            panel = pilot.app.panel
            await until(pilot, lambda: len(panel.shown.kept) == number - 1)
            await idle(pilot)
            if number == 2:
                assert panel.shown.run.recorded
                assert panel.sentence == VERDICT
                assert "recorded" in panel.body.title_line.note
            await pilot.press("r")
            await until(pilot, lambda: len(panel.shown.kept) == number and panel.shown.run.over)
            await idle(pilot)
            assert [run.number for run in panel.shown.kept] == list(range(1, number + 1))
            assert not panel.shown.run.recorded
            assert (panel.shown.faint is not None) == (number == 2)

    await session(1)
    await session(2)


async def test_a_run_is_held_stopped_and_gone_on_with(
    running: Running, scripted: pytest.MonkeyPatch
) -> None:
    _as(scripted, "half")
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await pilot.press("r")
        await until(pilot, lambda: len(panel.shown.run.steps) == 1 and panel.shown.run.jobs)
        await until(pilot, lambda: panel.sentence.startswith("After 1 of 2 parts: "))
        assert panel.unfinished() == "The experiment underflow still runs."
        assert panel.body.title_line.subject == panel.shown.experiment.question
        panel.shown.choose_named("qat")  # a longer question, of a run at the same place
        panel.shown.keep(replace(panel.runs.live, experiment=panel.shown.experiment))
        panel.draw()
        assert panel.body.title_line.subject == "qat"
        del panel.shown.runs["qat"]
        panel.shown.choose_named("underflow")
        panel.draw()
        assert "62%" in screen_text(pilot.app)
        await pilot.press("space")
        assert panel.shown.run.phase is LabPhase.PAUSED
        assert panel.sentence.startswith("Paused after 1 of 2 parts; Space resumes.")
        await pilot.press("r")
        assert len(panel.shown.kept) == 1  # one at a time
        await pilot.press("x")
        await until(pilot, lambda: panel.shown.run.over)
        await idle(pilot)
        assert panel.sentence.startswith("Stopped after 1 of 2 parts. c runs")
        assert VERDICT in panel.sentence
        _as(scripted, "all")
        panel.runs.process._client = lab_client(NumericsPanel.COMMAND)
        await pilot.press("c")
        await until(pilot, lambda: len(panel.shown.kept) == 2 and panel.shown.run.over)
        assert panel.shown.run.jobs.keys() == {"fp32", "bf16"}
        assert "fp32" not in panel.shown.run.courses  # it was not run again


async def test_a_child_that_cannot_begin_or_dies_is_a_sentence(
    running: Running, scripted: pytest.MonkeyPatch
) -> None:
    _as(scripted, "fault")
    async with running(start_panel="numerics") as pilot:
        panel = pilot.app.panel
        await pilot.press("r")
        await until(pilot, lambda: bool(panel.shown.run and panel.shown.run.over))
        await idle(pilot)
        assert panel.sentence == "The experiment failed: The model has no linear layers."
        panel.runs.process._client = lab_client((sys.executable, str(SCRIPT), "die"))
        await pilot.press("r")
        await until(pilot, lambda: len(panel.shown.kept) == 2 and panel.shown.run.over)
        await idle(pilot)
        assert "out of luck" in panel.sentence
        assert "c runs the remaining parts." in panel.sentence


@pytest.mark.slow
async def test_the_real_child_runs_an_experiment_from_the_panel(
    running: Running, tmp_path: Path
) -> None:
    """`survive`: weight decay of 0 cannot be dead, and BF16 loses most of a step at 2e-5."""
    async with running(start_panel="numerics", look_ahead=True) as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.runs.process.child.pid is not None)  # nobody asked yet
        await pilot.press("down", "r")
        await until(pilot, lambda: bool(panel.shown.run and panel.shown.run.over))
        assert panel.shown.run.phase is LabPhase.DONE, panel.sentence
        rows = panel.shown.run.result.findings.rows
        assert min(row["kept"] for row in rows if row["stored"] == "bf16") < 0.1
        await until(pilot, lambda: "does not survive BF16 weights" in panel.sentence)


async def test_a_recording_plays_and_one_that_is_none_is_refused(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine"
    settings = dict(EXPERIMENTS[0].settle({"lr": 1e-3}))
    path.write_text("\n".join(map(LAB_LINES.to_line, events(settings))))
    small = {"size": (80, 24), "color": "none", "ascii": True}
    async with running(start_panel="numerics", **small) as pilot:
        panel = pilot.app.panel
        await pilot.press("o", *"none", "enter")
        await settled(pilot)
        assert "there is no file 'none'" in " ".join(screen_text(pilot.app).split())
        await pilot.press("ctrl+u", *"mine", "enter")
        await until(pilot, lambda: panel.shown.run is not None)
        await pilot.press("space")
        assert "The recording is paused" in panel.sentence
        run, left = panel.shown.run, len(panel.shown.run.left)
        panel.runs.tick()
        assert len(run.left) == left
        while len(run.jobs) < 1:
            run.play_on()
        panel.draw()
        assert "1 of 2 parts are done" in panel.sentence
        left = len(run.left)
        await pilot.press("space")
        panel.runs.tick()
        assert len(run.left) < left
        await pilot.press("x")
        await settled(pilot)
        assert panel.sentence == VERDICT
        assert panel.shown.run.settings["lr"] == 1e-3
        text = screen_text(pilot.app)
        assert text.isascii()
        assert VERDICT in " ".join(text.split())
        assert "A nearest  0.009" in text


@pytest.mark.slow
@pytest.mark.parametrize("color", ["truecolor", "256", "16", "none"])
async def test_every_view_and_picture_fits_every_size(
    running: Running, tmp_path: Path, color: str
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(LAB_LINES.to_line, events(dict(EXPERIMENTS[0].settle({}))))))
    ascii = color == "none"
    async with running(start_panel="numerics", color=color, ascii=ascii) as pilot:
        panel = pilot.app.panel
        panel.runs.open_recording(path)
        await until(pilot, lambda: panel.shown.run is not None)
        await pilot.press("x")
        for size in ((80, 24), (120, 40), (200, 60)):
            await resized(pilot, size)
            for picture in PICTURES:
                lines = screen_lines(pilot.app)
                assert any(picture.title[:40] in line for line in lines), (size, picture.title)
                assert VERDICT.split(";")[0] in " ".join(" ".join(lines).split())
                assert not ascii or all(line.isascii() for line in lines)
                await pilot.press("m")
                await settled(pilot)
