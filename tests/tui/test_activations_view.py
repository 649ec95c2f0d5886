"""The Activations view: what it draws, its states, its keys, and a real model that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
import running_models
from quantize_model import PROJ
from screens import (
    Running,
    check_golden,
    goldens,
    idle,
    resized,
    screen_lines,
    screen_text,
    settled,
    until,
)
from textual.pilot import Pilot

from qtui.engine.answers.activations import Captured, Channel, Outputs, Ranges, Way
from qtui.report.pictures.glyphs import ASCII, UNICODE
from qtui.screen.panel.asking import AskingPhase
from qtui.tui.panels.quantize.activations.feed import ActivationsFeed, TextChoice
from qtui.tui.panels.quantize.activations.layout import all_lines
from qtui.tui.panels.quantize.activations.view import ActivationsView, CaptureState
from qtui.tui.panels.quantize.panel import QuantizePanel
from qtui_core.answers import RangeError
from qtui_core.errors import ModelError, QtuiError, UsageError

CAPTURED = Captured(
    number=7, tensor=PROJ, module=PROJ.removesuffix(".weight"), kind="Linear", text="the built-in "
    "text, a byte a token", seconds=0.5, tokens=2048, kept_tokens=2048,
    held_out_tokens=2048, inputs=160, outputs=96,
)  # fmt: skip


def way(kind: str, words: str, first: float | None, second: float | None, clip: float = 0) -> Way:
    loss = None if first is None or second is None else first - second
    errors = RangeError(first, None, clip), RangeError(second, None, clip)
    return Way(kind, words, "int8", None, 8.05, *errors, loss)


RANGES = Ranges(
    side="input",
    scheme="int8:row",
    features=160,
    nonfinite=0,
    sampled=False,
    standing_out=1,
    channels=tuple(Channel(17 + 9 * i, 40 / (i + 1), 41 / (i + 1)) for i in range(12)),
    ways=(
        way("dynamic", "per token", 38.04, 38.01),
        way("dynamic", "per tensor", 33.2, 30.05),
        way("static", "min-max", 33.2, 31.1, 0.00021),
        way("static", "99.99%", 34.5, 30.5, 0.0123),
        way("static", "99.9%", -2.4, -3.0, 0.1),
    ),
    sentence="Input of down_proj: channel 17 of 160 reaches 41x the median; use per token.",
)
OUTPUTS = Outputs(
    tokens=2048,
    schemes=("int4:group64", "nf4:block64"),
    sqnr_db=((None, 17.2, 18.9), (22.8, 16.2, 17.4), (24.0, 16.4, 17.8)),
    relative_mse=((0.0, 0.02, 0.01), (0.01, 0.02, 0.02), (0.01, 0.02, 0.02)),
    worst_outputs=((17, 0.41), (3, 0.0321), (60, 0.011)),
    transposed=False,
    sentence="Output under int4:group64: 16.2 dB.",
)


#: Of keys that are no letters.
NAMES = {
    "(": "left_parenthesis", ")": "right_parenthesis", ":": "colon", " ": "space",
    ".": "full_stop",
}  # fmt: skip


class FakeFeed(ActivationsFeed):
    """Answers that are known beforehand; `failure` is raised by the next captures, and
    `gate` holds them until it is set."""

    failure: Exception | None = None
    gate: asyncio.Event | None = None
    asked: list[tuple[Any, ...]]

    def __init__(self, feed: Any) -> None:
        super().__init__(feed)
        FakeFeed.asked = []

    async def capture(self, model: str, tensor: str, text: TextChoice, activity: Any) -> Captured:
        self.asked.append(("capture", tensor, text))
        activity("starting torch", 0.0)
        if FakeFeed.gate is not None:
            activity("running on the calibration text", 0.42)
            await FakeFeed.gate.wait()
        if FakeFeed.failure is not None:
            raise FakeFeed.failure
        self.held = frozenset({tensor})
        return Captured(**{**vars(CAPTURED), "tensor": tensor})

    async def ranges(self, model: str, found: Any, side: str, scheme: str, activity: Any) -> Ranges:
        self.asked.append(("ranges", side, scheme))
        return RANGES

    async def outputs(
        self, model: str, found: Any, schemes: tuple[str, ...], active: int, activity: Any
    ) -> Outputs:
        self.asked.append(("outputs", schemes, active))
        return Outputs(**{**vars(OUTPUTS), "schemes": schemes})


@pytest.fixture
def model(model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a short relative name, which the header line shows."""
    monkeypatch.chdir(Path(model).parent)
    return Path(model).name


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeFeed]:
    monkeypatch.setattr("qtui.tui.panels.quantize.activations.view.ActivationsFeed", FakeFeed)
    monkeypatch.setattr(FakeFeed, "failure", None)
    monkeypatch.setattr(FakeFeed, "gate", None)
    return FakeFeed


