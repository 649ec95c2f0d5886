"""`qtui inspect --sensitivity`: chooses a scheme for each tensor from what was measured."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qtui.cli.progress import progress_on_stderr
from qtui.ending import say
from qtui.engine.answers.activations import LayerErrorTable
from qtui.engine.client import EngineClient, EngineState, Reply
from qtui.engine.waiting import SILENT_AFTER_SECONDS, silence_of
from qtui_core.errors import UsageError
from qtui_core.inspection.sensitivity.bit_allocation import assign_schemes, default_budget
from qtui_core.inspection.sensitivity.budget import Budget
from qtui_core.inspection.sensitivity.report import Sensitivity
from qtui_core.inspection.sensitivity.weighing import Weighing, weigh_by_outputs, weigh_by_weights

if TYPE_CHECKING:
    from qtui.cli.options import ReportOptions
    from qtui.report.document import Document
    from qtui_core.files import Target
    from qtui_core.inspection import Inspection
    from qtui_core.inspection.recipes.targets import RecipeTarget
    from qtui_core.models import ModelSource

Progress = Callable[[float, dict[str, Any]], None]


def assign(
    source: ModelSource,
    inspection: Inspection,
    budget: Budget | None,
    calibration: str | None,
    *,
    full: bool,
) -> Sensitivity:
    """A scheme for each tensor within a budget; None takes the budget that follows from the scheme
    the inspection recommends. With a calibration text (its path), tensors are weighed by the error
    of their layer's output.

    Raises UsageError where there is nothing to assign or the budget cannot be met, and what the
    engine reports.
    """
    if not any(tensor.errors for tensor in inspection.tensors):
        raise UsageError(
            f"--sensitivity has nothing to assign: no tensor of {inspection.census.model} that was "
            f"chosen is a floating-point matrix."
        )
    if all(total.relative_mse is None for total in inspection.schemes):
        raise UsageError(
            f"--sensitivity has nothing to weigh: no matrix of {inspection.census.model} that was "
            f"chosen has a value that is finite in float32 and not zero."
        )
    if calibration is None:
        weighing = weigh_by_weights(inspection)
    else:
        weighing = _weigh_by_outputs(source, inspection, calibration, full=full)
    if budget is None:
        return assign_schemes(weighing, default_budget(inspection))
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

    tensors = tensors_of(source.tensors.values(), found)
    written = []
    for tool, file in exports:
        recipe = tool.recipe(tensors, source.config)
        file.write(recipe.text)
        written.append((tool.name, file.name, recipe))
    return with_recipes(document, written)


def _weigh_by_outputs(
    source: ModelSource, inspection: Inspection, calibration: str, *, full: bool
) -> Weighing:
    with progress_on_stderr("running") as show:

        def heard(fraction: float, data: dict[str, Any]) -> None:
            if show:
                show(round(1000 * fraction), 1000, str(data.get("stage", "")))

        quantized = [tensor for tensor in inspection.tensors if tensor.errors]
        asked = {
            "file": calibration,
            "tensors": [tensor.info.name for tensor in quantized],
            "schemes": [str(error.scheme) for error in quantized[0].errors],
            "full": full,
        }
        reply = ask_engine(engine_name(source), "layer_errors", asked, heard)
    return weigh_by_outputs(inspection, reply.read(LayerErrorTable).layers)


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
