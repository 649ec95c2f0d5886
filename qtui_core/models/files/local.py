"""Files of a model on this machine: which links are followed, JSON that somebody else wrote read
without trusting it, tensor files mapped."""

from __future__ import annotations

import json
import mmap
import os
import stat
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from qtui_core.errors import ModelError
from qtui_core.models.quoting import quoted

#: The longest config.json or shard index that is read, bytes.
MOST_TEXT_BYTES = 100_000_000
#: Mapped bytes handed out before the pages are given back. A mapped page counts as memory
#: of the process until then, so reading a whole model would look like holding it.
RELEASE_AFTER = 256 << 20
#: The ends of names of what a tokenizer may be read from, and the one folder of such files.
_TOKENIZER_ENDS = (".json", ".txt", ".model", ".jinja", ".bpe", ".tiktoken")
_TEMPLATES = "additional_chat_templates"
#: Commas and opening brackets a document may hold. Each stands for at most a few Python
#: objects, so this bounds memory to a few hundred megabytes where the text alone (`[],[],…`)
#: could ask for forty times its own size. 440,000 tensors fit.
MAX_STRUCTURE = 4_000_000


def followed(folder: Path, name: str, chosen: Path | None = None) -> Path:
    """The path of a file of a model, whose links may lead to the model's own folder (which may be
    a link itself), and into the blobs of a hub cache: whoever packs a model may put links in it, so
    opening it must not lead anywhere on this machine.

    Args:
        folder: of the model.
        name: of the file in it; it need not exist.
        chosen: a file that the user named. Where it leads is the user's choice, and what lies
            beside that is followed too.

    Raises:
        ModelError: a link leads elsewhere.
    """
    path = folder / name
    real = os.path.realpath(path)
    homes = [os.path.realpath(folder)]
    if chosen is not None:
        homes.append(os.path.dirname(os.path.realpath(chosen)))
    if any(real.startswith(home.rstrip(os.sep) + os.sep) for home in homes) or _is_blob(real):
        return path
    raise ModelError(
        f"{quoted(path)} is a link to {quoted(real)}, which is outside the model's folder; such a "
        f"link is followed only into a hub cache. If you trust it, open the model in "
        f"{quoted(os.path.dirname(real))}, or put a copy of that file in the place of the link."
    )


def check_tokenizer_links(folder: Path) -> None:
    """Raises ModelError if a file that a tokenizer may be read from is a link that leads out of
    the folder of the model."""
    for place, ends in ((folder, _TOKENIZER_ENDS), (folder / _TEMPLATES, ("",))):
        for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
            if name.lower().endswith(ends):
                followed(folder, os.path.relpath(place / name, folder))


def _is_blob(real: str) -> bool:
    """Whether it is a file of a hub cache: …/blobs/HASH, with the folder `snapshots` beside it."""
    blobs = os.path.dirname(real)
    beside = os.path.join(os.path.dirname(blobs), "snapshots")
    return os.path.basename(blobs) == "blobs" and os.path.isdir(beside)


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


class _Duplicate(ValueError):
    pass


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _Duplicate(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return result


def load_object(raw: bytes, what: str, *, unique: bool) -> dict[str, Any]:
    """The JSON object in `raw` (UTF-8).

    Args:
        what: names the document in messages, as the subject of a sentence.
        unique: refuse an object that has the same key twice, at any depth; else the last
            one counts, as every JSON reader has it.

    Raises:
        ModelError: invalid UTF-8, not JSON, not an object, nested or structured beyond any
            real document, or holding text that is no Unicode (a lone surrogate escape).
    """
    structure = sum(raw.count(c) for c in (b",", b"[", b"{"))
    if structure > MAX_STRUCTURE:
        raise ModelError(
            f"{what} holds {structure:,} JSON elements, more than any real model "
            f"(the limit is {MAX_STRUCTURE:,})."
        )
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{what} is not valid UTF-8 (byte {error.start}).") from error
    try:
        value = json.loads(text, object_pairs_hook=_unique_pairs if unique else None)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except _Duplicate as error:
        raise ModelError(f"{what} has the name {quoted(error.args[0])} twice.") from error
    except RecursionError as error:
        raise ModelError(f"{what} is nested too deeply to be real.") from error
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{what} is not valid JSON ({error.msg}, line {error.lineno} column {error.colno})."
        ) from error
    except UnicodeEncodeError as error:
        raise ModelError(f"{what} holds text that is not valid Unicode.") from error
    except ValueError as error:  # a number of more digits than Python converts
        raise ModelError(f"{what} holds a number that cannot be read.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{what} is not a JSON object.")
    return value


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
