"""The Model view: what it draws and says in each state, its keys, and a model that is really
evaluated. In the quick tests the engine's answers are made up."""

from __future__ import annotations

import asyncio
import csv
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
from screens import Running, goldens, idle, resized, screen_text, settled, until
from textual.pilot import Pilot

from qtui.engine.answers.evaluation import EvaluationProgress
from qtui.engine.answers.tensors import Devices, ModelIndex, TensorEntry
from qtui.engine.client import EngineClient, EngineLost, EngineState, Reply
from qtui.report.evaluation.document import frontier, frontier_picture
from qtui.report.pictures.cells import plain_lines
from qtui.report.pictures.glyphs import ASCII, UNICODE, Brush
from qtui.screen.widgets.text_picture import Canvas
from qtui.tui.panels.quantize.model.layout import model_lines
from qtui.tui.panels.quantize.model.run import EvaluationState, ModelRun
from qtui.tui.panels.quantize.model.sentences import model_sentence
from qtui.tui.panels.quantize.model.view import ModelView
from qtui_core.codec import to_plain
from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.evaluation.results import (
    Candidate,
    EvaluatedText,
    Evaluation,
    EvaluationBegun,
    EvaluationRow,
    PartScored,
)
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.evaluation.summary import summarize
from qtui_core.schemes.scheme import Scheme

PARAMETERS = 4_560_000
#: Bytes and mean divergence of each scheme.
FIGURES = {
    "original": (9_120_000, 0.0),
    "int8:row": (4_620_000, 3e-5),
    "nf4:block64": (2_570_000, 0.0046),
    "nf4:block64:dq": (2_360_000, 0.0047),
    "int4:group64": (2_570_000, 0.0062),
    "mxfp4": (2_430_000, 0.0087),
    "nvfp4": (2_571_000, 0.0052),
}
ENTRY = TensorEntry("lm_head.weight", "BF16", (96, 160), 15_360, 30_720, True, True, 96)
INDEX = ModelIndex("small", "file", "LlamaForCausalLM", PARAMETERS, 9_120_000, "", (ENTRY,))


def begun_of(settings: EvaluationSettings, batches: tuple[int, ...] = (3, 2)) -> EvaluationBegun:
    names = ("original", *map(str, settings.schemes))
    text = EvaluatedText("a text", "a byte a token", 9000, "d", 256, 40, sum(batches))
    return EvaluationBegun(
        "small", "LlamaForCausalLM", PARAMETERS, 9_120_000, settings, text,
        tuple(map(Candidate, names)), batches, "CPU, 2 threads, float32", versions={"torch": "2"},
    )  # fmt: skip


def part_of(begun: EvaluationBegun, batch: int, number: int) -> PartScored:
    """Made-up scores of a candidate on a batch: an exponential distribution of divergences."""
    nbytes, mean = FIGURES.get(begun.candidates[number].scheme, (2_500_000, 0.0055))
    rng = np.random.default_rng(17 * batch)
    shape = begun.batches[batch], begun.text.scored
    divergence = mean * rng.exponential(size=shape)

    def text(values: Any, dtype: str) -> str:
        return b64encode(np.asarray(values, dtype).tobytes()).decode()

    return PartScored(
        batch, number, nbytes, text(0.9 + divergence, "<f4"),
        text(divergence, "<f4") if number else "", text(divergence <= 4 * mean, "|u1"), 0.5,
    )  # fmt: skip


def events_of(begun: EvaluationBegun) -> list[tuple[float, EvaluationProgress]]:
    """What the engine tells, with the progress before each part."""
    parts: list[PartScored] = []
    told = [(0.0, EvaluationProgress(found=summarize(begun, [])))]
    for number in range(begun.parts):
        parts.append(part_of(begun, *divmod(number, len(begun.candidates))))
        told.append((number / begun.parts, EvaluationProgress(found=summarize(begun, parts))))
    return told


