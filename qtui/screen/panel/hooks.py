"""The hooks that the shell calls on a panel, and a panel on its current view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from textual.widget import Widget

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class PaletteEntry:
    """A line of the command palette, "noun: Verb", with a few words at its end. Yield it only while
    the command works."""

    title: str
    help: str
    run: Callable[[], Any]
    facts: str = ""


class ShellHooks:
    """Hooks of panels and views. By default they return nothing."""

    def palette(self) -> Iterable[PaletteEntry]:
        """Entries besides the bindings, which the shell lists by itself."""
        return ()

    def key_word(self, action: str) -> str:
        """What the footer calls an action now, if that depends on what has the cursor; else ""."""
        return ""

    def copy_text(self) -> str | None:
        """The plain text that a copy takes; None if there is none."""
        return None

    def command_line(self) -> tuple[str, ...] | str:
        """The words after `qtui` of the command that gives what is shown; or the sentence that says
        why no command does."""
        return "No command gives what is shown here."

    def export_data(self) -> dict[str, Any] | None:
        """The data that an export writes as JSON beside the picture; None if there is none."""
        return None

    def export_table(self) -> Iterable[Sequence[object]] | None:
        """The rows that an export writes as CSV beside the picture, a header first; None if there
        are none."""
        return None

    def export_picture(self) -> str | None:
        """The picture that an export writes, as SVG; None for a picture of the whole screen."""
        return None

    def maximise_target(self) -> Widget | None:
        """The widget that a zoom fills the screen with; None if there is none."""
        return None
