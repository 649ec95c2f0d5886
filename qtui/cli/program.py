"""The `qtui` command itself: it finds the command of a name, or opens the app on the model.

Only click is imported here. A command is imported when it runs, so that `qtui --help` answers at
once.
"""

from __future__ import annotations

import gc
import importlib
from typing import Any

import click

from qtui import __version__
from qtui.cli.commands import COMMANDS

_APP = "qtui.cli.commands.app"
#: The name of the app among the arguments: no model can have it.
APP = "\0app"
_GROUP_OPTIONS = {"--help", "-h", "--version"}


class _Commands(click.Group):
    """Commands by name; any other first word is a MODEL for the terminal app."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in COMMANDS:
            return _load(COMMANDS[name][0])
        return None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # `qtui`, `qtui MODEL` and `qtui --ascii MODEL` open the app, which has options of its
        # own. In `qtui --ascii inspect MODEL` the option is of inspect. Only --help and --version
        # belong to the group, and only where no other word follows.
        position = _first_word(args)
        if position is not None and args[position] in COMMANDS:
            args = [args[position], *args[:position], *args[position + 1 :]]
        elif position is not None or not _GROUP_OPTIONS & set(args):
            _refuse_unknown_command(ctx, args)
            args = [APP, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] == APP:
            return "", _load(_APP), args[1:]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


def _first_word(args: list[str]) -> int | None:
    """The index of the first argument that is neither an option nor the value of one that every
    command takes."""
    for index, word in enumerate(args):
        if word.startswith("-") and word != "-":
            continue
        if index and args[index - 1] in ("--color", "--threads"):
            continue
        return index
    return None


def _refuse_unknown_command(ctx: click.Context, args: list[str]) -> None:
    """Raises click.UsageError for two words of which the first is no command: `qtui inspct demo`
    is a mistyped command, not a model."""
    if len(args) < 2 or any(word.startswith("-") for word in args[:2]):
        return
    import shlex
    from difflib import get_close_matches

    close = get_close_matches(args[0], COMMANDS, n=1)
    instead = f" Did you mean `qtui {close[0]} {shlex.quote(args[1])}`?" if close else ""
    raise click.UsageError(
        f"{args[0]!r} is no command, and the app opens one MODEL at a time.{instead}", ctx
    )


def _load(module: str) -> click.Command:
    command: click.Command = importlib.import_module(module).command
    if module != _APP:  # which imports further, and then switches the collector on
        gc.enable()
    return command


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    options_metavar="",
    subcommand_metavar="[MODEL] | COMMAND ...",
    epilog=(
        "MODEL is a hub id (org/name, or org/name@revision), a folder, a .safetensors or .gguf "
        "file, a config.json, or demo, the small trained model inside this package. Every command "
        "and the app take --color, --ascii and --threads."
    ),
)
@click.version_option(__version__, prog_name="qtui")
def cli(**_: Any) -> None:
    """See what every bit costs: number formats, quantization error and outliers of language
    models.

    `qtui [MODEL]` opens the terminal app, on demo if no model is named.
    """