def whole(batches: tuple[int, ...] = (3, 2), *texts: str) -> Evaluation:
    schemes = tuple(map(Scheme.parse, texts or list(FIGURES)[1:]))
    begun = begun_of(EvaluationSettings(schemes=schemes), batches)
    found = events_of(begun)[-1][1].found
    assert found is not None
    parts = [part_of(begun, *divmod(n, len(begun.candidates))) for n in range(begun.parts)]
    return summarize(begun, parts, "done")


def run_of(found: Evaluation | None, state: EvaluationState, *texts: str) -> ModelRun:
    run = ModelRun("small", state=state, found=found)
    run.list_schemes([Scheme.parse(text) for text in texts or ("int4", "nf4")])
    return run


# Without an app


def test_the_frontier_is_what_no_other_beats() -> None:
    rng = np.random.default_rng(3)
    first = whole().rows
    for _ in range(60):
        drawn = [
            replace(first[1], scheme=f"s{at}", nbytes=int(bits), kl_mean=float(kl))
            for at, (bits, kl) in enumerate(rng.integers(1, 6, (8, 2)))
        ]
        lost = replace(first[1], scheme="inf", nbytes=1, kl_mean=None, nonfinite=4)
        found = frontier([first[0], *drawn, lost])

        def beaten(row: EvaluationRow, drawn: list[EvaluationRow] = drawn) -> bool:
            place = row.nbytes, row.kl_mean or 0.0
            others = [(each.nbytes, each.kl_mean or 0.0) for each in drawn]
            return any(a <= place[0] and b <= place[1] and (a, b) != place for a, b in others)

        places = {(row.nbytes, row.kl_mean) for row in drawn if not beaten(row)}
        assert {(row.nbytes, row.kl_mean) for row in found} == places
        assert len(found) == len(places)


def test_the_picture_joins_the_frontier_and_names_what_is_dominated() -> None:
    picture = frontier_picture(whole().rows)
    assert picture is not None
    assert len(picture.line) == 3
    named = {point.name for point in picture.points}
    assert {"nf4:block64:dq", "mxfp4, dominated", "nvfp4, dominated", "int8:row"} <= named
    assert frontier_picture(whole((3, 2), "nf4").rows) is None


def test_few_schemes_are_named_beside_their_places() -> None:
    run = run_of(whole((3, 2), "int8", "nf4", "int4"), EvaluationState.DONE)
    run.picture_alone = True
    for width, height in ((78, 15), (118, 20), (198, 30)):
        lines = plain_lines(model_lines(run, PARAMETERS, Canvas(width, height, ASCII), Brush(True)))
        plane = " ".join(line.partition("|")[2] for line in lines)
        assert all(plane.count(name) == 1 for name in ("int8:row", "nf4:block64", "int4:group64"))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_all_fits_at_every_size(glyphs: Any) -> None:
    brush = Brush(ascii=glyphs is ASCII)
    for width, height in ((30, 4), (58, 9), (78, 15), (118, 30), (198, 42)):
        for state, found in (
            (EvaluationState.NOTHING, None),
            (EvaluationState.DONE, whole()),
            (EvaluationState.DONE, whole((1,))),
            (EvaluationState.RUNNING, events_of(begun_of(whole().begun.settings))[3][1].found),
        ):
            run = run_of(found, state)
            canvas = Canvas(width, height, glyphs)
            lines = plain_lines(model_lines(run, PARAMETERS, canvas, brush))
            assert len(lines) <= height
            assert any("original" in line for line in lines)
            if width >= 78:
                assert all(len(line) <= width for line in lines), (width, state)
            if glyphs is ASCII:
                assert "".join(lines).replace("–", "").replace("±", "").isascii()


