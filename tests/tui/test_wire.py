"""What goes to a terminal shows the screen that the program painted, in few bytes. An emulator
(pyte) gets both, and shows the same."""

from __future__ import annotations

import random
import re
from itertools import product

import pyte
import pytest
from every import drawn
from hypothesis import strategies as st
from terminals import seen

from qtui.tui.wire.last_screen import BEGIN, END, LastScreen
from qtui.tui.wire.pens import PLAIN, Pen

WIDTH, HEIGHT = 24, 5
STYLES = (
    "",
    "31",
    "38;5;200",
    "48;2;1;2;3",
    "1;38;2;9;9;9;48;2;1;2;3",
    "4;48;2;1;2;3",
    "1;3;9;7;44",
    "38;2;9;9;9;48;2;4;5;6",
)
CELLS = (" ", " ", " ", "a", "b", "▀", "─", "é", "e\u0301", "宽")
CONTROLS = ("\a", "\x1b]52;c;YQ==\a", "\x1b]11;?\x1b\\", "\x1b[?2048h", "\x1b[?1003h", "\x1b[?25l")


class Both:
    """An emulator that gets what a program writes, and one that gets what is sent instead."""

    def __init__(self, width: int = WIDTH, height: int = HEIGHT, *, erases: bool = True) -> None:
        self.written, self.shown = pyte.Screen(width, height), pyte.Screen(width, height)
        self.last = LastScreen(width, height, erases=erases)
        for screen in (self.written, self.shown):
            screen.reset_mode(7, private=True)  # no automatic wrap, as Textual sets it
        self.sent = ""

    def paint(self, data: str, cut: int = 0) -> None:
        """The program writes `data`, cut in two."""
        # pyte takes no query and no private sequence
        pyte.Stream(self.written).feed(re.sub(r"\x1b\[[?<=>][0-9;$]*[a-z]", "", data))
        for part in (data[:cut], data[cut:]):
            self.send(self.last.feed(part))

    def send(self, data: str) -> None:
        self.sent += data
        pyte.Stream(self.shown).feed(re.sub(r"\x1b\[[?<=>][0-9;$]*[a-z]", "", data))

    def differ(self) -> int:
        """Sends the difference and compares; its bytes."""
        difference = self.last.difference()
        self.send(difference)
        assert seen(self.shown) == seen(self.written)
        where = self.written.cursor
        assert (self.shown.cursor.x, self.shown.cursor.y) == (where.x, where.y)
        return len(difference.encode())


def painted(x: int, y: int, segments: list[tuple[str, str]]) -> str:
    """A part of a line as Textual writes it."""
    line = "".join(f"\x1b[{sgr}m{text}\x1b[0m" if sgr else text for sgr, text in segments)
    return f"\x1b[{y + 1};{x + 1}H{line}"


def some_line(choose: random.Random) -> list[tuple[str, str]]:
    """Segments that fill a line, often blank at its end."""
    cells, width = [], 0
    end = choose.choice((0, 3, WIDTH))
    while width < WIDTH:
        cell = choose.choice(CELLS) if width < end else " "
        if cell == "宽" and width == WIDTH - 1:
            continue
        cells.append((choose.choice(STYLES[: choose.choice((1, 4, 8))]), cell))
        width += 2 if cell == "宽" else 1
    return cells


@drawn(400, 16, st.integers(0, 2**32), st.booleans())
def test_both_screens_are_the_same_after_every_difference(seed: int, erases: bool) -> None:
    choose = random.Random(seed)
    both = Both(erases=erases)
    passed = ""
    for _ in range(12):
        data = BEGIN * choose.choice((0, 1))
        for y in sorted(choose.sample(range(HEIGHT), choose.randint(1, HEIGHT))):
            data += painted(0, y, some_line(choose)) + "\n" * (y < HEIGHT - 1)
        if choose.random() < 0.3:
            control = choose.choice(CONTROLS)
            data, passed = data + control, passed + control
        data += f"\x1b[{choose.randint(1, HEIGHT)};{choose.randint(1, WIDTH)}H"
        both.paint(data, cut=choose.randint(0, len(data)))  # in the middle of a sequence, too
        if choose.random() < 0.2:
            both.last.forget()
        if choose.random() < 0.7:
            both.differ()
    both.differ()
    assert both.last.difference() == ""
    kept = (*CONTROLS, BEGIN, END)
    found = re.findall("|".join(map(re.escape, kept)), both.sent)
    assert "".join(control for control in found if control in CONTROLS) == passed
    assert both.sent.count(BEGIN) == both.sent.count(END)


