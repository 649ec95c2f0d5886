"""Traces that the Memory panel requests: shown, given up, failed, and of unknown families."""

from __future__ import annotations

from memory_estimator import HandMade
from screens import Running, screen_text, settled, until
from test_tui_memory_layout import estimator, ready  # noqa: F401 (a fixture)

from qtui.screen.panel.asking import AskingPhase
from qtui_core.errors import ModelError

UNKNOWN = "No shape of models of type 'mamba' is built in, and none is guessed."


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
        assert "traced, not estimated: the peak stays the same" in text
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


async def test_an_unknown_family_offers_the_trace(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.unknown = UNKNOWN
    async with running(start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        await settled(pilot)
        assert "r runs that trace here" in screen_text(pilot.app)
        assert estimator.count("first") == 0
        estimator.holding = {"trace"}
        await pilot.press("r")
        await until(pilot, lambda: estimator.count("trace") == 1)
        await settled(pilot)
        assert "run on tensors without values" in panel.sentence
        assert "without values" in panel.body.picture.text
        await pilot.press("escape")
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        assert "r runs that trace here" in panel.sentence
        estimator.holding = set()
        await pilot.press("r")
        await ready(pilot)
        assert "WWWW" in panel.body.curve.text
        for view, words in (
            ("Parts", "at the peak"),
            ("Savings", "a trace covers one plan"),
            ("Map", "no map without a built-in shape"),
            ("GPUs", "RTX 4090"),
            ("Cases", "worked cases"),
        ):
            await pilot.press("v")
            await settled(pilot)
            assert view == panel.view.TITLE
            assert words in panel.body.picture.text


async def test_another_plan_of_an_unknown_family_is_compared_with_the_one_traced(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.unknown = UNKNOWN
    async with running(start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        await pilot.press("r")
        await ready(pilot)
        await pilot.press("right")
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        assert "r traces this one" in panel.sentence
        await pilot.press("r")
        await ready(pilot)
        assert "batch 1 → 2: +2 GiB at the peak" in screen_text(pilot.app)


async def test_what_names_no_class_is_not_traced(
    running: Running,
    estimator: HandMade,  # noqa: F811
) -> None:
    estimator.unknown, estimator.traceable = "config.json does not say model_type.", False
    async with running(start_panel="memory") as pilot:
        panel = pilot.app.panel
        await until(pilot, lambda: panel.phase is AskingPhase.FAILED)
        await settled(pilot)
        assert "r runs" not in screen_text(pilot.app)
        await pilot.press("r")
        await settled(pilot)
        assert estimator.count("trace") == 0
