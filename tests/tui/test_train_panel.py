"""What the keys of the Train panel do, with hand-made runs."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import train_runs
from every import collected
from memory_estimator import GIB, HandMade
from processes import is_gone
from screens import Running, screen_text, settled, until
from textual.pilot import Pilot
from textual.strip import Strip

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.widgets.text_picture import Canvas, TextPicture
from qtui.tui.app import QtuiApp
from qtui.tui.panels.train.panel import TrainPanel
from qtui.tui.panels.train.views.gap_view import GapView
from qtui.tui.panels.train.views.ranges_view import RangesView
from qtui_core.formats.magnitudes import BIAS, FIELDS, Magnitudes
from qtui_core.live.compare import summary
from qtui_core.live.snapshot import (
    End,
    Fault,
    PhaseBegun,
    RangeKind,
    RecordingHeader,
    StepRanges,
    TensorRange,
)
from qtui_core.live.state import RunEvent, read_recording
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.run.request import DEMO_NOTE, DEMO_TOKENS

CHILD = Path(__file__).with_name("train_child.py")


@pytest.fixture(autouse=True)
def estimator(monkeypatch: pytest.MonkeyPatch) -> HandMade:
    made = HandMade()
    monkeypatch.setattr(QtuiApp, "estimator", made)
    return made


Scripted = Callable[..., Path]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Makes a run tell the given lines; returns where the child writes what it was asked."""

    def script(lines: Sequence[RunEvent], *more: str) -> Path:
        path = train_runs.write(tmp_path / "script.jsonl", lines)
        command = (sys.executable, str(CHILD), str(path), *more)
        monkeypatch.setattr("qtui.tui.panels.train.running.COMMAND", command)
        return path.with_suffix(".asked")

    return script


async def ready(pilot: Pilot[None]) -> TrainPanel:
    """The panel with its estimate."""
    panel = cast(TrainPanel, cast(Any, pilot.app).panel)
    await until(pilot, lambda: panel.phase is AskingPhase.READY and panel.shown.around is not None)
    await settled(pilot)
    return panel


async def replay(pilot: Pilot[None], seconds: float = 1e9) -> TrainPanel:
    """The panel with a recording that the app was given, paused at a moment."""
    panel = cast(TrainPanel, cast(Any, pilot.app).panel)
    await until(pilot, lambda: panel.run_shown.player is not None)
    player = panel.run_shown.player
    assert player is not None
    player.pause(True)
    player.seek(seconds)
    panel.run_shown.state = player.state
    await until(pilot, lambda: panel.phase is AskingPhase.READY)
    panel.draw()
    await settled(pilot)
    return panel


# Before a run


