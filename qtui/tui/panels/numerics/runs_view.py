"""The list of an experiment's runs, with recordings of earlier sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qtui.screen.panel.keys import key_of
from qtui.screen.panel.view import View
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, paragraphs, window
from qtui.tui.panels.numerics.lab_run import LabRun
from qtui.tui.panels.numerics.shown import NumericsShown

if TYPE_CHECKING:
    from qtui.tui.panels.numerics.panel import NumericsPanel


class RunsView(View[NumericsShown]):
    """A line for each run: its settings, how it ended, its time, and its sentence."""

    TITLE = "Runs"
    HELP = """
**Runs**: the runs of the experiment, all of which are recorded. Up and down show another one, with
the run before it behind. `o` opens a recording, which plays from its start: Space pauses it, `x`
goes to its end.
"""
    CURSOR = True

    panel: NumericsPanel

    def draw(self, shown: NumericsShown, canvas: Canvas) -> Sequence[TextLine]:
        """The runs in order, with the current one marked."""
        kept, run = shown.kept, shown.run
        if run is None:
            keys = [key_of(self.panel, f"numerics.{name}") for name in ("run", "open")]
            words = "Nothing was run yet. {} runs it; {} opens a recording.".format(*keys)
            return paragraphs([words], canvas.width)
        at, faint = kept.index(run), shown.faint
        lines: list[TextLine] = []
        for index in window(len(kept), at, max(1, canvas.height // 2)):
            each = kept[index]
            here = index == at
            mark = canvas.glyphs.pointer if here else canvas.glyphs.dot if each is faint else " "
            what = f"{each.model}  {each.differing() or 'as usual'}"
            text = f"{mark} run {each.number}  {_ended(each)}  {what}"
            tone = "strong" if here else "value"
            lines.append(
                [Put(0, shortened(text, canvas.width, canvas.glyphs.ellipsis), tone, index)]  # type: ignore[arg-type]
            )
            verdict = each.result.findings.verdict if each.result else each.fault
            told = shortened(verdict, canvas.width - 4, canvas.glyphs.ellipsis)
            lines.append([Put(4, told, "quiet", index)])
        return lines

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action == "move" and len(self.panel.shown.kept) > 1


def _ended(run: LabRun) -> str:
    seconds = f" in {run.result.seconds:.0f} s" if run.result and run.over else ""
    return f"{'recorded, ' if run.recorded else ''}{run.phase.value}{seconds}"
