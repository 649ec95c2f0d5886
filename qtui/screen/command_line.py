"""Command lines that give what a panel shows. Only options that differ from their defaults are
written."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from typing import Final

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui_core.schemes.scheme import Scheme

#: The model inside the package.
DEMO: Final = "demo"

#: The words after `qtui`; a text is the sentence that says why there is no command.
Command = tuple[str, ...] | str


def model_word(model: str) -> str:
    """The model as a command takes it from any folder: a local path is written whole."""
    path = os.path.expanduser(model)
    return os.path.abspath(path) if model != DEMO and os.path.lexists(path) else model


def inspect_command(
    model: str, entry: TensorEntry, subject: Subject, schemes: Iterable[Scheme]
) -> Command:
    """`qtui inspect` of every element of one tensor under the schemes."""
    if subject.source != WEIGHT:
        return f"No command quantizes the {subject.source} of a module: only tensors as stored."
    if subject.inject is not None:
        return "No command injects an outlier: remove it, and the command is that of the tensor."
    if not entry.quantizable:
        return "No command quantizes this tensor: only matrices in floating point."
    pattern = glob.escape(subject.tensor)
    return (*inspect_all_command(model, schemes), "--tensors", pattern, "--full")


def inspect_all_command(model: str, schemes: Iterable[Scheme]) -> tuple[str, ...]:
    """`qtui inspect` of all tensors under the schemes, large ones in samples of their rows."""
    texts = ",".join(dict.fromkeys(map(str, schemes)))
    return ("inspect", model_word(model), "--schemes", texts)
