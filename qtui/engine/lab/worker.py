"""The child process of an experiment: `python -P -m qtui.engine.lab.worker`.

It reads a line of JSON (qtui.engine.lab.request) from stdin, and then controls such as
{"control": "pause"}. It writes the messages of the experiment (qtui_core.lab.recording) as lines to
its original stdout: first LabBegun, last a LabResult with `ended`; or a single LabFault. Output of
libraries goes to stderr, which is the log. It ends with the exit codes of the command line, within
a second after a stop.

The line `{"control": "warm"}` before the request imports what every experiment needs, so that the
first one begins at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from qtui.engine.child_process import ChildProcess
from qtui.engine.lab.request import LabRequest
from qtui.engine.worker import NICENESS
from qtui_core.codec import CodecError, from_plain
from qtui_core.errors import UsageError
from qtui_core.extras import MissingLibrary, importing
from qtui_core.lab.catalog import experiment_named
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabEvent, LabFault, LabResult
from qtui_core.models.opening import open_model

if TYPE_CHECKING:
    from qtui_core.lab.runner import LabRunner


class _LabWork:
    def __init__(self) -> None:
        self.child = ChildProcess("The experiment", self._last)
        self._runner: LabRunner | None = None
        self._result: LabResult | None = None

    def _tell(self, event: LabEvent) -> None:
        self.child.tell(LAB_LINES.to_line(event))

    def _check(self) -> None:
        """Waits while the run is paused. Raises Stopped."""
        self.child.controls.before_step(lambda state: None)

    def work(self, request: bytes) -> int:
        """Runs the experiment of a request, and returns the exit code. Raises QtuiError if it
        cannot run."""
        try:
            asked = from_plain(LabRequest, json.loads(request))
        except (ValueError, RecursionError, CodecError) as error:
            raise UsageError(f"The request for the experiment is malformed: {error}") from None
        experiment = experiment_named(asked.experiment)
        settings = experiment.settle(asked.settings)
        with open_model(asked.model) as source:  # torch takes long to import
            source.require_weights()
        if asked.behind:
            os.nice(NICENESS)  # threads of torch are started by this one and take after it
        with _importing():
            from qtui_core.lab.runner import LabRunner

        self._runner = runner = LabRunner(
            experiment, settings, asked.model, self._tell, self._check, asked.done
        )
        self.child.obey = lambda control: runner.pause(control == "pause")
        self._result = runner.run(asked.processes)
        return runner.exit_code(self._result)

    def _last(self, ended: str, why: str, error: Exception | None) -> Iterator[str]:
        if why:
            yield LAB_LINES.to_line(LabFault(why))
        elif self._runner is not None:
            yield LAB_LINES.to_line(self._result or self._runner.result(ended))
            self._runner.abandon()


def _importing() -> AbstractContextManager[None]:
    return importing("An experiment", "torch", "transformers")


def _warm() -> None:
    with suppress(MissingLibrary), _importing():  # told where an experiment is asked for
        import qtui_core.lab.runner  # noqa: F401 - imported ahead


def main() -> None:
    """One experiment. Never returns."""
    experiment = _LabWork()
    experiment.child.do(experiment.work, _warm)


if __name__ == "__main__":
    main()
