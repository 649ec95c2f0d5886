"""Reports of a child as lines of JSON, and the file that stores them. It is written during a run:
one that was killed has lost at most its last line.

One line is one object; `told` says which class it is, and its other keys are the fields of that
class. Lines are strict JSON: NaN and infinities are the texts "NaN", "Infinity" and "-Infinity". A
reader ignores kinds and fields of later versions.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Generic, Self, TypeVar

from qtui_core.codec import CodecError, from_plain, to_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.files import Draft, Target, without_waiting

T = TypeVar("T")
Recording = TypeVar("Recording")
#: The most bytes of a line that are read: a header with all terms of an estimate has some hundred
#: kB, and a device may deliver zeros endlessly.
LONGEST: Final = 16 << 20
#: The most digits of a whole number: division overflows on more than a float has (308).
_DIGITS: Final = 300


class LineError(QtuiError):
    """A line does not belong in a recording."""


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError("no float is so large")
    return int(digits)


_DECODER: Final = json.JSONDecoder(parse_int=_whole)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a recording. Of a line longer than LONGEST the beginning is given, which
    `LineKinds.from_line` refuses, and the rest is skipped."""
    while line := file.readline(LONGEST + 1):
        yield line
        while len(line) > LONGEST and not line.endswith(b"\n"):
            line = file.readline(LONGEST + 1)


@dataclass(frozen=True)
class LineKinds(Generic[T, Recording]):
    """The kinds of line in one sort of recording, which is read as far as it can be.

    Attributes:
        kinds: name of a kind -> its dataclass.
        version: the latest schema that this program reads; a line of a class with the field
            `schema_version` may have an earlier one.
        what: was recorded, as in "a run".
        first: the class that it begins with, `opening` as sentences call that.
        make: makes a recording of how it begins, the rest in order, and a sentence on lines that
            cannot be read or on an end that is missing, which is empty where all is well.
        over: whether a report is the end of what was recorded.
        wrong: a sentence on what in a report contradicts itself; empty where nothing does.
    """

    kinds: Mapping[str, type[Any]]
    version: int
    what: str
    first: type[Any]
    opening: str
    make: Callable[[Any, tuple[Any, ...], str], Recording]
    over: Callable[[T], bool]
    wrong: Callable[[T], str]

    def to_line(self, event: T) -> str:
        """One line, without its line break."""
        name = next(name for name, kind in self.kinds.items() if kind is type(event))
        whole = {"told": name, **to_plain(event, strict=True)}
        return json.dumps(whole, separators=(",", ":"), allow_nan=False)

    def from_line(self, line: str | bytes) -> T | None:
        """The report in a line; None for a kind of a later version.

        Raises LineError for a line that is not JSON, lacks a field or has one of another type, and
        for a class with a later schema than this program reads.
        """
        if len(line) > LONGEST:
            raise LineError(f"It is longer than {LONGEST >> 20} MiB.")
        try:
            data = _DECODER.decode(line if isinstance(line, str) else line.decode())
        except (ValueError, RecursionError):
            raise LineError("It is no line of JSON.") from None
        if not isinstance(data, dict) or not isinstance(data.get("told"), str):
            raise LineError("It does not say which kind of line it is.")
        kind = self.kinds.get(data["told"])
        if kind is None:
            return None
        version = data.get("schema_version")
        later = isinstance(version, int) and version > self.version
        if later and "schema_version" in kind.__dataclass_fields__:
            raise LineError(
                f"It has schema version {version}, and this program reads up to {self.version}; "
                "a newer qtui reads it."
            )
        try:
            event: T = from_plain(kind, data)
        except CodecError as error:
            said = f"A line of kind {data['told']!r} cannot be read"
            raise LineError(f"{said}: {error.reason}.") from None
        return event

    def begins(self, path: Path | str) -> bool:
        """Whether a file begins as such a recording does. False for one that cannot be read."""
        try:
            with open(path, "rb", opener=without_waiting) as file:
                return isinstance(self.from_line(file.readline(LONGEST)), self.first)
        except (OSError, LineError):
            return False

    def read(self, path: Path | str) -> Recording:
        """A recording from its file. Raises UsageError for a file that is not there, cannot be
        read, or is no recording."""
        try:
            with open(path, "rb", opener=without_waiting) as file:
                return self.parse(lines_of(file))
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"The recording {str(path)!r} cannot be read: {reason}.") from error
        except UsageError as error:
            raise UsageError(f"{str(path)!r} is no recording of {self.what}. {error}") from None

    def parse(self, lines: Iterable[str | bytes]) -> Recording:
        """A recording from its lines. Raises UsageError where they do not begin as one, or with
        what contradicts itself."""
        kept = ((n, *self._checked(line)) for n, line in enumerate(lines, 1) if line.strip())
        number, first, fault = next(kept, (0, None, ""))
        if not number:
            raise UsageError("It is empty.")
        if not isinstance(first, self.first):
            why = f": {fault}" if first is None and fault else "."
            raise UsageError(f"Its first line is not {self.opening}{why}")
        if fault:
            raise UsageError(fault)
        events: list[Any] = []
        broken: list[tuple[int, str]] = []
        for number, event, fault in kept:
            if isinstance(event, self.first):
                broken.append((number, "A second recording begins there."))
                break
            if fault:
                broken.append((number, fault))
            elif event is not None:  # else it is of a later version
                events.append(event)
        complaint = self._complaint(broken, number, any(map(self.over, events)))
        return self.make(first, tuple(events), complaint)

    def _checked(self, line: str | bytes) -> tuple[T | None, str]:
        """The report in a line, and what is wrong with it or with the line."""
        try:
            event = self.from_line(line)
        except LineError as error:
            return None, str(error)
        return event, "" if event is None else self.wrong(event)

    def _complaint(self, broken: Sequence[tuple[int, str]], last: int, ended: bool) -> str:
        """What is wrong with lines, and with the end."""
        if not broken:
            end = f"The recording stops before the {self.what.split()[-1]} did; all of it is shown."
            return "" if ended else end
        number, error = broken[0]
        if len(broken) > 1:
            are = f"{len(broken):,} lines cannot be read and are left out"
            return f"{are}; the first is line {number:,}: {error}"
        if number == last and not ended:
            return f"The recording is cut off in line {number:,}; everything before that is shown."
        return f"Line {number:,} cannot be read and is left out: {error}"


class Recorder(Generic[T]):
    """Writes a recording, as a `with` block. There is no file before its first line; `begun` says
    whether there is one."""

    def __init__(self, target: Target, to_line: Callable[[T], str]) -> None:
        """Raises QtuiError if a pipe or a device cannot be opened, which is done at once."""
        self.target = target
        self.begun = False
        self._to_line = to_line
        self._draft: Draft | None = None
        if target.special:
            try:
                self._draft = Draft(target)
            except OSError as error:
                raise target.refusal(error) from error

    def write(self, event: T) -> None:
        """Adds a whole line. Raises OSError if the disk is full or gone, or the file deleted."""
        if self._draft is None:
            self._draft = Draft(self.target)
        elif self._draft.deleted:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted")
        self._draft.write(self._to_line(event).encode() + b"\n")
        if not self.begun:
            self._draft.keep()
            self.begun = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._draft is not None:
            self._draft.__exit__(*error)
