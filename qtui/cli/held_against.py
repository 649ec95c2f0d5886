"""`qtui inspect --sensitivity`: the assignment held against the model itself."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from qtui.cli.sensitivity import engine_name
from qtui.report.inspection.judged import with_judgement, without_judgement
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError
from qtui_core.evaluation.sensitivity.judgement import Judgement, Rivals, judge, rivals_of
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.extras import MissingLibrary, require
from qtui_core.quantities import format_count

if TYPE_CHECKING:
    from qtui.report.document import Document
    from qtui_core.evaluation.sensitivity.report import Sensitivity
    from qtui_core.models import ModelSource

#: The largest model that is evaluated without being asked to. One of 51 million parameters, its
#: assignment and five rivals took 74 seconds of CPU time for 16 windows, on two cores half of it.
MOST_PARAMETERS: Final = 50_000_000


@dataclass(frozen=True)
class HeldAgainst:
    """How holding an assignment against its model ended: the judgement, or in `reason` why there is
    none ("" if the assignment is the model itself), `impossible` if the model cannot run; and what
    `EvaluationOutcome` says. What was asked for and could not be has failed too."""

    rivals: Rivals
    judgement: Judgement | None = None
    reason: str = ""
    impossible: bool = False
    interrupted: KeyboardInterrupt | None = None
    failed: bool = False

    def added_to(self, document: Document, command: str, exports: bool) -> Document:
        """The report with the judgement, or with the reason and the `command` that makes one."""
        if self.judgement is None:
            return without_judgement(document, self.reason, "" if self.impossible else command)
        return with_judgement(document, self.judgement, self.rivals.rule, exports=exports)


def hold_against(
    source: ModelSource, found: Sensitivity, text: str | None, asked: bool | None
) -> HeldAgainst:
    """Evaluates the assignment and its rivals on text that did not choose it.

    Args:
        text: the file by which the assignment was chosen; its second half is read.
        asked: whether it must be, or must not be; None leaves it to the size of the model.

    If it was asked for and cannot be, it has `failed`.
    """
    rivals = rivals_of(source, found)
    if not any(choice.scheme for choice in found.choices):
        return HeldAgainst(rivals)
    if source.config is None:
        reason = "there is no config.json to run it by"
        return HeldAgainst(rivals, reason=reason, impossible=True, failed=bool(asked))
    if not asked and (reason := _left_out(source, asked)):
        return HeldAgainst(rivals, reason=reason)
    from qtui.cli.evaluation_run import run_to_end

    # What chooses by a text reads its first half.
    settings = EvaluationSettings(given=rivals.given, text=text, second_half=found.by != "weights")
    try:
        require("Running the model", "torch", "transformers")
        outcome = run_to_end(engine_name(source), settings, None)
    except KeyboardInterrupt as interrupt:
        return HeldAgainst(rivals, reason="it was interrupted", interrupted=interrupt)
    except QtuiError as error:
        missing = isinstance(error, MissingLibrary)
        return HeldAgainst(rivals, reason=str(error), impossible=not missing, failed=bool(asked))
    ended = outcome.found.ended
    judgement = judge(outcome.found.begun, outcome.parts, rivals.kinds, ended)
    return HeldAgainst(rivals, judgement, interrupted=outcome.interrupted, failed=outcome.failed)


def command_that_does(model: str, file: str | None, rivals: Rivals) -> str:
    """The command that holds an assignment against the model. `file` has the report as JSON; None
    if there is no such file yet."""
    uniform = [name for name, kind in rivals.kinds.items() if kind == "uniform"]
    words = ["qtui", "eval", model, "--assignment", file or "FILE"]
    return shlex.join(words + (["--schemes", ",".join(uniform)] if uniform else []))


def _left_out(source: ModelSource, asked: bool | None) -> str:
    """Why it is left out; "" if it is not."""
    if asked is False:
        return "--no-judge leaves it out"
    if source.parameters > MOST_PARAMETERS:
        return (
            f"{format_count(source.parameters)} parameters take longer than a minute or so: "
            f"--judge does it all the same"
        )
    return ""
