"""The contents of the Numerics panel as JSON, CSV, SVG and plain text."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qtui.report.faces.plain import to_plain
from qtui.report.lab.document import findings_csv, lab_document
from qtui.report.pictures.svg import picture_svg, standalone
from qtui.screen.command_line import DEMO, model_word
from qtui.tui.panels.numerics.lab_run import LabRun
from qtui.tui.panels.numerics.shown import NumericsShown
from qtui_core.codec import printed
from qtui_core.lab.catalog import Experiment
from qtui_core.lab.settings import Value


def command_of(run: LabRun) -> str:
    """The command line that runs the same experiment with the same settings."""
    return shlex.join(("qtui", *command_words(run.experiment, run.settings, run.model)))


def command_words(
    experiment: Experiment, settings: Mapping[str, Value], model: str
) -> tuple[str, ...]:
    """The words of that command after `qtui`."""
    words = ["lab", experiment.name]
    if model != DEMO:
        words.append(model_word(model))
    for row in experiment.settings:
        value = settings[row.name]
        if value != row.default:
            text = row.written(value)
            words += [row.flag, model_word(text) if row.name == "text" else text]
    return tuple(words)


def panel_data(shown: NumericsShown, sentence: str) -> dict[str, Any]:
    """The result as JSON, and the command that repeats it."""
    run = shown.run
    if run is None or run.result is None:
        return {"experiment": shown.experiment.name, "sentence": sentence, "result": None}
    return {
        "experiment": run.experiment.name,
        "command": command_of(run),
        "sentence": sentence,
        "recording": None if run.path is None else str(run.path),
        "result": printed(run.result),
    }


def panel_table(shown: NumericsShown) -> Iterable[Sequence[object]] | None:
    """The table in raw numbers; None without one."""
    result = shown.run.result if shown.run else None
    return findings_csv(result.findings) if result and result.findings.rows else None


def panel_picture(shown: NumericsShown) -> str | None:
    """The current picture as an SVG file; None without one."""
    drawn = shown.drawn
    return None if drawn is None else standalone(picture_svg(drawn, shown.drawn_behind))


def panel_text(shown: NumericsShown) -> str | None:
    """The report of the run as `qtui lab` prints it; None without a result."""
    run = shown.run
    return to_plain(lab_document(run.result, command_of(run))) if run and run.result else None
