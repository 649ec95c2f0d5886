"""Files that are written under a name: nothing that is there is lost, and nothing half is left.

A file is written beside its name and gets it when it is whole; a recording, which nobody can wait
for, when its first line is on the disk. A name that is taken is taken over only where that was
asked for, and a file of a model never.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError

#: As the name of a file: stdout.
STDOUT: Final = "-"
#: Names that loaders of models look for (transformers, tokenizers, llama.cpp).
_OF_A_MODEL: Final = re.compile(
    r".*\.(safetensors|gguf|bin|pt|pth|ckpt|pkl|pickle|model)|.*\.index\.json|(.*_)?config\.json"
    r"|(tokenizer|vocab|params|added_tokens|special_tokens_map|chat_template)\.json"
    r"|merges\.txt|chat_template\.jinja",
    re.IGNORECASE,
)
#: Folders of the hub's cache, whose files have the names of their contents.
_IN_A_CACHE: Final = re.compile(r"/(models|datasets|spaces)--[^/]+/(blobs|snapshots|refs)/")


@dataclass(frozen=True)
class Target:
    """A file that may be written; `target_of` makes one.

    Attributes:
        name: as it was typed.
        path: where that leads, links followed.
        force: whether a file that is there may be replaced.
        special: whether it is stdout, a pipe or a device, which are written to as they are.
    """

    name: str
    path: Path
    force: bool = False
    special: bool = False

    def write(self, text: str) -> None:
        """Writes the file as a whole, in UTF-8, or not at all. Raises QtuiError."""
        try:
            with Draft(self) as draft:
                draft.write(text.encode())
                draft.keep()
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> QtuiError:
        """What the system said of it, as a sentence."""
        if isinstance(error, FileExistsError):
            return _taken(self.name)
        return QtuiError(f"Cannot write {self.name!r}: {error.strerror or error}.")


def target_of(name: str, *, force: bool = False, inputs: Iterable[str | None] = ()) -> Target:
    """The file of a name, if it may be written: asked before the work whose result it is to hold.

    A symbolic link stays, and what it leads to is written. Of several hard links the one that was
    named gets the new contents. `inputs` are files and folders that are read: models, texts,
    recordings; what is no path of this machine is passed over.

    Raises UsageError for what is no file, has the name of a model's file, lies in the hub's cache,
    is one of `inputs`, or is there without `force`; QtuiError where the system does not let it be
    written.
    """
    if name == STDOUT:
        return Target(name, Path(name), force, special=True)
    # Not functions of Path, which raise where a link leads to what may not be looked at.
    if not name or "\0" in name or name.endswith("/") or os.path.isdir(name):
        raise UsageError(f"Cannot write to {name!r}: that is not a file.")
    if os.path.exists(name) and not os.path.isfile(name):
        # By the path as it was given: a pipe under /dev/fd leads to a name that cannot be opened.
        return Target(name, Path(name), force, special=True)
    path = Path(os.path.realpath(name))
    if _OF_A_MODEL.fullmatch(path.name):
        raise UsageError(
            f"Cannot write to {name!r}: files of a model are called {path.name}; give another name."
        )
    if _IN_A_CACHE.search(path.as_posix()):
        raise UsageError(f"Cannot write to {name!r}: it is in the hub's cache; write elsewhere.")
    if any(_same(path, read) for read in inputs if read):
        raise UsageError(f"Cannot write to {name!r}: this command reads it; give another name.")
    if not os.path.isdir(path.parent):
        raise QtuiError(f"Cannot write {name!r}: there is no folder {str(path.parent)!r}.")
    there = os.path.exists(path)
    if there and not force:
        raise _taken(name)
    # A file in a folder that takes no new ones could only be emptied first.
    needed = [path.parent, path] if there else [path.parent]
    if not all(os.access(each, os.W_OK) for each in needed):
        raise QtuiError(f"Cannot write {name!r}: permission denied.")
    return Target(name, path, force)


def _taken(name: str) -> UsageError:
    return UsageError(f"{name!r} is there already: give another name, or --force to replace it.")


def _same(path: Path, read: str) -> bool:
    """Whether a path is of a file that is read, or of one of a model's in a folder that is."""
    try:
        place = os.path.expanduser(read)
        found = [place]
        if os.path.isdir(place):
            names = filter(_OF_A_MODEL.fullmatch, os.listdir(place))
            found = [os.path.join(place, each) for each in names]
        return os.path.exists(path) and any(os.path.samefile(path, each) for each in found)
    except (OSError, ValueError):
        return False  # No path of this machine, which opening it will say.


class Draft:
    """What is written of a target, in a `with` statement. Without `keep` nothing of it stays."""

    def __init__(self, target: Target) -> None:
        """Raises OSError. A pipe without a reader is waited for."""
        self._target = target
        self._beside: str | None = None
        self._whole = 0
        if target.name == STDOUT:
            self._file = os.dup(1)
        elif target.special:
            self._file = os.open(target.path, os.O_WRONLY)
        else:
            import tempfile  # which takes longer to import than a report on stdout to write

            self._file, self._beside = tempfile.mkstemp(prefix=".qtui-", dir=target.path.parent)

    def write(self, data: bytes) -> None:
        """Adds the data at once, whole or not at all. Raises OSError where it cannot be."""
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            if not self._target.special:
                os.ftruncate(self._file, self._whole)
                os.lseek(self._file, self._whole, os.SEEK_SET)
            raise
        self._whole += len(data)

    def keep(self) -> None:
        """Gives the file its name, once what was written is on the disk; more may be added.

        Raises OSError, FileExistsError where somebody took the name meanwhile.
        """
        if self._beside is None:
            return
        os.fsync(self._file)
        path = self._target.path
        made = True
        try:
            place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if not self._target.force:
                raise
            made, place = False, os.open(path, os.O_WRONLY)
        try:
            try:
                # Permissions of the file that was there, or as the system gives them to a new one.
                os.fchmod(self._file, stat.S_IMODE(os.fstat(place).st_mode))
            finally:
                os.close(place)
            os.replace(self._beside, path)
        except BaseException:
            if made:
                path.unlink(missing_ok=True)
            raise
        self._beside = None
        with suppress(OSError):  # The name is there; some systems cannot say that it is for good.
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # A device that was taken away; what was kept is on the disk.
            os.close(self._file)
        if self._beside is not None:
            Path(self._beside).unlink(missing_ok=True)
            self._beside = None