def test_a_narrow_table_says_below_what_it_leaves_out() -> None:
    run = run_of(whole(), EvaluationState.DONE)
    run.cursor = 2
    lines = plain_lines(model_lines(run, PARAMETERS, Canvas(78, 15, ASCII), Brush(ascii=True)))
    heads = lines[0].split()
    assert {"bits/param", "KL", "±", "99.9%", "change"} <= set(heads)
    assert "bytes" not in heads
    row = next(row for row in run.rows if row.name == run.rows[2].name)
    assert lines[3].startswith(f">o {row.name}")
    foot = next(line for line in lines if line.strip().startswith(f"{row.name}: "))
    assert all(title in foot for title in ("bytes", "median", "loss", "perplexity"))
    wide = plain_lines(model_lines(run, PARAMETERS, Canvas(118, 12, ASCII), Brush(ascii=True)))
    assert {"bytes", "median", "loss", "perplexity"} <= set(wide[0].split())


def test_rows_are_by_bits_and_the_unread_follow() -> None:
    found = whole((3, 2), "nf4", "int8", "mxfp4")
    run = run_of(found, EvaluationState.DONE)
    assert [row.name for row in run.rows] == ["original", "int8:row", "nf4:block64", "mxfp4"]
    assert run.missing == ("int4:group64", "nf4:block64:dq", "nvfp4")
    said = model_sentence(run, PARAMETERS)
    assert said.startswith(found.conclusion)
    assert "int4:group64, nf4:block64:dq and nvfp4 are not read yet: r does it" in said
    run.others = run.others[1:]
    run.list_schemes([Scheme.parse("int4"), Scheme.parse("nf4")])
    assert run.taken_out == ("int8:row",)
    assert "int8:row" not in {row.name for row in run.rows}


def test_what_is_read_now_follows_from_the_progress() -> None:
    begun = begun_of(whole().begun.settings)
    run = run_of(events_of(begun)[0][1].found, EvaluationState.RUNNING)
    for number in range(begun.parts):
        batch, candidate = divmod(number, len(begun.candidates))
        for inside in (0.0, 0.5, 0.99):
            run.fraction = (number + inside) / begun.parts
            reading = run.reading
            assert reading is not None
            assert reading.name == begun.candidates[candidate].name
            assert (reading.first, reading.last) == ((1, 3), (4, 5))[batch]


def test_every_state_has_its_sentence() -> None:
    found = whole()
    for state, result, words in (
        (
            EvaluationState.NOTHING,
            None,
            "r lets the original and 6 schemes read 42 windows of 256",
        ),
        (EvaluationState.RUNNING, None, "The engine loads torch"),
        (
            EvaluationState.RUNNING,
            events_of(found.begun)[3][1].found,
            "reads windows 1 to 3 of 5; Esc",
        ),
        (
            EvaluationState.STOPPED,
            None,
            "Stopped before a scheme had read a window: r begins again.",
        ),
        (EvaluationState.LOST, None, "The engine ended before a scheme had read a window"),
        (EvaluationState.DONE, found, found.conclusion),
        (EvaluationState.DONE, whole((1,)), "but one window gives no standard error"),
    ):
        assert words in model_sentence(run_of(result, state), PARAMETERS), (state, words)
    assert model_sentence(run_of(None, EvaluationState.NOTHING), None) == ""
    failed = run_of(None, EvaluationState.FAILED)
    failed.trouble = "It cannot run."
    assert model_sentence(failed, PARAMETERS) == "It cannot run."
    failed.gpu = True
    assert model_sentence(failed, PARAMETERS) == "It cannot run. d goes back to the CPU."
    for parameters, words in ((4_560_000, "about 9 s"), (8_000_000_000, "about 96 min")):
        assert words in model_sentence(run_of(None, EvaluationState.NOTHING), parameters)


def test_what_was_stopped_says_how_far_it_came() -> None:
    begun = begun_of(whole().begun.settings)
    for told, words in ((3, "2 of 6 schemes had read 3 of 5 windows. "), (10, "3 of 5 windows. ")):
        run = run_of(events_of(begun)[told][1].found, EvaluationState.RUNNING)
        run.end(EvaluationState.STOPPED)
        assert run.found is not None
        assert run.found.ended == "stopped"
        assert run.found.conclusion.startswith(f"Stopped after {words}")
        assert model_sentence(run, PARAMETERS).endswith(" r goes on.")
        again = run.found
        run.end(EvaluationState.LOST)
        assert run.found is again  # it is not said twice
        assert model_sentence(run, PARAMETERS).endswith("r begins again.")


