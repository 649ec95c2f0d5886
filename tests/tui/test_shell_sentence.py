"""The sentence of a panel: it is complete if it fits, and says so if it does not."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from every import collected
from screens import Running, resized, screen_text, settled, until

from qtui.screen.widgets.sentence import REST, Sentence, lines_kept
from qtui_core.quant import Scheme, explain, find_outliers, measure, statistics


def longest_sentence() -> str:
    """The longest that is written for a tensor with outliers, as large as tensors get."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 4096)).astype(np.float32)
    x[:, 10:50:2] *= 20
    stats = statistics(x)
    outliers = find_outliers(x, stats)
    outliers = dataclasses.replace(outliers, count=123_456_789)
    schemes = [
        Scheme.parse(text)
        for text in ("int4:group64:asym", "nf4:block64:dq", "e4m3:row", "int8:group128:asym")
    ]
    reports = [measure(x, scheme) for scheme in schemes]
    return max(
        (explain(pair, stats, outliers) for pair in itertools.permutations(reports, 2)), key=len
    )


LONGEST = longest_sentence()
SIZES = [(60, 16), (80, 24), (80, 40), (100, 30), (120, 40), (160, 45), (200, 50)]


def shown(text: str, lines: int) -> str:
    """The words of the sentence's lines, which stand above the footer."""
    return " ".join(" ".join(text.splitlines()[-1 - lines : -1]).split())


async def test_the_sentence_is_whole_or_ends_in_an_ellipsis(running: Running) -> None:
    assert len(LONGEST) > 230
    async with running() as pilot:
        pilot.app.panel.sentence = LONGEST
        with collected() as case:
            for size in SIZES:
                with case(size):
                    await resized(pilot, size)
                    words = shown(screen_text(pilot.app), lines_kept(*size))
                    start, _, rest = words.partition("…")
                    if rest:
                        assert rest == f" {REST}"
                        assert LONGEST.startswith(start)
                        assert len(words) > (size[0] - 2) * lines_kept(*size) * 0.8
                        assert size[0] < 100  # from there on it fits
                    else:
                        assert words == LONGEST


@pytest.mark.parametrize("size", [(60, 16), (80, 24)])
async def test_help_and_copy_give_the_whole_sentence(
    running: Running, size: tuple[int, int]
) -> None:
    async with running(size=size) as pilot:
        pilot.app.panel.sentence = LONGEST
        await pilot.press("y")
        await until(pilot, lambda: "Copied" in screen_text(pilot.app))
        assert LONGEST in pilot.app.clipboard
        await pilot.press("question_mark")
        await settled(pilot)
        pilot.app.clear_notifications()
        await settled(pilot)
        lines = screen_text(pilot.app).splitlines()
        top = next(i for i, line in enumerate(lines) if "╭" in line)
        inside = [line.split("│")[1] for line in lines[top + 1 :] if line.count("│") == 2]
        inside = [line.rstrip(" ▁▂▃▄▅▆▇█") for line in inside]  # the scrollbar
        assert " ".join(" ".join(inside).split()).startswith(LONGEST)


async def test_a_longer_sentence_moves_nothing(running: Running) -> None:
    async with running(size=(80, 24)) as pilot:
        before = pilot.app.panel.grid.region
        for text in ("short", LONGEST, "two\nlines", ""):
            pilot.app.panel.sentence = text
            await settled(pilot)
            assert pilot.app.panel.grid.region == before


@pytest.mark.parametrize(
    ("size", "lines"), [((60, 16), 3), ((80, 24), 4), ((120, 24), 3), ((300, 80), 2)]
)
def test_as_many_lines_as_there_is_room_for(size: tuple[int, int], lines: int) -> None:
    assert lines_kept(*size) == lines


async def test_wide_characters_are_counted_as_the_terminal_does(running: Running) -> None:
    async with running(size=(60, 16)) as pilot:
        pilot.app.panel.sentence = "模型" * 200
        await settled(pilot)
        sentence = pilot.app.panel.query_one(Sentence)
        from rich.cells import cell_len

        assert all(cell_len(line) <= 58 for line in str(sentence.render()).splitlines())
