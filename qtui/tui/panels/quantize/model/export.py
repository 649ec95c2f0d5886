"""What the Model view writes and copies."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from qtui.screen.command_line import model_word
from qtui_core.evaluation.figures import FIGURES
from qtui_core.evaluation.results import Evaluation
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.quantities import plural


def command_of(found: Evaluation) -> str:
    """The command line that computes the same."""
    return shlex.join(("qtui", *command_words(found.begun.model, found.begun.settings)))


def command_words(model: str, settings: EvaluationSettings) -> tuple[str, ...]:
    """The words of that command after `qtui`."""
    words = ["eval", model_word(model), "--schemes", ",".join(map(str, settings.schemes))]
    if settings.text is not None:
        words += ["--text", model_word(settings.text)]
    if settings.windows is not None:
        words += ["--windows", str(settings.windows)]
    if settings.device != "cpu":
        words += ["--device", settings.device]
    return tuple(words)


def evaluation_table(found: Evaluation) -> Iterator[Sequence[object]]:
    """A header, then a row for the original and each scheme, in raw numbers; None is unknown."""
    yield ("scheme", *(figure.json_name for figure in FIGURES), "windows", "tokens")
    for row in found.rows:
        figures = (getattr(row, figure.name) for figure in FIGURES)
        yield (row.name, *figures, found.windows, found.tokens)


def details_of(found: Evaluation) -> Iterator[str]:
    """What the figures are of, in parts of a line."""
    begun, text = found.begun, found.begun.text
    read = plural(found.windows, "window")
    if found.windows < text.windows:
        read = f"{found.windows:,} of {plural(text.windows, 'window')}"
    yield f"{read} of {text.window:,} tokens"
    yield f"{plural(found.tokens, 'token')} scored"
    yield text.origin
    yield begun.device
