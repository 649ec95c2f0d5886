"""The base of the views of the Codebooks panel."""

from __future__ import annotations

from typing import ClassVar

from qtui.screen.panel.view import View
from qtui.tui.panels.codebooks.shown import CodebooksShown


class CodebooksView(View[CodebooksShown]):
    """A view whose cursor is on a code of a scheme, and whose sentence compares the schemes."""

    TITLED: ClassVar[bool] = True
    """Whether the view shows the tensor, which is then named above it."""

    def ready(self, shown: CodebooksShown) -> bool:
        """Whether there is something to draw."""
        return bool(shown.columns)

    def meaning(self, shown: CodebooksShown) -> str:
        return shown.verdict

    def move(self, shown: CodebooksShown, by: int) -> None:
        """Moves the cursor to another code."""
        if shown.column is not None:
            last = len(shown.column.bars) - 1
            shown.code = max(0, min(last, min(shown.code, last) + by))
