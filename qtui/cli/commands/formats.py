"""`qtui formats [VALUE]`: shows a value in every number format."""

from __future__ import annotations

import click

from qtui.cli.options import ReportOptions, report_options
from qtui.report.document import Document
from qtui.report.formats import catalogue_document, value_document
from qtui_core.errors import UsageError
from qtui_core.formats import FORMATS, Format, Rounding, get_format
from qtui_core.formats.table import describe_code, describe_value
from qtui_core.formats.text import parse_input


@click.command(
    "formats",
    # -0.1 is a value and not an option.
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True},
)
@click.argument("value", required=False)
@click.option(
    "--rounding",
    type=click.Choice([str(mode) for mode in Rounding]),
    default=str(Rounding.NEAREST_EVEN),
    show_default=True,
    help="How a value between two representable numbers is rounded.",
)
@click.option(
    "--saturate/--no-saturate",
    default=None,
    help="Whether overflow becomes the largest number, or infinity or NaN.  [default: per format]",
)
@click.option(
    "--random-bits",
    metavar="HEX",
    help="Random bits of stochastic rounding: 0x and 1 to 8 hex digits.  [default: the middle]",
)
@click.option("--only", metavar="F,F", help="Only these formats, in this order, e.g. bf16,e4m3.")
@report_options
def command(
    value: str | None,
    rounding: str,
    saturate: bool | None,
    random_bits: str | None,
    only: str | None,
    report: ReportOptions,
) -> None:
    """VALUE in every number format: bits, exact value, error, neighbours, and outcome.

    VALUE is a number (0.1, 1e-3, -1/3, 0x1.8p3, inf, nan) or a code of a format (e4m3:0x3d).
    Without VALUE, lists the formats and their ranges.
    """
    if value is not None and value.startswith("--"):
        raise UsageError(f"{value} is no option of `qtui formats`; see `qtui formats --help`.")
    target = report.target()
    formats = list(FORMATS.values())
    if only is not None:
        formats = [get_format(name) for name in only.split(",")]
    if value is None:
        document = catalogue_document(formats)
    else:
        document = _describe(value, formats, Rounding(rounding), saturate, random_bits)
    report.write(document, target)


def _describe(
    text: str,
    formats: list[Format],
    rounding: Rounding,
    saturate: bool | None,
    random_bits: str | None,
) -> Document:
    if random_bits is not None and rounding is not Rounding.STOCHASTIC:
        raise UsageError("--random-bits is for --rounding stochastic: give that too.")
    typed = parse_input(text)
    draw, count = _parse_draw(random_bits)
    rows = describe_value(typed.value, rounding, saturate, formats, draw, count)
    if typed.format is not None and typed.code is not None:
        # Describes the typed code: a NaN has several codes, and encoding would choose one.
        own = describe_code(typed.format, typed.code)
        rows = tuple(own if row.format is typed.format else row for row in rows)
    return value_document(typed, rows, rounding, saturate)


def _parse_draw(text: str | None) -> tuple[int | None, int]:
    """The random bits and their number, four for each hex digit. Raises UsageError for any other
    text."""
    if text is None:
        return None, 16
    digits = text.lower().removeprefix("0x")
    if not 1 <= len(digits) <= 8 or any(c not in "0123456789abcdef" for c in digits):
        raise UsageError(f"--random-bits takes 1 to 8 hex digits such as 0x8000, not {text!r}.")
    return int(digits, 16), 4 * len(digits)
