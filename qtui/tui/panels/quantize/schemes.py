"""The top of the panel: the two schemes as lines of knobs, or a field to type one in."""

from __future__ import annotations

from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from qtui.tui.panels.quantize.data import SchemeParts
from qtui.tui.widgets.field import Field
from qtui.tui.widgets.scheme_bar import Knob, SchemeBar, SchemeLine

LETTERS = "AB"


class SchemeControls(Vertical):
    """Knobs are turned by the panel, which asks the engine what the result is."""

    DEFAULT_CSS = """
    SchemeControls {
        height: auto;
        #scheme-text { display: none; margin: 0 1; }
        &.-typing #scheme-text { display: block; }
        &.-typing SchemeBar { display: none; }
    }
    """

    class Typed(Message):
        """A scheme was typed; nobody knows yet whether it is one."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self, pointer: str) -> None:
        super().__init__()
        self.bar = SchemeBar()
        self.bar.pointer = pointer
        self.field = Field(compact=True, select_on_focus=True, id="scheme-text")

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.field

    def show(self, schemes: Sequence[SchemeParts], active: int) -> None:
        self.bar.lines = tuple(
            scheme_line(letter, scheme) for letter, scheme in zip(LETTERS, schemes, strict=False)
        )
        self.bar.active = active

    @property
    def typing(self) -> bool:
        return self.field.has_focus

    def start_typing(self, text: str) -> None:
        self.add_class("-typing")
        self.field.value = text
        self.screen.set_focus(self.field)

    def stop_typing(self) -> None:
        self.remove_class("-typing")

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.post_message(self.Typed(event.value))


def scheme_line(letter: str, scheme: SchemeParts) -> SchemeLine:
    """The parts that this scheme has; a part its format lacks is left out. Parts that are as
    usual are the first to go where there is no room for all."""
    knobs = [Knob("format", "", scheme.format)]
    if scheme.granularity is None:
        knobs.append(Knob("granularity", "a cast,", "no scale"))
    else:
        knobs.append(Knob("granularity", "scale per", scheme.granularity, short="per"))
    if scheme.size is not None:
        knobs.append(Knob("size", "of", str(scheme.size)))
    if scheme.symmetric is not None:
        knobs.append(Knob("symmetry", "", "symmetric" if scheme.symmetric else "asymmetric"))
    if scheme.zero_point is not None:
        usual = scheme.zero_point == "integer"
        knobs.append(Knob("zero_point", "zero point", scheme.zero_point, "zero", usual))
    if scheme.scale_rule is not None:
        knobs.append(Knob("scale_rule", "rule", scheme.scale_rule))
    if scheme.double_quantization is not None:
        state = "on" if scheme.double_quantization else "off"
        knobs.append(Knob("double_quantization", "double quantization", state, "dq"))
    if scheme.nested is not None:
        knobs.append(Knob("nested", "of", str(scheme.nested)))
    if scheme.rounding is not None:
        usual = scheme.rounding == "nearest"
        knobs.append(Knob("rounding", "rounding", scheme.rounding, "", usual))
    if scheme.outliers is not None:
        knobs.append(
            Knob("outliers", "outliers", scheme.outliers, "outliers", scheme.outliers == "off")
        )
    return SchemeLine(letter, scheme.text, tuple(knobs))
