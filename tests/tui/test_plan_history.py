"""Undo and redo of the plan that Memory and Train share: every kind of change, several steps, from
either panel."""

from __future__ import annotations

from typing import Any

from every import collected
from memory_estimator import HandMade
from screens import Running, idle
from test_tui_memory_layout import estimator, ready  # noqa: F401 (a fixture)
from textual.pilot import Pilot

from qtui.screen.plan.history import REMEMBERED, History
from qtui_core.memory.plan.run_plan import RunPlan

#: Keys -> the change that they make: on the form, typed, of the GPU, in the lists and the map of
#: Memory, and on the form of Train.
CHANGES = (
    (("right",), "batch 1 → 2"),
    (("down", "enter", *["backspace"] * 8, "7", "6", "8", "enter"), "sequence 2,048 → 768"),
    (("V", "V", "enter"), "GPU any → A100 SXM4 80GB"),
    (("V", "left", "enter"), "sequence 768 → 256"),
    (("5", "right"), "batch 2 → 3"),
    (("backspace",), "batch 3 → 1"),
)


def choice(app: Any) -> tuple[Any, Any]:
    return (app.panel.shown.plan, app.panel.shown.gpu)


async def press(pilot: Pilot[None], *keys: str) -> Any:
    await pilot.press(*keys)
    await idle(pilot)
    return pilot.app.panel


async def test_every_change_is_undone_and_done_again(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        await ready(pilot)
        seen = [choice(pilot.app)]
        for keys, _ in CHANGES:
            await press(pilot, *keys)
            seen.append(choice(pilot.app))
        changes = [change for _, change in CHANGES]
        with collected() as case:
            for change, there in zip(reversed(changes), reversed(seen[:-1]), strict=True):
                with case(f"undone: {change}"):
                    panel = await press(pilot, "u")
                    assert choice(pilot.app) == there
                    in_a_run = change.replace("2,048", "128")  # of the demo on a CPU
                    assert panel.sentence.startswith(f"Undone: {in_a_run}. ")
            assert not panel.history.undoes
            await press(pilot, "4")
            for change, there in zip(changes, seen[1:], strict=True):
                with case(f"done again: {change}"):
                    panel = await press(pilot, "U")
                    assert choice(pilot.app) == there
                    assert panel.sentence.startswith(f"Done again: {change}. ")
        await press(pilot, "u")
        panel = await press(pilot, "plus")
        assert not panel.sentence.startswith("Undone")
        assert not panel.history.redoes


def test_the_history_is_no_longer_than_it_says() -> None:
    history, now = History(), (RunPlan(batch=1), None)
    for batch in range(2, REMEMBERED + 50):
        history.record(now)
        now = (RunPlan(batch=batch), None)
    steps = 0
    while (found := history.undo(now)) is not None:
        steps, now = steps + 1, found
    assert steps == REMEMBERED
    assert not history.undoes
    history.record(now)
    assert not history.redoes
