"""The pictures of the Hardware panel as functions of their size."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from every import every
from hardware_estimator import FACTS, L40S, RATES, SLICE, SMALL
from told_truly import faults_of

from qtui.report.pictures.glyphs import ASCII, UNICODE
from qtui.screen.panel.view import View
from qtui.screen.widgets.text_picture import Canvas
from qtui.tui.panels.hardware import units
from qtui.tui.panels.hardware.gpus_view import GpusView
from qtui.tui.panels.hardware.hierarchy_view import HierarchyView
from qtui.tui.panels.hardware.operations_view import OperationsView
from qtui.tui.panels.hardware.panel import HardwarePanel
from qtui.tui.panels.hardware.rates_view import RatesView
from qtui.tui.panels.hardware.roofline_view import RooflineView, axes_of, picture
from qtui.tui.panels.hardware.shown import DeviceChoice, HardwareShown
from qtui_core.codec import from_plain
from qtui_core.memory.devices.device import DEVICES, Device, device_of_memory, find_device
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.roofline.hierarchy import hierarchy
from qtui_core.roofline.operation import Operation, Roofs, place
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate
from qtui_core.roofline.step import operations_of
from qtui_core.telemetry.readings import DeviceReading


def filled(**changes: Any) -> HardwareShown:
    shape = shape_from_config(SMALL)
    plan = resolve(RunPlan(), shape.dtype)
    shown = HardwareShown("small", plan=plan, resolved=plan, operations=operations_of(shape, plan))
    shown.take_gpus((L40S, SLICE))
    shown.history["0"] = deque([(50, 0.5)] * 120)
    for name, value in changes.items():
        setattr(shown, name, value)
    return shown


class NoPanel:
    """A panel of which nothing but its keys is asked."""

    BINDINGS = HardwarePanel.BINDINGS
    app = SimpleNamespace(_keymap={}, get_key_display=lambda binding: binding.key)


NO_PANEL: Any = NoPanel()


@pytest.mark.parametrize("view", HardwarePanel.VIEWS, ids=lambda view: view.TITLE)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_size_is_kept(view: type[View[HardwareShown]], glyphs: Any) -> None:
    shown = filled(facts=from_plain(DeviceFacts, FACTS))
    shown.rates = tuple(MeasuredRate(**rate) for rate in RATES)
    for width in (38, 58, 78, 99, 110, 159, 160, 198):
        for height in (5, 8, 12, 15, 24, 45):
            for line in (0, 7, 99):
                shown.line = line
                lines = view(NO_PANEL).draw(shown, Canvas(width, height, glyphs))
                assert len(lines) <= height
                for put in (put for line_ in lines for put in line_):
                    assert put.column >= 0, (width, height, put)


def test_sixteen_gpus_fit_a_small_screen() -> None:
    shown = filled()
    shown.take_gpus(tuple(replace(L40S, label=str(label)) for label in range(16)))
    lines = GpusView(NO_PANEL).draw(shown, Canvas(78, 17, UNICODE))
    assert [line[0].text for line in lines] == [str(label) for label in range(16)]


def text_of(lines: Any) -> str:
    return " ".join(put.text for line in lines for put in line)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_sources_are_whole_on_a_small_screen(device: Any) -> None:
    """The source of a figure is shown as completely as the figure."""
    shown = filled(choice=DeviceChoice(device))
    text = text_of(HierarchyView(NO_PANEL).draw(shown, Canvas(78, 17, UNICODE)))
    for level in hierarchy(device):
        basis = f"{level.basis}: " if level.basis else ""
        assert f"{level.name}: {basis}{level.source}" in text


def test_rates_say_whose_they_are_from_the_first_moment() -> None:
    shown = filled(measuring=True)
    draw = RatesView(NO_PANEL).draw
    canvas = Canvas(78, 24, UNICODE)
    assert "Measuring a product of each type, and a copy." in text_of(draw(shown, canvas))
    shown.facts = from_plain(DeviceFacts, {**FACTS, "kind": "cpu", "name": "EPYC"})
    text = text_of(draw(shown, canvas))
    assert "Measuring on the processor, EPYC." in text
    assert "stated op/byte processor share" in text
    shown.rates = tuple(MeasuredRate(**rate) for rate in RATES)
    shown.measuring = False
    assert "Measured on the processor, EPYC: products of" in text_of(draw(shown, canvas))


def test_operations_of_a_stand_in_say_so() -> None:
    words = "a step of the nearest kind of decoder, which stands in for it, takes at least"
    for view in (OperationsView, RooflineView):
        assert words in view(NO_PANEL).meaning(filled(assumed=True))
        assert "stands in" not in view(NO_PANEL).meaning(filled())


class TestRoofline:
    def test_operations_stand_on_the_roof_that_limits_them(self) -> None:
        roofs = Roofs({"fp32": 1e13, "bf16": 1e15}, 1e12, None)
        low = Operation("low", "row by row", 1, 10**6, 10**7, 10**7, "fp32", "", "")
        high = Operation("high", "products", 1, 10**12, 10**8, 10**8, "bf16", "", "")
        placed = [place(low, roofs), place(high, roofs)]
        assert [each.attainable for each in placed] == [1e11, 1e15]
        axes = axes_of(placed, roofs, 100, 30)
        lines = picture(placed, roofs, axes, 0, UNICODE)
        letters = {
            put.text: (row, put.column)
            for row, line in enumerate(lines[:30])
            for put in line
            if put.text in ("a", "b")
        }
        # Four powers of ten apart in height, five in width.
        (low_row, low_column), (high_row, high_column) = letters["a"], letters["b"]
        decade = 30 / (axes.top - axes.bottom)
        assert low_row - high_row == pytest.approx(4 * decade, abs=1.5)
        across = 100 / (axes.right - axes.left)
        assert high_column - low_column == pytest.approx(5 * across, abs=1.5)

    def test_the_slope_meets_the_flat_roof_at_the_ridge(self) -> None:
        roofs = Roofs({"fp32": 1e13, "bf16": 1e15}, 1e12, None)
        low = Operation("low", "x", 1, 10**6, 10**7, 10**7, "bf16", "", "")
        placed = [place(low, roofs)]
        assert placed[0].ridge == 1000
        axes = axes_of(placed, roofs, 120, 40)
        assert axes.row(roofs.memory * placed[0].ridge) == axes.row(1e15)
        lines = picture(placed, roofs, axes, 0, UNICODE)
        top = lines[39 - axes.row(1e15)]
        roof = "".join(put.text for put in top if put.tone == "bar")
        flat = axes.width - axes.column(placed[0].ridge)
        assert flat <= len(roof) <= flat + 6

    def test_what_was_measured_is_a_roof_below(self) -> None:
        shown = filled(facts=from_plain(DeviceFacts, FACTS), measured_on="0")
        shown.choice = shown.choices[0]
        assert shown.reached is None
        shown.rates = tuple(MeasuredRate(**rate) for rate in RATES)
        assert shown.reached == (700e9, 271.5e12)
        placed, roofs = shown.placed, shown.roofs
        assert roofs is not None
        axes = axes_of(placed, roofs, 120, 40)
        lines = picture(placed, roofs, axes, 0, UNICODE, shown.reached)
        rows = [
            39 - row
            for row, line in enumerate(lines[:40])
            if any(put.tone == "expected" and put.column > 120 for put in line)
        ]
        assert rows == [axes.row(271.5e12)]
        assert rows[0] < axes.row(362e12)

    def test_letters_never_hide_each_other(self) -> None:
        roofs = Roofs.of(find_device("H100"))
        same = [
            place(Operation(f"{n}", "x", 1, 10**6, 10**6, 10**6, "fp32", "", ""), roofs)
            for n in range(12)
        ]
        lines = picture(same, roofs, axes_of(same, roofs, 60, 12), 0, UNICODE)
        drawn = "".join(
            put.text for line in lines for put in line if put.tone in ("best", "cursor")
        )
        assert sorted(drawn) == list("abcdefghijkl")


class TestDevices:
    @pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
    def test_every_device_places_every_operation(self, device: Any) -> None:
        shown = filled(choice=DeviceChoice(device))
        assert len(shown.placed) == len(shown.operations)
        for each in shown.placed:
            assert 0 < each.attainable <= each.rate
            assert each.seconds > 0
            assert 0 <= each.saves_seconds <= each.seconds

    def test_measured_rates_are_of_the_device_they_were_measured_on(self) -> None:
        shown = filled(facts=from_plain(DeviceFacts, FACTS), measured_on="0")
        shown.choice = shown.choices[0]
        assert shown.measured_here
        shown.choice = DeviceChoice(find_device("L40S"))
        assert not shown.measured_here  # of the catalogue, though it is the same
        shown.choice = replace(shown.choices[0], here="1")
        assert not shown.measured_here  # another of the same kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.rate(989.4e12, "bf16"), "989 TFLOP/s"),
        (units.rate(999.6e12, "int8"), "1 POP/s"),
        (units.rate(1.2485e15, "fp8"), "1.25 PFLOP/s"),
        (units.rate(None, "fp32"), "–"),
        (units.speed(3.35e12), "3.35 TB/s"),
        (units.speed(864e9), "864 GB/s"),
        (units.seconds(1.234), "1.23 s"),
        (units.seconds(0.0123), "12.3 ms"),
        (units.seconds(4.1e-6), "4.1 us"),
        (units.seconds(5.79e-10), "0.579 ns"),
        (units.ratio(0.0833), "0.083"),
        (units.ratio(1340.2), "1,340"),
        (units.count(17.2e9), "17.2 G"),
        (units.count(12), "12"),
    ],
)
def test_words(text: str, expected: str) -> None:
    assert text == expected


#: What is unusual about the GPUs of the machine -> the GPUs, what is said, what must not be.
STATES: dict[str, tuple[tuple[DeviceReading, ...], str, str]] = {
    "no GPU": ((), "No GPU is here", "free on"),
    "processes are not reported": ((replace(L40S, processes=None),), "41 GiB, kernels", "process"),
    "no process": ((replace(L40S, processes=()),), "0 processes on 1 GPU", "1 GPUs"),
    "memory is not reported": ((replace(L40S, memory_used=None),), "No GPU reports", "free on"),
    "lost": ((replace(L40S, lost=True),), "The driver no longer reaches GPU 0", "free on"),
}


def test_the_sentence_of_every_state_and_every_device() -> None:
    def check(gpus: tuple[DeviceReading, ...], said: str, never: str) -> None:
        shown = filled()
        shown.take_gpus(gpus)
        found = GpusView(NO_PANEL).meaning(shown)
        assert said in found
        assert never not in found
        assert not faults_of(found), found

    every(STATES, check)

    def check_device(device: Device) -> None:
        shown = filled(choice=DeviceChoice(device))
        for view in HardwarePanel.VIEWS:
            found = view(NO_PANEL).meaning(shown)
            assert not faults_of(found), found

    every([(device,) for device in (*DEVICES, device_of_memory(24 << 30))], check_device)
