"""What the shell asks of a panel, and a panel of the view that it shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from textual.widget import Widget

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class PaletteEntry:
    """A line of the command palette, "noun: Verb". Yield it only while it can be done."""

    title: str
    help: str
    run: Callable[[], Any]


class ShellHooks:
    """Each does nothing unless who is asked has something to do or to give."""

    def palette(self) -> Iterable[PaletteEntry]:
        """Entries beyond the bindings, which the shell lists by itself."""
        return ()

    def copy_text(self) -> str | None:
        """What `y` copies: plain text, or None when there is nothing."""
        return None

    def export_data(self) -> dict[str, Any] | None:
        """What `e` writes beside the picture: JSON-ready data, or None."""
        return None

    def export_table(self) -> Iterable[Sequence[object]] | None:
        """What `e` writes as CSV beside the picture: a header and rows of texts and numbers."""
        return None

    def export_picture(self) -> str | None:
        """The picture that `e` writes, as SVG; None where that is of the whole screen."""
        return None

    def maximise_target(self) -> Widget | None:
        """What `z` fills the screen with: the big picture."""
        return None
