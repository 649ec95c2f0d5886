"""The Hardware panel with GPUs that do not exist: every view, size and depth, and the keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hardware_estimator import GIB, L40S, HardwareHere
from screens import Running, goldens, idle, resized, screen_lines, screen_text, settled, until
from textual.pilot import Pilot

from qtui.screen.panel.view import View
from qtui.screen.plan.shown import GpuChoice
from qtui.tui.app import QtuiApp
from qtui.tui.panels.hardware.gpus_view import GpusView
from qtui.tui.panels.hardware.hierarchy_view import HierarchyView
from qtui.tui.panels.hardware.panel import HardwarePanel
from qtui.tui.panels.hardware.rates_view import RatesView
from qtui_core.memory.devices.device import DEVICES, find_device
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.telemetry.readings import DeviceReading

VIEWS = HardwarePanel.VIEWS
SIZES = [(80, 24), (120, 40), (200, 50)]


@pytest.fixture(autouse=True)
def estimator(monkeypatch: pytest.MonkeyPatch) -> HardwareHere:
    made = HardwareHere()
    monkeypatch.setattr(QtuiApp, "estimator", made)
    return made


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live values are requested ten times a second."""
    monkeypatch.setattr("qtui.tui.panels.hardware.panel.LIVE_SECONDS", 0.1)


async def ready(pilot: Pilot[None]) -> HardwarePanel:
    panel = cast(Any, pilot.app).panel
    await until(pilot, lambda: panel.shown.gpus is not None and bool(panel.shown.operations))
    await settled(pilot)
    return panel


async def show(pilot: Pilot[None], view: type[View[Any]]) -> HardwarePanel:
    panel = await ready(pilot)
    panel._timer.pause()
    for _ in range(VIEWS.index(view)):
        await pilot.press("v")
    await settled(pilot)
    assert isinstance(panel.view, view)
    return panel


async def test_golden(running: Running, estimator: HardwareHere) -> None:
    with goldens() as check:
        async with running(SIZES[0], start_panel="hardware", color="16") as pilot:
            panel = await show(pilot, VIEWS[0])
            for past in panel.shown.history.values():
                past.clear()
                past.extend((percent, 0.5) for percent in (0, 20, None, 100))
            panel.draw()
            # What is measured changes what the other views say: it is the last thing done.
            for view in sorted(VIEWS, key=lambda view: view is RatesView):
                panel.show_view(panel.view_of(view))
                if view is RatesView:
                    await pilot.press("r")
                    await until(pilot, lambda: not panel.shown.measuring)
                for size in SIZES:
                    await resized(pilot, size)
                    check(
                        f"hardware_{view.TITLE.lower()}_{size[0]}x{size[1]}", screen_text(pilot.app)
                    )


async def test_without_a_gpu(running: Running, estimator: HardwareHere) -> None:
    estimator.gpus = []
    async with running((80, 24), start_panel="hardware", color="none") as pilot:
        panel = await show(pilot, GpusView)
        assert "No GPU is here" in panel.sentence
        for size in ((120, 40), (80, 24)):
            await resized(pilot, size)
            assert "from the catalogue: this machine has no GPU" in screen_text(pilot.app)
        await pilot.press("v", "v", "v")
        await settled(pilot)
        assert "On the A100 SXM4 80GB a step takes" in panel.sentence
        await pilot.press("d")
        picking = pilot.app.screen.picking
        assert list(picking.names) == [device.name for device in DEVICES]
        first = panel.shown.device.name
        assert picking.names[picking.at] == first
        await pilot.press("escape", "d", *"h200", "enter")
        assert first != panel.shown.device.name == "H200 SXM 141GB"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "color"),
    [((60, 16), "none"), ((80, 24), "256"), ((100, 30), "none"), ((160, 45), "truecolor")],
    ids=str,
)
async def test_every_depth_and_size_fits(
    running: Running, size: tuple[int, int], color: str
) -> None:
    async with running(size, start_panel="hardware", color=color) as pilot:
        panel = await ready(pilot)
        for view in VIEWS:
            lines = screen_lines(pilot.app)
            assert all(len(line) == size[0] for line in lines)
            assert isinstance(panel.view, view)
            assert panel.sentence
            for key in ("down", "d", "down", "enter", "up", "z", "z"):
                await pilot.press(key)
            await pilot.press("v")
            await settled(pilot)


