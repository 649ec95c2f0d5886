"""What was looked at in this session: the newest state of each view, for a page of all of them."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rich.segment import Segment

from qtui.screen.panel.base import Panel
from qtui.tui.terminal import one_line
from qtui_core.dataclass import dataclass

if TYPE_CHECKING:
    from textual.screen import Screen

    from qtui.tui.app import QtuiApp

log = logging.getLogger("qtui.tui")

#: The rows of a table that are kept of a view; its own export has all of them.
MOST_ROWS: Final = 24


@dataclass(frozen=True)
class Visit:
    """A view as it was last seen: when, of which model, its sentence, the lines of its picture, a
    picture of its own as SVG if it has one, the first rows of its table, and the command that gives
    the same ("" without); `trouble` says why some of these could not be made."""

    panel: str
    view: str
    when: datetime
    model: str
    sentence: str
    lines: Sequence[Sequence[Segment]]
    svg: str | None
    table: tuple[tuple[object, ...], ...]
    more_rows: bool
    command: str = ""
    trouble: str = ""

    @property
    def title(self) -> str:
        return f"{self.panel}: {self.view}" if self.view else self.panel


class Visits:
    """The views that were painted, in the order of the first time."""

    def __init__(self, app: QtuiApp) -> None:
        self._app = app
        self._found: dict[tuple[str, str], Visit] = {}
        self._painted: tuple[str, str] | None = None

    def painted(self, picture: object) -> None:
        """The screen was painted, unless there was no picture."""
        if picture is not None and self._app.drawn:
            panel = self._app.panel
            self._painted = None if panel is None else _key(panel)

    def leaving(self, panel: Panel | None) -> None:
        """Another view comes next: keeps what is seen of the panel now, if it was painted at
        all."""
        if panel is not None and panel is self._app.panel and self._painted == _key(panel):
            self._found[_key(panel)] = _visit(panel, self._app.shell, self._app.model)

    def all_of(self) -> tuple[Visit, ...]:
        """Every view that was seen, the one on the screen as it is now."""
        self.leaving(self._app.panel)
        return tuple(self._found.values())


def _key(panel: Panel) -> tuple[str, str]:
    return panel.PANEL_ID, panel.view_title


def _visit(panel: Panel, screen: Screen[Any], model: str) -> Visit:
    region = panel.query_one(".panel-body").region
    strips = screen._compositor.render_strips()[region.y : region.bottom]
    lines = [list(strip.crop(region.x, region.right)) for strip in strips]
    svg, table, command, trouble = None, [], "", ""
    try:
        words = panel.command_line()
        command = "" if isinstance(words, str) else shlex.join(("qtui", *words))
        svg = panel.export_picture()
        table = [tuple(row) for row in islice(panel.export_table() or (), MOST_ROWS + 2)]
    except Exception as error:
        # Any error in a view's data: what is on the screen matters more, and the page says it.
        log.exception("last look at %s", _key(panel))
        trouble = one_line(error)
    shown = _key(panel)[1]
    return Visit(
        panel.TITLE, shown, datetime.now(), panel.about or model, panel.sentence, lines, svg,
        tuple(table[: MOST_ROWS + 1]), len(table) > MOST_ROWS + 1, command, trouble,
    )  # fmt: skip