# In the app


class ScriptedEngine:
    """Answers in place of the engine: one model with one tensor, of which nothing else is known,
    and evaluations that wait at the event `pause` until the gate is open."""

    def __init__(self) -> None:
        self.asked: list[EvaluationSettings] = []
        self.gate = asyncio.Event()
        self.pause = 99
        self.begin = 0
        self.error: Exception | None = None

    async def request(
        self, client: EngineClient, method: str, params: Any = None, **options: Any
    ) -> Reply:
        if method == "open_model":
            return Reply(to_plain(INDEX), {})
        if method == "devices":
            return Reply(to_plain(Devices(())), {})
        if method != "evaluation_so_far":
            raise asyncio.CancelledError
        self.asked.append(params.settings)
        hear: Callable[[float, Any], None] = options["on_progress"]
        begun = begun_of(params.settings)
        for number, (fraction, told) in enumerate(events_of(begun)):
            if number >= self.begin:
                hear(fraction, to_plain(told))
            if number == self.pause:
                if self.error is None or isinstance(self.error, EngineLost):
                    await self.gate.wait()
                if self.error is not None:
                    raise self.error
        parts = [part_of(begun, *divmod(n, len(begun.candidates))) for n in range(begun.parts)]
        return Reply(to_plain(summarize(begun, parts, "done")), {})


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine()

    async def request(client: EngineClient, method: str, *args: Any, **options: Any) -> Reply:
        return await scripted.request(client, method, *args, **options)

    monkeypatch.setattr(EngineClient, "request", request)
    return scripted


@asynccontextmanager
async def shown(
    running: Running, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[tuple[Pilot[None], Any, ModelView]]:
    """The panel with the view on the screen."""
    async with running(size, model="small", start_panel="quantize", **options) as pilot:
        panel = cast(Any, pilot.app).panel
        await until(pilot, lambda: panel.shown.index is not None)
        await pilot.press("V")
        await idle(pilot)
        yield pilot, panel, panel.view_of(ModelView)


async def test_it_costs_nothing_until_it_is_asked_for_and_rows_arrive(
    running: Running, engine: ScriptedEngine, tmp_path: Any
) -> None:
    async with shown(running) as (pilot, panel, view):
        assert engine.asked == []
        assert panel.sentence.startswith("r lets the original and 6 schemes read 42 windows")
        assert "about 9 s on one core" in screen_text(pilot.app)
        assert screen_text(pilot.app).count("not read") == 7
        assert panel.copy_text() is None
        assert panel.export_data() is None
        engine.pause = 3
        await pilot.press("r")
        await until(pilot, lambda: len(view.run.rows) == 3)
        await settled(pilot)
        text = screen_text(pilot.app)
        assert [str(scheme) for scheme in engine.asked[0].schemes][:2] == [
            "int4:group64", "nf4:block64",
        ]  # fmt: skip
        assert "nf4:block64, windows 1-3 of 5" in text
        assert text.count("waits") == 4
        assert panel.sentence.startswith("nf4:block64 reads windows 1 to 3 of 5; Esc stops")
        assert panel.unfinished() == "The evaluation of small still runs."
        assert panel.check_action("stop", ())
        await pilot.press("v")  # it goes on while another view is shown
        assert view.working
        await pilot.press("V", "escape")
        await settled(pilot)
        assert view.run.state is EvaluationState.STOPPED
        assert panel.sentence.startswith("Stopped after 2 of 6 schemes had read 3 of 5 windows.")
        assert "partial" in screen_text(pilot.app)
        assert panel.unfinished() == ""
        assert "Stopped after 2 of 6 schemes" in panel.copy_text()
        engine.pause, engine.begin = 99, 4
        await pilot.press("r")
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)
        await idle(pilot)
        assert panel.sentence == whole((3, 2), *map(str, engine.asked[1].schemes)).conclusion
        assert "partial" not in screen_text(pilot.app)
        assert "KL divergence against bits" in screen_text(pilot.app)
        await pilot.press("e")
        await settled(pilot)
        files = {path.suffix: path for path in tmp_path.glob("qtui-quantize-*")}
        data = json.loads(files[".json"].read_text())["evaluation"]
        assert data["ended"] == "done"
        assert [row["scheme"] for row in data["rows"]][:2] == ["original", "int4:group64"]
        rows = list(csv.DictReader(files[".csv"].read_text().splitlines()))
        assert float(rows[1]["loss_change"]) == pytest.approx(float(rows[1]["kl_mean"]), rel=1e-3)
        svg = " ".join(ElementTree.fromstring(files[".svg"].read_text()).itertext())
        assert "mxfp4, dominated" in svg
        copied = panel.copy_text()
        assert copied.startswith("qtui eval small --schemes int4:group64,nf4:block64,int8:row")
        assert copied.rstrip().endswith(" ".join(panel.sentence.split())[-40:])


