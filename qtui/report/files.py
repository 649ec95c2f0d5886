"""Writes a report to a file without ever leaving half of one, or harming what is there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from qtui_core.errors import QtuiError, UsageError


def check_target(output: str) -> None:
    """Refuses a target that cannot be written, before the work whose result it is to hold.

    Raises QtuiError, UsageError for what is no file at all.
    """
    path = _file_of(output)
    if not output or path.is_dir():
        raise UsageError(f"Cannot write to {output!r}: that is not a file.")
    if not path.parent.is_dir():
        raise QtuiError(f"Cannot write {output!r}: there is no folder {str(path.parent)!r}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise QtuiError(f"Cannot write {output!r}: permission denied.")


def write_whole(output: str, text: str) -> None:
    """Replaces the file in one step, so that a reader sees the old report or the new one.

    A symbolic link keeps pointing where it does and its target is replaced; a file keeps
    its permissions. A device or pipe is written to, and a file whose folder takes no new
    files is written in place: there is no other way.

    Raises QtuiError.
    """
    check_target(output)
    path = _file_of(output)
    try:
        mode = path.stat().st_mode if path.exists() else None
        in_place = mode is not None and (
            not stat.S_ISREG(mode) or not os.access(path.parent, os.W_OK)
        )
        if in_place:
            path.write_text(text, encoding="utf-8")
        else:
            _replace(path, text, 0o666 & ~_umask() if mode is None else stat.S_IMODE(mode))
    except OSError as error:
        raise QtuiError(f"Cannot write {output!r}: {error.strerror or error}.") from error


def _file_of(output: str) -> Path:
    """Where a path leads. A pipe under /dev/fd leads to a name that cannot be opened, so what is
    there and no regular file is opened by the path as it was given."""
    path = Path(output)
    try:
        special = not stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        special = False
    return path if special else Path(os.path.realpath(output))


def _replace(path: Path, text: str, mode: int) -> None:
    import tempfile  # which takes longer to import than a report on stdout to write

    handle, temporary = tempfile.mkstemp(prefix=".qtui-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
