"""`qtui inspect --sensitivity`: chooses a scheme for each tensor from what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qtui.cli.progress import progress_on_stderr
from qtui.ending import say
from qtui.engine.client import EngineClient, EngineState, Reply
from qtui.engine.waiting import SILENT_AFTER_SECONDS, silence_of
from qtui_core.answers import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.evaluation.sensitivity.assign import Weighing, assign_schemes, default_budget, weigh
from qtui_core.evaluation.sensitivity.report import Objective, Sensitivity
from qtui_core.evaluation.sensitivity.settings import Budget, usual_objective
from qtui_core.extras import require

if TYPE_CHECKING:
    from qtui.cli.options import ReportOptions
    from qtui.report.document import Document
    from qtui_core.files import Target
    from qtui_core.inspection.recipes.targets import RecipeTarget
    from qtui_core.inspection.report import Inspection
    from qtui_core.models import ModelSource

Progress = Callable[[float, dict[str, Any]], None]


@dataclass(frozen=True)
class WantedObjective:
    """By what an assignment is chosen: None leaves it to the model. `text` is the file that the
    model reads; None means a built-in text."""

    objective: Objective | None
    text: str | None


def assign(
    source: ModelSource,
    inspection: Inspection,
    budget: Budget | None,
    wanted: WantedObjective,
) -> Sensitivity:
    """A scheme for each tensor within a budget; None takes the one that follows from the scheme the
    inspection recommends.

    Raises UsageError where there is nothing to assign or the budget cannot be met, and what the
    engine reports, unless nobody asked for an objective: then tensors are weighed by their weights.
    """
    model = inspection.census.model
    if not any(tensor.errors for tensor in inspection.tensors):
        already = ""
        if inspection.census.quantization:
            already = f"; {model} is quantized already, so give the model that it was made from"
        raise UsageError(
            f"--sensitivity has nothing to assign: no tensor of {model} that was chosen is a "
            f"floating-point matrix{already}."
        )
    if all(total.relative_mse is None for total in inspection.schemes):
        raise UsageError(
            f"--sensitivity has nothing to weigh: no matrix of {model} that was chosen has a value "
            f"that is finite in float32 and not zero."
        )
    weighing = _weighing(source, inspection, wanted)
    if budget is None:
        return assign_schemes(weighing, default_budget(inspection, weighing))
    return assign_schemes(weighing, budget.nbytes(weighing.parameters))


def export_targets(
    exports: Sequence[str], report: ReportOptions, target: Target | None, *inputs: str | None
) -> list[tuple[RecipeTarget, Target]]:
    """The tools and files of `--export`. Raises what `target_of` raises, and UsageError for an
    unknown tool or a file that is named twice."""
    from qtui_core.files import STDOUT, target_of
    from qtui_core.inspection.recipes.targets import target_of_export

    found: list[tuple[RecipeTarget, Target]] = []
    for text in exports:
        tool, name = target_of_export(text)
        tool.check()
        if name == STDOUT:
            raise UsageError(f"--export {text} needs a file: the report goes to stdout.")
        file = target_of(name, force=report.force, inputs=inputs)
        others = [each.path for _, each in found] + ([target.path] if target else [])
        if file.path in others:
            raise UsageError(
                f"--export {text} names the file {name!r} a second time: give another."
            )
        found.append((tool, file))
    return found


def write_recipes(
    exports: Sequence[tuple[RecipeTarget, Target]],
    source: ModelSource,
    found: Sensitivity,
    document: Document,
) -> Document:
    """Writes the recipes; the report with what is in them. Raises QtuiError if a file cannot be
    written, MissingLibrary where a recipe takes one."""
    from qtui.report.inspection.recipes import with_recipes
    from qtui_core.inspection.recipes.recipe import tensors_of

    tensors = tensors_of(source.tensors.values(), found.schemes)
    written = []
    for tool, file in exports:
        recipe = tool.recipe(tensors, source.config)
        file.write(recipe.text)
        written.append((tool.name, file.name, recipe))
    return with_recipes(document, written)


def wanted_objective(objective: Objective | None, text: str | None) -> WantedObjective:
    """What the options ask for. Reads the text, so that an error in it is reported before the model
    is measured for minutes.

    Raises UsageError for options that contradict each other and for a text that cannot be read, and
    MissingLibrary where the model has to run and cannot.
    """
    from qtui_core.loading.text import read_text

    if objective == "weights" and text is not None:
        raise UsageError("--objective weights reads no --text: leave one of them out.")
    if objective not in (None, "weights") or text is not None:
        require(f"--objective {objective}" if objective else "--text", "torch", "transformers")
    if text is not None:
        read_text(text)
    return WantedObjective(objective, text)


def _weighing(source: ModelSource, inspection: Inspection, wanted: WantedObjective) -> Weighing:
    objective, because = wanted.objective, ""
    quantized = [tensor for tensor in inspection.tensors if tensor.errors]
    if objective is None:
        options = sum(len(tensor.errors) for tensor in quantized)
        objective, because = usual_objective(source, options, required=wanted.text is not None)
    if objective == "weights":
        return weigh(inspection, because=because)
    question = {
        "file": wanted.text,
        "tensors": [tensor.info.name for tensor in quantized],
        "schemes": [str(error.scheme) for error in quantized[0].errors],
        "by": objective,
    }
    try:
        reply = _ask_with_progress(source, "prediction_errors", question)
    except QtuiError as error:
        if wanted.objective is not None or wanted.text is not None:
            raise
        return weigh(inspection, because=str(error))
    return weigh(inspection, reply.read(PredictionErrors))


def _ask_with_progress(source: ModelSource, method: str, params: Mapping[str, Any]) -> Reply:
    with progress_on_stderr("running") as job:
        stage = ""

        def heard(fraction: float, data: dict[str, Any]) -> None:
            nonlocal stage
            stage = str(data.get("stage", stage))
            job.at(fraction, words=stage)

        return ask_engine(engine_name(source), method, params, heard)


def engine_name(source: ModelSource) -> str:
    """The name by which an engine finds the same model."""
    return source.id if source.origin in ("hub", "demo") else source.location


def ask_engine(
    model: str, method: str, params: Mapping[str, Any], progress: Progress | None = None
) -> Reply:
    """Starts an engine (the child process that has torch), opens `model` there, asks one question
    and ends the engine.

    Raises QtuiError (UsageError, ModelError) as the engine reports it, and EngineLost where the
    engine died.
    """

    async def ask() -> Reply:
        engine = EngineClient(on_state=_tell_silence)
        try:
            await engine.request("open_model", {"model": model})
            return await engine.request(method, {"model": model, **params}, on_progress=progress)
        finally:
            await engine.close()

    return asyncio.run(ask())


def _tell_silence(state: EngineState, detail: str) -> None:
    """Reports that the process does not answer; how it ends is raised as an exception."""
    if state is not EngineState.LOST and detail == silence_of("The engine", SILENT_AFTER_SECONDS):
        say(f"qtui: {detail} Ctrl-C ends it.")
