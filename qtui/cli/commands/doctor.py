"""`qtui doctor`: reports on this machine, and checks the conventions of its libraries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from qtui.cli.options import ReportOptions, report_options

if TYPE_CHECKING:
    from qtui_core.conformance.convention import Library, LibraryReport


@click.command("doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--library",
    "libraries",
    multiple=True,
    metavar="NAME",
    help="Check only this library, and report every detail. May be given more than once.",
)
@click.option("--no-conformance", is_flag=True, help="Check no library; the rest is quick.")
@report_options
@click.pass_context
def command(
    ctx: click.Context,
    libraries: tuple[str, ...],
    no_conformance: bool,
    report: ReportOptions,
) -> None:
    """What this machine has, and whether its libraries quantize as qtui says they do.

    Each installed library quantizes numbers on which conventions differ, on the CPU, in a process
    of its own. Byte-equal means the same codes and scales, value-equal the same values; a
    difference is shown with its reason.

    Exit code 1 means that qtui and a library differ although they should be equal. Warnings, known
    differences, and missing or failing libraries leave it at 0.
    """
    from dataclasses import replace

    from qtui.cli.surroundings import ask_terminal, installed_versions, read_files, read_terminal
    from qtui.report.doctor import around_document, doctor_document
    from qtui.report.surroundings import Surroundings
    from qtui_core.conformance.catalogue import LIBRARIES, find_library
    from qtui_core.errors import UsageError
    from qtui_core.telemetry.machine import read_machine
    from qtui_core.telemetry.readings import read_devices, read_driver

    if libraries and no_conformance:
        raise UsageError("--library checks a library and --no-conformance none: choose one.")
    chosen = list(dict.fromkeys(map(find_library, libraries))) or list(LIBRARIES)
    target = report.target()
    around = Surroundings(
        terminal=read_terminal(
            color=report.color, ascii=report.ascii, says=ask_terminal(report.color)
        ),
        machine=read_machine(),
        driver=read_driver(),
        devices=read_devices(),
        versions=installed_versions(),
        files=read_files(),
    )
    # What is known at once is on the screen while the libraries are asked; a pipe gets a whole
    # report or none.
    begun = None
    if report.face == "text" and target is None and sys.stdout.isatty():
        begun = around_document(around)
        report.write(begun, target)
    checked = None if no_conformance else _check(chosen)
    document = doctor_document(around, checked, details=bool(libraries) or report.face != "text")
    if begun is not None:
        document = replace(document, title="", sections=document.sections[len(begun.sections) :])
    report.write(document, target)
    if checked is not None and any(each.broken for each in checked):
        ctx.exit(1)


def _check(chosen: list[Library]) -> tuple[LibraryReport, ...]:
    """How each library compares with qtui."""
    from qtui.cli.progress import progress_on_stderr
    from qtui_core.conformance.run import check_libraries

    with progress_on_stderr("checking", patience=0.0) as job:
        job.at(0, len(chosen), chosen[0].name)
        return check_libraries(chosen, job=job)
