"""Paths to pick from: the files of a folder, as far as one is typed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

from qtui.screen.picker.picking import PickerRow, Picking, text_of
from qtui_core.errors import UsageError
from qtui_core.models.files.layout import natural_key
from qtui_core.quantities import format_bytes

#: The most entries of a folder that are looked at.
LOOKED_AT: Final = 20_000


def path_completions(suffixes: tuple[str, ...]) -> Callable[[str], Sequence[str]]:
    """A function that completes a text to the folders, and to the files with these suffixes, whose
    paths begin with it. It reads a folder once."""

    @lru_cache(maxsize=4)
    def entries(folder: str) -> Sequence[str]:
        found = []
        try:
            with os.scandir(os.path.expanduser(folder) or ".") as scanned:
                for entry in islice(scanned, LOOKED_AT):
                    if entry.is_dir():
                        found.append(f"{entry.name}/")
                    elif entry.name.lower().endswith(suffixes):
                        found.append(entry.name)
        except OSError:
            return ()  # no folder to complete from; what the text means is said by others
        return sorted(found, key=natural_key)

    def completed(text: str) -> Sequence[str]:
        if not text.strip():
            return ()
        if text == "~":
            return ("~/",)
        folder, slash, start = text.rpartition("/")
        return [
            folder + slash + name
            for name in entries(folder + slash)
            if name.startswith(start) and (start or not name.startswith("."))
        ]

    return completed


def path_row(text: str, opens: str) -> PickerRow | None:
    """Of a path that exists, else None; `opens` says what Enter does with a file."""
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir():
            return PickerRow("folder", f"{text} is a folder: Tab goes into it.")
        size = format_bytes(path.stat().st_size)
    except (OSError, ValueError):
        return None
    return PickerRow(size, f"{text}: {size}. {opens}")


def path_of(picking: Picking, picked: int | str) -> Path:
    """An answer as a path."""
    return Path(os.path.expanduser(text_of(picking, picked)))


def recording_picking(paths: Sequence[Path]) -> Picking:
    """A recording among `paths`, or one of another folder, by its path."""
    names = [str(path) for path in paths]
    opens = "Enter plays it."

    def typed(text: str) -> PickerRow | None:
        row = path_row(text, opens)
        if row is None:
            raise UsageError(
                f"No recording here has these letters, and there is no file {text!r}. "
                "Tab completes a path."
            )
        return row

    return Picking(
        title="Recording",
        names=names,
        row=lambda at: path_row(names[at], opens) or PickerRow("", "The file is gone."),
        none="There are no recordings yet: type the path of one, which Tab completes.",
        hint="letters of the name, or a path",
        typed=typed,
        completed=path_completions((".jsonl",)),
    )
