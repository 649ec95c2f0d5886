"""Files on this machine: small ones read whole, tensor files mapped."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from qtui_core.errors import ModelError
from qtui_core.models.files.safetensors import PREFIX, Header, header_length, parse_header
from qtui_core.models.quoting import quoted

#: The longest config.json or shard index that is read, bytes.
MOST_TEXT_BYTES = 100_000_000
#: Mapped bytes handed out before the pages are given back. A mapped page counts as memory
#: of the process until then, so reading a whole model would look like holding it.
RELEASE_AFTER = 256 << 20


def regular_file_size(path: Path) -> int:
    """Bytes of a regular file.

    Raises:
        ModelError: it is missing, not to be read, or a folder, pipe or device (opening a
            pipe could wait forever).
    """
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise ModelError(f"{quoted(path)} is {kind}; a file was expected.")
    return status.st_size


def unreadable(path: Path, error: OSError) -> ModelError:
    """The sentence for a path the operating system refuses."""
    reason = (error.strerror or type(error).__name__).lower()
    return ModelError(f"{quoted(path)} cannot be read: {reason}.")


def read_text_file(path: Path) -> bytes:
    """All bytes of a configuration or index. Raises ModelError, also when absurdly large."""
    size = regular_file_size(path)
    if size > MOST_TEXT_BYTES:
        raise ModelError(f"{quoted(path)} has {size:,} bytes; no configuration is that long.")
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


def read_header(path: Path, name: str) -> Header:
    """Header of the safetensors file at `path`, its tensors filed under `name`.

    Raises:
        ModelError: the file cannot be read, or its header is not true of it.
    """
    size = regular_file_size(path)
    try:
        with path.open("rb") as stream:
            start = stream.read(PREFIX + 16)
            length = header_length(start, name, size)
            stream.seek(PREFIX)
            raw = stream.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) != length:
        raise ModelError(f"{quoted(name)} became shorter while it was read.")
    return parse_header(raw, name, size)


def _version(status: os.stat_result) -> tuple[int, ...]:
    """What tells a file, and its contents, from another of the same name."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class LocalFile:
    """A tensor file, mapped when first read. Safe to read from several threads.

    To be made before its header is read: a header would be wrong about a file that is there
    later. `changed` says whether it was found to be another one since, so that nothing more is read
    of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed = False
        try:
            self._found = _version(path.stat())
        except OSError:
            self._found = ()  # reading the header says what is wrong
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._since_release = 0

    def read(self, begin: int, end: int) -> memoryview:
        """Bytes [begin, end), a view of the mapping: nothing is copied, and nothing is
        loaded before it is looked at.

        Raises:
            ModelError: the file is gone, or was changed after its header was read.
        """
        with self._lock:
            if self._map is None:
                self._map = self._open()
            mapped = self._map
            self._since_release += end - begin
            if self._since_release > RELEASE_AFTER and hasattr(mmap, "MADV_DONTNEED"):
                # Only drops this process's page-table entries: views stay valid, and what is
                # looked at again comes back from the page cache.
                mapped.madvise(mmap.MADV_DONTNEED)
                self._since_release = 0
            self._check(mapped, end)
            return memoryview(mapped)[begin:end]

    def _check(self, mapped: mmap.mmap, end: int) -> None:
        """Raises ModelError if the mapped file was changed since its header was read. A look beyond
        the end of a file ends the process, so that must be noticed before a view of it is handed
        out. If the path has another file now, or none, the mapped one is still whole."""
        try:
            if end > min(len(mapped), mapped.size()):  # of the mapping, and of the file today
                raise self._spoiled((*self._found[:2], mapped.size()))
        except OSError as error:
            raise unreadable(self.path, error) from error
        with suppress(OSError):
            now = _version(self.path.stat())
            if self.changed or (now[:2] == self._found[:2] and now != self._found):
                raise self._spoiled(now)

    def verify(self, descriptor: int) -> None:
        """Raises ModelError if an open descriptor of the path is not of the file whose header was
        read."""
        now = _version(os.fstat(descriptor))
        if now != self._found:
            raise self._spoiled(now)

    def _spoiled(self, now: tuple[int, ...]) -> ModelError:
        self.changed = True
        how = "became shorter" if now[2:3] < self._found[2:3] else "was changed"
        return ModelError(f"{quoted(self.path)} {how} after it was opened; open the model again.")

    def close(self) -> None:
        """Unmap, or leave that to the last view of it that is still in use."""
        with self._lock:
            mapped, self._map = self._map, None
        with suppress(BufferError):  # rows of it are still in use; it is released with them
            if mapped is not None:
                mapped.close()

    def _open(self) -> mmap.mmap:
        regular_file_size(self.path)
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            try:
                self.verify(descriptor)
                return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{quoted(self.path)} cannot be mapped into memory: {error}."
            ) from error
