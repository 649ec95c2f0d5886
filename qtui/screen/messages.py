"""The messages between panels and the shell."""

from __future__ import annotations

from fractions import Fraction

from textual.message import Message
from textual.widget import Widget


class SendValue(Message):
    """One element of a tensor is sent to the Formats panel, which the app then shows.

    `value` is exact: a Fraction, or a float for values that a Fraction cannot hold (infinities,
    NaN, -0.0). `origin` says where it came from ("down_proj at (3, 17)").
    """

    def __init__(self, value: Fraction | float, origin: str) -> None:
        super().__init__()
        self.value = value
        self.origin = origin


class ModelOpened(Message):
    """The engine has read the header of a model; `title` is shown in the header line."""

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


class AboutChanged(Message):
    """A panel began or ended to show another model than the app's; `Panel.about` names it."""


class DeviceSeen(Message):
    """What the engine knows of the device: "NVIDIA L40S  HBM 3.1/44.5 GiB", or "no GPU"."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Resized(Message):
    """A widget that draws in its size was resized, so its owner may want to give it new data."""

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self.widget = widget

    @property
    def control(self) -> Widget:
        return self.widget
