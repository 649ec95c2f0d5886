"""Captures activations of the open model, and computes errors of quantized activations."""

from __future__ import annotations

from typing import cast

import numpy as np

from qtui.engine.answers.activations import (
    Captured,
    CapturedModules,
    Channel,
    Outputs,
    Ranges,
    StageProgress,
    Way,
)
from qtui.engine.captures import Capture
from qtui.engine.operations.session import Session, finite_or_none
from qtui.engine.requests import CaptureRequest, OutputsRequest, RangesRequest
from qtui.engine.task import OperationTable, Task
from qtui_core.activations.observers import RangeRule, Side
from qtui_core.activations.quantized import (
    MAX_ELEMENTS,
    ActivationScheme,
    OutputError,
    RangeReport,
    as_written,
    columns_of,
    compare_ranges,
    conclude_output,
    conclude_ranges,
    output_errors,
    standing_out,
    static,
    tokens_for,
    ways_of,
)
from qtui_core.errors import UsageError
from qtui_core.job import Job
from qtui_core.loading.text import Text, builtin_text, read_text
from qtui_core.models.quoting import printable
from qtui_core.quant import PerModel
from qtui_core.quant.elements import Float32

CHANNELS_SENT = 16
OUTPUTS_SENT = 8


def capture(session: Session, task: Task[CaptureRequest]) -> CapturedModules:
    """Runs the model on `prompt`, on the text of `file`, or on the built-in text, and keeps the
    inputs and outputs of the modules with the weights `tensors`. Reports its stage as progress."""
    asked, model = task.asked, task.asked.model
    if not asked.tensors:
        raise UsageError("A capture needs a list of weights whose modules are wanted.")
    text = _text_of(asked)

    def report(done: float, total: float, words: str) -> None:
        task.progress(done / total, StageProgress(words) if words else None)

    job = Job(report, task.is_cancelled)
    source, tensors = session.models.source(model), list(asked.tensors)
    found = session.captured.capture(model, source, tensors, text, job)
    return CapturedModules(tuple(map(_captured_of, found)), tuple(session.captured.held(model)))


def activation_ranges(session: Session, task: Task[RangesRequest]) -> Ranges:
    """The error of each way to quantize an activation in the format of `scheme`, on the calibration
    text and on the held-out text, and the channels that stand out."""
    asked = task.asked
    found = session.captured.need(asked.model, asked.tensor, asked.source)
    side = cast(Side, asked.source)  # `need` refuses the weight
    calibration, held_out = found.sides(side)
    observed = calibration.observed
    ways = ways_of(asked.scheme, observed)
    reports = list(compare_ranges(ways, calibration, held_out, task.job))
    columns = columns_of(observed)
    subject = (
        f"{side.capitalize()} of {_short(found)}{_part(len(calibration.rows), observed.tokens)}"
    )
    return Ranges(
        side=side,
        scheme=str(asked.scheme),
        features=observed.features,
        nonfinite=observed.nonfinite,
        sampled=not (calibration.whole and (held_out is None or held_out.whole)),
        standing_out=len(standing_out(columns)),
        channels=tuple(
            Channel(c.column, c.absmax, finite_or_none(c.absmax_ratio))
            for c in columns.largest(CHANNELS_SENT)
        ),
        ways=tuple(map(_way, reports)),
        sentence=conclude_ranges(subject, columns, reports, observed.nonfinite),
    )


