"""The room of the screen: pictures fill it, sentences fit it, toasts leave the sentence, lists show
their chosen line, and empty views say what they will show."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from every import collected, over
from hypothesis import given
from hypothesis import strategies as st
from screens import Running, drained, idle, resized, screen_lines, screen_text, settled, until
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets._toast import Toast

from qtui.engine.answers.tensors import TensorEntry
from qtui.screen.depth import Depth
from qtui.screen.panel.asking import AskingPanel
from qtui.screen.tensors.list import TensorList, TensorOrder
from qtui.screen.widgets.drawing import Drawing
from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui.screen.widgets.heatmap.places import MAX_COLUMNS, MAX_LINES, HeatPlaces
from qtui.screen.widgets.sentence import REST, Sentence, lines_kept
from qtui.screen.widgets.text_picture import window
from qtui.tui.config import Settings
from qtui.tui.panels import PANELS

# Toasts

LONG = "A sentence that does not end soon, as the path in it is long. " * 6
TOLD = ((LONG,), ("short",), ("short", LONG, LONG), ("one", "two", "three", "four", LONG * 5))


def all_shown(app: Any) -> bool:
    toasts = {toast._notification.identity for toast in app.screen.query(Toast)}
    return toasts == {told.identity for told in app._notifications}


async def test_toasts_never_cover_the_sentence_and_the_last_is_seen(running: Running) -> None:
    async with running(size=(60, 16)) as pilot:
        app: Any = pilot.app
        with collected() as case:
            for size in ((60, 16), (80, 24), (300, 80)):
                await resized(pilot, size)
                for texts in TOLD:
                    with case((size, texts)):
                        app.clear_notifications()
                        await settled(pilot)
                        before = screen_lines(app)[-1 - lines_kept(*size) :]
                        for text in texts:
                            app.tell(text)
                        await until(pilot, lambda: all_shown(app))
                        await settled(pilot)
                        lines = screen_lines(app)
                        assert lines[-1 - lines_kept(*size) :] == before
                        assert texts[-1].split(",")[0] in "\n".join(lines)


async def test_toasts_stand_where_the_first_did(running: Running, tmp_path: Path) -> None:
    async with running(config=Settings(export_folder=str(tmp_path))) as pilot:
        app: Any = pilot.app
        lowest = set()
        for key in "yeyyey":
            await pilot.press(key)
            told = "Wrote" if key == "e" else "Copied"
            await until(pilot, lambda told=told: app.screen.query(Toast)
                        and told in app.screen.query(Toast).last().render().plain)  # fmt: skip
            await settled(pilot)
            lowest.add(app.screen.query(Toast).last().region.bottom)
        assert len(lowest) == 1


# The sentence


def uncut(app: Any) -> bool:
    """Whether the sentence is shown from its first word to its last."""
    shown = str(app.panel.query_one(Sentence).render())
    return shown.split() == app.panel.sentence.split() and REST not in shown


def tabs_are_seen(app: Any) -> bool:
    panel = app.panel
    if not isinstance(panel, AskingPanel):
        return True
    titles = [view.TITLE for view in panel.views]
    return any(all(title in line for title in titles) for line in screen_lines(app))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["demo", "/no/such/model"])
async def test_every_view_shows_its_tabs_and_its_whole_sentence(
    running: Running, model: str
) -> None:
    """On 80 columns and 24 lines."""
    async with running(size=(80, 24), model=model) as pilot:
        app: Any = pilot.app
        with collected() as case:
            for entry in PANELS:
                await pilot.press(str(entry.number))
                await until(pilot, lambda: app.panel and entry.number == app.panel.NUMBER)  # noqa: B023
                await idle(pilot)
                for view in getattr(app.panel, "views", (None,)):
                    with case((entry.id, view.TITLE if view else "")):
                        assert app.panel.sentence
                        assert uncut(app), app.panel.sentence
                        assert tabs_are_seen(app), screen_text(app)
                    await pilot.press("v")
                    await idle(pilot)


async def test_a_sentence_is_cut_where_one_of_its_sentences_ends(running: Running) -> None:
    said = "The answer is 3.5 dB. " + "The advice is long and stands after it. " * 3
    async with running(size=(60, 16)) as pilot:
        app: Any = pilot.app
        app.panel.sentence = said + "It does not fit. " * 20
        await settled(pilot)
        shown = " ".join(str(app.panel.query_one(Sentence).render()).split())
        assert shown.endswith(f". {REST}")
        assert app.panel.sentence.startswith(shown.removesuffix(f" {REST}"))


# Lists


class Listing(App[None]):
    """A list of tensors beside nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.list = TensorList(Drawing(Depth.TRUECOLOR))
        self.list.styles.height = "1fr"

    def compose(self) -> ComposeResult:
        yield self.list

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {"quiet": "#888888", "faint": "#444444", "cursor": "#333333"}


