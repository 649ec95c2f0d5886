"""`qtui eval` from start to end: asks the engine, narrates on stderr, records if wanted."""

from __future__ import annotations

from typing import Any

from qtui.cli.child_run import RecordingSink
from qtui.cli.progress import progress_on_stderr
from qtui.cli.sensitivity import ask_engine
from qtui.ending import say
from qtui.engine.answers.evaluation import EvaluationProgress
from qtui.engine.client import EngineLost
from qtui_core.codec import from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.evaluation.results import (
    EVALUATION_LINES,
    Evaluation,
    EvaluationBegun,
    EvaluationEvent,
    EvaluationRecording,
    PartScored,
)
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.evaluation.summary import summarize
from qtui_core.files import Target
from qtui_core.job import IDLE, Job
from qtui_core.quantities import plural
from qtui_core.recorded_lines import Recorder


@dataclass(frozen=True)
class EvaluationOutcome:
    """How an evaluation ended: what was found, of which parts, the Ctrl-C or the signal that ended
    it (to be raised after the report), and whether something failed: the disk did not take all of
    its recording, or the child died."""

    found: Evaluation
    parts: tuple[PartScored, ...]
    interrupted: KeyboardInterrupt | None
    failed: bool


def run_to_end(
    model: str,
    settings: EvaluationSettings,
    record: Target | None,
    earlier: EvaluationRecording | None = None,
) -> EvaluationOutcome:
    """Evaluates in a child process. `earlier` is a recording to go on from.

    Raises QtuiError (UsageError, ModelError) as the child reports it, EngineLost where the child
    died before the first part, and KeyboardInterrupt where it was interrupted before it began.
    """
    recorder = None if record is None else Recorder(record, EVALUATION_LINES.to_line)
    recording = RecordingSink(recorder, lambda sentence: say(f"qtui: {sentence}"))
    with progress_on_stderr("evaluating") as job, recording:
        run = _PartListener(job, recording, earlier)
        interrupted, lost = None, False
        try:
            asked = {"settings": settings, "done": run.done}
            ask_engine(model, "evaluate", asked, run.hear)
        except KeyboardInterrupt as interrupt:
            if run.begun is None:
                raise
            interrupted = interrupt
        except EngineLost as error:
            if run.begun is None or not run.parts:
                raise
            say(f"qtui: {error}")
            lost = True
        assert run.begun is not None
        found = summarize(run.begun, run.parts, "stopped" if interrupted or lost else "done")
        recording.write(found)
        return EvaluationOutcome(found, tuple(run.parts), interrupted, lost or recording.incomplete)


class _PartListener:
    """What was heard so far."""

    def __init__(
        self,
        job: Job,
        recording: RecordingSink[EvaluationEvent],
        earlier: EvaluationRecording | None,
    ) -> None:
        self._job, self._recording, self._earlier = job, recording, earlier
        self.begun: EvaluationBegun | None = None
        self.parts: list[PartScored] = [] if earlier is None else list(earlier.parts)
        self.done = tuple((part.batch, part.candidate) for part in self.parts)

    def hear(self, fraction: float, data: dict[str, Any]) -> None:
        heard = from_plain(EvaluationProgress, data) if data else EvaluationProgress()
        if heard.begun is not None:
            self._begin(heard.begun)
        if heard.part is not None and self.begun is not None:
            self.parts.append(heard.part)
            self._recording.write(heard.part)
            if self._job is IDLE:
                self._narrate(self.begun, heard.part)
        self._job.at(fraction, words=heard.doing)

    def _begin(self, begun: EvaluationBegun) -> None:
        if self._earlier is not None:
            _check_same(begun, self._earlier.begun)
        self.begun = begun
        self._recording.write(begun)
        for part in self.parts:
            self._recording.write(part)
        if self._job is IDLE:
            text = begun.text
            say(
                f"qtui: {plural(text.windows, 'window')} of {text.window:,} tokens, the original "
                f"and {plural(len(begun.candidates) - 1, 'candidate')}, {begun.device}."
            )

    def _narrate(self, begun: EvaluationBegun, part: PartScored) -> None:
        name = begun.candidates[part.candidate].name
        done = f"{len(self.parts):,} of {begun.parts:,}"
        say(f"qtui: {name}, batch {part.batch + 1} ({done}): {part.seconds:.1f} s")


def _check_same(begun: EvaluationBegun, recorded: EvaluationBegun) -> None:
    """Raises UsageError if the recorded parts are of another model or text than is read now."""
    for what, now, before in (
        ("model", (begun.nbytes, begun.parameters), (recorded.nbytes, recorded.parameters)),
        ("text", begun.text.digest, recorded.text.digest),
        ("list of candidates", begun.candidates, recorded.candidates),
        ("division into batches", begun.batches, recorded.batches),
    ):
        if now != before:
            raise UsageError(
                f"The recording is of another {what} than there is now: run without --resume."
            )
