"""Reads the element under the cursor of the maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from qtui.screen.messages import SendValue
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui.tui.panels.quantize.panel import QuantizePanel


class ElementReader:
    """Requests the element of the cell under the cursor, and shows its numbers and levels."""

    GROUP: Final = "element"

    def __init__(self, panel: QuantizePanel) -> None:
        self._panel = panel

    def read(self) -> None:
        """Reads the element under the cursor."""
        self._panel.do(self._read, self.GROUP)

    def send(self) -> None:
        """Sends the element to the Formats panel."""
        self._panel.do(self._send, "send")

    async def _send(self) -> None:
        await self._read()
        element, entry = self._panel.shown.element, self._panel.shown.entry
        if element is not None and entry is not None:
            origin = f"{printable(entry.name)} at ({element.row:,}, {element.column:,})"
            self._panel.post_message(SendValue(element.exact, origin))

    async def _read(self) -> None:
        shown, body, feed = self._panel.shown, self._panel.body, self._panel.feed
        if shown.map is None or shown.entry is None:
            return
        at = shown.map.element_at(*body.heatmap.cursor)
        element = await feed.element(shown.model, shown.subject, str(shown.scheme), *at)
        shown.element = element
        body.histogram.ticks = element.levels
        body.histogram.marker = element.value
        body.histogram.note = f"{len(element.levels)} levels" if element.levels else ""
        self._panel.show_numbers()
