"""Writing files safely: no existing file is lost, and no half-written file remains.

A file is written under a temporary name and renamed when it is complete; a recording, which takes
long, is renamed when its first line is on the disk. An existing file is replaced only on request,
and a file of a model never.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError

#: The file name that means stdout.
STDOUT: Final = "-"
#: File names that loaders of models look for (transformers, tokenizers, llama.cpp).
_OF_A_MODEL: Final = re.compile(
    r".*\.(safetensors|gguf|bin|pt|pth|ckpt|pkl|pickle|model)|.*\.index\.json|(.*_)?config\.json"
    r"|(tokenizer|vocab|params|added_tokens|special_tokens_map|chat_template)\.json"
    r"|merges\.txt|chat_template\.jinja",
    re.IGNORECASE,
)
#: Folders of the hub's cache, whose files are named by their contents.
_IN_A_CACHE: Final = re.compile(r"/(models|datasets|spaces)--[^/]+/(blobs|snapshots|refs)/")


def without_waiting(path: str, flags: int) -> int:
    """An `opener` of files that are read: a pipe that nobody writes to is empty, and is not waited
    for."""
    file = os.open(path, flags | os.O_NONBLOCK)
    os.set_blocking(file, True)
    return file


@dataclass(frozen=True)
class Target:
    """A file that may be written; `target_of` makes one.

    Attributes:
        name: as it was typed.
        path: the path, with links resolved.
        force: whether an existing file may be replaced.
        special: whether it is stdout, a pipe or a device, which are written directly; a pipe waits
            for its reader.
    """

    name: str
    path: Path
    force: bool = False
    special: bool = False

    def write(self, text: str) -> None:
        """Writes the whole file, in UTF-8, or nothing. Raises QtuiError."""
        try:
            with Draft(self) as draft:
                draft.write(text.encode())
                draft.keep()
        except OSError as error:
            raise self.refusal(error) from error

    def refusal(self, error: OSError) -> QtuiError:
        """The system's error about the file, as a sentence."""
        if isinstance(error, FileExistsError):
            return _taken(self.name)
        return QtuiError(f"Cannot write {self.name!r}: {error.strerror or error}.")


def target_of(name: str, *, force: bool = False, inputs: Iterable[str | None] = ()) -> Target:
    """The file of a name, if it may be written. Call it before the work whose result it will
    contain.

    A symbolic link stays, and its target is written. Of several hard links only the named one gets
    the new contents. `inputs` are files and folders that are read: models, texts, recordings; names
    that are no local path are ignored.

    Raises UsageError if it cannot be a file, has the name of a model's file, lies in the hub's
    cache, is one of `inputs`, or exists without `force`; QtuiError if the system does not allow
    writing it.
    """
    if name == STDOUT:
        return Target(name, Path(name), force, special=True)
    cannot = f"Cannot write {name!r}:"
    # Not methods of Path: these raise if a link leads to something inaccessible.
    if not name or "\0" in name or name.endswith("/") or os.path.isdir(name):
        raise UsageError(f"{cannot} that is not a file.")
    if os.path.exists(name) and not os.path.isfile(name):
        # Keep the path as given: a pipe under /dev/fd resolves to a name that cannot be opened.
        return Target(name, Path(name), force, special=True)
    try:
        path = Path(os.path.realpath(name))
    except FileNotFoundError:
        raise QtuiError(
            f"{cannot} the folder in which qtui was started is gone; give a whole path, or start "
            "it again elsewhere."
        ) from None
    if _OF_A_MODEL.fullmatch(path.name):
        raise UsageError(f"{cannot} files of a model are called {path.name}; give another name.")
    if _IN_A_CACHE.search(path.as_posix()):
        raise UsageError(f"{cannot} it is in the hub's cache; write elsewhere.")
    if any(_same(path, read) for read in inputs if read):
        raise UsageError(f"{cannot} this command reads it; give another name.")
    if not os.path.isdir(path.parent):
        raise QtuiError(f"{cannot} there is no folder {str(path.parent)!r}.")
    there = os.path.exists(path)
    if there and not force:
        raise _taken(name)
    # In a folder that allows no new files, an existing file could only be overwritten in place.
    if not all(os.access(place, os.W_OK) for place in (path.parent, path)[: 1 + there]):
        only_read = os.statvfs(path.parent).f_flag & os.ST_RDONLY
        why = "its disk can only be read" if only_read else "permission denied"
        raise QtuiError(f"{cannot} {why}.")
    return Target(name, path, force)


def _taken(name: str) -> UsageError:
    return UsageError(f"{name!r} is there already: give another name, or --force to replace it.")


def _same(path: Path, read: str) -> bool:
    """Whether a path is a file that is read, or one of a model's files in a folder that is read."""
    try:
        files = [os.path.expanduser(read)]
        if os.path.isdir(files[0]):
            names = filter(_OF_A_MODEL.fullmatch, os.listdir(files[0]))
            files = [os.path.join(files[0], name) for name in names]
        return os.path.exists(path) and any(os.path.samefile(path, file) for file in files)
    except (OSError, ValueError):
        return False  # not a local path; opening it will say so


class Draft:
    """The contents of a target while they are written, as a `with` block. Without `keep` nothing
    remains."""

    def __init__(self, target: Target) -> None:
        """Raises OSError."""
        self._target = target
        self._beside: str | None = None
        self._whole = 0
        if target.name == STDOUT:
            self._file = os.dup(1)
        elif target.special:
            self._file = os.open(target.path, os.O_WRONLY)
        else:
            import tempfile  # takes longer to import than a report on stdout takes to write

            self._file, self._beside = tempfile.mkstemp(prefix=".qtui-", dir=target.path.parent)

    def write(self, data: bytes) -> None:
        """Adds the data at once: all of it or nothing. Raises OSError if it cannot."""
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
        """Gives the file its name, once its contents are on the disk; more may be added.

        Raises OSError; FileExistsError if the name was taken in the meantime.
        """
        if self._beside is None:
            return
        os.fsync(self._file)
        path, new = self._target.path, os.O_CREAT | os.O_EXCL
        try:
            place = os.open(path, os.O_WRONLY | new, 0o666)
        except FileExistsError:
            if not self._target.force:
                raise
            new, place = 0, os.open(path, os.O_WRONLY)
        try:
            # The permissions of the old file, or those that the system gives to a new one.
            os.fchmod(self._file, stat.S_IMODE(os.fstat(place).st_mode))
            os.replace(self._beside, path)
        except BaseException:
            if new:
                path.unlink(missing_ok=True)
            raise
        finally:
            os.close(place)
        self._beside = None
        with suppress(OSError):  # some systems cannot sync a folder; the file has its name
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def deleted(self) -> bool:
        """Whether somebody deleted the file, so that nobody will see what is added."""
        return not self._target.special and os.fstat(self._file).st_nlink == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a device that was removed; what was kept is on the disk
            os.close(self._file)
        if self._beside is not None:
            Path(self._beside).unlink(missing_ok=True)
            self._beside = None