async def test_the_plan_is_that_of_the_memory_panel(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        memory = cast(Any, pilot.app).panel
        await until(pilot, lambda: memory.phase is AskingPhase.READY)
        await pilot.press("right", "right")
        await until(
            pilot, lambda: memory.shown.plan.batch == 3 and memory.phase is AskingPhase.READY
        )
        await pilot.press("5")
        panel = await ready(pilot)
        assert panel.shown.plan.batch == 3
        await pilot.press("down", "right")
        await ready(pilot)
        await pilot.press("4")
        await until(pilot, lambda: memory.shown.plan.sequence == panel.shown.plan.sequence)
        assert memory.shown.plan.sequence == 256  # the next after the 128 of a run here
        assert memory.shown.plan.batch == 3


async def test_the_demo_on_a_cpu_begins_with_short_sequences_and_says_so(running: Running) -> None:
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        assert not panel.shown.live
        assert panel.shown.answer.plan.sequence == DEMO_TOKENS
        assert panel.run._request(False).plan == RunPlan(sequence=DEMO_TOKENS)
        assert panel.sentence.startswith(DEMO_NOTE)
        await pilot.press("4")  # a look at a run changes no plan
        memory = cast(Any, pilot.app).panel
        await until(pilot, lambda: memory.phase is AskingPhase.READY)
        assert memory.shown.answer.plan.sequence == 2048
        assert DEMO_NOTE not in memory.sentence
        assert cast(Any, pilot.app).chosen is None
        await pilot.press("5")
        panel = await ready(pilot)
        await pilot.press("down", "right")
        await ready(pilot)
        assert panel.shown.answer.plan.sequence == 256  # the next after 128
        await pilot.press("u")
        await ready(pilot)
        assert panel.shown.answer.plan.sequence == DEMO_TOKENS
        assert panel._set("sequence", 2048)  # even the usual length can be chosen
        await ready(pilot)
        assert panel.shown.answer.plan.sequence == 2048
        assert DEMO_NOTE not in panel.sentence
        assert panel.command_line()[2:4] == ("--seq", "2048")


async def test_a_plan_that_does_not_fit_is_warned_of_and_the_largest_batch_offered(
    running: Running,
) -> None:
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        panel.choose_gpu(panel._gpu_of("24GiB"))
        panel._set("batch", 20)
        await until(pilot, lambda: panel.run_shown.largest is not None)
        await settled(pilot)
        # The estimator of this test: 6 GiB and a sequence of 2,048 is half a GiB more; below 20
        # GiB a cell of the map fits.
        largest = max(b for b in range(1, 20) if 6 * GIB + b * 2048 * (GIB >> 12) < 20 * GIB)
        assert panel.run_shown.largest == largest
        assert "will not fit" in panel.sentence
        assert f"largest batch that fits is {largest}: B takes it" in panel.sentence
        await pilot.press("B")
        await ready(pilot)
        assert panel.shown.plan.batch == largest


async def test_a_lost_estimator_is_started_again(running: Running, estimator: HandMade) -> None:
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        estimator.lost = "The engine was killed."
        await pilot.press("right")
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await settled(pilot)
        assert "r starts it again" in screen_text(pilot.app)
        await pilot.press("r")
        await ready(pilot)
        assert not panel.run_shown.there
        assert panel.shown.plan.batch == 2


@pytest.mark.slow
async def test_a_model_without_a_shape_can_be_run_without_an_estimate(
    running: Running, estimator: HandMade, scripted: Scripted
) -> None:
    estimator.origin = "bounds"
    head = replace(train_runs.header(2), predicted=None, why_not="The family is not known.")
    scripted([head, *train_runs.told(train_runs.header(2), 2), *train_runs.whole(2)[-2:]])
    async with running(start_panel="train") as pilot:
        panel = cast(TrainPanel, cast(Any, pilot.app).panel)
        await ready(pilot)
        assert "assumed peak" in screen_text(pilot.app)
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.status == "done")
        await until(pilot, lambda: not panel.run_shown.live)
        await settled(pilot)
        assert "The family is not known." in panel.sentence
        for _ in panel.views:
            await pilot.press("v")
            await settled(pilot)
            assert panel.sentence


# A recording


async def test_a_recording_is_shown_held_against_its_estimate(
    running: Running, tmp_path: Path
) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        text = screen_text(pilot.app)
        assert "replay 00:08 of 00:08" in text
        assert "6 of 6 steps were run." in panel.sentence
        # 3% more is measured than was predicted, which is 2.9% of what was measured.
        assert "+2.9%" in text
        for name in ("forward", "loss", "backward", "optimizer", "between steps"):
            line = next(line for line in text.splitlines() if f" {name} " in line and "GiB" in line)
            assert "+2.9%" in line


async def test_keys_of_a_replay(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path) as pilot:
        panel = await replay(pilot, 0)
        player = panel.run_shown.player
        assert player is not None
        after, before = "right_square_bracket", "left_square_bracket"
        for key, step in ((after, 1), (after, 2), (after, 3), (before, 2)):
            await pilot.press(key)
            assert panel.run_shown.state.step == step
            assert player.paused
        await pilot.press("full_stop", "full_stop", "full_stop")
        assert player.speed == 16
        await pilot.press("comma")
        assert player.speed == 4
        await pilot.press("colon", *"5", "enter")
        await settled(pilot)
        assert panel.run_shown.state.step == 5
        await pilot.press("space")
        await until(pilot, lambda: player.ended, 10)  # 3 seconds at 4 times their speed
        await pilot.press("r")
        assert not player.ended
        await pilot.press("x")
        await settled(pilot)
        assert panel.run_shown.player is None
        assert "LlamaForCausalLM" in screen_text(pilot.app)