async def opened(pilot: Pilot[None]) -> tuple[QuantizePanel, ActivationsView]:
    """The panel with the view on the screen, at rest."""
    panel = cast(Any, pilot.app).panel
    await until(pilot, lambda: panel.phase is AskingPhase.READY)
    panel.show_view(panel.body.activations)
    panel.look_again()
    await until(pilot, lambda: panel.phase is AskingPhase.READY)
    await settled(pilot)
    return panel, panel.body.activations


async def captured(pilot: Pilot[None]) -> tuple[QuantizePanel, ActivationsView]:
    panel, view = await opened(pilot)
    await pilot.press("r")
    await until(pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY)
    await settled(pilot)
    return panel, view


def drawn(pilot: Pilot[None], view: ActivationsView) -> str:
    """The cells of the view, and the sentence of the panel."""
    region = view.lines.region
    lines = screen_lines(pilot.app)[region.y : region.bottom]
    cells = [line[region.x : region.right].rstrip() for line in lines]
    return "\n".join([*cells, "", cast(Any, pilot.app).panel.sentence]) + "\n"


# What it draws


async def test_golden(running: Running, model: str, fake: type[FakeFeed]) -> None:
    with goldens() as check:
        async with running(model=model, start_panel="quantize", color="16") as pilot:
            _, view = await captured(pilot)
            for size in ((80, 24), (120, 40), (200, 50)):
                await resized(pilot, size)
                check(f"activations_{size[0]}x{size[1]}", drawn(pilot, view))


