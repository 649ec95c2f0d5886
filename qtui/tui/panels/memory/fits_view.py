"""The GPUs that the run fits on."""

from __future__ import annotations

from qtui.screen.plan.levels import VERDICTS
from qtui.screen.plan.shown import Shown
from qtui.screen.widgets.line import shortened
from qtui.screen.widgets.text_picture import Canvas, Put, TextLine, headings, right, window
from qtui.tui.panels.memory.view import MemoryView
from qtui_core.quantities import format_bytes


class FitsView(MemoryView):
    """A list of GPUs, each with its verdict."""

    TITLE = "GPUs"
    HELP = "**GPUs**: what the run fits on.\n"
    CURSOR = True
    ENTERS = "Choose"

    def draw(self, shown: Shown, canvas: Canvas) -> list[TextLine]:
        """The GPUs with their verdicts; those of this machine and the chosen one come first."""
        around = shown.around
        if around is None or not shown.current:
            return []
        fits = around.fits
        lines: list[TextLine] = [
            headings((2, "GPU (Enter chooses it)"), (-36, "has"), (-48, "to spare"))
        ]
        at = shown.line_of(len(fits))
        notes = {choice.label: choice.note for choice in shown.live}
        process = shown.answer.process_bytes if shown.answer else 0
        for index in window(len(fits), at, canvas.height - 1):
            fit = fits[index]
            word, tone = VERDICTS[fit.verdict]
            spare = f"{'' if fit.headroom_bytes >= 0 else canvas.glyphs.minus}"
            spare += format_bytes(abs(fit.headroom_bytes))
            here = index == at
            bars = canvas.width - 58
            share = process / fit.capacity_bytes if fit.capacity_bytes else 1.0
            filled = min(bars, round(bars * share))
            puts = [
                Put(0, canvas.glyphs.pointer if here else " ", "heading"),
                Put(
                    2,
                    shortened(fit.gpu, 24, canvas.glyphs.ellipsis),
                    "cursor" if here else "label",
                    index,
                ),
                right(36, format_bytes(fit.capacity_bytes)),
                right(48, spare),
                Put(50, f"{word:5}", tone),
            ]
            if notes.get(fit.gpu):
                puts.append(
                    Put(57, shortened(notes[fit.gpu], bars, canvas.glyphs.ellipsis), "quiet")
                )
            elif bars > 8:
                puts.append(Put(57, canvas.glyphs.full * filled, "bar"))
                puts.append(Put(57 + filled, canvas.glyphs.dot * (bars - filled), "quiet"))
            lines.append(puts)
        return lines

    def opened(self) -> None:
        super().opened()
        shown = self.panel.shown
        if shown.around is not None and shown.gpu is None:
            verdicts = [fit.verdict for fit in shown.around.fits]
            shown.line = verdicts.index("fits") if "fits" in verdicts else 0

    def count(self, shown: Shown) -> int:
        return max(1, len(shown.around.fits)) if shown.around is not None else 1

    def enter(self, shown: Shown) -> None:
        """Chooses the GPU under the cursor."""
        if shown.around is None or shown.answer is None or not shown.around.fits:
            return
        name = shown.around.fits[shown.line_of(len(shown.around.fits))].gpu
        shown.line = 0  # the line of the chosen GPU
        self.panel.choose_gpu(next((each for each in shown.gpus if each.label == name), shown.gpu))
