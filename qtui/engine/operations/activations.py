"""Running the model on a text, and what quantizing what flows through a module does."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np

from qtui.engine.captures import Capture
from qtui.engine.operations.session import Session, watched
from qtui.engine.task import Result, Task
from qtui_core.activations import (
    ActivationScheme,
    RangeReport,
    Side,
    as_written,
    compare_ranges,
    output_errors,
    static,
    ways_of,
)
from qtui_core.activations.conclude import (
    channels_in_words,
    columns_of,
    conclude_output,
    conclude_ranges,
    standing_out,
)
from qtui_core.activations.observers import MinMax
from qtui_core.activations.output_error import MAX_ELEMENTS, OutputError, tokens_for
from qtui_core.activations.text import Text, builtin_text, read_text
from qtui_core.errors import UsageError
from qtui_core.models.quoting import printable
from qtui_core.quant import PerModel, Scheme
from qtui_core.quant.segments.elements import Float32

CHANNELS_SENT = 16
OUTPUTS_SENT = 8


def capture(session: Session, task: Task) -> Result:
    """Let the model run on `prompt`, on the text of `file`, or on the built-in text, and keep
    what flows through the modules of the weights `tensors`. Progress tells the stage."""
    tensors = task.params.get("tensors")
    if not isinstance(tensors, list) or not tensors or not all(map(_is_text, tensors)):
        raise UsageError("A capture needs a list of weights whose modules are wanted.")
    text = _text_of(task)
    model = task.text("model")
    told = ""

    def stage(words: str, fraction: float) -> None:
        nonlocal told
        task.check()
        task.progress(fraction, {"stage": words} if words != told else None)
        told = words

    found = session.captured.capture(
        model, session.models.source(model), tensors, text, stage, task.is_cancelled
    )
    return Result(
        {
            "captures": [_capture_data(one) for one in found],
            "held": session.captured.held(model),
        }
    )


def activation_ranges(session: Session, task: Task) -> Result:
    """The ways to quantize an activation in the format of `scheme`, on the calibration text
    and on held-out text, and the channels that stand out."""
    side, found = _captured(session, task)
    scheme = session.scheme_of(task)
    calibration, held_out = found.sides(side)
    observed = calibration.observed
    ways = ways_of(scheme, observed)
    reports = list(compare_ranges(ways, calibration, held_out, **watched(task)))
    columns = columns_of(observed)
    largest = columns.largest(CHANNELS_SENT)
    subject = f"{side.capitalize()} of {_short(found)}"
    return Result(
        {
            **_capture_data(found),
            "side": side,
            "features": observed.features,
            "min": observed.min,
            "max": observed.max,
            "nonfinite": observed.nonfinite,
            "sampled": not (calibration.whole and (held_out is None or held_out.whole)),
            "median_absmax": columns.median_absmax,
            "channels": [[c.column, c.absmax, _finite(c.absmax_ratio)] for c in largest],
            "channels_in_words": channels_in_words(columns),
            "standing_out": len(standing_out(columns)),
            "ways": [_way_data(report) for report in reports],
            "sentence": conclude_ranges(subject, columns, reports),
        }
    )


def output_error(session: Session, task: Task) -> Result:
    """The error of the layer's output with the weights, the activations or both quantized by
    each of `schemes`: a table whose first row and column leave weights and activations as
    they are. The sentence is about scheme number `active` for both."""
    found = session.captured.need(task.text("model"), task.text("tensor"), "input")
    texts = task.params.get("schemes")
    if not isinstance(texts, list) or not texts:
        raise UsageError("The error of an output needs a list of schemes.")
    schemes = [Scheme.parse(str(text)) for text in texts]
    weight, bias = _layer(session, task)
    recording = found.calibration.input
    transposed = found.calibration.kind == "Conv1D"
    x = recording.rows
    take = tokens_for((weight.shape[0], weight.shape[1]), x.shape[0])
    x = x[np.linspace(0, x.shape[0] - 1, take).astype(int)] if take < x.shape[0] else x
    ways: list[ActivationScheme | None] = [None]
    for scheme in schemes:
        if isinstance(scheme.granularity, PerModel):
            ways.append(static(scheme, MinMax(), recording.observed))
        else:
            ways.append(as_written(scheme))
    extent = next(
        (session.extent_of_model(task, s) for s in schemes if isinstance(s.granularity, PerModel)),
        None,
    )
    table = output_errors(
        x,
        weight,
        bias,
        [None, *schemes],
        ways,
        transposed=transposed,
        model_absmax=extent,
        **watched(task),
    )
    active = task.params.get("active", 0)
    at = 1 + (active if isinstance(active, int) and 0 <= active < len(schemes) else 0)
    both = table[at][at]
    return Result(
        {
            "tokens": x.shape[0],
            "schemes": [str(scheme) for scheme in schemes],
            "sqnr_db": [[cell.sqnr_db for cell in row] for row in table],
            "relative_mse": [[cell.relative_mse for cell in row] for row in table],
            "worst_outputs": _worst_outputs(both),
            "transposed": transposed,
            "sentence": conclude_output(str(schemes[at - 1]), table[at][0], table[0][at], both),
        }
    )


def _layer(session: Session, task: Task) -> tuple[Float32, Float32 | None]:
    """The weight as it is stored and the bias of a layer."""
    model, name = task.text("model"), task.text("tensor")
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


def _captured(session: Session, task: Task) -> tuple[Side, Capture]:
    side = task.params.get("source", "input")
    found = session.captured.need(task.text("model"), task.text("tensor"), side)
    return cast(Side, side), found


def _text_of(task: Task) -> Text:
    prompt, file = task.params.get("prompt"), task.params.get("file")
    if prompt is not None and file is not None:
        raise UsageError("A capture reads a prompt or a file, and not both.")
    if file is not None:
        return read_text(task.text("file"))
    if prompt is not None:
        words = task.text("prompt")
        if not words.strip():
            raise UsageError("The prompt is empty; the model needs a text to run on.")
        return Text(words, "the prompt")
    return builtin_text()


def _capture_data(capture: Capture) -> dict[str, Any]:
    first, second = capture.calibration, capture.held_out
    return {
        "number": capture.number,
        "tensor": capture.tensor,
        "module": first.module,
        "kind": first.kind,
        "text": capture.text,
        "note": capture.note,
        "seconds": capture.seconds,
        "tokens": first.input.observed.tokens,
        "kept_tokens": first.input.rows.shape[0],
        "held_out_tokens": 0 if second is None else second.input.observed.tokens,
        "inputs": first.input.observed.features,
        "outputs": first.output.observed.features,
    }


def _way_data(report: RangeReport) -> dict[str, Any]:
    held_out = report.held_out
    return {
        "kind": report.way.kind,
        "words": report.way.words,
        "scheme": str(report.way.scheme),
        "extent": report.way.extent,
        "bits": report.bits_per_value,
        "calibration": dataclasses.asdict(report.calibration),
        "held_out": None if held_out is None else dataclasses.asdict(held_out),
        "loss_db": report.loss_db,
    }


def _worst_outputs(error: OutputError) -> list[list[float]]:
    share = error.channel_share
    order = np.argsort(-share, kind="stable")[:OUTPUTS_SENT]
    return [[int(channel), float(share[channel])] for channel in order if share[channel] > 0]


def _short(capture: Capture) -> str:
    return printable(capture.calibration.module.rsplit(".", 1)[-1])


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


OPERATIONS = {
    # In a lane of its own: a person goes on looking at weights while the model runs.
    "capture": (capture, "capture"),
    "activation_ranges": (activation_ranges, "view"),
    "output_error": (output_error, "view"),
}