async def test_a_list_shows_its_chosen_line_whatever_happens_to_it() -> None:
    """After every order, filter, size and step, and after it was hidden."""
    chance = random.Random(0)
    app = Listing()
    async with app.run_test(size=(40, 12)) as pilot:
        for _ in range(6):
            names = [
                f"layers.{n}.{chance.choice(('weights', 'states'))}"
                for n in range(chance.choice((3, 200)))
            ]
            app.list.load([TensorEntry(n, "F32", (2, 3), 6, 24, True, True, 2) for n in names])
            await drained()
            for _ in range(25):
                await altered(pilot, app.list, names, chance)
                await pilot.pause()
                app.screen._on_timer_update()  # scrolling waits for the next picture
                await drained()
                if app.list.current is None:
                    continue
                at = [e.name for e in app.list.shown].index(app.list.current.name)
                top = app.list.scroll_offset.y
                assert top <= at < top + app.list.size.height
                shown = [app.list.render_line(y).text for y in range(app.list.size.height)]
                assert "▸" in shown[at - top]


async def altered(
    pilot: Pilot[None], listed: TensorList, names: list[str], chance: random.Random
) -> None:
    """Does something to the list that may move its lines or its frame."""
    match chance.randrange(7):
        case 0:
            listed.set_order(chance.choice(list(TensorOrder)), {n: chance.random() for n in names})
        case 1:
            listed.set_filter(chance.choice(("", "grad", "1", "no such name")))
        case 2 | 3:
            await pilot.resize_terminal(chance.randint(20, 90), chance.randint(3, 60))
        case 4:
            listed.select(chance.choice(names))
        case 5:
            listed.action_page(chance.choice((-3, -1, 1, 5)))
        case _:
            listed.display = False
            await pilot.pause()
            listed.select(chance.choice(names))
            await pilot.resize_terminal(chance.randint(20, 90), chance.randint(3, 60))
            listed.display = True
            await pilot.pause()


@given(st.integers(1, 300), st.data(), st.integers(-3, 80))
def test_the_lines_that_fit_include_the_chosen_one(count: int, data: Any, room: int) -> None:
    at = data.draw(st.integers(0, count - 1))
    lines = window(count, at, room)
    assert at in lines
    assert len(lines) == min(count, max(1, room))
    assert 0 <= lines[0] <= lines[-1] < count


@pytest.mark.slow
async def test_lists_of_panels_show_their_chosen_line(running: Running) -> None:
    """After sizes, zoom and other panels: the experiments, the GPUs of Memory, its cases, the
    operations of Hardware, the schemes of the Model view."""
    chance = random.Random(1)
    places = {"6": ("",), "4": ("GPUs", "Cases"), "7": ("Operations",), "2": ("Model",)}
    async with running(size=(120, 40), model="demo") as pilot:
        app: Any = pilot.app
        with collected() as case:
            for number, titles in places.items():
                await pilot.press(number)
                await until(pilot, lambda: str(app.panel.NUMBER) == number)  # noqa: B023
                await idle(pilot)
                for title in titles:
                    view = next((v for v in app.panel.views if title == v.TITLE), None)
                    if view is not None:
                        app.panel.show_view(view)
                        await idle(pilot)
                    with case((number, title)):
                        for _ in range(6):
                            for _ in range(chance.randint(1, 30)):
                                (view if title == "Model" else app.panel).action_move(1)
                            size = chance.choice(((60, 16), (80, 24), (120, 40), (300, 80)))
                            await resized(pilot, size)
                            if chance.random() < 0.4:
                                await pilot.press("1", number)
                                await idle(pilot)
                            mark = "▸"
                            if title == "Operations":
                                shown = app.panel.shown
                                mark = shown.placed[shown.line].operation.name[:12]
                            assert mark in "".join(screen_lines(app)[3:-1]), screen_text(app)