@pytest.mark.slow
async def test_ascii_is_ascii(running: Running) -> None:
    async with running(start_panel="hardware", color="none", ascii=True) as pilot:
        await ready(pilot)
        for _ in VIEWS:
            text = screen_text(pilot.app)
            assert text.isascii()
            assert "?" not in text.replace("? Help", "")
            await pilot.press("v", "r")
            await settled(pilot)


async def test_every_device_has_every_view(running: Running, estimator: HardwareHere) -> None:
    """One without units for bf16, without a stated L2, of AMD, and one of no catalogue."""
    estimator.gpus = [DeviceReading("0", "Foundry X1", GIB, GIB, 2 * GIB)]
    async with running(start_panel="hardware") as pilot:
        panel = await ready(pilot)
        for view in VIEWS:
            panel.show_view(panel.view_of(view))
            assert "Foundry X1" in panel.sentence or view is GpusView
            for device in DEVICES:
                panel.shown.choice = replace(panel.shown.choice, device=device, known=True)
                panel.draw()
                assert panel.body.picture.text
                assert panel.sentence.endswith(".")
            panel.shown.choice = panel.shown.choices[0]


@pytest.mark.usefixtures("often")
class TestLive:
    async def test_it_is_asked_again_and_again_and_one_at_a_time(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            asked = estimator.count("gpus")
            estimator.gpus = [replace(L40S, gpu_percent=12, memory_used=20 * GIB)]
            await until(pilot, lambda: estimator.count("gpus") > asked)
            await until(pilot, lambda: "12%" in screen_text(pilot.app))
            assert "20 GiB of 44 GiB" in screen_text(pilot.app)
            # A driver that hangs holds up nothing and is not asked twice.
            estimator.holding.add("gpus")
            await until(pilot, lambda: panel._asking)
            held = estimator.count("gpus")
            await pilot.pause(0.3)
            assert estimator.count("gpus") == held
            await pilot.press("v")
            assert isinstance(panel.view, HierarchyView)
            estimator.holding.clear()
            await until(pilot, lambda: estimator.count("gpus") > held)

    async def test_another_panel_leaves_the_driver_alone(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        async with running(start_panel="hardware") as pilot:
            await ready(pilot)
            await pilot.press("1")
            await settled(pilot)
            asked = estimator.count("gpus")
            await pilot.pause(0.3)
            assert estimator.count("gpus") <= asked + 1
            await pilot.press("7")
            await until(pilot, lambda: estimator.count("gpus") > asked)

    async def test_what_is_not_told_is_a_dash_by_itself(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        estimator.gpus = [DeviceReading("0")]
        async with running(start_panel="hardware") as pilot:
            panel = await show(pilot, GpusView)
            text = screen_text(pilot.app)
            assert "memory not reported" in text
            assert "The driver does not report processes here." in text
            assert "No GPU reports its memory" in panel.sentence

    async def test_a_lost_gpu_says_so(self, running: Running, estimator: HardwareHere) -> None:
        estimator.gpus = [DeviceReading("0", "NVIDIA L4", lost=True)]
        async with running(start_panel="hardware") as pilot:
            panel = await show(pilot, GpusView)
            assert "lost" in screen_text(pilot.app)
            assert "no longer reaches GPU 0" in panel.sentence

    async def test_the_gpu_of_this_machine_is_shown_first(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            assert panel.shown.choice.label == "L40S (here, GPU 0)"
            assert panel.shown.device == find_device("L40S")


class TestPlan:
    async def test_the_plan_is_that_of_the_app(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            app = cast(Any, pilot.app)
            assert estimator.asked[-1][0] in ("operations", "gpus")
            plan = RunPlan(method="full", batch=7, sequence=64)
            app.chosen = (plan, GpuChoice.of(find_device("4090")))
            panel.activate()
            await until(pilot, lambda: panel.shown.resolved and panel.shown.resolved.batch == 7)
            # A GPU that is here is not given up for one that was chosen for an estimate.
            assert panel.shown.choice.here == "0"

    async def test_without_a_gpu_the_chosen_one_is_shown(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        estimator.gpus = []
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            app = cast(Any, pilot.app)
            app.chosen = (RunPlan(batch=2), GpuChoice.of(find_device("4090")))
            panel.activate()
            assert panel.shown.device.name == "RTX 4090"
            await pilot.press("d", "down", "enter")
            chosen = panel.shown.device.name
            assert chosen != "RTX 4090"
            panel.activate()
            assert panel.shown.device.name == chosen

    async def test_a_plan_that_cannot_be_says_why(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        estimator.refusal = "A batch of 0 is none; use 1."
        async with running(start_panel="hardware") as pilot:
            panel = cast(Any, pilot.app).panel
            await until(pilot, lambda: bool(panel.shown.why))
            await pilot.press("v", "v", "v")
            await settled(pilot)
            assert "A batch of 0 is none" in screen_text(pilot.app)
            estimator.refusal = ""
            await pilot.press("r")
            await ready(pilot)
            assert "A batch of 0" not in screen_text(pilot.app)


class TestMeasuring:
    async def test_rates_come_one_by_one_and_are_told_from_the_stated(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        async with running(start_panel="hardware", color="none") as pilot:
            panel = await ready(pilot)
            await pilot.press("r")
            assert isinstance(panel.view, RatesView)
            await until(pilot, lambda: not panel.shown.measuring and len(panel.shown.rates) == 4)
            await settled(pilot)
            assert ("measure", {"on": "0"}) in estimator.asked
            text = screen_text(pilot.app)
            # 271.5 of 362 stated, 700 of 864.
            assert "272 TFLOP/s     75%" in text
            assert "700 GB/s     81%" in text
            assert "not here: not compiled for this device" in text
            assert "75% of what is stated" in panel.sentence
            assert "388 operations a byte" in panel.sentence  # 271.5e12 / 700e9

    async def test_a_processor_is_no_gpu(self, running: Running, estimator: HardwareHere) -> None:
        estimator.facts = {"kind": "cpu", "name": "Some CPU", "capability": None}
        async with running(start_panel="hardware", color="none") as pilot:
            panel = await ready(pilot)
            await pilot.press("r")
            await until(pilot, lambda: not panel.shown.measuring and len(panel.shown.rates) == 4)
            await settled(pilot)
            assert "No GPU was found by torch" in screen_text(pilot.app)
            assert "on this processor" in panel.sentence
            assert "75%" not in screen_text(pilot.app)

    async def test_measuring_can_be_stopped(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        estimator.holding.add("measure")
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            await pilot.press("r")
            assert panel.shown.measuring
            await pilot.press("escape")
            await until(pilot, lambda: not panel.shown.measuring)

    async def test_an_unknown_gpu_gets_its_roofs_from_what_was_measured(
        self, running: Running, estimator: HardwareHere
    ) -> None:
        estimator.gpus = [replace(L40S, name="Foundry X1")]
        estimator.facts = {**estimator.facts, "name": "Foundry X1"}
        async with running(start_panel="hardware") as pilot:
            panel = await ready(pilot)
            assert panel.shown.placed == ()
            await pilot.press("r")
            await until(pilot, lambda: not panel.shown.measuring and len(panel.shown.rates) == 4)
            assert panel.shown.device.rates["bf16"] == 271.5e12
            assert panel.shown.placed


@pytest.mark.usefixtures("often")
async def test_the_estimator_may_be_lost_and_comes_back(
    running: Running, estimator: HardwareHere
) -> None:
    async with running(start_panel="hardware") as pilot:
        panel = await ready(pilot)
        panel._timer.pause()  # else it may be the first to know, and d starts the estimator again
        await idle(pilot)  # also what it has asked before
        estimator.lost = "The engine was killed."
        await pilot.press("d", "enter")
        await until(pilot, lambda: bool(panel.trouble))
        panel._timer.resume()
        assert panel.sentence.startswith("The estimator was killed. r starts it again")
        asked = len(estimator.asked)
        await pilot.pause(0.3)
        assert len(estimator.asked) == asked  # not asked again by itself
        await pilot.press("r")
        await until(pilot, lambda: not panel.trouble)


async def test_what_is_exported_can_be_read(running: Running) -> None:
    async with running(start_panel="hardware") as pilot:
        panel = await ready(pilot)
        data = panel.export_data()
        assert data is not None
        assert data["rates"]["bf16"] == 362e12
        header, *rows = list(panel.export_table() or ())
        assert len(rows) == len(data["operations"]) > 10
        seconds = header.index("seconds")
        assert [row[seconds] for row in rows] == sorted(
            (row[seconds] for row in rows), reverse=True
        )
        assert "GPU 0" in (panel.copy_text() or "")
