"""The Outliers view: its keys, and what they change."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import on
from textual.binding import Binding

from qtui.screen.tensors.subject import Injection
from qtui.tui.panels.quantize.outliers.bars import GranularityBars
from qtui.tui.panels.quantize.outliers.detection import EXAMPLES as LIMITS
from qtui.tui.panels.quantize.outliers.detection import Detection, limit_text
from qtui.tui.panels.quantize.outliers.injecting import (
    EXAMPLES,
    injection_text,
    parse_injection,
    scaled,
)
from qtui.tui.panels.quantize.outliers.keys import HELP, KEYS
from qtui.tui.panels.quantize.outliers.picture import OutlierPicture
from qtui.tui.panels.quantize.outliers.typing_line import TypingLine
from qtui_core.errors import UsageError

FACTOR = 2.0


class OutliersView(OutlierPicture):
    """Which elements are outliers, and what they cost, with or without one put in."""

    VIEW_ID = "outliers"
    TITLE = "Outliers"
    HELP = HELP
    NUMBERS = False
    KEYS: ClassVar[tuple[Binding, ...]] = KEYS

    @property
    def typing(self) -> bool:
        return self.line.typing

    def leave(self) -> None:
        self.line.stop()
        self.panel.body.focus_start()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what can be done now is offered."""
        if action in ("inject", "type_limit"):
            return not self.panel.body.typing and self.numbers is not None
        if action in ("detection", "limit"):
            return not self.typing and self.numbers is not None
        if action in ("clear_injection", "resize"):
            return self._injection is not None and not self.typing
        if action == "threshold":
            return self.decomposition is not None and len(self.decomposition.points) > 1
        return True

    @on(TypingLine.Typed)
    def _typed(self, message: TypingLine.Typed) -> None:
        message.stop()
        try:
            if message.purpose == "limit":
                self._take_limit(message.text, message.step)
            else:
                self._take_injection(message.text, message.step)
        except UsageError as error:
            self.panel.refused(str(error))
            return
        if not message.step:
            self.leave()

    # Injecting

    @property
    def _injection(self) -> Injection | None:
        return self.panel.shown.inject

    def action_inject(self) -> None:
        injection = self._injection
        text = injection_text(injection) if injection is not None else "20 sigma"
        self.line.start("outlier", text, EXAMPLES)

    def _take_injection(self, text: str, step: int) -> None:
        """Look at the tensor with the outlier that was typed, or with a larger or smaller one.
        Raises UsageError where it is none."""
        if self.numbers is None:
            return
        matrix = self.numbers.row_total, self.numbers.column_total
        wanted = parse_injection(text, matrix, self.std, self._injection)
        if step:
            wanted = scaled(wanted, FACTOR**step)
            self.line.field.value = injection_text(wanted)
        self.panel.look_at(inject=wanted)

    @on(GranularityBars.Resized)
    def _resized(self, message: GranularityBars.Resized) -> None:
        message.stop()
        self.action_resize(message.direction)

    def action_resize(self, direction: int) -> None:
        injection = self._injection
        if injection is None:
            self.panel.refused("No outlier is injected: i puts one in.")
            return
        try:
            larger = scaled(injection, FACTOR**direction)
        except UsageError as error:
            self.panel.refused(str(error))
            return
        self.panel.look_at(inject=larger)

    def action_clear_injection(self) -> None:
        self.panel.look_at(inject=None)

    # Detecting

    def action_detection(self, direction: int) -> None:
        self._detect(self.detection.turned(direction))

    def action_limit(self, direction: int) -> None:
        if self.detection.by == "threshold":
            self.action_threshold(-direction)
            return
        try:
            self._detect(self.detection.stepped(direction))
        except UsageError as error:
            self.panel.refused(str(error))

    def action_type_limit(self) -> None:
        if self.numbers is not None:
            text = limit_text(self.numbers.detection, self.numbers.limit)
            self.line.start("limit", text, LIMITS)

    def _take_limit(self, text: str, step: int) -> None:
        """Detect by the limit that was typed, or by the next one. Raises UsageError where it is
        none."""
        wanted = self.detection.typed(text)
        if step and wanted.by == "threshold" and wanted.threshold is not None:
            wanted = wanted.with_limit("threshold", wanted.threshold * FACTOR**step)
        elif step:
            wanted = wanted.stepped(step)
        if step and wanted.limit is not None:
            self.line.field.value = limit_text(wanted.by, wanted.limit)
        self._detect(wanted)

    def action_threshold(self, direction: int) -> None:
        """Move the slider, which is the limit of the detection by threshold."""
        found = self.decomposition
        if found is None or not found.points:
            return
        self.chosen = max(0, min(len(found.points) - 1, self.chosen + direction))
        self.curve.update()
        moved = replace(self.detection, threshold=found.points[self.chosen].threshold)
        if moved.by == "threshold":
            self._detect(moved)
        self.detection = moved

    def _detect(self, detection: Detection) -> None:
        if detection != self.detection:
            self.detection = detection
            self.panel.look_again(pause=True)
