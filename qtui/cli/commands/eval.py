"""`qtui eval MODEL`: how far quantized models are from the original on a text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from qtui.cli.options import (
    GateOptions,
    ReportOptions,
    as_stdout,
    gate_options,
    report_options,
    write_gated,
)
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from qtui_core.evaluation.results import EvaluationRecording
    from qtui_core.evaluation.settings import EvaluationSettings


@click.command("eval", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--schemes",
    metavar="S,S",
    help="Schemes, each for every matrix of the model: FORMAT[:GRANULARITY][:OPTION...]. "
    "[default: int8,nf4,nf4:dq,int4,mxfp4,nvfp4, if there is no --assignment and no --against]",
)
@click.option(
    "--activations",
    metavar="S,S",
    help="Also quantize the inputs of the linear layers, on the fly: int8:token with int8 weights "
    "is W8A8, e4m3:group128 with e4m3:tile128x128 is FP8 with fine scales.",
)
@click.option(
    "--assignment",
    multiple=True,
    metavar="FILE",
    help="A scheme for each tensor: the JSON of `qtui inspect --sensitivity`, or an object "
    '{"TENSOR": "SCHEME"}. May be given several times.',
)
@click.option(
    "--against",
    metavar="MODEL",
    help="Another checkpoint of the model: a quantized one (bitsandbytes, GPTQ, AWQ, "
    "compressed-tensors, FP8, GGUF), or one that was trained further.",
)
@click.option(
    "--keep",
    metavar="GLOB,GLOB",
    help="Tensors that --schemes leave as stored, e.g. 'lm_head*,*embed*'.",
)
@click.option(
    "--text",
    metavar="FILE",
    help="The text to read. [default: a built-in one; for demo one that it was not trained on]",
)
@click.option(
    "--windows",
    type=int,
    metavar="N",
    help="How many windows of the text, spread over it. [default: 16 to 64, by the model's size]",
)
@click.option(
    "--window", type=int, metavar="N", help="Tokens of a window. [default: 256; llama.cpp: 512]"
)
@click.option(
    "--scored",
    type=click.Choice(("half", "all")),
    default="half",
    show_default=True,
    help="Which tokens of a window count: the second half, as in llama.cpp, or all but the first.",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default="cpu",
    show_default=True,
    help="Where the model runs. Weights are quantized on the CPU.",
)
@click.option(
    "--record",
    metavar="FILE",
    callback=as_stdout,
    help="Record the evaluation in this file while it runs, or - for stdout.",
)
@click.option(
    "--resume",
    metavar="FILE",
    help="Continue this recording with its settings; its finished parts are not computed again.",
)
@report_options
@gate_options("'kl>0.01' or 'top1<98%'")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    record: str | None,
    resume: str | None,
    report: ReportOptions,
    gates: GateOptions,
    **given: Any,
) -> None:
    """KL divergence, loss and agreement of quantized models with the original MODEL.

    The original and each candidate read the same windows of a text. The KL divergence of the
    candidate's distribution of the next token from the original's is given as mean, median and
    99.9th percentile over the tokens, with a standard error that counts windows, as tokens of one
    window are correlated; besides, the loss, the perplexity, and how often the most likely token
    stays.

    The model runs in float32, layer by layer: only the weights of one layer are in memory, so a
    model may be larger than that. It must be stored as plain numbers, with its tokenizer beside it.

    KL and perplexity are those of llama.cpp's llama-perplexity, with these differences: a window
    has 256 tokens unless --window says otherwise; the token that begins a text goes before the
    window's and not in place of the first; windows are spread over the text; the original's
    probabilities are exact, where llama.cpp keeps 16 bits and drops those below e^-16.
    """
    from qtui.cli.evaluation_run import run_to_end
    from qtui.report.evaluation.document import evaluation_document
    from qtui_core.extras import require
    from qtui_core.training.run.placement import place

    require("An evaluation", "torch", "transformers")
    earlier = None if resume is None else _read(resume)
    settings = _settings(given) if earlier is None else earlier.begun.settings
    if earlier is not None and resume is not None:
        _refuse_other(ctx, given, model, earlier, resume)
    inputs = (model, settings.text, *settings.assignment, settings.against, resume)
    target = report.target(*inputs, gates.baseline)
    gated = gates.of("eval")
    kept = report.record_target(record, target, *inputs)
    settings = _checked(model, settings)
    if settings.device != "cpu":
        place(settings.device, os.environ)
    outcome = run_to_end(model, settings, kept, earlier)
    document = evaluation_document(outcome.found, ctx.command_path)
    # What is known of some windows is held against no gate.
    whole = outcome.found.ended == "done"
    write_gated(report, document, target, gated if whole else None)
    if outcome.interrupted:
        raise outcome.interrupted
    if outcome.failed:
        ctx.exit(1)


def _settings(given: Mapping[str, Any]) -> EvaluationSettings:
    from qtui_core.evaluation.settings import EvaluationSettings

    several = {name: _listed(name, given[name]) for name in ("schemes", "activations", "keep")}
    return EvaluationSettings(**{**given, **several})


def _listed(name: str, text: str | None) -> tuple[Any, ...]:
    from qtui_core.schemes.scheme import Scheme

    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"--{name} is empty: name at least one, or leave it out.")
    return tuple(parts) if name == "keep" else tuple(map(Scheme.parse, parts))


def _checked(model: str, settings: EvaluationSettings) -> EvaluationSettings:
    """The settings with their defaults. What a person may have mistyped is read here, as the
    process that evaluates takes seconds to start."""
    from qtui_core.evaluation.changes import read_assignment
    from qtui_core.loading.text import read_text
    from qtui_core.models import open_model

    settled = settings.settled()
    if settings.text is not None:
        read_text(settings.text, "an evaluation")
    for path in settings.assignment:
        read_assignment(path)
    for name in filter(None, (model, settings.against)):
        with open_model(name) as source:
            source.require_weights()
    return settled


def _read(file: str) -> EvaluationRecording:
    from qtui_core.evaluation.results import read_evaluation_recording

    return read_evaluation_recording(file)


def _refuse_other(
    ctx: click.Context,
    given: Mapping[str, Any],
    model: str,
    earlier: EvaluationRecording,
    file: str,
) -> None:
    """Raises UsageError for an option, or a model, that differs from the recorded one."""
    begun = earlier.begun
    if model != begun.model:
        raise UsageError(f"{file!r} is of the model {begun.model!r}, not {model!r}.")
    typed = [n for n in given if ctx.get_parameter_source(n) is not ParameterSource.DEFAULT]
    settings = _settings(given).settled()
    other = [n for n in typed if getattr(settings, n) != getattr(begun.settings, n)]
    if other:
        raise UsageError(
            f"{file!r} was made with another --{other[0]}: leave it out to go on, or run without "
            f"--resume."
        )
