"""What the keys of the Memory panel do, with a hand-made step."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from memory_estimator import GIB, REFUSED_BATCH, HandMade
from screens import Running, screen_text, settled, until
from test_tui_memory_layout import estimator, ready, show  # noqa: F401 (a fixture)

from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan import panel as plan_panel


async def test_a_key_changes_the_plan_and_tells_the_difference(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        before = panel.shown.answer.peak_allocated_bytes
        await pilot.press("right")
        await ready(pilot)
        assert panel.shown.plan.batch == 2
        assert panel.shown.answer.peak_allocated_bytes > before
        assert "+2 GiB at the peak (8.6 GiB → 10.6 GiB): batch 1 → 2" in screen_text(pilot.app)
        await pilot.press("u")
        await ready(pilot)
        assert panel.shown.plan.batch == 1
        assert "−2 GiB at the peak (10.6 GiB → 8.6 GiB): batch 2 → 1" in screen_text(pilot.app)


async def test_a_changed_plan_has_no_figures_before_it_is_estimated(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.holding = {"first", "full"}
        await pilot.press("right", "down")
        await settled(pilot)
        assert not panel.shown.current
        assert panel.sentence == "The plan is being estimated."
        estimator.holding = set()
        await ready(pilot)
        assert "+2 GiB at the peak (8.6 GiB → 10.6 GiB): batch 1 → 2" in screen_text(pilot.app)


async def test_the_first_answer_is_shown_before_the_rest(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.holding = {"full"}
        await pilot.press("right")
        await until(pilot, lambda: panel.shown.current and panel.shown.answer.stage == "first")
        await settled(pilot)
        assert "): batch 1 → 2" in screen_text(pilot.app)
        assert "reserved not yet known" in screen_text(pilot.app)
        estimator.holding = set()
        await ready(pilot)
        assert "reserved" in screen_text(pilot.app)
        assert "not yet known" not in screen_text(pilot.app)


async def test_a_key_held_down_asks_for_the_whole_only_where_it_stops(
    running: Running,
    estimator: HandMade,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.asked.clear()
        # A pause that never ends: the next key always comes within it.
        monkeypatch.setattr(plan_panel, "PAUSE_SECONDS", 3600)
        for batch in (2, 3, 4, 6, 8, 12):
            await pilot.press("right")
            await until(pilot, lambda batch=batch: panel.shown.answer.plan.batch == batch)
        assert estimator.count("full") == 0
        monkeypatch.setattr(plan_panel, "PAUSE_SECONDS", 0)
        await pilot.press("right")
        await ready(pilot)
        wholes = [params["plan"]["batch"] for method, params in estimator.asked if method == "full"]
        assert wholes == [panel.shown.plan.batch] == [16]


async def test_what_was_seen_is_not_asked_again(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        await ready(pilot)
        await pilot.press("right")
        await ready(pilot)
        asked = len(estimator.asked)
        await pilot.press("left")
        await ready(pilot)
        assert len(estimator.asked) == asked


async def test_a_number_is_typed(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("down", "enter", *"3k", "enter")
        await ready(pilot)
        assert panel.shown.plan.sequence == 3072
        assert panel.body.form.has_focus
        await pilot.press("enter", *"what", "enter")
        await settled(pilot)
        assert panel.body.typing
        assert "'what' is no whole number" in panel.sentence
        await pilot.press("escape")
        await settled(pilot)
        assert panel.shown.plan.sequence == 3072


async def test_letters_that_are_typed_are_no_keys(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("enter", *"vgu", "escape")
        await settled(pilot)
        assert panel.view.TITLE == "Step"
        assert panel.shown.gpu is None


async def test_an_impossible_plan_is_refused_and_the_last_one_stays(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("enter", *str(REFUSED_BATCH), "enter")
        await until(pilot, lambda: "impossible" in panel.sentence)
        assert panel.shown.plan.batch == 1
        assert panel.shown.current
        await pilot.press("right")
        await ready(pilot)
        assert panel.shown.plan.batch == 2
        assert "impossible" not in panel.sentence


async def test_a_contradiction_is_refused_before_anyone_is_asked(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        asked = len(estimator.asked)
        panel._set("zero", 3)
        await settled(pilot)
        assert "ZeRO-3 shards over GPUs" in panel.sentence
        assert len(estimator.asked) == asked


async def test_what_was_set_can_be_left_to_the_method_again(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("right", "backspace")
        await ready(pilot)
        assert panel.shown.plan.batch == 1


async def test_a_saving_is_made_with_enter(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "Savings")
        await pilot.press("down", "enter")
        await ready(pilot)
        assert panel.shown.plan.lora_rank == 8
        assert panel.shown.plan.batch == 2
        assert panel.shown.plan.quant is None  # what was not advised is as usual still


async def test_the_map_is_filled_and_taken_from(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "Map")
        text = screen_text(pilot.app)
        for sign in "+~-":
            assert f"{sign} " in text or f"{sign}\n" in text
        assert (
            "Of this map, batch 16 is the largest at 2,048 tokens that fits RTX 4090"
            in panel.sentence
        )
        # Batch and sequence are its own, so that moving over it asks for nothing.
        assert panel.shown.cell == (1, 3)
        await pilot.press("down", "left", "enter")
        await ready(pilot)
        assert (panel.shown.plan.batch, panel.shown.plan.sequence) == (4, 1024)
        assert estimator.count("map") == 1
        await pilot.press("escape")
        panel._set("lora_rank", 64)
        await until(pilot, lambda: estimator.count("map") == 2)


async def test_a_gpu_is_typed_by_name_or_memory_or_picked(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        while panel.body.form._fields[panel.shown.knob].key != "gpu":
            await pilot.press("down")
        await pilot.press("enter", *"h100", "enter")
        await ready(pilot)
        typed = panel.shown.gpu
        assert typed.label.startswith("H100")
        await pilot.press("d", *"l40s", "enter")
        await ready(pilot)
        assert panel.shown.gpu.label == "L40S"
        after = panel.shown.gpus[panel.shown.gpus.index(panel.shown.gpu) + 1]
        await pilot.press("d", "down", "enter")
        await ready(pilot)
        assert panel.shown.gpu == after
        await pilot.press("d", *"24gib", "enter")
        await ready(pilot)
        assert panel.shown.gpu.params == {"capacity": 24 * GIB}
        await pilot.press("enter", *"40GiB", "enter")
        await ready(pilot)
        assert panel.shown.gpu.params == {"capacity": 40 * GIB}
        await pilot.press("enter", *"rtx 9999", "enter")
        await settled(pilot)
        assert "no GPU 'rtx 9999' in the catalogue" in panel.sentence


async def test_the_gpu_of_this_machine_is_chosen_first(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.devices = [
        {"label": "0", "name": "NVIDIA H200", "memory_used": 3 * GIB, "memory_total": 140 * GIB},
        {"label": "1", "name": "NVIDIA H200", "memory_used": None, "memory_total": None},
    ]
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        assert panel.shown.gpu.label == "H200 (here)"
        asked = [params for method, params in estimator.asked if method == "full"][-1]
        assert asked["device"] == {
            "name": "NVIDIA H200", "capacity": 137 * GIB, "label": "H200 (here)"
        }  # fmt: skip
        await pilot.press(*"vvvv")
        await settled(pilot)
        assert "3 GiB of 140 GiB in use" in screen_text(pilot.app)


async def test_a_worked_case_is_opened_and_left(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await show(pilot, "Cases")
        assert "64.2" in screen_text(pilot.app)
        assert "1 of 2 figures agrees within 5%" in panel.sentence
        await pilot.press("enter")
        await ready(pilot)
        assert panel.shown.case == "adam-8b"
        assert panel.shown.plan.method == "full"
        assert [params["case"] for m, params in estimator.asked if m == "first"][-1] == "adam-8b"

        def header() -> str:
            return screen_text(pilot.app).splitlines()[0]

        assert "here the worked case 8B: Adam in four precisions" in header()
        await pilot.press("1")  # another panel is about the model
        await settled(pilot)
        assert "here" not in header()
        await pilot.press("4")
        await settled(pilot)
        assert "here the worked case" in header()
        await pilot.press("x")
        await ready(pilot)
        assert "here" not in header()
        assert panel.shown.case == ""
        assert (panel.shown.plan.method, panel.shown.plan.batch) == ("qlora", 2)


async def test_a_first_plan_that_is_impossible_leaves_the_form(running: Running) -> None:
    """Also on a narrow screen, where texts otherwise take its room."""
    async with running((80, 24), start_panel="memory") as pilot:
        panel = await ready(pilot)
        panel.shown.plan = replace(panel.shown.plan, batch=REFUSED_BATCH)
        panel._open_subject()
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        await settled(pilot)
        text = screen_text(pilot.app)
        assert "is impossible here; use 16." in " ".join(text.split())
        assert "▸batch" in text
        await pilot.press("left")
        await ready(pilot)
        assert panel.shown.plan.batch == 16


async def test_a_lost_estimator_is_started_again(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.lost = "The engine was killed."
        await pilot.press("right")
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        assert "The estimator was killed.\nr starts it again." in panel.sentence
        await pilot.press("r")
        await ready(pilot)
        assert panel.shown.plan.batch == 2
        assert panel.shown.current


async def test_export_writes_picture_data_and_table(running: Running, tmp_path: Path) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        await pilot.press("e")
        await settled(pilot)
        document = json.loads(next(tmp_path.glob("*.json")).read_text())
        assert document["panel"] == "memory"
        assert document["plan"]["batch"] == 1
        assert document["memory"]["peak_phase"] == "backward"
        assert document["sentence"] == panel.sentence
        rows = list(csv.reader(next(tmp_path.glob("*.csv")).read_text().splitlines()))
        assert rows[0][:3] == ["event", "phase", "weights"]
        assert len(rows) == 101
        assert int(rows[1][2]) == 6 * GIB
        assert {row[1] for row in rows[1:]} == {
            "forward", "loss", "backward", "optimizer", "between steps"
        }  # fmt: skip
        for row in rows[1:]:
            assert int(row[-1]) == sum(map(int, row[2:-1]))
        assert next(tmp_path.glob("*.svg")).stat().st_size > 1000


async def test_a_copy_is_the_picture_and_the_sentence(running: Running) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        text = panel.copy_text()
        assert text.startswith("seven-b")
        assert "WWWW" in text
        assert text.endswith(panel.sentence)


async def test_keys_work_in_any_order(running: Running) -> None:
    named = {"+": "plus", "-": "minus"}
    async with running((80, 24), start_panel="memory") as pilot:
        panel = await ready(pilot)
        for keys in ("vvvvvvv", "VVV", "dd", "++--"):
            await pilot.press(*(named.get(key, key) for key in keys))
            await ready(pilot)
            assert panel.sentence
