"""The names of views on one line, with the current one marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class ViewTabs(Widget):
    """The names of the views, with the current one marked. A click shows another."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"views--active", "views--other"}
    DEFAULT_CSS = """
    ViewTabs {
        height: 1;
        padding: 0 1;
        & > .views--active { color: $primary; text-style: bold; }
        & > .views--other { color: $quiet; }
    }
    """

    active: reactive[int] = reactive(0)

    class Clicked(Message):
        """A name was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, titles: Sequence[str], pointer: str) -> None:
        super().__init__()
        self.titles = tuple(titles)
        self.pointer = pointer

    def _texts(self) -> list[str]:
        return [
            f"{self.pointer if index == self.active else ' '}{title}  "
            for index, title in enumerate(self.titles)
        ]

    def render(self) -> Content:
        return Content.assemble(
            *(
                (
                    text,
                    self.get_visual_style(
                        "views--active" if index == self.active else "views--other"
                    ),
                )
                for index, text in enumerate(self._texts())
            )
        )

    def on_click(self, event: events.Click) -> None:
        event.stop()
        offset = event.get_content_offset(self)
        start = 0
        for index, text in enumerate(self._texts()):
            if offset is not None and start <= offset.x < start + len(text):
                self.post_message(self.Clicked(index))
            start += len(text)