async def test_the_plan_of_a_recording_is_shown_and_cannot_be_changed(
    running: Running, tmp_path: Path
) -> None:
    head = train_runs.header(2, batch=4)
    path = train_runs.write(tmp_path / "run.jsonl", [head, *train_runs.told(head, 2)])
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        line = next(line for line in screen_text(pilot.app).splitlines() if "batch" in line)
        assert " 4 " in line
        await pilot.press("plus", "right")
        assert panel.shown.plan.batch == 1


async def test_a_recording_whose_plan_lacks_fields_is_shown(
    running: Running, tmp_path: Path
) -> None:
    """From another version: fields that it did not record have their defaults in the form."""
    head, *rest = train_runs.whole()
    assert isinstance(head, RecordingHeader)
    less = replace(head, plan={"method": "lora", "batch": 7})
    path = train_runs.write(tmp_path / "run.jsonl", [less, *rest])
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        fields = {field.key: field.value for field in panel.body.form._fields}
        assert (fields["method"], fields["batch"]) == ("lora", "7")
        assert fields["lora_targets"] == "all-linear"


async def test_a_recording_without_an_end_is_played_and_told(
    running: Running, tmp_path: Path
) -> None:
    head = train_runs.header(4)
    path = train_runs.write(tmp_path / "run.jsonl", [head, *train_runs.told(head, 2)])
    path.write_text(path.read_text()[:-40])
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        assert "cut off" in panel.sentence
        assert "The loss is" in panel.sentence  # and what is right in it is told too


async def test_what_is_no_recording_is_refused(running: Running, tmp_path: Path) -> None:
    (tmp_path / "no.txt").write_text("hello\n")
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("o")
        pilot.app.screen.field.value = str(tmp_path / "no.txt")
        await pilot.press("enter")
        await until(pilot, lambda: "no recording" in panel.sentence)
        assert panel.run_shown.player is None
        await pilot.press("o")
        pilot.app.screen.field.value = str(tmp_path / "none.txt")
        await pilot.press("enter")
        await settled(pilot)
        assert "there is no file" in " ".join(screen_text(pilot.app).split())
        await pilot.press("escape", "escape")
        await settled(pilot)
        assert "no recording" not in panel.sentence


# Faults


async def test_running_out_of_memory_is_a_state(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.out_of_memory())
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        text = screen_text(pilot.app)
        assert "out of memory in backward of step 2" in text
        assert "asking for 512 MiB" in text
        assert "6 GiB  weights" in text
        assert "3 GiB  --loss tiled" in text
        assert "--loss tiled saves 3 GiB" in panel.sentence
        # What was measured until then is still there.
        assert "allocated" in text
        assert panel.body.curve.text.count("⠶") > 5
        await pilot.press(*"vvvvvv")
        assert panel.view.TITLE == "Log"
        await settled(pilot)
        assert "ran out of memory" in screen_text(pilot.app)


async def test_a_loss_that_is_no_number_is_told(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.not_a_number())
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        assert "not a number" in panel.sentence
        assert "no number in 2 of 4" in screen_text(pilot.app)


@pytest.mark.slow
async def test_a_child_that_is_killed_is_told_and_a_new_run_starts(
    running: Running, scripted: Scripted
) -> None:
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 2, upto=3.0)], "die")
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.over and not panel.run_shown.live)
        await settled(pilot)
        assert "was killed" in panel.sentence
        assert "r runs again" in panel.sentence
        scripted(train_runs.whole(3))
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.status == "done")
        await until(pilot, lambda: not panel.run_shown.live)
        assert "3 of 3 steps were run." in panel.sentence
        # One that fails before its header has a reason too, and nothing was recorded of it.
        fault = Fault(0.5, 0, "", "failure", "There is no file 'notes.txt' to learn from.")
        scripted([fault, End(0.5, "failed")])
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.over and not panel.run_shown.live)
        await settled(pilot)
        assert "no file 'notes.txt'" in panel.sentence
        assert panel.run_shown.there
        assert panel.run_shown.path is None
        assert "record" not in panel.body.title_line.note
        assert "reads the model" not in panel.body.levels.text
        await pilot.press("x")
        await settled(pilot)
        assert not panel.run_shown.there


