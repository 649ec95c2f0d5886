"""What terminals answer about their colours: it decides, late or early, and is never a key."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from every import over
from hypothesis import given
from hypothesis import strategies as st
from terminals import Terminal, program

from qtui.screen.depth import Depth, TerminalSays, depth_of, light_of, names_its_depth
from qtui.tui.first.asking import ASK_BACKGROUND, Listener, to_ask

OSC, TC, RGB, SGR, DA1 = (
    "\x1b]11;?",
    "\x1bP+q5463\x1b\\",
    "\x1bP+q524742\x1b\\",
    "\x1bP$qm",
    "\x1b[c",
)
NO_TC, NO_RGB = "\x1bP0+r5463\x1b\\", "\x1bP0+r524742\x1b\\"
#: Question -> answer, in the forms that the terminals document; only those of tmux 3.3a were taken
#: from a running one.
ANSWERS: dict[str, dict[str, str]] = {
    "xterm": {
        OSC: "\x1b]11;rgb:ffff/ffff/ffff\a", TC: NO_TC, RGB: NO_RGB,
        SGR: "\x1bP1$r0;48:2::1:2:3m\x1b\\", DA1: "\x1b[?64;1;2;6;9;15;16;17;18;21;22;28c",
    },
    "xterm of 256 colours": {
        OSC: "\x1b]11;rgb:0000/0000/0000\a", TC: NO_TC, RGB: NO_RGB,
        SGR: "\x1bP1$r0;48:5:16m\x1b\\", DA1: "\x1b[?64;1;2;6;9;15;16;17;18;21;22;28c",
    },
    "kitty": {
        OSC: "\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\", TC: "\x1bP1+r5463\x1b\\", RGB: NO_RGB,
        SGR: "\x1bP1$r0;48:2:1:2:3m\x1b\\", DA1: "\x1b[?62;c",
    },
    "foot": {
        OSC: "\x1b]11;rgba:fdfd/f6f6/e3e3/e6e6\x1b\\", TC: "\x1bP1+r5463\x1b\\",
        RGB: "\x1bP1+r524742=38\x1b\\", SGR: "\x1bP1$r0;48:2::1:2:3m\x1b\\",
        DA1: "\x1b[?62;4;22;28;29c",
    },
    "alacritty": {OSC: "\x1b]11;rgb:1818/1818/1818\a", DA1: "\x1b[?6c"},
    "wezterm": {
        OSC: "\x1b]11;rgb:0000/0000/0000\x1b\\", TC: "\x1bP1+r5463\x1b\\",
        RGB: "\x1bP1+r524742=382F382F38\x1b\\", SGR: "\x1bP0$r\x1b\\", DA1: "\x1b[?65;4;6;18;22c",
    },
    "iTerm2": {
        OSC: "\x1b]11;rgb:ffff/ffff/ffff\a", TC: NO_TC, RGB: NO_RGB,
        SGR: "\x1bP1$r0;48:2:1:1:2:3m\x1b\\", DA1: "\x1b[?62;4c",
    },
    "GNOME": {
        OSC: "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", TC: NO_TC, RGB: NO_RGB,
        SGR: "\x1bP1$r0;48:2:1:2:3m\x1b\\", DA1: "\x1b[?65;1;9c",
    },
    "Windows Terminal": {
        OSC: "\x1b]11;rgb:0c0c/0c0c/0c0c\x1b\\", SGR: "\x1bP1$r0;48;2;1;2;3m\x1b\\",
        DA1: "\x1b[?61;6;7;22;23;24;28;32;42c",
    },
    "tmux 3.3a": {DA1: "\x1b[?1;2c"},
    "tmux 3.4": {OSC: "\x1b]11;rgb:fdfd/f6f6/e3e3\a", SGR: "\x1bP0$r\x1b\\", DA1: "\x1b[?1;2c"},
    "nothing": {},
}  # fmt: skip
#: Whether each shows 24 bits as far as it says, and whether its background is light.
KNOWN: dict[str, tuple[bool | None, bool]] = {
    "xterm": (True, True), "xterm of 256 colours": (False, False), "kitty": (True, False),
    "foot": (True, True), "alacritty": (None, False), "wezterm": (True, False),
    "iTerm2": (True, True), "GNOME": (True, True), "Windows Terminal": (True, False),
    "tmux 3.3a": (None, False), "tmux 3.4": (False, True), "nothing": (None, False),
}  # fmt: skip


@over("name", KNOWN)
def test_what_each_terminal_says(name: str) -> None:
    listener = Listener()
    questions = listener.ask(depth=True, background=True)
    assert listener.waits
    for question, answer in ANSWERS[name].items():
        assert question in questions
        assert listener.keys_of(answer.encode()) == b""
    truecolor, light = KNOWN[name]
    assert listener.says.truecolor is truecolor
    assert light_of({}, listener.says)[0] is light
    assert listener.waits == (name == "nothing")
    assert listener.keys_held() == b""


KEYS = [b"q", b"\x1b[A", b"\x1bOP", b"\x1b[1;5C", b"\x1b[<35;10;5M", b"\xc3\xa9", b"\x1b[?2026;2$y",
        b"\x1b[200~pasted\x1b[201~", b"\x1b[97;;97u", b"\x1b[I", b"\r", b"2v"]  # fmt: skip
ALL_ANSWERS = sorted({answer for table in ANSWERS.values() for answer in table.values()})


@given(
    st.lists(st.one_of(st.sampled_from(KEYS), st.sampled_from(ALL_ANSWERS)), max_size=12),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_keys_between_answers_come_whole_and_in_order(
    sent: list[bytes | str], cuts: list[int]
) -> None:
    data = b"".join(one if isinstance(one, bytes) else one.encode() for one in sent)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    listener = Listener()
    keys = b""
    for start, end in zip([0, *ends], ends, strict=False):
        keys += listener.keys_of(data[start:end])
    assert keys + listener.keys_held() == b"".join(one for one in sent if isinstance(one, bytes))


def test_keys_that_begin_like_an_answer_are_given_once_nothing_more_comes() -> None:
    for key in (b"\x1b", b"\x1b]", b"\x1bP", b"\x1b["):
        listener = Listener()
        assert listener.keys_of(b"a" + key) == b"a"
        assert listener.keys_held() == key
        assert listener.keys_held() == b""


RGB_TMUX = TerminalSays(tmux="256,RGB,title", colors=256)
X256 = {"TERM": "xterm-256color"}


@over(
    "env, says, depth, why",
    [
        (X256, TerminalSays(), Depth.C256, "TERM is xterm-256color"),
        (X256, TerminalSays(truecolor=True), Depth.TRUECOLOR, "answered"),
        (X256, TerminalSays(truecolor=False), Depth.C256, "TERM"),
        ({**X256, "COLORTERM": "24bit"}, TerminalSays(), Depth.TRUECOLOR, "COLORTERM is 24bit"),
        ({**X256, "COLORTERM": "truecolor", "NO_COLOR": "1"}, RGB_TMUX, Depth.NONE, "NO_COLOR"),
        ({"TERM": "xterm"}, TerminalSays(colors=8), Depth.C16, "8 colours for xterm"),
        ({"TERM": "xterm"}, TerminalSays(truecolor=True, colors=8), Depth.TRUECOLOR, "answered"),
        ({"TERM": "rxvt"}, TerminalSays(colors=256), Depth.C256, "256 colours for rxvt"),
        ({"TERM": "vt220"}, TerminalSays(colors=0), Depth.NONE, "0 colours for vt220"),
        ({"TERM": "st"}, TerminalSays(colors=256, direct=True), Depth.TRUECOLOR, "RGB for st"),
        ({"TERM": "xterm-16color"}, TerminalSays(truecolor=True), Depth.C16, "xterm-16color"),
        ({"TERM": "xterm-kitty"}, TerminalSays(), Depth.TRUECOLOR, "TERM is xterm-kitty"),
        ({"TERM": "linux"}, TerminalSays(), Depth.C16, "TERM is linux"),
        ({"TERM": "dumb", "COLORTERM": "truecolor"}, TerminalSays(), Depth.NONE, "'dumb'"),
        # tmux that was started in another terminal
        ({"TERM": "tmux-256color", "TMUX": "x", "COLORTERM": "truecolor"},
         TerminalSays(tmux="256,title", colors=256), Depth.C256, "no RGB"),
        ({"TERM": "screen", "TMUX": "x"},
         TerminalSays(tmux="title", colors=8), Depth.C16, "no RGB"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, RGB_TMUX, Depth.TRUECOLOR, "tmux says"),
        ({"TERM": "tmux-256color", "TMUX": "x"}, TerminalSays(), Depth.C256, "TERM"),
        ({"TERM": "screen-256color", "STY": "1", "COLORTERM": "truecolor"}, TerminalSays(),
         Depth.C256, "TERM is screen-256color"),
    ],
)  # fmt: skip
def test_the_depth_and_why(env: dict[str, str], says: TerminalSays, depth: Depth, why: str) -> None:
    found, reason = depth_of("auto", env, says)
    assert (found, why in reason) == (depth, True), (found, reason)
    assert depth_of("16", env, says)[0] is Depth.C16


@over(
    "env, says, light, why",
    [
        ({}, TerminalSays(), False, "nothing"),
        ({"COLORFGBG": "0;15"}, TerminalSays(), True, "COLORFGBG is 0;15"),
        ({"COLORFGBG": "15;default;0"}, TerminalSays(), False, "COLORFGBG"),
        ({"COLORFGBG": "12;8"}, TerminalSays(), False, "COLORFGBG"),
        ({"COLORFGBG": "0;default"}, TerminalSays(), False, "nothing"),
        ({"COLORFGBG": "15;0"}, TerminalSays(background=(0.99, 0.96, 0.89)), True, "#fcf5e3"),
        ({}, TerminalSays(background=(0.0, 0.17, 0.21)), False, "#002b36"),
        ({}, TerminalSays(background=(0.0, 0.0, 0.0), light=True), True, "reports a light"),
    ],
)
def test_the_background_and_why(
    env: dict[str, str], says: TerminalSays, light: bool, why: str
) -> None:
    found, reason = light_of(env, says)
    assert (found, why in reason) == (light, True), (found, reason)


@over(
    "env, theme, asked",
    [
        (X256, "auto", (True, True)),
        (X256, "qtui-dark", (True, False)),
        ({**X256, "COLORTERM": "truecolor"}, "qtui-dark", (False, False)),
        ({**X256, "NO_COLOR": "1"}, "auto", (False, True)),
        ({**X256, "TERM_PROGRAM": "Apple_Terminal"}, "auto", (False, True)),
        ({"TERM": "tmux-256color", "TMUX": "x"}, "auto", (False, True)),
        ({"TERM": "screen-256color", "STY": "x"}, "auto", (False, False)),
        ({"TERM": "screen"}, "auto", (False, False)),
        ({"TERM": "linux"}, "auto", (False, False)),
    ],
)
def test_what_is_asked(env: dict[str, str], theme: str, asked: tuple[bool, bool]) -> None:
    assert to_ask(env, "auto", theme) == asked
    assert to_ask(env, "256", theme) == (False, asked[1])
    assert asked[0] is not names_its_depth(env) or "TERM_PROGRAM" in env


class Answering(Terminal):
    """Plays a terminal that answers, after `delay` seconds."""

    answers: dict[str, str]
    delay = 0.0
    _read_to = 0
    _due: list[tuple[float, str]]

    def read(self, seconds: float) -> bool:
        alive = super().read(min(seconds, 0.02))
        new, self._read_to = (
            self.written[self._read_to :].decode(errors="replace"),
            len(self.written),
        )
        found = sorted((new.find(q), a) for q, a in self.answers.items() if q in new)
        self._due += [(time.monotonic() + self.delay, answer) for _, answer in found]
        while self._due and self._due[0][0] <= time.monotonic():
            os.write(self.fd, self._due.pop(0)[1].encode())
        return alive


def played(terminal: Terminal, name: str, delay: float = 0.0) -> Answering:
    terminal.__class__ = Answering
    assert isinstance(terminal, Answering)
    terminal.answers, terminal.delay, terminal._due = ANSWERS[name], delay, []
    return terminal


#: The app; the patient one waits as long as this machine takes to play a terminal.
WAITING = 'import sys; sys.argv = ["qtui"]; from qtui.cli import main; main()'
PATIENT = f"from qtui.tui.first import screen; screen.FIRST_WAIT = 100; {WAITING}"
DARK_TRUE, LIGHT_TRUE = b"48;2;18;21;26", b"48;2;251;250;247"
DARK_256, LIGHT_256 = b"48;5;233", b"48;5;231"


@pytest.mark.slow
@pytest.mark.pty
@pytest.mark.parametrize(
    ("name", "ground", "other"),
    [
        ("xterm", LIGHT_TRUE, DARK_TRUE),
        ("foot", LIGHT_TRUE, DARK_TRUE),
        ("kitty", DARK_TRUE, LIGHT_TRUE),
        ("alacritty", DARK_256, LIGHT_256),
        ("tmux 3.4", LIGHT_256, DARK_256),
        ("nothing", DARK_256, LIGHT_256),
    ],
)
def test_a_terminal_that_answers_is_drawn_on_in_its_colours(
    tmp_path: Path, name: str, ground: bytes, other: bytes
) -> None:
    with program(tmp_path, "-c", PATIENT if DA1 in ANSWERS[name] else WAITING) as plain:
        terminal = played(plain, name)
        terminal.wait_until(lambda: ASK_BACKGROUND.encode() in terminal.written)
        terminal.send("i0x7e\r")
        terminal.wait_for("E4M3 0x7e")  # all keys, in order
        first = terminal.written.index(b"Formats")
        assert ground in terminal.written[:first]  # the first lines already
        assert other not in terminal.written
        assert "rgb" not in terminal.text
        terminal.send("q")
        assert terminal.exit_code() == 0


#: A shell, whose input would show what came after the app has left.
SHELL = """
import os, select, subprocess, sys
subprocess.run([sys.executable, "-m", "qtui"])
print("over", flush=True)
print("left", os.read(0, 100) if select.select([0], [], [], 1.5)[0] else b"", flush=True)
"""


@pytest.mark.slow
@pytest.mark.pty
def test_late_answers_are_no_keys_and_do_not_reach_the_shell(tmp_path: Path) -> None:
    with program(tmp_path, "-c", SHELL) as plain:
        terminal = played(plain, "xterm", delay=0.7)
        terminal.wait_until(lambda: b"Formats" in terminal.written)
        terminal.send("q")  # before any answer
        terminal.wait_until(lambda: b"left b''" in terminal.written)
        assert b"rgb" not in terminal.written


@pytest.mark.slow
@pytest.mark.pty
def test_a_late_background_and_a_changed_scheme_change_the_theme(tmp_path: Path) -> None:
    with program(tmp_path, "-m", "qtui", COLORTERM="truecolor") as plain:
        terminal = played(plain, "xterm", delay=3.0)
        terminal.wait_for("0.1015625")
        assert LIGHT_TRUE not in terminal.written
        terminal.wait_until(lambda: LIGHT_TRUE in terminal.written)
        before = len(terminal.written)
        terminal.send("\x1b[?997;1n")
        terminal.wait_until(lambda: DARK_TRUE in terminal.written[before:])
        terminal.settle()
        assert "0.1015625" in terminal.text
        terminal.send("q")
        assert terminal.exit_code() == 0
        assert terminal.written.count(b"\x1b[?2031h") == terminal.written.count(b"\x1b[?2031l") == 1
