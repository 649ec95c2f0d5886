"""The command line: `qtui` and its commands. Thin; each command is one file."""

import gc
import sys


def main() -> None:
    """The console script. Imports inside, so that Ctrl+C during them is no traceback."""
    # Nothing that is imported is garbage. The collector is back once the command is loaded.
    gc.disable()
    try:
        from qtui.cli.exits import run_and_exit
        from qtui.cli.program import cli
    except KeyboardInterrupt:
        sys.exit(130)
    run_and_exit(cli)


__all__ = ["main"]
