"""`Y` copies the command that gives what the panel shows. The commands run here, in process, and
their figures are those of the panel."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from every import collected, every
from quantize_model import PROJ, write_model
from screens import Running, idle, idle_when, screen_text, until
from textual.pilot import Pilot

from qtui.engine.requests import Injection
from qtui.screen.panel.asking import AskingPhase
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, GpuChoice
from qtui.tui.panels.formats.state import (
    FormatsState,
    initial_state,
    with_code,
    with_text,
    with_value,
)
from qtui_core.formats import Rounding, get_format
from qtui_core.formats.text import Typed
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.schemes.scheme import Scheme

Run = Callable[..., subprocess.CompletedProcess[str]]
BASE = RunPlan(sequence=256)


def gpu(name: str) -> GpuChoice:
    return GpuChoice.of(find_device(name))


#: Plans and GPUs of Memory. The default suite runs the first three.
PLANS: dict[str, tuple[RunPlan, GpuChoice | None]] = {
    "usual": (BASE, None),
    "a GPU and several options": (
        replace(BASE, batch=4, method="lora", optimizer="sgd", checkpointing=False),
        gpu("RTX 4090"),
    ),
    "an amount of memory": (replace(BASE, loss="tiled"), GpuChoice.of_memory(24 << 30)),
    "an odd amount": (BASE, GpuChoice.of_memory((24 << 30) + 12_345)),
    "full": (replace(BASE, method="full", dtype="fp32", attention="eager"), gpu("H100")),
    "inference": (replace(BASE, method="inference", generate=8, quant="int8"), None),
    "targets": (replace(BASE, lora_targets=("q_proj", "v_proj"), lora_dropout=0.05), None),
    "several GPUs": (replace(BASE, gpus=4, zero=3, quant_storage="bf16"), gpu("A100 SXM4 80GB")),
    "no autocast": (replace(BASE, autocast=False, kbit_prep="norms", segments="expandable"), None),
}


async def copied(pilot: Pilot[None]) -> list[str]:
    """The words of the command that `Y` copies, after `qtui`."""
    pilot.app._clipboard = ""
    await pilot.press("Y")
    await until(pilot, lambda: bool(pilot.app.clipboard))
    first, *words = shlex.split(pilot.app.clipboard)
    assert first == "qtui"
    return words


def printed(qtui: Run, words: list[str]) -> Any:
    run = qtui(*words, "--json")
    assert run.stdout, run.stderr
    return json.loads(run.stdout)


# Formats

FORMATS: dict[str, FormatsState] = {
    "one tenth": initial_state(),
    "a third": with_text(initial_state(), "-1/3"),
    "a code": with_text(initial_state(), "e4m3:0x3d"),
    "one of several NaN": with_code(initial_state(), get_format("bf16"), 0x7FC1, "typed"),
    "minus zero": with_value(initial_state(), -0.0, "typed"),
    "NaN": with_value(initial_state(), math.nan, "typed"),
    "infinity": with_value(initial_state(), -math.inf, "typed"),
    "the least of FP64": with_value(initial_state(), Fraction(2) ** -1074, "typed"),
    "beyond FP64": with_value(initial_state(), Fraction(10) ** 400, "typed"),
    "rounded up": replace(initial_state(), rounding=Rounding.UP, saturate=True),
    "random bits": replace(
        initial_state(), rounding=Rounding.STOCHASTIC, random_bits=0xABCDEF, saturate=False
    ),
}


def test_the_command_of_formats_gives_its_rows(qtui: Run) -> None:
    from qtui.report.formats import value_document

    def check(name: str) -> None:
        state = FORMATS[name]
        typed = Typed(state.value, state.source, state.code)
        shown = dict(value_document(typed, state.rows(), state.rounding, state.saturate).data)
        found = printed(qtui, ["formats", *state.command_words()])
        assert found["formats"] == json.loads(json.dumps(shown["formats"], default=str))

    every(list(FORMATS), check)


async def test_y_shows_the_line_that_it_copied(running: Running) -> None:
    async with running() as pilot:
        words = await copied(pilot)
        assert words == ["formats", "0.1"]
        await until(pilot, lambda: "Copied to the terminal's" in screen_text(pilot.app))
        assert "qtui formats 0.1" in screen_text(pilot.app)


# Memory and Train


async def check_plans(running: Running, qtui: Run, names: list[str]) -> None:
    async with running(start_panel="memory") as pilot:
        panel: Any = pilot.app.panel
        await idle_when(pilot, lambda: panel.phase is AskingPhase.READY)
        with collected() as case:
            for name in names:
                panel.change(*PLANS[name])
                await idle_when(pilot, lambda: panel.phase is AskingPhase.READY)
                with case(name):
                    answer = panel.shown.answer
                    assert panel.shown.plan == PLANS[name][0]
                    found = printed(qtui, await copied(pilot))
                    for figure in ("peak_allocated_bytes", "peak_reserved_bytes", "process_bytes"):
                        assert found[figure] == getattr(answer, figure)
                    assert found["peak_phase"] == answer.peak_phase
                    if PLANS[name][1] is not None:
                        assert found["fits"][0]["headroom_bytes"] == answer.fit.headroom_bytes
        await pilot.press("v", "v", "v", "down", "right")  # the map
        await idle(pilot)
        batch, length = MAP_BATCHES[panel.shown.cell[0]], MAP_SEQUENCES[panel.shown.cell[1]]
        words = await copied(pilot)
        assert words[:2] == ["memory", "demo"]
        assert " ".join(words).count(f"--batch {batch} --seq {length}") == 1


async def test_the_command_of_memory_gives_its_figures(running: Running, qtui: Run) -> None:
    await check_plans(running, qtui, list(PLANS)[:1])


@pytest.mark.slow
async def test_the_command_of_memory_gives_its_figures_for_all_plans(
    running: Running, qtui: Run
) -> None:
    await check_plans(running, qtui, list(PLANS)[1:])


@pytest.mark.slow
async def test_the_command_of_train_gives_its_estimate(running: Running, qtui_process: Run) -> None:
    async with running(start_panel="train") as pilot:
        panel: Any = pilot.app.panel
        await idle_when(pilot, lambda: panel.phase is AskingPhase.READY)
        panel.change(RunPlan(method="lora", batch=1, sequence=32), None)
        panel.run_shown.steps = 1
        await idle_when(pilot, lambda: panel.phase is AskingPhase.READY)
        words = await copied(pilot)
        assert words == ["train", "demo", "--method", "lora", "--seq", "32", "--steps", "1"]
        found = printed(qtui_process, words)
        answer = panel.shown.answer
        assert found["estimate"]["peak_allocated_bytes"] == answer.peak_allocated_bytes
        assert len(found["measured"]["loss"]) == 1
        panel.run_shown.steps = None
        assert panel.command_line() == "No command runs until it is stopped: say how many steps."


# Quantize and Codebooks


@pytest.mark.slow
async def test_the_command_of_a_tensor_gives_its_errors(
    running: Running, qtui: Run, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "a folder with 'quotes'")
    async with running((200, 50), model=model, start_panel="quantize") as pilot:
        panel: Any = pilot.app.panel
        await idle_when(pilot, lambda: None not in panel.shown.errors and bool(panel.shown.errors))
        with collected() as case:
            for texts in (("int4:group64", "nf4:block64"), ("nf4:dq", "nvfp4"), ("int8", "e4m3")):
                panel.shown.schemes = [Scheme.parse(text) for text in texts]
                panel.shown.errors = [None, None]
                panel.reader.look()
                await idle_when(pilot, lambda: None not in panel.shown.errors)
                with case(str(texts)):
                    (found,) = printed(qtui, await copied(pilot))["tensors"]
                    assert found["name"] == panel.shown.entry.name
                    assert found["sampled_parameters"] == found["parameters"]
                    for row, errors in zip(found["errors"], panel.shown.errors, strict=True):
                        for figure in ("mse", "relative_mse", "sqnr_db", "bits_per_parameter"):
                            assert row[figure] == getattr(errors, figure)
        layers = panel.views[3]
        panel.show_view(layers)
        panel.ranking.start()
        await idle_when(pilot, lambda: len(panel.ranking.read_now) == len(layers._names))
        with collected() as case:
            for found in printed(qtui, await copied(pilot))["tensors"]:
                with case(found["name"]):
                    of_scheme = [row["sqnr_db"] for row in found["errors"]]
                    read = panel.ranking.read_now
                    assert of_scheme == [read[name] for name in read if name == found["name"]]
        panel.show_view(panel.body.maps)
        panel.body.side.list.select("model.layers.0.norm.weight")
        await idle(pilot)
        assert "only matrices" in panel.command_line()
        panel.body.side.list.select(PROJ)
        await idle(pilot)
        panel.shown.inject = Injection(1.0, 0, 0)
        assert "injects an outlier" in panel.command_line()
        panel.shown.inject, panel.shown.source = None, "input"
        assert "the input of a module" in panel.command_line()
        await pilot.press("3")
        codebooks: Any = pilot.app.panel
        await idle_when(pilot, lambda: codebooks.shown.current)
        (found,) = printed(qtui, await copied(pilot))["tensors"]
        for row, column in zip(found["errors"], codebooks.shown.columns, strict=True):
            assert row["sqnr_db"] == column.error.sqnr_db
        await pilot.press("V")
        assert codebooks.command_line() == "No command gives what is shown here."


@pytest.mark.slow
async def test_the_command_of_the_model_view_gives_its_figures(
    running: Running, qtui_process: Run
) -> None:
    async with running((200, 50), start_panel="quantize") as pilot:
        panel: Any = pilot.app.panel
        await idle_when(pilot, lambda: panel.phase is AskingPhase.READY)
        await pilot.press("V")
        view = panel.view
        view.run.others, view.run.windows = (), 2
        view._meet()
        await pilot.press("r")
        await until(pilot, lambda: view.run.state == "done")
        await idle(pilot)
        found = printed(qtui_process, await copied(pilot))
        for row, shown in zip(found["rows"], view.run.found.rows, strict=True):
            assert (row["scheme"], row["kl_mean"], row["loss"]) == (
                shown.name, shown.kl_mean, shown.loss,
            )  # fmt: skip


# Numerics and Hardware


async def test_the_command_of_an_experiment_is_read_as_its_settings(
    running: Running, monkeypatch: pytest.MonkeyPatch, qtui: Run
) -> None:
    from qtui.cli import lab_run
    from qtui.engine.lab.request import LabRequest
    from qtui_core.errors import UsageError
    from qtui_core.lab.catalog import EXPERIMENTS

    asked: list[LabRequest] = []

    def ask(request: LabRequest, *_: Any, **__: Any) -> None:
        asked.append(request)
        raise UsageError("Asked.")

    monkeypatch.setattr(lab_run, "run_to_end", ask)
    async with running(start_panel="numerics") as pilot:
        panel: Any = pilot.app.panel
        with collected() as case:
            for place, experiment in enumerate(EXPERIMENTS):
                panel.shown.choose(place)
                for row in experiment.settings:
                    if row.kind == "choice":
                        panel.shown.set(row, row.allowed[-1])
                with case(experiment.name):
                    qtui(*await copied(pilot))
                    request = LabRequest(experiment.name, panel.shown.settings, "demo")
                    assert asked[-1] == request
        await pilot.press("7")
        assert await copied(pilot) == ["doctor", "--no-conformance"]
        await pilot.press("v")
        assert pilot.app.panel.command_line() == "No command gives what is shown here."
