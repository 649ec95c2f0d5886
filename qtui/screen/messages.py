"""What panels and the shell tell each other."""

from __future__ import annotations

from fractions import Fraction

from textual.message import Message
from textual.widget import Widget


class SendValue(Message):
    """One element of a tensor, on its way to the Formats panel. The app shows it there.

    `value` is exact: a Fraction, or a float for the values a Fraction cannot hold (infinities,
    NaN, -0.0). `origin` says in words where it came from ("down_proj at (3, 17)").
    """

    def __init__(self, value: Fraction | float, origin: str) -> None:
        super().__init__()
        self.value = value
        self.origin = origin


class ModelOpened(Message):
    """The engine has read the header of a model; `title` is what the header line shows."""

    def __init__(self, model: str, title: str) -> None:
        super().__init__()
        self.model = model
        self.title = title


class ModelFailed(Message):
    """A model could not be opened; `sentence` says why."""

    def __init__(self, model: str, sentence: str) -> None:
        super().__init__()
        self.model = model
        self.sentence = sentence


class DeviceSeen(Message):
    """What the engine knows of the device: "NVIDIA L40S  HBM 3.1/44.5 GiB", or "no GPU"."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Resized(Message):
    """A widget that draws for its size has a new one; whoever feeds it may feed it anew."""

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self.widget = widget

    @property
    def control(self) -> Widget:
        return self.widget
