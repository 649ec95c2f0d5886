"""The parts that reports are written with: numbers, tables of a given width, escapes."""

from __future__ import annotations

import io
import json
import math
from fractions import Fraction

import pytest
import rich.cells
from every import over
from hypothesis import given
from hypothesis import strategies as st

from qtui.report.document import Column, Document, Facts, HeatMap, Picture, Section, Table
from qtui.report.faces.columns import _SINGLE, cell_len, lay_out
from qtui.report.faces.html import to_html
from qtui.report.faces.json_face import to_json
from qtui.report.faces.markdown import escape
from qtui.report.faces.plain import draw_bar, to_ascii, to_plain
from qtui.report.faces.text import write_text
from qtui_core.quantities import format_bytes, format_count


@over(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1_048_576, "1 MiB"),
        (9_116_160, "8.69 MiB"), (80 * 2**30, "80 GiB"), (1023 * 2**20, "0.999 GiB"),
        (1_790 * 2**40, "1.75 PiB"), (2**60, "1 EiB"), (999 * 2**60, "999 EiB"),
        (1023 * 2**60, "1,023 EiB"), (123_456 * 2**60, "123,456 EiB"),
        (10**6 * 2**60, "1.00e+6 EiB"), (10**400 * 2**60, "1.00e+400 EiB"),
        (-1, "-1 B"), (-1536, "-1.5 KiB"),
    ],
)  # fmt: skip
def test_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (5, "5"), (9999, "9,999"), (10_000, "10 K"), (999_600, "1 M"), (7_241_732_096, "7.24 B"),
        (1_790 * 10**12, "1,790 T"), (10**400, "1.00e+388 T"),
    ],
)  # fmt: skip
def test_counts(count, text):
    assert format_count(count) == text


@given(st.integers(1000, 2**40), st.integers(0, 3000))
def test_no_amount_is_too_large_to_be_read(first, shift):
    count = first << shift
    text, unit = format_bytes(count).split(" ")
    power = 1 + ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    read = Fraction(text.replace(",", ""))
    assert len(text) <= 12
    assert abs(read * 1024**power - count) <= Fraction(count, 199)
    assert power == 6 or read < 1000


@given(st.text(max_size=40) | st.text(sorted(_SINGLE), max_size=40))
def test_a_text_takes_as_many_cells_as_rich_says(text):
    assert cell_len(text) == rich.cells.cell_len(text)


def test_all_that_is_counted_without_rich_is_one_cell_wide():
    assert {rich.cells.cell_len(character) for character in _SINGLE} == {1}


@given(
    cells=st.lists(
        st.lists(st.text("abcxyz0189.", min_size=1, max_size=9), min_size=4, max_size=4),
        min_size=1,
        max_size=5,
    ),
    width=st.integers(40, 120),
)
def test_a_table_fits_its_width_and_loses_nothing(cells, width):
    columns = [Column("name", key=True), Column("a", numeric=True), Column("b"), Column("c")]
    parts = list(lay_out(columns, cells, width))
    for part in parts:
        lines = [line for (line,) in part.rows]
        assert all(len(line) <= width for line in (part.header, *lines))
        assert len({len(line) for line in lines}) == 1
    for index, row in enumerate(cells):
        shown = [cell for part in parts for cell in part.rows[index][0].split()]
        assert [s for s in shown if s != row[0]] == [c for c in row[1:] if c != row[0]]
        assert all(part.rows[index][0].split()[0] == row[0] for part in parts)


def test_a_narrow_table_is_continued_with_its_key_repeated():
    columns = [Column("tensor", key=True), *(Column(f"scheme{i}", numeric=True) for i in range(6))]
    rows = [[f"layer.{i}.weight", *[f"{i}.{j}" for j in range(6)]] for i in range(2)]
    parts = list(lay_out(columns, rows, 50))
    assert len(parts) > 1
    assert all(part.rows[1][0].split()[0] == "layer.1.weight" for part in parts)
    assert [n for part in parts for n in part.rows[1][0].split()[1:]] == rows[1][1:]


def test_long_names_keep_their_ends():
    (part,) = lay_out([Column("tensor", key=True), Column("n")], [["a" * 80 + ".end", "7"]], 40)
    ((line,),) = part.rows
    assert line.strip().startswith("…")
    assert ".end" in line


