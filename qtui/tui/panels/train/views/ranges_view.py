"""Where the numbers of a step lie: the range microscope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from textual.binding import Binding

from qtui.report.pictures.drawing import picture_lines
from qtui.report.train.ranges import GRADIENTS, KindRange, kinds_of, ranges_picture, ranges_sentence
from qtui.screen.panel.keys import panel_binding
from qtui.screen.widgets.text_picture import Canvas, TextLine
from qtui.tui.panels.train.shown import RunShown
from qtui.tui.panels.train.view import TrainView
from qtui_core.formats.magnitudes import best_scale
from qtui_core.live.snapshot import StepRanges

NOT_YET: Final = "The next step of the run measures the range of its numbers."
NEVER: Final = "No ranges were measured: a run measures them while this view is shown."


class RangesView(TrainView):
    """A histogram of magnitudes above the ranges of formats, of all linear layers or of one."""

    TITLE = "Ranges"
    HELP = """\
**Ranges**: a histogram of the magnitudes of activations, gradients and weights of the linear
layers, by power of two, above the ranges of formats. While this view is shown, each step measures
them; the time that takes is not counted. `m` shows the next layer, `S` multiplies the gradients by
the loss scale recommended for FP16.
"""
    KEYS: ClassVar[tuple[Binding, ...]] = (
        panel_binding("train", "m", "layer(1)", "Layer", "layer", "The next linear layer, or all",
                      show=True),
        panel_binding("train", "M", "layer(-1)", "Layer before", "layer_back", "The layer before"),
        panel_binding("train", "S", "scale", "Loss scale", "loss_scale",
                      "Gradients with the loss scale for FP16, or without", show=True),
    )  # fmt: skip

    def __init__(self, panel: Any) -> None:
        super().__init__(panel)
        self.layer = ""
        self.scaled = False
        self._asked: tuple[RunShown, StepRanges | None] | None = None
        """The run that was asked last for its ranges, and the ranges that it had reported then."""

    def opened(self) -> None:
        self._asked = None

    def show(self, shown: RunShown) -> None:
        asked = self._asked
        answered = asked is None or asked[0] is not shown or asked[1] is not shown.state.ranges
        if answered and shown.live and shown.state.header is not None:
            self._asked = shown, shown.state.ranges
            self.panel.run.process.child.control("ranges")
        super().show(shown)

    def draw(self, shown: RunShown, canvas: Canvas) -> Sequence[TextLine]:
        """The histogram, with a bar for each format below it."""
        seen = shown.state.ranges
        picture = None
        if seen is not None:
            layer = self._layer(seen)
            kinds = kinds_of(seen, layer)
            scale = _recommended(kinds) if self.scaled else 0
            picture = ranges_picture(seen, kinds, scale, layer)
        if picture is None:
            return self.nothing(shown, NOT_YET if shown.live else NEVER, canvas)
        brush = self.panel.drawing.brush
        return picture_lines(picture, canvas.width, canvas.height, brush)

    def meaning(self, shown: RunShown) -> str:
        seen = shown.state.ranges
        if seen is None:
            return super().meaning(shown)
        layer = self._layer(seen)
        said = ranges_sentence(seen, kinds_of(seen, layer), layer)
        return f"In {layer}: {said}" if layer else said

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self.panel.run_shown.state.ranges is not None

    def action_layer(self, by: int) -> None:
        seen = self.panel.run_shown.state.ranges
        if seen is None:
            return
        layers = ["", *dict.fromkeys(each.name for each in seen.ranges)]
        self.layer = layers[(layers.index(self._layer(seen)) + by) % len(layers)]
        self.panel.draw()

    def action_scale(self) -> None:
        self.scaled = not self.scaled
        self.panel.draw()

    def _layer(self, seen: StepRanges) -> str:
        """The chosen layer if the run has it; "" for all layers."""
        return self.layer if any(each.name == self.layer for each in seen.ranges) else ""


def _recommended(kinds: Sequence[KindRange]) -> int:
    """The base-2 logarithm of the recommended loss scale for FP16; 0 without one."""
    largest = max((each.found.largest for each in kinds if each.kind in GRADIENTS), default=0.0)
    return best_scale("fp16", largest) or 0
