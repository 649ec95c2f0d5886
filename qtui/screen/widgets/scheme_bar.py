"""The two schemes that are compared, one per line; each part of the active one can be changed."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from qtui_core.dataclass import dataclass

# Characters in front of the knobs: the mark, the letter, a blank.
MARK = 3


@dataclass(frozen=True)
class Knob:
    """A part of a scheme: its name in a request, its label and its value. If there is little room
    the `short` label is used (None: the same), and a `usual` value is left out."""

    part: str
    label: str
    value: str
    short: str | None = None
    usual: bool = False


@dataclass(frozen=True)
class SchemeLine:
    """A scheme as the bar shows it."""

    letter: str
    text: str
    knobs: tuple[Knob, ...]


class SchemeBar(Widget):
    """A click on a value takes the next one, with Shift (or the right button) the previous one. A
    click on the other scheme's line makes it the active one."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "schemes--letter", "schemes--value", "schemes--label", "schemes--quiet",
    }  # fmt: skip
    DEFAULT_CSS = """
    SchemeBar {
        height: 2;
        padding: 0 1;
        & > .schemes--letter { color: $primary; text-style: bold; }
        & > .schemes--value { color: $foreground; text-style: bold; }
        & > .schemes--label { color: $quiet; }
        & > .schemes--quiet { color: $quiet; }
    }
    """

    lines: reactive[tuple[SchemeLine, ...]] = reactive(())
    active: reactive[int] = reactive(0)
    pointer: reactive[str] = reactive("")

    class Turned(Message):
        """A knob of the active scheme was turned."""

        def __init__(self, part: str, direction: int) -> None:
            super().__init__()
            self.part = part
            self.direction = direction

    class Activated(Message):
        """The other scheme was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def _order(self) -> list[int]:
        """The lines that fit, always including the active one."""
        if self.size.height >= len(self.lines):
            return list(range(len(self.lines)))
        return [self.active]

    def _spans(self, index: int) -> list[tuple[str, str, Knob | None]]:
        """A line as (text, style, knob) from left to right."""
        line = self.lines[index]
        active = index == self.active
        mark = self.pointer if active else " "
        spans: list[tuple[str, str, Knob | None]] = [
            (f"{mark}{line.letter} ", "letter" if active else "quiet", None)
        ]
        if not active:
            return [*spans, (f" {line.text}", "quiet", None)]
        others: list[tuple[str, str, Knob | None]] = []
        if len(self._order()) < len(self.lines):
            others = [
                (f"   {other.letter} {other.text}", "quiet", None)
                for at, other in enumerate(self.lines)
                if at != index
            ]
        room = self.content_size.width - MARK
        knobs = self._knobs(line, room - _length(others))
        if others and _length(knobs) + _length(others) > room:
            # Half of its name would not help, and the footer shows the key that changes it.
            return [*spans, *self._knobs(line, room)]
        return [*spans, *knobs, *others]

    def _knobs(self, line: SchemeLine, room: int) -> list[tuple[str, str, Knob | None]]:
        """The knobs of a line in the longest form that fits into `room` cells."""
        spans: list[tuple[str, str, Knob | None]] = []
        for usual, short in ((True, False), (False, False), (False, True)):
            spans = []
            for knob in line.knobs:
                if usual or not knob.usual:
                    label = knob.label if not short or knob.short is None else knob.short
                    spans.append((f" {label} " if label else " ", "label", knob))
                    spans.append((f"{knob.value} ", "value", knob))
            if _length(spans) <= room:
                break
        return spans

    def render(self) -> Content:
        rows = []
        for index in self._order():
            spans = self._spans(index)
            rows.append(
                Content.assemble(
                    *(
                        (text, self.get_visual_style(f"schemes--{style}"))
                        for text, style, _ in spans
                    )
                )
            )
        return Content("\n").join(rows)

    def on_click(self, event: events.Click) -> None:
        event.stop()
        order = self._order()
        offset = event.get_content_offset(self)
        if offset is None or offset.y >= len(order):
            return
        index = order[offset.y]
        if index != self.active:
            self.post_message(self.Activated(index))
            return
        start = 0
        for text, _, knob in self._spans(index):
            if start <= offset.x < start + len(text) and knob is not None:
                back = event.shift or event.button == 3
                self.post_message(self.Turned(knob.part, -1 if back else 1))
                return
            start += len(text)


def _length(spans: list[tuple[str, str, Knob | None]]) -> int:
    return sum(len(text) for text, *_ in spans)
