"""One line: what is shown, and at the right the progress of its task."""

from __future__ import annotations

from typing import ClassVar

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from qtui.screen.messages import Resized
from qtui.screen.tensors.list import shorten
from qtui.screen.widgets.drawing import Drawing

BAR = 10


class TaskTitle(Widget):
    """First `subject`, shortened so that the `note` after it fits; then as many of the quieter
    `details` as fit. `activity` is empty while nothing runs."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "task--subject", "task--note", "task--details", "task--activity", "task--done",
        "task--left",
    }  # fmt: skip
    DEFAULT_CSS = """
    TaskTitle {
        height: 1;
        padding: 0 1;
        & > .task--subject { color: $foreground; text-style: bold; }
        & > .task--note { color: $warning; }
        & > .task--details { color: $quiet; }
        & > .task--activity { color: $quiet; }
        & > .task--done { color: $primary; }
        & > .task--left { color: $faint; }
    }
    """

    subject: reactive[str] = reactive("")
    note: reactive[str] = reactive("")
    details: reactive[tuple[str, ...]] = reactive(())
    activity: reactive[str] = reactive("")
    fraction: reactive[float | None] = reactive(None)
    silent: reactive[bool] = reactive(False)
    """Whether the process that works on it does not answer: what is shown is old."""

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.glyphs = drawing.glyphs

    def on_resize(self) -> None:
        self.post_message(Resized(self))

    def render(self) -> Content:
        width = self.content_size.width
        right: list[tuple[str, str]] = []
        if self.silent:
            right.append(("no answer: this is old", "note"))
        elif self.activity:
            right.append((self.activity, "activity"))
            if self.fraction is not None:
                # The number is shown too, so that progress is not shown by colour alone.
                done = round(self.fraction * BAR)
                right.append((f" {self.fraction:4.0%} ", "activity"))
                right.append((self.glyphs.baseline * done, "done"))
                right.append((self.glyphs.baseline * (BAR - done), "left"))
        room = width - sum(len(text) for text, _ in right) - 1
        note = f"  {self.note}"[: max(0, room)] if self.note else ""
        left = shorten(self.subject, max(0, room - len(note)), self.glyphs.ellipsis)
        used = len(left) + len(note)
        details = ""
        for detail in self.details:
            if used + len(details) + 2 + len(detail) <= room:
                details += f"  {detail}"
        parts = [(left, "subject"), (note, "note"), (details, "details")]
        parts.append((" " * max(0, room + 1 - used - len(details)), "details"))
        return Content.assemble(
            *((text, self.get_visual_style(f"task--{style}")) for text, style in [*parts, *right])
        )
