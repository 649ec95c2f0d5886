"""The base of widgets that draw their own lines."""

from __future__ import annotations

from rich.style import Style
from textual.widget import Widget


class DrawnLines(Widget):
    """Keeps the widget's own style between lines. Textual computes it from all ancestors at each
    request, which for a picture costs more than the picture itself."""

    _base_style: Style | None = None

    @property
    def base_style(self) -> Style:
        """Foreground and background of the widget, for segments without a style of their own
        (Textual's NO_COLOR filter fails on a segment without any)."""
        if self._base_style is None:
            self._base_style = self.rich_style
        return self._base_style

    def redraw(self) -> None:
        """Makes anew what is kept between two pictures and has colours in it."""

    def notify_style_update(self) -> None:
        self._base_style = None
        super().notify_style_update()