@given(
    cells=st.lists(st.text("abc -", max_size=200), min_size=1, max_size=4),
    width=st.integers(20, 100),
)
def test_a_cell_too_long_for_its_table_is_folded_and_loses_nothing(cells, width):
    columns = [Column("name", key=True), Column("cost")]
    (part,) = lay_out(columns, [(f"row {i}", cell) for i, cell in enumerate(cells)], width)
    size = max(12, width - len("  row 0  "))
    for cell, lines in zip(cells, part.rows, strict=True):
        assert {len(line) for line in lines} == {part.width}
        assert part.width <= max(width, 9 + 12)
        said = [line[9 : 9 + size].rstrip() for line in lines]
        assert "".join(said).replace(" ", "") == cell.replace(" ", "")
        words = cell.split()
        if all(len(word) <= size for word in words):
            assert " ".join(said).split() == words


def test_names_are_not_shortened_to_read_alike():
    names = [f"mlp.{which}_proj.lora_B.default.weight.exp_avg" for which in ("gate", "up")]
    columns = [Column("term", key=True), Column("of"), Column("bytes", numeric=True)]
    rows = [(name, "optimizer states", "29,360,128") for name in names]
    first, *_ = lay_out(columns, rows, 70)
    shown = [lines[0].split()[0] for lines in first.rows]
    assert len(set(shown)) == 2
    assert all(name.endswith(text.lstrip("…")) for name, text in zip(names, shown, strict=True))
    assert all(len(line) <= 70 for lines in first.rows for line in lines)


@pytest.mark.parametrize(("width", "drawn"), [(40, True), (30, False)])
def test_bars_that_would_need_a_part_of_their_own_are_left_out(width, drawn):
    columns = [Column("part", key=True), Column("bytes", numeric=True), Column("", spare=True)]
    rows = [("weights", "1,000,000", "#" * 16), ("rest", "1", "#")]
    (part,) = lay_out(columns, rows, width)
    assert ("#" in part.rows[0][0]) is drawn
    assert "1,000,000" in part.rows[0][0]


def test_bars():
    assert draw_bar(1.0, ascii=True) == "#" * 16
    assert draw_bar(0.5, ascii=False) == "█" * 8
    assert draw_bar(0.0, ascii=False) == ""
    assert draw_bar(7.0, ascii=True) == "#" * 16


@pytest.mark.parametrize("ascii", [False, True])
def test_a_pipe_without_rich_has_the_lines_that_rich_would_write(ascii, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table(
        (Column("tensor", key=True), Column("bits", numeric=True)),
        (("模型.weight", "4"), ("b", "16.25")),
        bars=(0.3, 1.0),
        bar_title="share",
        note="A note – with a dash.",
    )
    document = Document(
        "qtui: a report",
        (
            Section("Facts", (Facts((("a name", "1,536"), ("模", "2"))), "A sentence.", table)),
            Section("A map", (HeatMap((("row", (0.0, 0.4, 1.0)),), "Dark is much."),)),
            Section("Empty", (Facts(()), Picture("<svg/>", "left out"))),
        ),
        "It means this.",
    )
    stream = io.StringIO()
    write_text(document, stream, ascii=ascii)
    assert to_plain(document, ascii=ascii) == stream.getvalue()


def test_ascii_knows_what_reports_write():
    assert to_ascii("−0.1 ≤ 6σ — ½×2") == "-0.1 <= 6sigma - 1/2x2"
    assert to_ascii("模型") == "\\u6a21\\u578b"


def test_markdown_cannot_be_injected():
    assert escape("a|b*c`<x>") == "a\\|b\\*c\\`\\<x\\>"


def test_html_cannot_be_injected():
    tag = "<script>"
    table = Table((Column(tag),), ((tag,),), bars=(0.5,), bar_title=tag, note=tag)
    facts, picture = Facts(((tag, tag),)), Picture("<svg/>", tag)
    blocks = (facts, tag, table, HeatMap(((tag, (0.5,)),), tag), picture)
    page = to_html(Document(tag, (Section(tag, blocks),), tag))
    assert "&lt;script&gt;" in page
    assert page.count(tag) == 1  # the page's own, which sorts


def test_json_has_null_for_what_is_no_finite_number():
    data = {"several": [math.nan, (1.5, -math.inf)], "one": math.inf}
    read = json.loads(to_json(Document("", (), "", data)))
    assert (read["several"], read["one"]) == ([None, [1.5, None]], None)


@given(st.text(max_size=20))
def test_json_is_printable_and_holds_every_text(text):
    written = to_json(Document("", (), text, {"name": text}))
    assert json.loads(written)["name"] == json.loads(written)["conclusion"] == text
    assert not set(written) & {chr(c) for c in (*range(0x7F, 0xA0), 0x202E, 0x2066, 0x200B)}
