"""What can be done with the run now, as words to click."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.message import Message
from textual.strip import Strip

from qtui.screen.widgets.drawn import DrawnLines
from qtui.screen.widgets.line import Line
from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class Control:
    """A button: its key, its word, the action of the panel, whether it does anything now."""

    key: str
    word: str
    action: str
    enabled: bool = True


class Controls(DrawnLines):
    """Buttons on a line, their keys before them."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "controls--key", "controls--word", "controls--off",
    }  # fmt: skip
    DEFAULT_CSS = """
    Controls {
        height: 1;
        & > .controls--key { color: $primary; background: $panel; text-style: bold; }
        & > .controls--word { color: $foreground; background: $panel; }
        & > .controls--off { color: $faint; background: $panel; }
        &:ansi > .controls--off { text-style: dim; }
        &:nocolor > .controls--off { text-style: dim; }
    }
    """

    class Pressed(Message):
        """A button was clicked."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    def __init__(self) -> None:
        super().__init__()
        self._controls: tuple[Control, ...] = ()

    def show(self, controls: Sequence[Control]) -> None:
        """Other buttons, or the same in another state."""
        if tuple(controls) != self._controls:
            width = self._width
            self._controls = tuple(controls)
            self.refresh(layout=self._width != width)

    @property
    def _width(self) -> int:
        return sum(_width(control) + 1 for control in self._controls)

    def get_content_width(self, container: object, viewport: object) -> int:
        return self._width

    def render_line(self, y: int) -> Strip:
        line = Line(self.size.width, self.base_style)
        style = {
            name: self.get_component_rich_style(f"controls--{name}", partial=True)
            for name in ("key", "word", "off")
        }
        at = 0
        for control in self._controls:
            word = style["word" if control.enabled else "off"]
            line.put(at, f" {control.key} {control.word} ", word)
            if control.enabled:
                line.put(at + 1, control.key, style["key"])
            at += _width(control) + 1
        return line.strip()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        at = 0
        for control in self._controls:
            if offset is not None and at <= offset.x < at + _width(control) and control.enabled:
                self.post_message(self.Pressed(control.action))
            at += _width(control) + 1


def _width(control: Control) -> int:
    return len(control.key) + len(control.word) + 3