# A run


async def test_a_run_that_nobody_can_record_does_not_say_that_it_is_recorded(
    running: Running, scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").touch()
    monkeypatch.setattr(
        "qtui.tui.panels.train.recordings.recordings", lambda: tmp_path / "full" / "runs"
    )
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 2)])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: len(panel.run_shown.state.steps) == 2)
        for live in (True, False):
            await until(pilot, lambda: panel.sentence.startswith("The run is not recorded: "))
            assert panel.run_shown.live is live
            assert panel.body.title_line.note.startswith("not recorded")
            if live:
                await pilot.press("x")
                await until(pilot, lambda: not panel.run_shown.live)
        assert panel.export_data()["recording"] is None


async def test_a_run_is_asked_for_with_the_plan_and_recorded(
    running: Running, scripted: Scripted
) -> None:
    lines = train_runs.whole(3)
    asked = scripted(lines)
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("right")
        await ready(pilot)
        await pilot.press("colon", *"3", "enter", "r")
        await until(pilot, lambda: panel.run_shown.state.status == "done")
        await until(pilot, lambda: not panel.run_shown.live)
        told = json.loads(asked.read_text())
        assert (told["model"], told["steps"], told["device"]) == ("demo", 3, "auto")
        assert told["plan"]["batch"] == 2
        assert told["data"] is None
        assert panel.run_shown.path is not None
        assert list(read_recording(panel.run_shown.path).snapshots) == lines[1:]
        await settled(pilot)
        assert "recorded 00:05" in screen_text(pilot.app)
        # The plan is free again: a change goes back to the estimate.
        await pilot.press("right")
        await ready(pilot)
        assert panel.shown.plan.batch == 3
        assert not panel.run_shown.there


async def test_memory_of_others_is_taken_only_when_run_is_pressed_again(
    running: Running, scripted: Scripted
) -> None:
    fault = Fault(0.4, 0, "", "not begun", "This run may not fit.")
    asked = scripted([fault, End(0.5, "failed")])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        for taking in (False, True):
            asked.unlink(missing_ok=True)
            await pilot.press("r")
            await until(pilot, lambda: asked.exists() and panel.run_shown.state.over)
            await until(pilot, lambda: not panel.run_shown.live)
            assert json.loads(asked.read_text())["taking"] is taking
            assert "This run may not fit. r runs it all the same." in panel.sentence
        await pilot.press("right")  # another plan, to which nobody has agreed
        await ready(pilot)
        asked.unlink()
        await pilot.press("r")
        await until(pilot, lambda: asked.exists() and panel.run_shown.state.over)
        assert json.loads(asked.read_text())["taking"] is False


async def test_a_run_is_held_goes_on_and_is_stopped(running: Running, scripted: Scripted) -> None:
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 2)])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: len(panel.run_shown.state.steps) == 2)
        # Drawn twice a second, which is after it is known.
        await until(pilot, lambda: "recording 00:" in screen_text(pilot.app))
        await pilot.press("right")  # the plan stays as it is
        assert panel.shown.plan.batch == 1
        await pilot.press("space")
        await until(pilot, lambda: panel.run_shown.paused)
        await until(pilot, lambda: "Paused after step 2 of 20" in panel.sentence)
        await until(pilot, lambda: "Space Resume" in screen_text(pilot.app).splitlines()[-1])
        assert "x Stop" in screen_text(pilot.app).splitlines()[-1]
        await pilot.press("space")
        await until(pilot, lambda: not panel.run_shown.paused)
        await pilot.press("right_square_bracket")
        await pilot.press("x")
        await until(pilot, lambda: not panel.run_shown.live)
        assert panel.run_shown.state.status == "stopped"
        assert "stopped" in panel.sentence
        ranges, canvas = panel.view_of(RangesView), Canvas(100, 30, panel.drawing.glyphs)
        assert "No ranges were measured" in str(ranges.draw(panel.run_shown, canvas))
        await until(pilot, lambda: "x Clear" in screen_text(pilot.app).splitlines()[-1])
        await pilot.press("x")
        await settled(pilot)
        assert not panel.run_shown.there


