"""`qtui inspect MODEL`: reports on the weights of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from qtui.cli.adapter_merge import (
    DEFAULT_MERGES,
    check_text,
    merge_schemes,
    report_adapter,
)
from qtui.cli.options import (
    GateOptions,
    ReportOptions,
    gate_options,
    report_options,
    write_gated,
)
from qtui.cli.plan_options import given_options, plan_options
from qtui.cli.progress import progress_on_stderr
from qtui.report.inspection.document import inspection_document
from qtui_core.errors import UsageError
from qtui_core.evaluation.sensitivity.settings import OBJECTIVES

if TYPE_CHECKING:
    from qtui.report.document import Document
    from qtui_core.evaluation.sensitivity.settings import Objective
    from qtui_core.files import Target
    from qtui_core.inspection.recipes.targets import RecipeTarget
    from qtui_core.inspection.report import Inspection
    from qtui_core.memory.plan.run_plan import RunPlan
    from qtui_core.models import ModelSource
    from qtui_core.quant import Scheme

_DEFAULT = ParameterSource.DEFAULT


def _refuse_outputs(given: bool) -> None:
    if given:
        raise UsageError(
            "Schemes are no longer chosen by the error of layers' outputs: --objective kl measures "
            "what they do to the predictions of the model, and fisher estimates it in less time."
        )


def _objective(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    _refuse_outputs(value == "output")
    return None if value is None else click.Choice(OBJECTIVES).convert(value, option, context)


DEFAULT_SCHEMES = "nf4,nf4:dq,fp4,int4,int4:asym,int8,e4m3"


@click.command("inspect", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--schemes",
    default=DEFAULT_SCHEMES,
    show_default=True,
    metavar="S,S",
    help="Schemes to measure: FORMAT[:GRANULARITY][:OPTION...]. Scales of MX, where M is the "
    "largest number of the elements and E = floor(log2 M): floor is 2^(floor(log2 absmax) - E), "
    "even the same of the absmax rounded to their mantissa, ceil 2^(ceil(log2 absmax) - E), rceil "
    "2^ceil(log2(absmax / M)), as most tools have it for mxfp8.",
)
@click.option("--tensors", metavar="GLOB", help="Only tensors whose name matches, e.g. '*.mlp.*'.")
@click.option("--full", is_flag=True, help="Read every element, not a sample of rows.")
@click.option("--headers", is_flag=True, help="Read only headers: names, shapes, dtypes, bytes.")
@click.option(
    "--sensitivity",
    is_flag=True,
    help="Choose a scheme for each tensor: the least error within a budget, and the frontier.",
)
@click.option(
    "--budget",
    metavar="SIZE",
    help="For --sensitivity: bits per parameter (4.25) or bytes (3.5GiB) of all tensors together. "
    "[default: 10% more than the scheme that inspect recommends takes]",
)
@click.option(
    "--objective",
    metavar=f"[{'|'.join(OBJECTIVES)}]",
    callback=_objective,
    help="For --sensitivity, what is made least: the KL divergence of the model with one tensor at "
    "a time quantized, measured (kl) or estimated from gradients (fisher), or the error of the "
    "weights (weights). [default: kl or fisher, by what takes minutes; weights where the model "
    "cannot run]",
)
@click.option(
    "--text",
    metavar="FILE",
    help="For --sensitivity: the text that the model reads for its objective, of which the first "
    "half is used. [default: a built-in text] For --adapter: also run the merged models on this "
    "text, and measure how far each is from the trained one.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    hidden=True,
    expose_value=False,
    callback=lambda context, option, file: _refuse_outputs(file is not None),
)
@click.option(
    "--judge/--no-judge",
    default=None,
    help="For --sensitivity: let the model read text with the assignment, the nearest single "
    "schemes and a simple rule, and recommend what is nearest to the original. [default: up to "
    "50M parameters, which take a minute or less]",
)
@click.option(
    "--export",
    "exports",
    multiple=True,
    metavar="TOOL[=FILE]",
    help="For --sensitivity: write the assignment as llama-quantize, llm-compressor, torchao, "
    "bitsandbytes or vllm takes it. May be given several times.",
)
@click.option(
    "--against",
    metavar="MODEL",
    help="Compare with this model, which has the same weights, quantized or trained further.",
)
@click.option(
    "--adapter",
    metavar="LORA",
    help="Merge this adapter of peft into MODEL, quantize the result, and report how much of its "
    "update survives: a folder or a hub id.",
)
@click.option(
    "--merge",
    metavar="S,S",
    help=f"For --adapter: schemes of the merged weights.  [default: {DEFAULT_MERGES}]",
)
@click.option(
    "--trained-on",
    metavar="SCHEME",
    help="For --adapter: the scheme of the base in training (QLoRA: nf4:dq). The adapter is then "
    "also merged into the base dequantized from it.",
)
@gate_options("'sqnr<20' or 'peak>22GiB'")
@plan_options
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    plan: RunPlan,
    schemes: str,
    tensors: str | None,
    full: bool,
    headers: bool,
    sensitivity: bool,
    budget: str | None,
    objective: Objective | None,
    text: str | None,
    judge: bool | None,
    exports: tuple[str, ...],
    against: str | None,
    adapter: str | None,
    merge: str | None,
    trained_on: str | None,
    report: ReportOptions,
    gates: GateOptions,
) -> None:
    """Weights by dtype, outliers, and the error of each scheme on each tensor of MODEL.

    Reads a limited sample of rows of each tensor, and says so; --full reads everything.

    With --against, compares the weights of a second model with those of MODEL: its quantized
    version (bitsandbytes, GPTQ, AWQ, compressed-tensors, FP8, GGUF), or the model after training.

    With --adapter, merges a LoRA into MODEL and quantizes the result: how much of the update is
    left in each weight under each scheme of --merge, beside keeping the adapter apart.

    The options from --method on are a plan of a run. The report also has the memory of that run,
    but a page for which only --schemes are asked; `qtui memory` reports it in detail.

    Exit code 1 means that a gate of --fail-if or --baseline failed.
    """
    if full and headers:
        raise UsageError("--full reads every element and --headers reads none: choose one.")
    if headers and ctx.get_parameter_source("schemes") is not _DEFAULT:
        raise UsageError("--headers reads no values to apply --schemes to: choose one.")
    for option, value in (
        ("--budget", budget),
        ("--objective", objective),
        ("--judge" if judge else "--no-judge", judge),
        ("--export", exports or None),
    ):
        if value is not None and not sensitivity:
            raise UsageError(f"{option} is for --sensitivity: give both.")
    if headers and sensitivity:
        raise UsageError("--headers reads no values to weigh for --sensitivity: choose one.")
    for option, value in (("--merge", merge), ("--trained-on", trained_on)):
        if value is not None and adapter is None:
            raise UsageError(f"{option} is for --adapter: give both.")
    if text is not None and not (sensitivity or adapter):
        raise UsageError("--text is for --sensitivity or --adapter: give one of them.")
    if against is not None:
        _refuse_beside_against(ctx, headers, sensitivity)
    if adapter is not None:
        _refuse_beside_adapter(ctx)
    target = report.target(model, against, adapter, text, gates.baseline)
    gated = gates.of(_kind_of_report(headers, sensitivity, against, adapter))
    from qtui_core.models import open_model

    chosen = report.face
    if adapter is not None:
        ways, base = merge_schemes(merge, trained_on)
        check_text(text)
        every = chosen != "text"
        document, ended = report_adapter(
            model, adapter, ways, base, text=text, full=full, all_tensors=every
        )
        # A report without all that was asked for is held against no gate.
        write_gated(report, document, target, None if ended else gated)
        if ended is not None:
            raise ended
        return
    if against is not None:
        document = _compare(
            model, against, full=full, pattern=tensors, all_tensors=chosen != "text"
        )
        write_gated(report, document, target, gated)
        return
    wanted = [] if headers else [text.strip() for text in schemes.split(",") if text.strip()]
    if not headers and not wanted:
        raise UsageError("--schemes is empty: name at least one, for example nf4,int4.")
    # Parsed first, so that a wrong scheme is an error before a large model is opened.
    parsed = _parse_schemes(wanted)
    limit = held = None
    recipes: list[tuple[RecipeTarget, Target]] = []
    if sensitivity:
        from qtui.cli.sensitivity import export_targets, wanted_objective
        from qtui_core.evaluation.sensitivity.settings import parse_budget

        limit = None if budget is None else parse_budget(budget)
        chosen_by = wanted_objective(objective, text)
        recipes = export_targets(exports, report, target, model, chosen_by.text, gates.baseline)
        if judge is None and gated is not None and gated.limits_any("judged"):
            judge = True
    with open_model(model) as source:
        if not source.is_configuration:
            source.require_weights()
        for tool, _ in recipes:
            tool.refuse_names(source.tensors)
        if headers or not source.tensors:
            from qtui_core.inspection.census import census_only

            inspection = census_only(source, tensors)
        else:
            inspection = _measure(source, parsed, full=full, pattern=tensors)
        document = inspection_document(inspection, all_tensors=chosen != "text")
        if sensitivity:
            from qtui.cli.held_against import command_that_does, hold_against
            from qtui.cli.sensitivity import assign, write_recipes
            from qtui.report.inspection.sensitivity import with_sensitivity

            found = assign(source, inspection, limit, chosen_by)
            document = with_sensitivity(document, found, all_tensors=chosen != "text")
            held = hold_against(source, found, chosen_by.text, judge)
            written = report.output if chosen == "json" and target else None
            command = command_that_does(model, written, held.rivals)
            document = held.added_to(document, command, bool(recipes))
            if recipes:
                document = write_recipes(recipes, source, found, document)
        asked = bool(given_options(ctx))
        usual = ctx.get_parameter_source("schemes") is _DEFAULT
        if asked or usual or gated is not None or chosen == "json":  # scripts rely on its keys
            document = _with_memory(document, source, plan, asked=asked)
    # A judgement that was stopped is held against no gate.
    whole = held is None or not (held.interrupted or held.failed)
    write_gated(report, document, target, gated if whole else None)
    if held is not None and held.interrupted:
        raise held.interrupted
    if not whole:
        ctx.exit(1)


def _kind_of_report(
    headers: bool, sensitivity: bool, against: str | None, adapter: str | None
) -> str:
    """The command as `qtui_core.gates` names it: kinds of report have different figures."""
    if adapter is not None:
        return "inspect --adapter"
    if against is not None:
        return "inspect --against"
    if headers:
        return "inspect --headers"
    return "inspect --sensitivity" if sensitivity else "inspect"


def _refuse_beside_against(ctx: click.Context, headers: bool, sensitivity: bool) -> None:
    if headers:
        raise UsageError("--against compares values and --headers reads none: choose one.")
    if sensitivity:
        raise UsageError("--against compares two models and --sensitivity is of one: choose one.")
    if given := given_options(ctx):
        raise UsageError(f"--against compares weights, and {given[0]} is of a run: choose one.")
    if ctx.get_parameter_source("schemes") is not _DEFAULT:
        raise UsageError(
            "--against measures the second model's own scheme, and --schemes other ones: choose "
            "one. Plain rounding to the second model's levels is shown anyway."
        )


def _refuse_beside_adapter(ctx: click.Context) -> None:
    others = ("headers", "sensitivity", "against", "tensors")
    given = [f"--{n}" for n in others if ctx.get_parameter_source(n) is not _DEFAULT]
    given += given_options(ctx)
    if given:
        raise UsageError(
            f"--adapter merges an adapter and measures what is left of it, and {given[0]} asks "
            f"for another report: choose one."
        )
    if ctx.get_parameter_source("schemes") is not _DEFAULT:
        raise UsageError("--schemes is of the stored weights; with --adapter it is --merge S,S.")


def _compare(
    model: str, against: str, *, full: bool, pattern: str | None, all_tensors: bool
) -> Document:
    from qtui.report.inspection.comparison import comparison_document
    from qtui_core.inspection.comparison.compare import compare_models
    from qtui_core.models import open_model

    with open_model(model) as first, open_model(against) as second:
        first.require_weights()
        second.require_weights()
        with progress_on_stderr("comparing") as job:
            comparison = compare_models(first, second, full=full, pattern=pattern, job=job)
        return comparison_document(comparison, all_tensors=all_tensors)


def _with_memory(
    document: Document, source: ModelSource, plan: RunPlan, *, asked: bool
) -> Document:
    """The report with the memory of the plan added, or with the reason why there is no estimate.

    Raises UsageError if the plan is impossible and `asked`: the user gave one of its options.
    """
    from qtui.cli.memory_report import report_on
    from qtui.report.memory.document import with_memory, without_memory

    if source.config is None:
        return without_memory(document, "there is no config.json to estimate it from")
    try:
        return with_memory(document, report_on(source, plan, trace=False))
    except UsageError as error:
        if asked:
            raise
        return without_memory(document, str(error))


def _parse_schemes(texts: list[str]) -> list[Scheme]:
    """The schemes, without duplicates. Raises UsageError for a text that is no scheme."""
    from qtui_core.schemes.scheme import Scheme

    return list(dict.fromkeys(Scheme.parse(text) for text in texts))


def _measure(
    source: ModelSource, schemes: list[Scheme], *, full: bool, pattern: str | None
) -> Inspection:
    from qtui_core.inspection.inspect import inspect_model

    with progress_on_stderr("reading") as job:
        return inspect_model(source, schemes, full=full, pattern=pattern, job=job)
