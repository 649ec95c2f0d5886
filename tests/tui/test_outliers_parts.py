"""The parts of the Outliers view that need no screen: the text of an outlier, the sentences and
the lines."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from every import over

from qtui.engine.answers.outliers import (
    ColumnSize,
    DecompositionSweep,
    ErrorByColumn,
    FoundOutlier,
    Granularities,
    GranularityRow,
    KeptColumns,
    OutlierNumbers,
    ThresholdPoint,
)
from qtui.engine.requests import Injection
from qtui.report.pictures.glyphs import ASCII, UNICODE
from qtui.tui.panels.quantize.outliers.detection import By, Detection
from qtui.tui.panels.quantize.outliers.granularity_bars import granularity_lines
from qtui.tui.panels.quantize.outliers.injection import (
    injection_text,
    parse_injection,
    scaled,
    sigmas_text,
)
from qtui.tui.panels.quantize.outliers.listing import element_lines, listing_lines, times_text
from qtui.tui.panels.quantize.outliers.sentences import (
    advised,
    injection_sentence,
    outlier_sentence,
)
from qtui.tui.panels.quantize.outliers.threshold_curve import threshold_lines
from qtui_core.errors import UsageError

MATRIX = (60, 100)


@pytest.mark.parametrize(
    ("text", "row", "column", "value"),
    [
        ("12.5", 30, 50, 12.5),
        ("-3 at 5,40", 5, 40, -3.0),
        ("-3 at 5, 40", 5, 40, -3.0),
        ("-3at(5,40)", 5, 40, -3.0),
        ("-3 @ row 5, column 40", 5, 40, -3.0),
        ("1e3 at column 40", None, 40, 1000.0),
        (".5 AT Col 0", None, 0, 0.5),
        ("20 sigma", 30, 50, 5.0),
        ("20sigmas at column 5", None, 5, 5.0),
        ("-4 s at 59,99", 59, 99, -1.0),
        ("8σ", 30, 50, 2.0),
    ],
)
def test_what_can_be_typed(text, row, column, value):
    found = parse_injection(text, MATRIX, 0.25, None)
    assert (found.row, found.column, found.value) == (row, column, value)
    again = parse_injection(injection_text(found), MATRIX, None, None)
    assert again == found


def test_a_value_alone_stays_where_the_outlier_is():
    before = Injection(column=7, value=1.0, row=None)
    assert parse_injection("9", MATRIX, None, before) == Injection(column=7, value=9.0, row=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no outlier: type"),
        ("big", "is no outlier: type"),
        ("1.2.3", "is no number"),
        ("3 at", "is no outlier"),
        ("3 at home", "is no place"),
        ("3 at 60,0", "rows 0 to 59"),
        ("3 at 0,100", "columns 0 to 99"),
        ("3 at column 100", "columns 0 to 99"),
        ("3 at -1,0", "is no place"),
        (f"3 at 0,{'9' * 5000}", "is no place"),
        (f"3 at column {'9' * 5000}", "is no place"),
        ("1e39", "too large: tensors are read as float32"),
        ("nan", "is no outlier"),
        ("inf", "is no outlier"),
    ],
)
def test_what_cannot(text, why):
    with pytest.raises(UsageError, match=why):
        parse_injection(text, MATRIX, 0.25, None)


@pytest.mark.parametrize("std", [None, 0.0])
def test_sigmas_of_a_tensor_without_spread(std):
    with pytest.raises(UsageError, match="0 or not known yet: type a value"):
        parse_injection("20 sigma", MATRIX, std, None)


def test_doubling_ends_at_the_ends_of_float32():
    injection = Injection(column=1, value=-3.0, row=2)
    assert scaled(injection, 2) == Injection(column=1, value=-6.0, row=2)
    for value, factor in ((3e38, 2.0), (-3e38, 2.0), (1e-38, 0.5), (0.0, 2.0)):
        with pytest.raises(UsageError, match="not a normal float32"):
            scaled(Injection(column=1, value=value), factor)


def test_sigmas_in_words():
    for value, words in ((5.0, "20 sigma"), (-0.5, "2 sigma"), (1e9, "4e+09 sigma")):
        assert sigmas_text(Injection(column=0, value=value), 0.25) == words
    assert sigmas_text(Injection(column=0, value=1.0), None) == ""


# Sentences


def row(granularity: str, sqnr: float | None, *, mse: float = 0.0, bits: float = 4.5, **more):
    power = 1.0 if not mse or sqnr is None else mse * 10 ** (sqnr / 10)
    relative = None if sqnr is None else 10 ** (-sqnr / 10)
    return GranularityRow(
        scheme=f"int4:{granularity}" if granularity else "bf16",
        granularity=granularity,
        scales=more.get("scales", 64),
        overhead_bits=bits - 4,
        bits_per_parameter=bits,
        mse=mse or (relative or 0.0) * power,
        relative_mse=relative,
        sqnr_db=sqnr,
        gaussian_sqnr_db=20.0,
    )


def granularities(*rows: GranularityRow, own: str, before: tuple[GranularityRow, ...] = ()):
    return Granularities(f"int4:{own}" if own else "bf16", rows, before, ())


def kept(*columns: int, caused: float, own: float = 0.01, sqnr: float | None = 20.9) -> KeptColumns:
    return KeptColumns(columns == (17,), columns, 12.5, own, caused, sqnr)


def attribution(*tried: KeptColumns, together: KeptColumns | None = None) -> ErrorByColumn:
    return ErrorByColumn(
        scheme="int4:row",
        detection="sigma",
        limit=6.0,
        sqnr_db=14.2,
        column_total=2048,
        tried=tried,
        together=together,
        together_count=len(together.columns) if together else 0,
        columns=(),
        rows=(),
    )


def numbers(
    count: int = 900,
    *,
    blamed: tuple[int, ...] = (),
    hit: int = 3,
    by: By = "sigma",
    limit: float = 6.0,
    largest: tuple[ColumnSize, ...] = (),
    std: float | None = 0.02,
    rows: int = 512,
) -> OutlierNumbers:
    return OutlierNumbers(
        detection=by,
        limit=limit,
        mean=0.0,
        std=std,
        absmax=1.5,
        furthest_sigmas=5.1 if std else None,
        largest_ratio=max((m.absmax_ratio or 0 for m in largest), default=None),
        count=count,
        share=0.001,
        energy_share=0.3,
        top=(
            FoundOutlier(3, 17, 1.5, 75.0, True),
            FoundOutlier(1_000_000, 2000, -1.25, 62.5, False),
        )[:count],
        columns={17: 400},
        columns_hit=hit,
        column_total=2048,
        row_total=rows,
        outlier_columns=blamed,
        outlier_column_count=len(blamed),
        largest=largest,
    )


TABLE = granularities(
    row("tensor", 9.0, bits=4.0),
    row("row", 14.2, bits=4.01),
    row("column", 40.0, bits=4.1),
    row("group128", 24.9, bits=4.25),
    row("group32", 26.0, bits=5.0),
    own="row",
)


def test_columns_that_carry_the_error():
    together = kept(17, 900, 1203, caused=0.614)
    found = outlier_sentence(
        numbers(blamed=(17, 900, 1203)), TABLE, attribution(kept(17, caused=0.2), together=together)
    )
    assert found == (
        "At 6 sigma, 3 of 2,048 columns carry 61% of the error: keeping them in 16 bits would "
        "bring SQNR from 14.2 to 20.9 dB, group128 to 24.9 dB at 4.25 bits."
    )


def test_what_takes_as_many_bits_as_are_stored_is_not_advised():
    together = kept(17, caused=0.3)
    told = {
        4.2: "At 6 sigma, 1 of 2,048 columns carries 30% of the error: keeping it in 16 bits would "
        "bring SQNR from 14.2 to 20.9 dB.",
        4.0: "At 6 sigma, 1 of 2,048 columns carries 30% of the error; at 4.01 bits it saves "
        "nothing, so leave it as stored.",
    }
    for stored, words in told.items():
        table = replace(TABLE, stored_bits=stored)
        found = outlier_sentence(
            numbers(blamed=(17,)), table, attribution(together, together=together)
        )
        assert found == words


def test_one_column():
    together = kept(17, caused=0.3)
    found = outlier_sentence(numbers(blamed=(17,)), TABLE, attribution(together, together=together))
    assert found.startswith(
        "At 6 sigma, 1 of 2,048 columns carries 30% of the error: keeping it in 16 bits"
    )


def test_outliers_that_are_scattered():
    found = outlier_sentence(numbers(12, hit=12), TABLE, attribution(kept(3, caused=0.01)))
    assert found == (
        "12 elements beyond 6 sigma lie scattered over 12 columns, none of which carries much "
        "of the error; group128 would bring SQNR from 14.2 to 24.9 dB at 4.25 bits."
    )
    fine = granularities(row("row", 14.2), row("group32", 14.9), own="row")
    assert "no other granularity gains more than 1 dB" in outlier_sentence(
        numbers(0), fine, attribution()
    )


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "1x"), (0.9461, "0.946x"), (151.2, "151x"), (1234.5, "1234x"), (99_999.4, "99999x"),
     (1e5, "1e+05x"), (6.17e39, "6e+39x")],
)  # fmt: skip
def test_how_many_times_fits_its_column(ratio: float, text: str) -> None:
    assert times_text(ratio, ASCII) == text
    assert len(text) <= 6


def test_a_large_column_among_many_is_not_said_to_be_usual():
    def of(ratio: float) -> str:
        tried = replace(kept(3, caused=0.2), outlier=False, absmax_ratio=ratio)
        return outlier_sentence(numbers(12, hit=2), TABLE, attribution(tried))

    assert of(52.8).startswith(
        "Column 3 carries 20% of the error: it is 52.8 times the median, but so many columns are "
        "large that none is an exception; "
    )
    assert "though it does not stand out" in of(1.5)


def test_no_error_and_no_scale():
    exact = granularities(row("column", None), own="column")
    assert "makes no error" in outlier_sentence(numbers(), exact, attribution())
    cast = granularities(row("", 50.0), own="")
    assert "rounds each element by itself" in outlier_sentence(numbers(), cast, attribution())


def test_nothing_is_said_before_everything_is_known():
    assert outlier_sentence(numbers(), TABLE, None) == ""
    assert outlier_sentence(None, TABLE, attribution()) == ""
    assert injection_sentence(Injection(column=0, value=1.0), TABLE, 0.1) == ""


def test_the_cheapest_that_brings_nearly_as_much_is_advised():
    found = advised(TABLE)
    assert found is not None
    assert found.granularity == "group128"  # not group32, nor a scale per column
    best = granularities(row("tensor", 1.0), row("group32", 20.0), own="group32")
    assert advised(best) is None


INJECTED = granularities(
    row("tensor", 30.0, mse=1.0),
    row("row", 30.0, mse=0.02),
    row("group32", 40.0, mse=0.0101, bits=5.0),
    own="row",
    before=(
        row("tensor", 15.0, mse=0.01),
        row("row", 20.0, mse=0.01),
        row("group32", 20.0, mse=0.01, bits=5.0),
    ),
)


def test_the_error_is_compared_with_the_values_without_the_outlier():
    """The outlier adds signal, so the SQNR with it is better in every row."""
    losses = [INJECTED.loss(row) for row in INJECTED.rows]
    assert losses == pytest.approx([20.0, 10 * math.log10(2), 10 * math.log10(1.01)])
    assert INJECTED.decibels(INJECTED.rows[0]) == pytest.approx(-5.0)
    assert TABLE.decibels(TABLE.rows[0]) == 9.0
    assert TABLE.loss(TABLE.rows[0]) is None


def test_what_an_injected_outlier_does():
    found = injection_sentence(Injection(column=40, value=5.0, row=5), INJECTED, 0.25)
    assert found == (
        "An outlier of 20 sigma at (5, 40) costs 20.0 dB with one scale per tensor and 3.0 dB "
        "with one per row; one per group of 32 limits the loss to 0.0 dB, at 5.00 bits."
    )
    blocks = granularities(
        row("block1024", 5.0, mse=1.0), row("tile4x100", 19.0, mse=0.01), own="tile4x100",
        before=(row("block1024", 15.0, mse=0.01), row("tile4x100", 20.0, mse=0.01)),
    )  # fmt: skip
    told = injection_sentence(Injection(column=40, value=5.0, row=5), blocks, 0.25)
    assert "20.0 dB with one scale per block of 1,024; one per tile of 4x100 limits" in told
    small = granularities(row("row", 20.0, mse=0.0101), own="row", before=INJECTED.before[1:2])
    assert "at most 0.0 dB" in injection_sentence(Injection(column=4, value=0.1), small, None)


def at(by: By, limit: float, *tried: KeptColumns, count: int = 9, many: int = 0) -> str:
    """The sentence about so many columns that were detected of 2,048."""
    together = kept(*range(many), caused=0.4) if many else None
    return outlier_sentence(
        numbers(count, by=by, limit=limit, blamed=tuple(range(many)), largest=LARGEST),
        TABLE,
        attribution(*tried, together=together),
        decomposition(ThresholdPoint(0.05, "int8:row", 300, 9.3, 1, None, None), threshold=0.05),
    )


LARGEST = (ColumnSize(3, 1.5, 0.1, 1.37, 1.2, True), ColumnSize(9, 1.0, 0.1, 1.2, None, False))


def test_the_sentence_names_the_detection():
    ending = " columns carry 40% of the error: keeping them in 16 bits would bring SQNR from "
    assert at("sigma", 8.0, many=3).startswith("At 8 sigma, 3 of 2,048" + ending)
    assert at("threshold", 0.5, many=3).startswith("At |x| >= 0.5, 3 of 2,048" + ending)
    assert at("column", 4.0, many=3).startswith("Over 4 times the median, 3 of 2,048" + ending)


def test_no_granularity_is_said_to_gain_where_one_does():
    """Scales per column gain, but a product cannot take them out of its sum."""
    without = granularities(row("row", 14.2), row("column", 40.0), own="row")
    told = outlier_sentence(numbers(), without, attribution())
    assert told.endswith(
        "no other granularity that saves bits and that a matrix product can use gains more than 1 "
        "dB over its 14.2 dB."
    )
    alone = granularities(row("row", 14.2), row("tensor", 9.0), own="row")
    assert "no other granularity gains more than" in outlier_sentence(
        numbers(), alone, attribution()
    )
    almost_all = kept(17, 900, caused=0.9996)
    told = outlier_sentence(numbers(), alone, attribution(together=almost_all))
    assert "carry 99% of the error" in told


def test_columns_that_are_no_exceptions():
    assert at("threshold", 0.05, many=300) == (
        "At |x| >= 0.05, 300 of 2,048 columns carry 40% of the error: with so many in 16 bits "
        "it takes 9.3 bits per parameter; group128 would bring SQNR from 14.2 to 24.9 dB at 4.25 "
        "bits."
    )
    assert at("column", 1.5, many=300).startswith(
        "Over 1.5 times the median, 300 of 2,048 columns carry 40% of the error: too many to be "
        "outliers; try a higher limit; group128 would bring SQNR "
    )


def test_nothing_is_found_and_how_near_the_largest_comes():
    found = at("sigma", 6.0, count=0)
    assert found.startswith("No element beyond 6 sigma is found (the largest is 5.1 sigma); group")
    found = at("threshold", 6.0, kept(3, caused=0.3), count=0)
    assert found.startswith(
        "No element of |x| >= 6 is found (the largest is 1.5), yet column 3 carries 30% of the "
    )
    found = at("column", 4.0, count=0)
    assert found.startswith(
        "No column over 4 times the median is found (the largest is 1.37 times); "
    )


def test_outlier_columns_that_do_not_matter():
    table = attribution(together=kept(3, caused=0.02))
    found = outlier_sentence(numbers(by="column", limit=4.0, blamed=(3,)), TABLE, table)
    assert found.startswith(
        "Over 4 times the median, 1 of 2,048 columns is an outlier, but carries only 2.0% of "
    )


@pytest.mark.parametrize(
    ("by", "limit", "words"),
    [
        ("sigma", 6.0, "6 sigma finds it"),
        ("sigma", 300.0, "300 sigma does not find it"),
        ("threshold", 5.0, "|x| >= 5 finds it"),
        ("threshold", 5.5, "|x| >= 5.5 does not find it"),
        ("column", 4.0, "a limit of 4 times does not find it"),
    ],
)
def test_whether_the_injected_outlier_is_found(by, limit, words):
    injection = Injection(column=40, value=5.0, row=5)
    found = injection_sentence(injection, INJECTED, 0.25, numbers(by=by, limit=limit))
    assert found.endswith(f"at 5.00 bits; {words}.")


# What to look for


def test_the_ways_to_detect_turn_and_keep_their_limits():
    start = Detection(sigma=8.0, threshold=0.5, ratio=6.0)
    seen = [start, start.turned(1), start.turned(2), start.turned(3), start.turned(-1)]
    assert [(d.by, d.limit) for d in seen] == [
        ("sigma", 8.0), ("threshold", 0.5), ("column", 6.0), ("sigma", 8.0), ("column", 6.0),
    ]  # fmt: skip


def test_limits_step_and_end():
    assert Detection(sigma=6.0).stepped(1).sigma == 7.0
    assert Detection(sigma=6.5).stepped(1).sigma == 7.0
    assert Detection(sigma=6.5).stepped(-1).sigma == 6.0
    assert Detection(by="column").stepped(-1).ratio == 3.0
    assert Detection(by="column", ratio=5.0).stepped(1).ratio == 6.0
    for end, direction in ((Detection(sigma=12.0), 1), (Detection(sigma=3.0), -1)):
        with pytest.raises(UsageError, match="3 to 12 sigma"):
            end.stepped(direction)
    with pytest.raises(UsageError, match=r"1\.5 to 64 times"):
        Detection(by="column", ratio=64.0).stepped(1)


# Lines


def texts(lines) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [(35, 15), (36, 28), (56, 40), (20, 4), (1, 1)])
def test_lists_fit(glyphs, size):
    tried = tuple(kept(column, caused=0.5 / (1 + column)) for column in range(8))
    together = kept(0, 1, caused=0.9)
    found = attribution(*tried, together=together)
    lines = texts(listing_lines(*size, glyphs, numbers(blamed=(17,)), found))
    assert len(lines) <= size[1]
    if size[0] >= 35:
        assert all(len(line.rstrip()) <= size[0] for line in lines)
        assert any("all 2" in line for line in lines)
    if glyphs is ASCII:
        assert "".join(lines).replace("–", "").isascii()


@over(
    ("sigmas", "line"),
    [
        (75.0, "       40   75.0 1000000   2,000"),
        (999.9, "       40  999.9 1000000   2,000"),
        (1012.5, "       40  1,012 1000000   2,000"),
        (123456.0, "       40  1e+05 1000000   2,000"),
    ],
)
def test_large_numbers_of_an_outlier_stand_apart(sigmas, line):
    found = FoundOutlier(1_000_000, 2000, 40.0, sigmas, False)
    lines = texts(element_lines(replace(numbers(), top=(found,)), 9, 36, UNICODE))
    assert lines[-1].split() == line.split()
    assert len(lines[-1]) == len(line)


def test_a_marked_outlier_and_its_column():
    lines = texts(
        listing_lines(36, 20, UNICODE, numbers(blamed=(17,)), attribution(kept(17, caused=0.61)))
    )
    assert lines[0] == "900 beyond 6 sigma, in 3 columns"
    assert lines[1] == "0.1% of all, 1 outlier column ◆"
    assert lines[3] == "      1.5   75.0       3      17 ◆"
    (line,) = [line for line in lines if "61%" in line]
    assert line.split()[:4] == ["17", "12.5×", "1.0%", "61%"]
    assert "█" in line


def test_the_title_says_the_detection():
    def title(width: int, **how) -> list[str]:
        return texts(listing_lines(width, 9, UNICODE, numbers(**how), None))[:3]

    wide, narrow = (title(w, by="threshold", limit=0.4, blamed=(17,), hit=1) for w in (56, 35))
    assert wide[0] == "900 of |x| >= 0.4, in 1 column"
    assert wide[1] == "0.1% of the elements, 1 outlier column ◆"
    assert narrow[0] == wide[0]
    long = title(35, count=1198, by="threshold", limit=0.07838, blamed=(17,), hit=48)
    assert long[0] == "1,198 of |x| >= 0.07838, 48 columns"
    many = title(35, by="threshold", limit=0.07, blamed=tuple(range(1024)), hit=1024)
    assert many[1] == "0.1%, 1,024 outlier columns ◆"
    columns = title(35, by="column", limit=4.0, blamed=(3, 9), largest=LARGEST)
    assert columns[0] == "2 of 2,048 over 4× the median"
    assert columns[2].split() == ["column", "absmax", "size", "rms"]
    assert title(35, count=0)[:2] == ["no element beyond 6 sigma", "the largest is 5.1 sigma"]
    assert title(35, count=0, std=0.0)[1] == "all elements are the same"
    assert title(35, count=0, std=None)[1] == "no element is a finite number"
    short = (ColumnSize(3, 1.5, 0.1, 9.0, 1.2, False),)
    assert title(35, count=0, by="column", limit=4.0, largest=short, rows=2)[1] == (
        "2 rows: too few to tell"
    )
    assert title(35, count=0, by="column", limit=4.0)[1] == "the median column is zero"


def test_nothing_is_left_where_all_columns_are_kept():
    both = kept(0, 1, caused=1.0, sqnr=None)
    found = attribution(kept(0, caused=0.5), together=both)
    lines = texts(listing_lines(36, 20, UNICODE, numbers(), found))
    assert "  kept in 16 bits → no error" in lines


def test_columns_are_ranked_where_columns_are_detected():
    found = numbers(by="column", limit=1.3, blamed=(3,), largest=LARGEST)
    lines = texts(listing_lines(36, 20, UNICODE, found, None))
    assert lines[3:5] == [
        "       3      1.5   1.37×    1.2× ◆",
        "       9        1    1.2×        ",
    ]


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("found", [TABLE, INJECTED], ids=["stored", "injected"])
@pytest.mark.parametrize("width", [42, 48, 90])
def test_bars_fit_and_their_lengths_are_decibels(glyphs, found, width):
    lines = texts(granularity_lines(width, 20, glyphs, found))
    assert len(lines) == 2 + len(found.rows)
    assert all(len(line) <= width for line in lines)
    shown = [at for at, row in enumerate(found.rows) if row.granularity != "column"]
    for line, row in zip(lines[2:], found.rows, strict=True):
        assert ("no pr" in line) == (row.granularity == "column")
    ends = [lines[2 + at].count(glyphs.full) for at in shown]
    values = [max(0.0, found.decibels(found.rows[at]) or 0.0) for at in shown]
    order = sorted(range(len(values)), key=lambda at: values[at])
    assert [ends[at] for at in order] == sorted(ends)
    assert sum(line.startswith(glyphs.pointer) for line in lines) == 1
    if found is INJECTED:
        lost = [line.count(glyphs.shades[1]) for line in lines[2:]]
        assert lost[0] > lost[1] >= lost[2]
        assert "before" in lines[1]


def points(*columns: int) -> tuple[ThresholdPoint, ...]:
    return tuple(
        ThresholdPoint(10.0 - at, f"int8:row:outliers{10 - at}", n, 8 + n, 1000 + n, 0.1, 20.0 + n)
        for at, n in enumerate(columns)
    )


def decomposition(*points: ThresholdPoint, threshold: float = 8.0) -> DecompositionSweep:
    return DecompositionSweep("int8:row", "", threshold, 64, points)


def test_the_slider_stands_at_the_threshold():
    found = decomposition(*points(0, 1, 2, 4))
    assert found.points[found.chosen].threshold == 8.0
    assert decomposition(*points(0, 1), threshold=9.2).chosen == 1  # the nearest there is
    assert decomposition().chosen == 0


@pytest.mark.parametrize("size", [(42, 3), (42, 8), (46, 18), (90, 30), (10, 2)])
def test_the_curve_fits(size):
    found = decomposition(*points(0, 1, 2, 4))
    lines = texts(threshold_lines(*size, UNICODE, found, 2))
    assert len(lines) <= size[1]
    if size[0] > 40:
        assert "< 8 > 2 of 64 columns in 16 bits" in lines[1]
        assert lines[2] == "10 bits  0.979 KiB  SQNR 22.0 dB"
        assert all(len(line.rstrip()) <= size[0] for line in lines)
    if size[1] >= 8:
        assert sum(line.count(UNICODE.marker) for line in lines) == 1


def test_a_tensor_of_zeros_has_no_curve():
    lines = texts(threshold_lines(40, 9, UNICODE, decomposition(), 0))
    assert lines[1] == "every element is zero"