@pytest.mark.slow
async def test_golden(running: Running, engine: ScriptedEngine) -> None:
    with goldens() as check:
        async with shown(running, (80, 24), color="16") as (pilot, _, view):
            check("quantize_model_nothing_80x24", screen_text(pilot.app))
            await pilot.press("r")
            await until(pilot, lambda: view.run.state is EvaluationState.DONE)
            await idle(pilot)
            for size in ((80, 24), (120, 40), (200, 50)):
                await resized(pilot, size)
                check(f"quantize_model_{size[0]}x{size[1]}", screen_text(pilot.app))
            await resized(pilot, (80, 24))
            await pilot.press("m")
            await settled(pilot)
            check("quantize_model_picture_80x24", screen_text(pilot.app))


@pytest.mark.slow
async def test_ascii_without_colours(running: Running, engine: ScriptedEngine) -> None:
    async with shown(running, (80, 24), color="none", ascii=True) as (pilot, _, view):
        await pilot.press("r")
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)
        for keys in ((), ("m",)):
            await pilot.press(*keys)
            await idle(pilot)
            assert screen_text(pilot.app).isascii()
        for size in ((60, 16), (40, 12)):
            await resized(pilot, size)


async def test_the_list_the_text_and_the_windows_are_changed(
    running: Running, engine: ScriptedEngine
) -> None:
    async with shown(running) as (pilot, panel, view):
        await pilot.press("b", *"int99", "enter")
        assert "int99" in panel.sentence
        assert view.typing
        await pilot.press("escape", "b", *"fp4", "space", *"nf4", "enter")
        await settled(pilot)
        assert not view.typing
        assert view.run.missing[-1] == "fp4:block64"
        await pilot.press("down", "x")
        assert "int4:group64 is A or B of the panel" in panel.sentence
        await pilot.press(*["down"] * 2, "x")
        await settled(pilot)
        assert "int8:row" not in screen_text(pilot.app)
        await pilot.press("minus", "d", "i", *"mine", "enter", "r")
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)
        settings = engine.asked[-1]
        assert (settings.windows, settings.device, settings.text) == (21, "cuda", "mine")
        found = view.run.found
        await pilot.press(
            "right_square_bracket"
        )  # a knob of A: another scheme, which the evaluation did not have
        await idle(pilot)
        assert view.run.found is found
        assert "not read" in screen_text(pilot.app)
        assert "int4:group64" in screen_text(pilot.app)  # what was read stays in the list
        assert "is not read yet: r does it" in panel.sentence
        await pilot.press("plus")  # its figures would be of other windows
        await settled(pilot)
        assert view.run.found is None
        assert panel.sentence.startswith("r lets the original and 7 schemes read 42 windows")
        for key in ("slash", "T", "w"):  # nothing here is of a tensor
            await pilot.press(key)
        assert not panel.body.typing
        await pilot.press("r")
        await until(pilot, lambda: view.run.found is not None and view.run.found.ended == "done")
        panel.open_model("small")  # its files may be others now
        await until(pilot, lambda: view.run.found is None)
        assert view.run.text == "mine"