async def test_keys_that_come_together_capture(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    """Over a slow line the key is there before the view was ever looked at."""
    async with running(model=model, start_panel="quantize") as pilot:
        panel = cast(Any, pilot.app).panel
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        for key in "vvr":
            pilot.app.simulate_key(key)
        view = panel.body.activations
        await until(pilot, lambda: panel.phase is AskingPhase.READY and panel.view is view)
        await idle(pilot)
        assert view.outputs is not None


async def test_golden_before_a_capture(running: Running, model: str) -> None:
    async with running((80, 24), model=model, start_panel="quantize", color="16") as pilot:
        _, view = await opened(pilot)
        check_golden("activations_nothing_80x24", drawn(pilot, view))


@pytest.mark.parametrize("size", [(40, 6), (78, 14), (78, 30), (120, 40), (20, 3)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_what_does_not_fit_is_left_out(size: tuple[int, int], glyphs: Any) -> None:
    lines = all_lines(*size, glyphs, CAPTURED, RANGES, OUTPUTS)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert len(texts) <= size[1]
    if size[0] >= 78:
        assert all(len(text.rstrip()) <= size[0] for text in texts)
        assert any("per token" in text for text in texts)
    if size[1] >= 14:
        assert any("SQNR of the output" in text for text in texts)


def test_the_best_way_is_marked_and_numbers_stand_in_their_columns() -> None:
    lines = all_lines(100, 40, ASCII, CAPTURED, RANGES, OUTPUTS)
    texts = ["".join(text for text, _ in line) for line in lines]
    best = next(text for text in texts if "per token" in text)
    assert best.startswith(">dynamic")
    assert best.split()[3:7] == ["8.05", "38.0", "38.0", "0.0"]
    static = next(text for text in texts if "min-max" in text)
    assert "0.02%" in static
    whole = next(text for text in texts if text.startswith("largest channels"))
    assert "| the median channel" in whole
    bars = [text for text in texts if text.startswith(" channel ")]
    assert len(bars) == 8
    assert bars[0].count("#") > 1.8 * bars[1].count("#")  # 40 against 20
    table = texts[texts.index(next(t for t in texts if t.startswith("SQNR of the output"))) :]
    assert texts[-1] == "  largest shares of the error, by output: 17 (41%), 3 (3.21%), 60 (1.1%)"
    assert table[1].split() == ["W", "as", "stored", "exact", "17.2", "18.9"]


def test_a_way_without_any_error_is_exact_and_the_best() -> None:
    exact = Ranges(**{**vars(RANGES), "ways": (*RANGES.ways, way("dynamic", "per x", None, None))})
    lines = all_lines(100, 40, ASCII, CAPTURED, exact, None)
    texts = ["".join(text for text, _ in line) for line in lines]
    best = next(text for text in texts if "per x" in text)
    assert best.startswith(">")
    assert best.count("exact") == 2
    assert best.count("#") == 100 - 66
    error = RangeError(30.0, None, 0.0)
    for_no_held_out = Way("dynamic", "per token", "int8", None, 8.0, error, None, None)
    alone = Ranges(**{**vars(RANGES), "ways": (for_no_held_out,)})
    lines = all_lines(78, 40, ASCII, CAPTURED, alone, None)
    line = next(line for line in lines if line and "per token" in line[0][0])
    assert "".join(text for text, _ in line).split()[4:7] == ["30.0", "–", "–"]


def test_a_layer_without_error_is_exact_and_not_unknown() -> None:
    outputs = Outputs(8, ("int8:row",), ((None, 40.0), (None, 40.0)), (), (), False, "")
    lines = all_lines(100, 40, ASCII, CAPTURED, None, outputs, "A")
    texts = ["".join(text for text, _ in line) for line in lines]
    assert texts[-2].split() == ["W", "A", "int8:row", "exact", "40.0"]


@pytest.mark.parametrize("color", ["truecolor", "256", "none"])
async def test_every_depth(running: Running, model: str, fake: type[FakeFeed], color: str) -> None:
    async with running((100, 30), model=model, start_panel="quantize", color=color) as pilot:
        await captured(pilot)
        assert all(len(line) == 100 for line in screen_lines(pilot.app))
        assert "per token" in screen_text(pilot.app)


async def test_ascii_is_ascii(running: Running, model: str, fake: type[FakeFeed]) -> None:
    async with running(model=model, start_panel="quantize", color="none", ascii=True) as pilot:
        await opened(pilot)
        assert screen_text(pilot.app).isascii()
        await captured(pilot)
        assert screen_text(pilot.app).replace("–", "-").isascii()


# What it says and does


async def test_the_sentence_is_the_engine_s_and_all_is_copied_and_exported(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        assert view.sentence.startswith(f"The module of {PROJ} is not captured yet")
        assert panel.sentence == view.sentence
        assert view.copy_text() is None
        assert view.export_data() is None
        await captured(pilot)
        assert panel.sentence == f"{RANGES.sentence} {OUTPUTS.sentence}"
        text = panel.copy_text()
        assert text is not None
        assert text.startswith("input of model.layers.0.mlp.down_proj\n")
        assert text.endswith(panel.sentence)
        data = json.loads(json.dumps(panel.export_data()))["activations"]
        assert data["capture"]["module"] == "model.layers.0.mlp.down_proj"
        assert list(data["capture"]) == [
            "number", "tensor", "module", "text", "seconds", "tokens", "kept_tokens",
            "held_out_tokens", "inputs", "outputs",
        ]  # fmt: skip
        assert data["ranges"]["ways"][0] == {
            "kind": "dynamic", "words": "per token", "scheme": "int8", "bits": 8.05,
            "calibration_db": 38.04, "held_out_db": 38.01, "loss_db": 38.04 - 38.01, "clipped": 0,
            "unseen": True,
        }  # fmt: skip
        assert data["ranges"]["channels"][0] == {"channel": 17, "absmax": 40.0, "ratio": 41.0}
        assert list(data["outputs"]) == [
            "tokens", "schemes", "sqnr_db", "worst_outputs", "sentence",
        ]  # fmt: skip
        assert data["outputs"]["sqnr_db"][1] == [22.8, 16.2, 17.4]


async def test_a_prompt_and_a_file_are_typed(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    async with running((80, 24), model=model, start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        await pilot.press("I", *"def c", "escape")
        await settled(pilot)
        assert not view.typing
        assert fake.asked == []  # nothing that was typed takes effect
        for key, word, chosen in [
            ("I", "def v(p):", TextChoice(prompt="def v(p):")),
            ("i", "notes.txt", TextChoice(file="notes.txt")),
        ]:
            fake.asked.clear()
            await pilot.press(key)
            assert view.typing
            view.field.value = ""
            for letter in word:
                await pilot.press(NAMES.get(letter, letter))
            await pilot.press("enter")
            await until(
                pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY
            )
            assert fake.asked[0] == ("capture", PROJ, chosen)
            assert not view.typing


async def test_schemes_and_sources_are_asked_for(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel, view = await captured(pilot)
        assert fake.asked[1:] == [
            ("ranges", "input", "int4:group64"),
            ("outputs", ("int4:group64", "nf4:block64"), 0),
        ]
        fake.asked.clear()
        await pilot.press("X")
        await until(pilot, lambda: ("outputs", ("int4:group64", "nf4:block64"), 1) in fake.asked)
        assert ("ranges", "input", "nf4:block64") in fake.asked
        assert panel.shown.source == "weight"
        assert view.state is CaptureState.READY


async def test_a_layer_too_large_for_its_output_has_ranges_all_the_same(
    running: Running, model: str, fake: type[FakeFeed], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: Any) -> Outputs:
        raise UsageError("The layer has 999 weights, too many for its output.")

    monkeypatch.setattr(FakeFeed, "outputs", refuse)
    async with running(model=model, start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        await pilot.press("r")
        await until(pilot, lambda: panel.sentence.endswith("too many for its output."))
        assert panel.sentence.startswith(RANGES.sentence)
        assert view.state is CaptureState.READY
        assert "per token" in drawn(pilot, view)


async def test_a_capture_shows_its_progress_and_is_stopped(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    fake.gate = asyncio.Event()
    async with running((100, 30), model=model, start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        await pilot.press("r")
        await until(pilot, lambda: "42%" in screen_text(pilot.app))
        assert "Running on the calibration text, 42%" in screen_text(pilot.app)
        assert panel.sentence == "The model is reading the text; Esc stops it."
        await pilot.press("escape")
        await until(pilot, lambda: panel.phase is AskingPhase.STOPPED)
        await settled(pilot)
        assert "Stopped; r continues." in drawn(pilot, view)
        assert panel.sentence.startswith("Stopped before the model had read the text; r continues")
        fake.gate.set()
        await pilot.press("r")
        await until(pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY)
        assert "per token" in screen_text(pilot.app)


@pytest.mark.parametrize(
    "failure",
    [
        UsageError("'x.bin' is binary (a zero byte at 3); calibration needs text."),
        ModelError("The installed transformers knows no model of type 'nosuch'."),
        QtuiError("The forward pass of 'small' failed in layers.1.mlp (RuntimeError: no)."),
    ],
)
async def test_a_failure_is_said_and_the_app_goes_on(
    running: Running, model: str, fake: type[FakeFeed], failure: Exception
) -> None:
    fake.failure = failure
    async with running((80, 24), model=model, start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        await pilot.press("r")
        await until(pilot, lambda: view.state is CaptureState.FAILED)
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        await settled(pilot)
        assert panel.sentence == str(failure)
        assert str(failure)[:40] in screen_text(pilot.app)
        fake.asked.clear()
        panel.look_again()  # what failed is not tried again unasked
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        assert fake.asked == []
        fake.failure = None
        await pilot.press("r")
        await until(pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY)
        assert "per token" in screen_text(pilot.app)


async def test_another_tensor_is_captured_unasked_only_where_it_is_quick(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel, view = await captured(pilot)
        fake.asked.clear()
        other = "model.layers.1.mlp.up_proj.weight"
        panel.body.side.list.select(other)
        await until(pilot, lambda: ("capture", other, TextChoice()) in fake.asked)
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        view._seconds = 60.0  # as of a large model
        fake.asked.clear()
        panel.body.side.list.select(PROJ)
        await until(
            pilot, lambda: panel.phase is AskingPhase.READY and panel.shown.entry.name == PROJ
        )
        await settled(pilot)
        assert fake.asked == []
        assert "The activations of this module are not captured yet" in screen_text(pilot.app)
        await pilot.press("r")
        await until(pilot, lambda: ("capture", PROJ, TextChoice()) in fake.asked)


async def test_a_lost_engine_takes_its_captures_with_it(
    running: Running, model: str, fake: type[FakeFeed]
) -> None:
    async with running(model=model, start_panel="quantize") as pilot:
        panel, view = await captured(pilot)
        assert panel.check_action("source", ())
        panel.qtui.engine.kill()
        await until(pilot, lambda: panel.phase is AskingPhase.LOST)
        await settled(pilot)
        assert not panel.check_action("source", ())
        assert view.found is None
        assert "r starts it again" in screen_text(pilot.app)
        await pilot.press("r")
        await until(pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY)


# With a model that runs


@pytest.mark.slow
async def test_the_whole_panel_looks_at_a_real_activation(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running_models.llama(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    async with running((120, 40), model="tiny", start_panel="quantize") as pilot:
        panel, view = await opened(pilot)
        panel.body.side.list.select("model.layers.1.mlp.down_proj.weight")
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        assert not panel.check_action("source", ())
        await pilot.press("r")
        await until(pilot, lambda: view.outputs is not None and panel.phase is AskingPhase.READY)
        assert view.ranges is not None
        assert view.ranges.features == 48
        assert panel.sentence.startswith("Input of down_proj: ")
        weight = panel.shown.errors[0]
        for source, features in (("input", 48), ("output", 32)):
            panel.action_source()
            await until(
                pilot,
                lambda source=source: (
                    panel.phase is AskingPhase.READY
                    and view.ranges is not None
                    and view.ranges.side == source
                ),
            )
            assert panel.shown.source == source
            assert view.ranges.features == features
            assert panel.shown.errors[0] not in (None, weight)
            assert panel.shown.numbers is not None
            assert panel.shown.numbers.statistics.count == 2048 * features
        panel.show_view(panel.body.maps)  # maps of the same activation
        panel.look_again()
        await until(pilot, lambda: panel.phase is AskingPhase.READY and panel.shown.map is not None)
        assert "output of model.layers.1.mlp.down_proj" in screen_text(pilot.app)
        panel.action_source()
        await until(pilot, lambda: panel.phase is AskingPhase.READY)
        assert panel.shown.source == "weight"