# Pictures


PLACES = [
    (w, h, r, c) for w in (40, 130, 310) for h in (9, 50, 110) for r, c in ((1, 9), (256, 704))
]


@over("width, height, rows, columns", PLACES)
def test_a_map_fills_its_room_with_cells_that_stay_few(
    width: int, height: int, rows: int, columns: int
) -> None:
    places = HeatPlaces(width, height, 2, rows)
    most = places.capacity
    assert most[0] <= 2 * MAX_LINES
    assert most[1] <= MAX_COLUMNS
    high, wide = min(rows, most[0]), min(columns, most[1])
    grid = HeatGrid(rows, columns, high, wide, (0.0,) * (high * wide))
    drawn = places.drawn(grid)
    area = places.area
    assert drawn[1] >= 0.8 * area.width
    assert drawn[0] >= 0.8 * 2 * area.height or rows == 1
    assert drawn[0] <= 2 * area.height
    assert drawn[1] <= area.width
    lines = [places.lines_of(grid, row) for row in range(high)]
    assert {line for each in lines for line in each} == set(range(places.lines(grid)))


def largest_hole(lines: list[str]) -> int:
    """The cells of the largest blank rectangle."""
    heights, best = [0] * (len(lines[0]) + 1), 0
    for line in lines:
        for x, sign in enumerate(line):
            heights[x] = heights[x] + 1 if sign == " " else 0
        stack: list[tuple[int, int]] = []
        for x, height in enumerate(heights):
            start = x
            while stack and stack[-1][1] >= height:
                start, tall = stack.pop()
                best = max(best, tall * (x - start))
            stack.append((start, height))
    return best


#: Views with a table that is as large as the model; the demo has six layers.
AS_LARGE = ("Layers",)
#: Panels and views that say in a line what brings something, until something has run.
EMPTY = ("train", "numerics", "Activations", "Model", "GPUs")


@pytest.mark.slow
async def test_no_view_leaves_much_of_a_large_screen_empty(running: Running) -> None:
    """Of a large screen a third at most is blank in one piece."""
    async with running(size=(300, 80), model="demo") as pilot:
        app: Any = pilot.app
        with collected() as case:
            for entry in PANELS:
                await pilot.press(str(entry.number))
                await until(pilot, lambda: entry.number == app.panel.NUMBER)  # noqa: B023
                await idle(pilot)
                for view in getattr(app.panel, "views", (None,)):
                    names = {entry.id, view.TITLE if view else ""}
                    for size in () if names & {*AS_LARGE, *EMPTY} else ((300, 80),):
                        await resized(pilot, size)
                        await pilot.pause(0.3)  # a map of another size is asked for after a pause
                        await idle(pilot)
                        with case((entry.id, view.TITLE if view else "", size)):
                            assert largest_hole(screen_lines(app)) < size[0] * size[1] / 3
                    await pilot.press("v")
                    await idle(pilot)


# Empty views


async def test_empty_views_name_the_keys_that_are_bound(running: Running) -> None:
    config = Settings(keys={"numerics.run": "f7"})
    async with running(size=(80, 24), config=config, start_panel="numerics") as pilot:
        app: Any = pilot.app
        for view in app.panel.views:
            app.panel.show_view(view)
            await settled(pilot)
            text = screen_text(app)
            assert "f7 runs" in text.lower()
