"""The child process of an experiment: `python -P -m qtui.engine.lab.worker`.

Reads one line of JSON (qtui.engine.lab.request) from stdin, then controls, such as
{"control": "pause"}. Writes what the experiment tells, a line each (qtui_core.lab.recording), to
what was stdout when it started: first LabBegun, last a LabResult that says how it ended; or one
LabFault. What libraries print goes to stderr, which is the log. Ends with the exit codes of the
command line, within a second after it was told to stop.

A line that says nothing, `{"control": "warm"}` in place of a request, imports what every experiment
needs, so that the first one begins at once.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, BinaryIO, Final

from qtui.engine.lab.request import LabRequest
from qtui.engine.line_sink import LineSink, control_of, end_soon
from qtui.engine.worker import NICENESS, take_over_streams
from qtui_core.codec import CodecError, from_plain
from qtui_core.errors import QtuiError, UsageError
from qtui_core.extras import importing
from qtui_core.lab.catalog import experiment_named
from qtui_core.lab.recording import LAB_LINES
from qtui_core.lab.results import LabFault, LabTold
from qtui_core.training.run.controls import Controls, Stopped

if TYPE_CHECKING:
    from qtui_core.lab.runner import LabRunner

INTERRUPTED: Final = 130
_FAILED: Final = 1
#: How long the step that runs may take to its end before it is left where it is.
_PATIENCE: Final = 0.3
#: And how long the last line may take.
_GRACE: Final = 0.5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Child:
    def __init__(self, sink: LineSink) -> None:
        self.sink = sink
        self.controls = Controls()
        self.runner: LabRunner | None = None
        self._code = 0
        self._ending = threading.Lock()

    def tell(self, told: LabTold) -> None:
        self.sink.tell(LAB_LINES.to_line(told))

    def check(self) -> None:
        """Waits while the run is paused. Raises Stopped."""
        self.controls.before_step(lambda state: None)

    def fail(self, text: str, code: int) -> None:
        """Ends the process before the experiment began."""
        self.sink.end([LAB_LINES.to_line(LabFault(text))], code)

    def stop(self, code: int) -> None:
        """From any thread: the run ends at its next step, or soon where that is far."""
        self._code = code
        self.controls.say("stop")
        end_soon(code, _PATIENCE + _GRACE)
        time.sleep(_PATIENCE)
        self.end("stopped")

    def end(self, ended: str) -> None:
        """Tells what is known and ends the process, once."""
        with self._ending:
            lines = []
            if self.runner is not None:
                result = self.runner.result(ended)
                lines = [LAB_LINES.to_line(result)]
                self.runner.abandon()
                if result.ended == "failed":
                    self._code = _FAILED
            self.sink.end(lines, self._code)


def main() -> None:
    """One experiment. Never returns."""
    source, sink = take_over_streams()
    # Signals are waited for by a thread of their own: the main thread may be inside a kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = _Child(LineSink(sink))
    threading.Thread(target=_obey_signals, args=(child,), daemon=True).start()
    line = source.readline()
    if line.strip() == b'{"control": "warm"}':
        import qtui_core.lab.runner  # noqa: F401 - imported ahead

        line = source.readline()
    if not line:
        os._exit(0)
    threading.Thread(target=_obey_controls, args=(child, source), daemon=True).start()
    try:
        _run(child, line)
    except Stopped:
        pass  # the thread that was told ends the process
    except QtuiError as error:
        child.fail(str(error), error.exit_code)
    except Exception as error:
        traceback.print_exc()
        said = f"The experiment failed: {type(error).__name__}: {error}. The log has the rest."
        child.fail(said, _FAILED)
    else:
        child.end("done")
    threading.Event().wait()


def _run(child: _Child, line: bytes) -> None:
    """From the request to the last job. Raises QtuiError for what cannot be run."""
    try:
        asked = from_plain(LabRequest, json.loads(line))
    except (ValueError, RecursionError, CodecError) as error:
        raise UsageError(f"The experiment was asked wrongly: {error}") from None
    experiment = experiment_named(asked.experiment)
    settings = experiment.settle(asked.settings)
    if asked.behind:
        os.nice(NICENESS)  # threads of torch are started by this one and take after it
    with importing("An experiment", "torch", "transformers"):
        from qtui_core.lab.runner import LabRunner

    child.runner = runner = LabRunner(
        experiment, settings, asked.model, child.tell, child.check, asked.done
    )
    runner.run(asked.processes)


def _obey_signals(child: _Child) -> None:
    signal.sigwait(_SIGNALS)
    child.stop(INTERRUPTED)


def _obey_controls(child: _Child, source: BinaryIO) -> None:
    """Until stdin ends, which means stop: who started the experiment is gone. Where it ended before
    anything was told, the request was piped in and nobody meant to say more."""
    while line := source.readline():
        control = control_of(line)
        if control == "stop":
            child.stop(0)
        elif control is not None:
            child.controls.say(control)
            if child.runner is not None:
                child.runner.pause(control == "pause")
    if child.sink.told:
        child.stop(0)


if __name__ == "__main__":
    main()
