"""The document every report is made as, before it becomes text, JSON, Markdown or HTML.

Cells are finished strings: numbers are formatted once, so the faces cannot disagree. They hold
names as files have them: the faces show what `printable_document` gives.
`data` is the JSON face, in raw numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from qtui_core.dataclass import dataclass
from qtui_core.models.quoting import printable

if TYPE_CHECKING:
    from qtui_core.lab.results import Picture as LabPicture

#: Meaning of a cell or row, for faces that have colour. Never the only carrier of it.
Tone = Literal["", "good", "warn", "bad", "dim"]


@dataclass(frozen=True)
class Column:
    """`numeric` columns align right. `key` columns say what a row is about: a narrow terminal
    repeats them in every part of a table it cuts up. `spare` ones only draw what others say: it
    leaves them out rather than give them a part of their own."""

    title: str
    numeric: bool = False
    key: bool = False
    spare: bool = False


@dataclass(frozen=True)
class Table:
    """`bars`, when given, is one share in 0..1 a row, drawn after the last column under
    the heading `bar_title`."""

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
    """A drawing for the faces that can show one, which is HTML. It adds nothing that the tables
    beside it do not say, so the other faces leave it out.

    `svg` is a whole <svg> element in which everything from a file is escaped already.
    """

    svg: str
    caption: str


@dataclass(frozen=True)
class HeatMap:
    """A grid of shares in 0..1, drawn as shades: `rows` has a label and its cells for each row.
    `note` says what dark and light are and what the labels count."""

    rows: tuple[tuple[str, tuple[float, ...]], ...]
    note: str = ""


@dataclass(frozen=True)
class Plotted:
    """A picture of an experiment, which every face draws: in signs, or as SVG."""

    picture: LabPicture


Block = Table | Facts | Picture | HeatMap | Plotted | str


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """A report. `conclusion` is its last sentence: what it means and what to do."""

    title: str
    sections: tuple[Section, ...]
    conclusion: str
    data: Mapping[str, Any] = field(default_factory=dict)


def printable_document(document: Document) -> Document:
    """The document with every text of it printable; `data` stays as it is."""
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