def output_error(session: Session, task: Task[OutputsRequest]) -> Outputs:
    """The error of the layer's output with weights and activations quantized by each of `schemes`.
    In row 0 weights are not quantized, in column 0 activations are not. The sentence is about
    scheme number `active` for both."""
    asked, schemes = task.asked, task.asked.schemes
    found = session.captured.need(asked.model, asked.tensor, "input")
    if not schemes:
        raise UsageError("The error of an output needs a list of schemes.")
    weight, bias = _layer(session, task)
    recording = found.calibration.input
    transposed = found.calibration.kind == "Conv1D"
    x = recording.rows
    take = tokens_for((weight.shape[0], weight.shape[1]), x.shape[0])
    x = x[np.linspace(0, x.shape[0] - 1, take).astype(int)] if take < x.shape[0] else x
    ways: list[ActivationScheme | None] = [None]
    for scheme in schemes:
        if isinstance(scheme.granularity, PerModel):
            ways.append(static(scheme, RangeRule(), recording.observed))
        else:
            ways.append(as_written(scheme))
    extent = next((e for s in schemes if (e := session.extent_of_weights(task, s))), None)
    table = output_errors(
        x,
        weight,
        bias,
        [None, *schemes],
        ways,
        transposed=transposed,
        model_absmax=extent,
        job=task.job,
    )
    part = _part(x.shape[0], recording.observed.tokens)
    at = 1 + (asked.active if 0 <= asked.active < len(schemes) else 0)
    both = table[at][at]
    return Outputs(
        tokens=x.shape[0],
        schemes=tuple(map(str, schemes)),
        sqnr_db=tuple(tuple(cell.sqnr_db for cell in row) for row in table),
        relative_mse=tuple(tuple(cell.relative_mse for cell in row) for row in table),
        worst_outputs=_worst_outputs(both),
        transposed=transposed,
        sentence=conclude_output(f"{schemes[at - 1]}{part}", table[at][0], table[0][at], both),
    )


def _part(taken: int, tokens: int) -> str:
    """The words for tokens that stand for more; "" if they are all."""
    return f" (decibels over {taken:,} of {tokens:,} tokens)" if taken < tokens else ""


def _layer(session: Session, task: Task[OutputsRequest]) -> tuple[Float32, Float32 | None]:
    """The weight of a layer, in the shape in which it is stored, and its bias if it has one."""
    model, name = task.asked.model, task.asked.tensor
    source = session.models.source(model)
    tensor = session.models.tensor(model, name)
    if tensor.info.elements > MAX_ELEMENTS:
        raise UsageError(
            f"{printable(name)} has {tensor.info.elements:,} weights; the error of the output is "
            f"computed for layers of up to {MAX_ELEMENTS:,}."
        )
    weight = tensor.rows(0, tensor.shape[0])
    beside = name.removesuffix(".weight") + ".bias"
    bias = None
    if beside in source.tensors:
        held = session.models.tensor(model, beside)
        bias = held.rows(0, held.shape[0])
    return weight, bias


def _text_of(asked: CaptureRequest) -> Text:
    if asked.prompt is not None and asked.file is not None:
        raise UsageError("A capture reads a prompt or a file, and not both.")
    if asked.file is not None:
        return read_text(asked.file)
    if asked.prompt is None:
        return builtin_text()
    if not asked.prompt.strip():
        raise UsageError("The prompt is empty; the model needs a text to run on.")
    return Text(asked.prompt, "the prompt")


def _captured_of(capture: Capture) -> Captured:
    first, second = capture.calibration, capture.held_out
    return Captured(
        number=capture.number,
        tensor=capture.tensor,
        module=first.module,
        kind=first.kind,
        text=capture.text,
        seconds=capture.seconds,
        tokens=first.input.observed.tokens,
        kept_tokens=first.input.rows.shape[0],
        held_out_tokens=0 if second is None else second.input.observed.tokens,
        inputs=first.input.observed.features,
        outputs=first.output.observed.features,
    )


def _way(report: RangeReport) -> Way:
    return Way(
        kind=report.way.kind,
        words=report.way.words,
        scheme=str(report.way.scheme),
        extent=report.way.extent,
        bits=report.bits_per_value,
        calibration=report.calibration,
        held_out=report.held_out,
        loss_db=report.loss_db,
    )


def _worst_outputs(error: OutputError) -> tuple[tuple[int, float], ...]:
    share = error.channel_share
    order = np.argsort(-share, kind="stable")[:OUTPUTS_SENT]
    return tuple((int(channel), float(share[channel])) for channel in order if share[channel] > 0)


def _short(capture: Capture) -> str:
    return printable(capture.calibration.module.rsplit(".", 1)[-1])


OPERATIONS: OperationTable = {
    # A lane of its own, so that operations on weights do not wait for the running model.
    "capture": (capture, "capture", CaptureRequest),
    "activation_ranges": (activation_ranges, "view", RangesRequest),
    "output_error": (output_error, "view", OutputsRequest),
}
