"""The texts of the Activations view while it has no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class CaptureState(StrEnum):
    """The state of the view. The reason of FAILED is in its `trouble`."""

    NOTHING = "nothing"
    CAPTURING = "capturing"
    STOPPED = "stopped"
    READY = "ready"
    FAILED = "failed"


def state_sentence(state: CaptureState, trouble: str, tensor: str) -> str:
    """The sentence of the panel in a state; empty if there is none. `tensor` is the chosen weight,
    "" without one."""
    match state:
        case CaptureState.FAILED:
            return trouble
        case CaptureState.CAPTURING:
            return "The model is reading the text; Esc stops it."
        case CaptureState.STOPPED:
            return (
                "Stopped before the model had read the text; r continues, and v shows the views "
                "that do not run the model."
            )
        case CaptureState.NOTHING if tensor:
            return (
                f"The module of {tensor} is not captured yet. A product needs weights and "
                f"activations: r lets the model read a text, which shows the activations."
            )
        case _:
            return ""


def state_words(
    state: CaptureState, trouble: str, keys: tuple[str, str, str] = ("r", "I", "i")
) -> Sequence[str]:
    """The paragraphs in place of the numbers. `keys` capture, read a prompt, and read a file."""
    capture, prompt, file = keys
    match state:
        case CaptureState.CAPTURING:
            return (trouble or "Starting the capture", "Esc stops it.")
        case CaptureState.STOPPED:
            return (f"Stopped; {capture} continues.",)
        case CaptureState.FAILED:
            return (
                trouble,
                f"{capture} reads the built-in text, {prompt} a prompt, {file} a file; v shows the "
                "other views, which do not run the model.",
            )
        case _:
            return (
                "The activations of this module are not captured yet.",
                f"{capture} lets the model read the built-in text: the first half is for "
                "calibration, the second half is held out.",
                f"{prompt} reads a prompt of yours, {file} a text file.",
                "The first capture imports torch, which takes a few seconds.",
            )