@drawn(300, 12, st.integers(0, 2**32))
def test_parts_of_lines_may_be_painted_over_others(seed: int) -> None:
    choose = random.Random(seed)
    both = Both()
    for _ in range(30):
        x, y = choose.randrange(WIDTH), choose.randrange(HEIGHT)
        texts = [choose.choice(" ax▀") * choose.randint(1, 6) for _ in range(choose.randint(1, 4))]
        segments, room = [], WIDTH - x
        for text in texts:
            segments.append((choose.choice(STYLES), text[:room]))
            room -= len(text[:room])
        both.paint(painted(x, y, segments) + "\x1b[1;1H")
        if choose.random() < 0.6:
            both.differ()
    both.differ()


@pytest.mark.parametrize(
    "attributes", [("1",), ("2",), ("1", "2"), ("3", "4"), ("7", "9"), ("5", "53"), ()]
)
def test_every_pen_is_reached_from_every_other(attributes: tuple[str, ...]) -> None:
    """Read by the rules of ECMA-48, written out once more."""
    colors = ("", "31", "97", "38;5;7", "38;2;1;2;3")
    backs = ("", "41", "48;2;1;2;3")
    others = [("1",), ("2",), ("1", "2", "3"), ("4", "9"), ("7",), ()]
    for here, there in product(
        product([attributes], colors, backs), product(others, colors, backs)
    ):
        before = Pen.of(frozenset(here[0]), here[1], here[2], "")
        after = Pen.of(frozenset(there[0]), there[1], there[2], "")
        sgr = before.to(after)
        state = _read(sgr, {*here[0]}, here[1], here[2])
        assert state == ({*there[0]}, there[1], there[2]), (here, there, sgr)
        whole = ";".join(code for code in ("0", *there[0], *there[1:]) if code)
        assert len(sgr) <= len(f"\x1b[{whole}m")


def _read(sgr: str, on: set[str], fore: str, back: str) -> tuple[set[str], str, str]:
    if not sgr:
        return on, fore, back
    found = re.fullmatch(r"\x1b\[([0-9;]*)m", sgr)
    assert found is not None
    for code in re.findall(r"[34]8;2;\d+;\d+;\d+|[34]8;5;\d+|\d*", found[1]):
        if code == "0" or found[1] == "":
            on, fore, back = set(), "", ""
        elif code in ("22", "23", "24", "25", "27", "29", "55"):
            ended = {"22": "12", "23": "3", "24": "4", "25": "5", "27": "7", "29": "9", "55": ""}
            on = on - {*ended[code]} - ({"53"} if code == "55" else set())
        elif re.match("3.|9.", code):
            fore = "" if code == "39" else code
        elif re.match("4.|10.", code):
            back = "" if code == "49" else code
        elif code:
            on = on | {code}
    return on, fore, back


def test_a_changed_number_takes_few_bytes_and_nothing_new_none() -> None:
    both = Both(120, 40)
    line = [("38;2;139;149;163;48;2;18;21;26", "value "), ("1;38;2;213;218;225", "100.25")]
    both.paint(painted(10, 20, line) + "\x1b[1;1H")
    both.differ()
    both.paint(painted(10, 20, line) + "\x1b[1;1H")
    assert both.differ() == 0
    line[1] = (line[1][0], "101.75")
    both.paint(painted(10, 20, line) + "\x1b[1;1H")
    assert both.differ() == 14  # the pen holds
    assert both.sent.endswith("\x1b[21;19H1.7\x1b[H")


def _picture(seed: int, levels: int) -> str:
    """Half blocks of random colours: two rows of the worst heatmap in each line of 120x40 cells."""
    choose = random.Random(seed)
    ramp = [f"2;{7 * n};{200 - 6 * n};{100 + 3 * n}" for n in range(levels)]
    lines = [
        [(f"38;{choose.choice(ramp)};48;{choose.choice(ramp)}", "▀") for _ in range(120)]
        for _ in range(40)
    ]
    return "\n".join(painted(0, y, line) for y, line in enumerate(lines))


@pytest.mark.parametrize(("levels", "limit"), [(16, 50_000), (24, 55_000), (32, 60_000)])
def test_the_worst_picture_takes_less_than_half_of_what_is_painted(levels: int, limit: int) -> None:
    both = Both(120, 40)
    for seed in (0, 1):
        picture = _picture(seed, levels)
        both.paint(picture + "\x1b[1;1H")
        took = both.differ()
        assert took < limit
        assert took < 0.4 * len(picture)


