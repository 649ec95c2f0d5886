"""The command line: `qtui` and its commands. Thin; each command is one file."""

from qtui.cli.program import main

__all__ = ["main"]