@pytest.mark.slow
async def test_a_run_that_does_not_answer_is_told_and_can_be_ended(
    running: Running, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script sends no heartbeat between two lines."""
    monkeypatch.setattr("qtui.engine.waiting.SILENT_AFTER_SECONDS", 1.5)
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 2)])
    async with running(start_panel="train", color="16") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.sentence.startswith("The run has not answered for "))
        await settled(pilot)
        assert panel.sentence.endswith(" s. The screen shows older content. x ends it.")
        assert "no answer: this is old" in screen_text(pilot.app)
        await pilot.press("space")  # it tells something, and is heard again
        await until(pilot, lambda: panel.sentence.startswith("Paused after step 2"))
        assert "no answer" not in screen_text(pilot.app)
        await until(pilot, lambda: panel.sentence.startswith("The run has not answered for "))
        child = panel.run.process.child
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        await pilot.press("x")
        await until(pilot, lambda: not panel.run_shown.live)
        await settled(pilot)
        assert panel.run_shown.state.status == "stopped"
        assert "no answer" not in screen_text(pilot.app)


async def test_what_was_asked_and_takes_a_while_is_shown(
    running: Running, scripted: Scripted
) -> None:
    """A step of a large model takes long: the user sees that the pause was received, and may take
    it back."""
    head = train_runs.header()
    asked = scripted([head, *train_runs.told(head, 2, upto=3.9)], "deaf")
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.run_shown.state.step == 2)
        assert asked.exists()
        await until(pilot, lambda: panel.body.title_line.activity == "running")
        for key, says, sentence in (
            ("space", "pausing", "pauses before the next step"),
            ("space", "running", ""),
            ("right_square_bracket", "one step", "takes one step and pauses"),
            ("space", "running", ""),
        ):
            await pilot.press(key)
            assert panel.body.title_line.activity == says
            assert sentence in panel.sentence
            assert ("Space cancels that" in panel.sentence) == (says in ("pausing", "one step"))
        panel.action_stop()
        assert panel.body.title_line.activity == "stopping"
        assert "It is stopping." in panel.sentence
        await until(pilot, lambda: not panel.run_shown.live)
        assert panel.body.title_line.activity == "stopped"


@pytest.mark.slow
async def test_time_goes_on_while_a_run_says_nothing(running: Running, scripted: Scripted) -> None:
    """Importing torch takes seconds, during which nothing is reported."""
    scripted([train_runs.header(), PhaseBegun(0.01, 0, "import")])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: "recording 00:02" in panel.body.title_line.note)
        assert panel.run_shown.state.seconds < 1
        assert "importing torch" in panel.sentence
        await pilot.press("x")
        await until(pilot, lambda: not panel.run_shown.live)


async def test_a_narrow_title_says_where_a_replay_is_and_how_fast(
    running: Running, tmp_path: Path
) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running((80, 24), recording=path) as pilot:
        panel = await replay(pilot, 5.2)
        await pilot.press("full_stop")
        await settled(pilot)
        first, *lines = screen_text(pilot.app).splitlines()
        assert first.rstrip().endswith("demo  here a recording of seven-b")
        title = next(line for line in lines if "seven-b" in line)
        assert "seven-b  00:05  step 4 of 6  " in title
        assert title.endswith("paused 4x")
        panel.action_jump(-9)
        await settled(pilot)
        assert "seven-b  00:00" in screen_text(pilot.app)


async def test_each_view_says_what_it_means(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running((80, 24), recording=path) as pilot:
        panel = await replay(pilot)
        said = {}
        for view in panel.views:
            panel.show_view(view)
            said[view.TITLE] = panel.sentence
        assert "The largest unexplained part is" in said["Run"]
        assert "Gap says what to do" in said["Run"]
        assert said["Gap"].startswith("The largest difference that the estimate does not")
        assert "qtui calibrate" in said["Gap"] or "qtui memory" in said["Gap"]
        assert "It learns" in said["Loss"]
        # The likeliest token with adapters is "a", without them "the".
        assert (
            "by up to 1.25, and make 'a' the likeliest token in place of 'the'." in said["Adapters"]
        )
        assert "base is untouched" in said["Adapters"]


async def test_ranges_of_all_layers_and_of_one(running: Running, tmp_path: Path) -> None:
    def seen(kind: RangeKind, name: str, power: int) -> TensorRange:
        counts = [0] * FIELDS
        counts[BIAS + power] = 100
        return TensorRange(kind, name, Magnitudes(tuple(counts), 0, 2.0**power))

    told = [*train_runs.whole()]
    looked = StepRanges(
        told[-1].seconds,
        6,
        1.0,
        (
            seen("activations", "a.proj", 1),
            seen("output gradients", "a.proj", -30),
            seen("output gradients", "b.proj", -12),
        ),
    )
    path = train_runs.write(tmp_path / "run.jsonl", [*told[:-1], looked, told[-1]])
    async with running((100, 30), recording=path) as pilot:
        panel = await replay(pilot)
        panel.show_view(panel.view_of(RangesView))
        await settled(pilot)
        assert "all linear layers" in panel.body.picture.text
        assert "E4M3" in panel.body.picture.text
        assert "FP16 would make 50.00% of the output gradients zero" in panel.sentence
        assert "most in a.proj (100.00%)" in panel.sentence
        await pilot.press("m", "m")
        await settled(pilot)
        assert panel.sentence.startswith("In b.proj: FP16 would make next to none of the")
        assert "b.proj" in panel.body.picture.text
        await pilot.press("S")
        await settled(pilot)
        assert "scaled by 2^24" in panel.body.picture.text
        await pilot.press("m")
        await settled(pilot)
        assert "all linear layers" in panel.body.picture.text


async def test_kernels_of_a_gpu_are_not_blamed_for_a_run_on_a_cpu(
    running: Running, tmp_path: Path
) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole(cpu=True))
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        panel.show_view(panel.view_of(GapView))
        state = panel.run_shown.state
        told = summary(state)["explanation"]  # the same words as of `qtui train`
        assert panel.sentence == told
        assert "--attention" not in told


async def test_a_first_step_alone_is_held_against_nothing(running: Running, tmp_path: Path) -> None:
    """Its optimizer has no states yet, which the estimate counts, so no error is shown."""
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path) as pilot:
        panel = await replay(pilot, 3.2)  # in the second of six steps
        assert len(panel.run_shown.state.steps) == 1
        assert "estimated" in panel.body.levels.text
        assert "is estimated for the steps that follow" in panel.sentence
        panel = await replay(pilot, 4.5)
        assert "was estimated" in panel.sentence


async def test_leaving_the_app_ends_the_run(running: Running, scripted: Scripted) -> None:
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 1)])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.press("r")
        await until(pilot, lambda: len(panel.run_shown.state.steps) == 1)
        child = panel.run.process.child
        pid = child.pid
        assert pid is not None
    assert is_gone(pid)


async def test_buttons_do_what_keys_do(running: Running, scripted: Scripted) -> None:
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 1)])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        await pilot.click(panel.body.controls, offset=(2, 0))
        await until(pilot, lambda: len(panel.run_shown.state.steps) == 1)
        await until(pilot, lambda: not panel.body.controls._controls[0].enabled)
        await pilot.click(panel.body.controls, offset=(10, 0))
        await until(pilot, lambda: panel.run_shown.paused)


async def test_pictures_are_drawn_twice_a_second_and_not_more(
    running: Running, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = train_runs.header()
    scripted([head, *train_runs.told(head, 40)])
    async with running(start_panel="train") as pilot:
        panel = await ready(pilot)
        drawn = 0
        draw = panel.painter.progress

        def counted() -> None:
            nonlocal drawn
            drawn += 1
            draw()

        monkeypatch.setattr(panel.painter, "progress", counted)
        began = time.monotonic()
        await pilot.press("r")
        await until(pilot, lambda: len(panel.run_shown.state.steps) == 40)
        # One of the key, one of the end, and what a clock of half a second allows in this time.
        assert drawn <= 2 + (time.monotonic() - began) / 0.5


# What the shell asks for


async def test_lines_of_a_table_that_stay_are_not_painted_again(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys wait while a picture is painted."""
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running((200, 50), recording=path) as pilot:
        panel = await replay(pilot, 5.05)
        table = panel.body.phases
        before = table.text.splitlines()
        painted = set()
        render = TextPicture.render_line

        def counted(picture: TextPicture, y: int) -> Strip:
            if picture is table:
                painted.add(y)
            return render(picture, y)

        monkeypatch.setattr(TextPicture, "render_line", counted)
        await replay(pilot, 5.75)  # another phase of the same step
        after = table.text.splitlines()
        changed = {y for y, pair in enumerate(zip(before, after, strict=True)) if len({*pair}) > 1}
        assert 0 < len(changed) < len(after)
        assert painted == changed


async def test_export_is_the_train_document_and_the_series(
    running: Running, tmp_path: Path
) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    async with running(recording=path) as pilot:
        await replay(pilot)
        await pilot.press("e")
        await settled(pilot)
        data = json.loads(next(tmp_path.glob("qtui-train-*.json")).read_text())
        assert data["measured"]["peak_allocated_bytes"] > data["measured"]["resident_bytes"]
        assert len(data["measured"]["loss"]) == 6
        assert {"plan", "estimate", "phases", "gap"} <= set(data)
        with next(tmp_path.glob("qtui-train-*.csv")).open() as file:
            rows = list(csv.DictReader(file))
        samples = [line for line in train_runs.whole() if hasattr(line, "utilisation_percent")]
        assert len(rows) >= len(samples)
        most = max(int(row["allocated"]) for row in rows)
        assert most == max(sample.allocated_bytes or 0 for sample in samples)
        assert next(tmp_path.glob("qtui-train-*.svg")).stat().st_size > 1000


async def test_a_copy_has_the_picture_and_the_sentence(running: Running, tmp_path: Path) -> None:
    path = train_runs.write(tmp_path / "run.jsonl", train_runs.whole())
    expected = {"Run": "wwwww", "Phases": "between steps", "Parts": "optimizer states",
                "Gap": "slack and fragmentation", "Loss": "step 6", "Log": "torch 2 imported",
                "Ranges": "No ranges were measured",
                "Adapters": "50.0%"}  # fmt: skip
    async with running(recording=path) as pilot:
        panel = await replay(pilot)
        with collected() as case:
            for view in TrainPanel.VIEWS:
                with case(view.TITLE):
                    panel.show_view(panel.view_of(view))
                    await settled(pilot)
                    text = panel.copy_text()
                    assert text is not None
                    assert text.startswith("seven-b")
                    assert text.endswith(panel.sentence)
                    assert expected[view.TITLE] in text


async def test_a_model_without_weights_is_not_run_and_that_is_said_at_once(
    running: Running,
) -> None:
    async with running((120, 40), start_panel="train") as pilot:
        panel = await ready(pilot)
        why = "'config.json' is a configuration alone; it has no weights to read."
        panel.shown.facts = replace(panel.shown.facts, missing_weights=why)
        panel.draw()
        assert "There are no weights to run; o opens a recording." in screen_text(pilot.app)
        await pilot.press("r")
        await settled(pilot)
        assert why in panel.sentence
        assert not panel.run_shown.live
        panel.shown.facts = replace(panel.shown.facts, random_weights=True)
        panel.forget_refusal()
        panel.draw()
        assert "r runs 10 steps from random weights" in screen_text(pilot.app)
