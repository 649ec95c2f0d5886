"""What the Activations view says while it has no numbers to show."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class CaptureState(StrEnum):
    """Where the view is. `failed` keeps the reason in `trouble`."""

    NOTHING = "nothing"
    CAPTURING = "capturing"
    STOPPED = "stopped"
    READY = "ready"
    FAILED = "failed"


def state_sentence(state: CaptureState, trouble: str, tensor: str) -> str:
    """The sentence of the panel; empty where there is nothing to say. `tensor` is the chosen
    weight, empty without one."""
    match state:
        case CaptureState.FAILED:
            return trouble
        case CaptureState.CAPTURING:
            return "The model reads the text; escape stops it."
        case CaptureState.STOPPED:
            return (
                "Stopped before the model had read the text; r goes on, and v shows the views "
                "that need no run of it."
            )
        case CaptureState.NOTHING if tensor:
            return (
                f"Nothing is captured of the module of {tensor}: weights are half of a product, "
                f"so let the model read a text (c) to see the other half."
            )
        case _:
            return ""


def state_words(state: CaptureState, trouble: str) -> Sequence[str]:
    """What stands where the numbers would be, a paragraph each."""
    match state:
        case CaptureState.CAPTURING:
            return (trouble or "Starting the capture", "escape stops it.")
        case CaptureState.STOPPED:
            return ("Stopped; r goes on.",)
        case CaptureState.FAILED:
            return (
                trouble,
                "c reads the built-in text, p a prompt, i a file; v goes on to the other views, "
                "which need no run of the model.",
            )
        case _:
            return (
                "No activations are captured of this module yet.",
                "c lets the model read the built-in text: the first half is for calibration, "
                "the second held out.",
                "p reads a prompt of yours, i a text file.",
                "Weights are read as they are stored; the first capture starts torch, which "
                "takes a few seconds.",
            )
