"""Traces that the Memory panel requests: shown, given up, failed, and of unknown families."""

from __future__ import annotations

import pytest
from memory_estimator import HandMade
from screens import Running, screen_text, settled, until
from test_tui_memory_layout import estimator, ready  # noqa: F401 (a fixture)

from qtui.screen.panel.asking import AskingPhase
from qtui_core.errors import ModelError, QtuiError, UsageError


async def test_a_trace_takes_the_place_of_the_estimate(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    """With what surrounds it, so that the sentence and the levels are of the same run."""
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.sentence = "The traced run needs 10 GiB."
        await pilot.press("r")
        await until(pilot, lambda: panel.shown.answer.origin == "trace")
        await ready(pilot)
        text = screen_text(pilot.app)
        assert "traced peak 8.6 GiB" in text
        assert "the peak stays the same: traced, not estimated" in text
        assert panel.sentence == "The traced run needs 10 GiB."


async def test_a_trace_is_given_up(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.holding = {"trace"}
        await pilot.press("r")
        await until(pilot, lambda: estimator.count("trace") == 1)
        await settled(pilot)
        assert "Esc stops" in screen_text(pilot.app)
        await pilot.press("escape")
        await until(pilot, lambda: estimator.given_up == ["trace"])
        await settled(pilot)
        assert panel.phase is AskingPhase.READY
        assert "The trace was cancelled" in panel.sentence
        assert "Esc stops" not in screen_text(pilot.app)
        assert panel.shown.current
        await pilot.press("right")
        await ready(pilot)
        assert panel.shown.plan.batch == 2


async def test_a_trace_of_a_plan_that_is_changed_is_given_up(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.holding = {"trace"}
        await pilot.press("r")
        await until(pilot, lambda: estimator.count("trace") == 1)
        await pilot.press("right")
        await until(pilot, lambda: estimator.given_up == ["trace"])
        await ready(pilot)
        assert panel.shown.answer.origin == "tape"
        assert "Esc stops" not in screen_text(pilot.app)


async def test_a_trace_that_fails_leaves_the_estimate(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    async with running(start_panel="memory") as pilot:
        panel = await ready(pilot)
        estimator.failing = ("trace", ModelError("There is no class to trace."))
        await pilot.press("r")
        await until(pilot, lambda: panel.sentence == "There is no class to trace.")
        assert panel.phase is AskingPhase.READY
        assert panel.shown.current
        assert "WWWW" in panel.body.curve.text


async def test_what_is_not_built_in_is_traced_by_itself_while_its_bounds_are_shown(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.origin, estimator.holding = "bounds", {"trace"}
    async with running((100, 30), start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: estimator.count("trace") == 1)
        await settled(pilot)
        text = screen_text(pilot.app)
        assert "assumed peak 8.6 GiB" in text
        assert "tracing for" in text
        assert "WWWW" in panel.body.curve.text
        await pilot.press("right")  # another plan: the trace of the old one ends
        await until(pilot, lambda: estimator.count("trace") == 2)
        assert estimator.given_up == ["trace"]
        estimator.holding = set()
        await until(pilot, lambda: panel.shown.answer.origin == "trace")
        await ready(pilot)
        assert "traced peak" in screen_text(pilot.app)
        assert estimator.count("trace") == 2


async def test_a_trace_that_was_stopped_does_not_begin_again_for_its_plan(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.origin, estimator.holding = "bounds", {"trace"}
    async with running(start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: estimator.count("trace") == 1)
        await pilot.press("escape")
        await until(pilot, lambda: estimator.given_up == ["trace"])
        await settled(pilot)
        assert panel.phase is AskingPhase.READY
        assert panel.shown.answer.origin == "bounds"
        assert estimator.count("trace") == 1
        await pilot.press("right")  # another plan is traced, this one not when it comes back
        await until(pilot, lambda: estimator.count("trace") == 2)
        await pilot.press("left")
        await ready(pilot)
        await settled(pilot)
        assert panel.shown.plan.batch == 1
        assert estimator.count("trace") == 2
        await pilot.press("right")  # that of the other plan was not stopped, but given up
        await until(pilot, lambda: estimator.count("trace") == 3)


@pytest.mark.parametrize("error", [ModelError, UsageError])
async def test_what_cannot_be_traced_says_why_once_and_keeps_its_bounds(
    running: Running,
    estimator: HandMade,  # noqa: F811
    error: type[QtuiError],
) -> None:
    estimator.origin, estimator.failing = "bounds", ("trace", error("transformers has no class."))
    async with running(start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.sentence == "transformers has no class.")
        assert panel.shown.answer.origin == "bounds"
        await pilot.press("right")
        await ready(pilot)
        assert panel.shown.plan.batch == 2
        assert panel.sentence != "transformers has no class."
        assert estimator.count("trace") == 1
        await pilot.press("r")  # by hand it is tried again
        await until(pilot, lambda: estimator.count("trace") == 2)


async def test_what_names_no_class_is_not_traced(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.origin, estimator.traceable = "bounds", False
    async with running(start_panel="memory") as pilot:
        await ready(pilot)
        assert "r Trace" not in screen_text(pilot.app)
        await pilot.press("r")
        await settled(pilot)
        assert estimator.count("trace") == 0
