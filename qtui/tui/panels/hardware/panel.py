"""Panel 7: the GPUs of the machine, and what limits a plan on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widget import Widget

from qtui.engine.client import EngineState
from qtui.screen.panel.asking import AskingPanel, AskingPhase
from qtui.screen.panel.view import view_keys, views_help
from qtui.screen.picker.devices import DeviceLine, device_picking
from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.hardware.body import HardwareBody
from qtui.tui.panels.hardware.export import operations_table, panel_data
from qtui.tui.panels.hardware.feed import HardwareFeed
from qtui.tui.panels.hardware.gpus_view import GpusView
from qtui.tui.panels.hardware.hierarchy_view import HierarchyView
from qtui.tui.panels.hardware.keys import HARDWARE_BINDINGS, HELP, URGENT_BINDINGS
from qtui.tui.panels.hardware.operations_view import TALL_ROOFLINE, OperationsView
from qtui.tui.panels.hardware.rates_view import RatesView
from qtui.tui.panels.hardware.roofline_view import RooflineView
from qtui.tui.panels.hardware.shown import DeviceChoice, HardwareShown
from qtui_core.errors import UsageError
from qtui_core.memory.devices.device import find_device
from qtui_core.roofline.rates import DeviceFacts, MeasuredRate
from qtui_core.telemetry.readings import DeviceReading

#: Seconds between two readings of the GPUs while the panel is shown.
LIVE_SECONDS: Final = 0.5
LIVE, OPERATIONS, MEASURE = "live", "operations", "measure"


class HardwarePanel(AskingPanel):
    """Shows the GPUs of this machine, and the plan's operations on a device."""

    PANEL_ID = "hardware"
    TITLE = "Hardware"
    NUMBER = 7
    VIEWS = (GpusView, HierarchyView, RatesView, RooflineView, OperationsView)
    HELP = HELP.format(views=views_help(VIEWS))
    BINDINGS: ClassVar[list[BindingType]] = [
        *URGENT_BINDINGS,
        *view_keys(PANEL_ID, VIEWS),
        *HARDWARE_BINDINGS,
    ]
    ENGINE = "estimator"

    def compose_body(self) -> ComposeResult:
        self.feed = HardwareFeed(self.engine)
        self.shown = HardwareShown(self.qtui.model)
        self._chosen = False
        self._asking = False
        self._timer = self.set_interval(LIVE_SECONDS, self._ask_live)
        self.body = HardwareBody(self.drawing, self.tabs)
        yield self.body

    # Hooks of the shell

    def activate(self) -> None:
        self.screen.set_focus(self.body.picture)
        self._adopt()
        self._ask_live()

    def open_model(self, model: str) -> None:
        self.shown.model = model
        self.shown.operations, self.shown.why = (), ""
        self._adopt(anew=True)
        self.draw()

    def maximise_target(self) -> Widget | None:
        return self.body.picture

    def copy_text(self) -> str | None:
        title = self.body.title_line.subject
        return f"{title}\n\n{self.body.picture.text}\n\n{self.sentence}"

    def command_line(self) -> tuple[str, ...] | str:
        if isinstance(self.view, GpusView):
            return ("doctor", "--no-conformance")
        return super().command_line()

    def export_data(self) -> dict[str, Any] | None:
        return panel_data(self.shown, self.sentence)

    def export_table(self) -> Iterable[Sequence[object]] | None:
        return operations_table(self.shown) if self.shown.placed else None

    # The app's plan

    def _adopt(self, *, anew: bool = False) -> None:
        """Takes the plan and the GPU of the other panels, if they changed or `anew`."""
        shown = self.shown
        if (chosen := self.qtui.chosen) is not None:
            plan, gpu = chosen
            anew = anew or plan != shown.plan
            shown.plan = plan
            name = None if gpu is None or self._chosen else gpu.params.get("name")
            if name and not shown.gpus:
                with suppress(UsageError):  # the catalogue has no such GPU, so the choice stays
                    shown.choice = DeviceChoice(find_device(str(name)))
        if anew or not (shown.operations or shown.why):
            self.ask(self._count, OPERATIONS)

    async def _count(self) -> None:
        shown = self.shown
        shown.why = ""
        found = await self.feed.operations(shown)
        shown.resolved, shown.assumed = found.plan, found.assumed
        shown.operations = found.operations
        self.say(AskingPhase.READY)

    # Reading the GPUs

    def _ask_live(self) -> None:
        """Reads the GPUs, unless a reading is under way: with a driver that hangs, requests would
        pile up."""
        if self._asking or self.qtui.panel is not self or self.engine.state is EngineState.LOST:
            return
        self.do(self._live, LIVE)

    async def _live(self) -> None:
        self._asking = True
        try:
            found = await self.feed.gpus()
        finally:
            self._asking = False
        first = self.shown.gpus is None
        self.shown.take_gpus(found)
        if first and found and not self._chosen:
            self._take(DeviceChoice.of_reading(found[0]))
        if first or isinstance(self.view, GpusView):
            self.draw()
        if first and found:
            self.qtui.set_device(_header(found[0]))

    # Measuring

    def action_measure(self) -> None:
        shown = self.shown
        shown.facts, shown.rates, shown.measuring = None, (), True
        shown.measured_on = shown.choice.here or (shown.gpus[0].label if shown.gpus else "")
        if isinstance(self.view, GpusView):
            self.show_view(self.view_of(RatesView))
        self.ask(self._measure, MEASURE)
        self.draw()

    async def _measure(self) -> None:
        try:
            await self.feed.measure(self.shown.measured_on or "auto", self._facts, self._rate)
            self.say(AskingPhase.READY)
        finally:
            self.shown.measuring = False
            self.draw()

    def _facts(self, facts: DeviceFacts) -> None:
        self.shown.facts = facts
        self.draw()

    def _rate(self, rate: MeasuredRate) -> None:
        self.shown.rates = (*self.shown.rates, rate)
        self.draw()

    def action_stop(self) -> None:
        if not self.end_silent():
            self.give_up(MEASURE)

    # Keys

    def action_move(self, by: int) -> None:
        count = len(self.shown.placed)
        self.shown.line = max(0, min(self.shown.line + by, count - 1))
        self.draw()

    async def action_device(self) -> None:
        choices = self.shown.choices
        names = [choice.label for choice in choices]
        label = self.shown.choice.label

        def taken(picked: int | str) -> None:
            self._chosen = True
            self._take(choices[int(picked)])

        lines = [DeviceLine(each.label, each.device.capacity_bytes) for each in choices]
        at = names.index(label) if label in names else 0
        await self.pick(device_picking(lines, at), taken)

    def _take(self, choice: DeviceChoice) -> None:
        """Chooses a device, and counts the operations again: the plan may use other kernels on
        it."""
        self.shown.choice = choice
        self.draw()
        self.ask(self._count, OPERATIONS)

    def begin_again(self) -> None:
        self.say(AskingPhase.WORKING)
        self.ask(self._count, OPERATIONS)

    def offers(self, action: str, parameters: tuple[object, ...]) -> bool:
        if action == "stop":
            return self.shown.measuring or bool(self.silence)
        if action == "measure":
            return not self.shown.measuring
        if action == "move":
            return self.view.CURSOR and len(self.shown.placed) > 1
        return super().offers(action, parameters)

    # Showing

    def draw(self) -> None:
        shown, body = self.shown, self.body
        title = body.title_line
        title.subject = shown.choice.label
        title.note = self._note()
        title.details = self._details() if self.view.CURSOR else ()
        title.activity = "measuring" if shown.measuring else ""
        body.picture.show(self._picture)
        self.speak()
        self.refresh_bindings()

    def _picture(self, canvas: Canvas) -> Sequence[TextLine]:
        """The view; below a table on a tall screen the roofline, where operations are known."""
        shown, lines = self.shown, self.view.draw(self.shown, canvas)
        left = canvas.height - len(lines) - 1
        if left < TALL_ROOFLINE or not shown.placed or shown.roofs is None:
            return lines
        roofline = self.view_of(RooflineView)
        return [*lines, [], *roofline.draw(shown, replace(canvas, height=left))]

    def _note(self) -> str:
        shown = self.shown
        if shown.choice.here:
            return "" if shown.choice.known else "not in the catalogue"
        if shown.gpus is None:
            return ""
        return "from the catalogue" if shown.gpus else "from the catalogue: this machine has no GPU"

    def _details(self) -> tuple[str, ...]:
        if (plan := self.shown.resolved) is None:
            return ()
        return (plan.method, f"batch {plan.batch}", f"{plan.sequence:,} tokens")

    # Failures

    def show_phase(self) -> None:
        if self.phase is AskingPhase.LOST:
            self.shown.measuring = False
        elif self.trouble and not self.shown.operations:
            self.shown.why = self.trouble
        self.draw()

    def meaning(self) -> str:
        return self.trouble.replace("\n", " ") or self.view.meaning(self.shown)

    def refused(self, sentence: str) -> None:
        self.failed(sentence)


def _header(reading: DeviceReading) -> str:
    """The text of the device in the header line."""
    from qtui_core.quantities import format_bytes

    if reading.memory_used is None or reading.memory_total is None:
        return reading.name or "GPU"
    return (
        f"{reading.name or 'GPU'}  "
        f"{format_bytes(reading.memory_used)} of {format_bytes(reading.memory_total)}"
    )