async def test_a_model_without_plain_weights_has_no_original(
    running: Running, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = replace(INDEX, tensors=(ENTRY._replace(quantizable=False, dtype="Q4_K"),))
    monkeypatch.setattr("test_model_view.INDEX", packed)
    async with shown(running, (80, 24)) as (pilot, panel, _):
        assert panel.sentence.startswith("No matrix of small is stored as plain numbers")
        assert screen_text(pilot.app).count("so there is no original") == 2
        await pilot.press("r")
        assert engine.asked == []


async def test_a_failure_is_a_sentence_and_it_can_be_tried_again(
    running: Running, engine: ScriptedEngine
) -> None:
    async with shown(running, (80, 24)) as (pilot, panel, view):
        for error in (
            UsageError("An evaluation takes torch, which is not installed: pip install torch."),
            ModelError("'x.gguf' is quantized: an evaluation starts from plain weights."),
            QtuiError("The machine ran out of memory in evaluation_so_far."),
        ):
            engine.pause, engine.error = 0, error
            await pilot.press("r")
            await until(pilot, lambda: view.run.state is EvaluationState.FAILED)
            await idle(pilot)
            assert panel.sentence == str(error)
        panel.failed("This tensor is empty: there is nothing to quantize.")
        assert panel.sentence == str(error)  # no tensor is shown here
        engine.pause = 99
        await pilot.press("r")
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)


async def test_a_lost_engine_leaves_what_was_read(running: Running, engine: ScriptedEngine) -> None:
    async def restart(client: EngineClient) -> None:
        client.state = EngineState.IDLE

    async with shown(running) as (pilot, panel, view):
        engine.pause, engine.error = 4, EngineLost("The engine was killed.")
        panel.engine.state, panel.engine.detail = EngineState.LOST, "The engine was killed."
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EngineClient, "restart", restart)
            await pilot.press("r")
            await until(pilot, lambda: len(view.run.rows) == 4)
            panel.engine.state = EngineState.LOST
            engine.gate.set()
            await until(pilot, lambda: view.run.state is EvaluationState.LOST)
            await idle(pilot)
            assert panel.sentence == "The engine was killed.\nr starts it again."
            assert len(view.run.rows) == 4
            assert "partial" in screen_text(pilot.app)
            await pilot.press("r")
            await idle(pilot)
        assert panel.sentence.startswith("Stopped after 3 of 6 schemes")
        assert panel.sentence.endswith("r begins again.")


# With the real engine


@pytest.mark.slow
async def test_the_demo_is_evaluated_as_the_command_does(
    running: Running, qtui_process: Any
) -> None:
    async with running(model="demo", start_panel="quantize") as pilot:
        panel = cast(Any, pilot.app).panel
        await until(pilot, lambda: panel.shown.index is not None and panel.shown.explained)
        await pilot.press("V")
        view = panel.view
        view.run.others = ()
        await pilot.press(*["minus"] * 4, "r")  # two windows
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)
        await idle(pilot)
        done = qtui_process("eval", "demo", "--schemes", "int4,nf4", "--windows", "2", "--json")
        expected = json.loads(done.stdout)
        for row, other in zip(view.export_data()["rows"], expected["rows"], strict=True):
            assert {k: v for k, v in row.items() if k != "seconds"} == pytest.approx(
                {k: v for k, v in other.items() if k != "seconds"}
            )
        assert panel.sentence == expected["conclusion"]
        before = {row.name: row.seconds for row in view.run.rows}
        await pilot.press("b", *"mxfp4", "enter", "r")
        await until(pilot, lambda: view.run.state is EvaluationState.DONE)
        after = {row.name: row.seconds for row in view.run.rows}
        assert after.keys() - before.keys() == {"mxfp4"}
        assert {name: after[name] for name in before} == before  # read once
