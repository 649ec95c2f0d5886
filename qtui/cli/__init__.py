"""The command line: `qtui` and its commands. Thin; each command is one file."""

from qtui.cli.main import main

__all__ = ["main"]