def test_what_is_painted_over_is_never_sent() -> None:
    both = Both()
    both.paint(painted(0, 0, [("31", "before")]))
    both.paint(painted(0, 0, [("32", "after ")]))
    both.differ()
    assert "before" not in both.sent
    assert "31" not in both.sent


@pytest.mark.parametrize(
    "control", ["\x1b[?1049h", "\x1b[2J", "\x1b[3S", "\x1bc", "\x1bP0q~\x1b\\"]
)
def test_after_what_may_change_cells_all_is_sent_again(control: str) -> None:
    last = LastScreen(WIDTH, HEIGHT)
    last.feed(painted(0, 0, [("31", "red")]))
    last.difference()
    last.feed(painted(0, 1, [("32", "green")]))
    now = last.feed(control)
    assert now.endswith(f"\x1b[m{control}")  # in its order, and with no colour left
    assert "green" in now
    # It may be gone, the program has not painted it, and the cursor may be the shell's.
    assert last.difference() == ""
    last.feed(painted(0, 0, [("31", "red")]))
    assert last.difference().startswith("\x1b[H\x1b[m\x1b[31mred")


def test_no_cell_is_erased_where_terminfo_does_not_say_so() -> None:
    both = Both(erases=False)
    for text in ("x" * WIDTH, " " * WIDTH):
        both.paint(painted(0, 0, [("48;2;1;2;3", text)]) + "\x1b[1;1H")
        both.differ()
    assert not re.search(r"\x1b\[\d*[XK]", both.sent)
    both.paint(painted(0, 0, [("", " " * WIDTH)]) + "\x1b[1;1H")
    both.differ()
    assert both.sent.endswith("\x1b[m\x1b[K")  # every terminal erases to its own background


def test_after_characters_of_unsure_width_the_position_is_said() -> None:
    last = LastScreen(WIDTH, HEIGHT)
    family = "\U0001f469\u200d\U0001f467"  # one woman and one girl, joined: two cells or four
    last.feed(painted(0, 0, [("", f"{family}ab")]))
    assert last.difference().startswith(f"\x1b[H\x1b[m{family}\x1b[1;3Hab")


def test_half_of_a_wide_character_is_never_left() -> None:
    last = LastScreen(WIDTH, HEIGHT)
    last.feed(painted(0, 0, [("", "宽宽")]) + "\x1b[1;1H")
    last.difference()
    last.feed(painted(1, 0, [("", "a")]) + "\x1b[1;1H")
    assert last.difference() == " a\r"
    last.feed(painted(2, 0, [("", "b")]) + "\x1b[1;1H")
    assert last.difference() == "\x1b[2Cb \r"


@pytest.mark.parametrize("control", [*CONTROLS, "\x1b]8;;file:///a\x1b\\"])
def test_an_escape_may_come_cut_anywhere(control: str) -> None:
    """Between the two characters that end a string, too: its text is not painted."""
    for cut in range(len(control) + 1):
        last = LastScreen(WIDTH, HEIGHT)
        passed = last.feed(control[:cut]) + last.feed(control[cut:])
        assert passed == ("" if "]8;" in control else control)
        last.feed("b")
        assert ("file:///a" in last.difference()) == ("]8;" in control)
        assert last.difference() == ""


def test_links_and_attributes_that_are_not_known_are_kept() -> None:
    last = LastScreen(WIDTH, HEIGHT)
    last.feed("\x1b]8;id=1;file:///a\x1b\\\x1b[4:3mab\x1b[0m\x1b]8;;\x1b\\c")
    sent = last.difference()
    assert "\x1b]8;id=1;file:///a\x1b\\\x1b[4:3mab\x1b]8;;\x1b\\\x1b[mc" in sent


def test_another_size_is_painted_anew() -> None:
    last = LastScreen(WIDTH, HEIGHT)
    last.feed(painted(0, 4, [("", "a" * WIDTH)]))
    last.difference()
    last.resize(10, 2)
    assert last.difference() == ""
    last.feed(painted(0, 1, [("", "b" * WIDTH)]) + painted(0, 4, [("", "below")]))
    sent = last.difference()
    assert "b" * 10 in sent
    assert "b" * 11 not in sent
    assert "below" not in sent


def test_pens_are_the_same_however_their_codes_came() -> None:
    assert PLAIN.after("1;31").after("22") is PLAIN.after("31")
    assert PLAIN.after("4").after("21") is PLAIN.after("21")
    assert PLAIN.after("1;38;5;9;48;2;1;2;3").after("") is PLAIN.after("0")
