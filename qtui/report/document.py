"""The document of a report, which is rendered as text, JSON, Markdown or HTML (its faces).

Cells are finished strings: numbers are formatted once, so the faces cannot disagree. Names are as
in the files; the faces show them as `printable_document` returns them. `data` is the content of the
JSON face, in raw numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui_core.lab.results import Picture as LabPicture

#: The meaning of a cell or row, which faces show as a colour. The text always says it, too.
Tone = Literal["", "good", "warn", "bad", "dim"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        numeric: aligned right.
        key: names the subject of a row. If a table is split for a narrow terminal, key columns are
            repeated in every part.
        spare: only draws what other columns say, so that a narrow terminal leaves it out.
    """

    title: str
    numeric: bool = False
    key: bool = False
    spare: bool = False


def figures(*titles: str) -> tuple[Column, ...]:
    """Columns of numbers."""
    return tuple(Column(title, numeric=True) for title in titles)


@dataclass(frozen=True)
class Table:
    """A table. `bars` has a share, 0 to 1, for each row, which is drawn as a bar after the last
    column under the heading `bar_title`; empty for a table without bars."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    tones: tuple[Tone, ...] = ()
    bars: tuple[float, ...] = ()
    bar_title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Facts:
    """Name and value pairs."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A drawing that only the HTML face shows; the tables beside it have the same data.

    `svg` is a whole <svg> element. Everything in it that comes from a file must be escaped. `text`
    is the same drawing in characters, to be read and copied; "" without.
    """

    svg: str
    caption: str
    text: str = ""


@dataclass(frozen=True)
class HeatMap:
    """A grid of shares, 0 to 1, drawn as shades. `rows` has a label and the cells of each row;
    `note` says what the shades and the labels mean."""

    rows: tuple[tuple[str, tuple[float, ...]], ...]
    note: str = ""


@dataclass(frozen=True)
class Plotted:
    """A picture of an experiment. HTML draws it as SVG, the other faces as characters."""

    picture: LabPicture


Block = Table | Facts | Picture | HeatMap | Plotted | str


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


class MadeWhenRead(Mapping[str, Any]):
    """The content of parts, made when it is first read: for 100,000 tensors it takes 360 MB, and
    only one face needs it."""

    def __init__(self, *parts: Callable[[], Mapping[str, Any]]) -> None:
        self._parts = parts

    @cached_property
    def _found(self) -> dict[str, Any]:
        return {key: value for part in self._parts for key, value in part().items()}

    def __getitem__(self, key: str) -> Any:
        return self._found[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


@dataclass(frozen=True)
class Document:
    """A report. `conclusion` is its last sentence: what the data means and what to do. Of a report
    that is written in parts, the first has no conclusion and the others have no title."""

    title: str
    sections: tuple[Section, ...]
    conclusion: str
    data: Mapping[str, Any] = field(default_factory=dict)


def printable_document(document: Document) -> Document:
    """The document with every text made printable; `data` stays unchanged."""
    printed: Document = _printable(document)
    return printed


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(_printable, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _printable(getattr(value, f.name)) for f in fields(value)})
    return value
