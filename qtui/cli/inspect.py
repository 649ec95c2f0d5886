"""`qtui inspect MODEL`: the headless report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from qtui.cli.options import appearance, report_format
from qtui.report.inspection import inspection_document
from qtui.report.render import choose_format, write_report
from qtui_core.errors import UsageError

if TYPE_CHECKING:
    from qtui_core.inspection import Inspection
    from qtui_core.inspection.inspect import Progress
    from qtui_core.models import ModelSource

DEFAULT_SCHEMES = "nf4,nf4:dq,fp4,int4,int4:asym,int8,e4m3"


@click.command("inspect", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option(
    "--schemes",
    default=DEFAULT_SCHEMES,
    show_default=True,
    metavar="S,S",
    help="Schemes to measure: FORMAT[:GRANULARITY][:OPTION...]",
)
@click.option("--tensors", metavar="GLOB", help="Only tensors whose name matches, e.g. '*.mlp.*'.")
@click.option("--full", is_flag=True, help="Read every element, not a sample of rows.")
@click.option("--headers", is_flag=True, help="Read headers only: names, shapes, dtypes, bytes.")
@report_format
@appearance
def command(
    model: str,
    schemes: str,
    tensors: str | None,
    full: bool,
    headers: bool,
    format: str | None,
    output: str | None,
    color: str,
    ascii: bool,
    debug: bool,
) -> None:
    """Weights by dtype, outliers, and the error of each scheme on each tensor of MODEL.

    Reads a bounded sample of rows of each tensor and says so; --full reads everything.
    """
    if full and headers:
        raise UsageError("--full reads every element and --headers reads none: choose one.")
    from qtui_core.models import open_model

    chosen = choose_format(format, output)
    wanted = [] if headers else [text.strip() for text in schemes.split(",") if text.strip()]
    if not headers and not wanted:
        raise UsageError("--schemes is empty: name at least one, for example nf4,int4.")
    # A scheme that does not parse is told before a large model is opened.
    parsed = _parse_schemes(wanted)
    with open_model(model) as source:
        if headers or not source.tensors:
            from qtui_core.inspection.census import census_only

            inspection = census_only(source, tensors)
        else:
            inspection = _measure(source, parsed, full=full, pattern=tensors)
        document = inspection_document(inspection, all_tensors=chosen != "text")
    write_report(document, chosen, output, color=color, ascii=ascii)


def _parse_schemes(texts: list[str]) -> list:
    if not texts:
        return []
    from qtui_core.quant import Scheme

    return list(dict.fromkeys(Scheme.parse(text) for text in texts))


def _measure(
    source: ModelSource, schemes: list, *, full: bool, pattern: str | None
) -> Inspection:
    from qtui_core.inspection.inspect import inspect_model

    with _progress_bar(source.id) as progress:
        return inspect_model(source, schemes, full=full, pattern=pattern, progress=progress)


@contextmanager
def _progress_bar(model: str) -> Iterator[Progress | None]:
    """A bar on stderr when that is a terminal; nothing otherwise."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tensor]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None, tensor="")

        def report(done: int, total: int, tensor: str) -> None:
            bar.update(task, completed=done, total=total, tensor=tensor)

        yield report
