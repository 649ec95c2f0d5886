"""What the terminal answers about its colours, told apart from the keys that come meanwhile.

Asked are, in one write: the background (OSC 11), the names RGB and Tc of terminfo (XTGETTCAP), a
24-bit colour that was just set (SGR, then DECRQSS), and last what every terminal answers (primary
device attributes, DA1), so that nobody waits for a terminal that does not know the rest. All but
the last are what neovim asks (runtime/lua/vim/_defaults.lua); that every terminal answers DA1 is
what notcurses (TERMINALS.md) and terminal-colorsaurus (terminal_survey) found, of 30 terminals;
QTerminal, the Linux console, PuTTY and older Windows terminals answer that only. GNU screen and the
Linux console are not asked for strings (DCS), which they would print. tmux 3.3a answers DA1, and
OSC 11 for a pane with a background of its own; from 3.4 on OSC 11 always, with what its terminal
said when it was attached (tmux/tmux#3582).
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Final

from qtui.screen.depth import Depth, TerminalSays, depth_of, names_its_depth

#: Seconds that the first lines wait for answers. A terminal on this machine takes 1 to 5 ms.
FIRST_WAIT: Final = 0.05
#: Seconds after the questions until which the program does not end without the answers, so that the
#: shell does not get them.
LAST_WAIT: Final = 1.0
#: Seconds that tmux may take, which it never does: 5 ms are usual.
_TMUX_SECONDS: Final = 0.1

ASK_BACKGROUND: Final = "\x1b]11;?\a"
_TOLD: Final = (1, 2, 3)
_ASK_DEPTH: Final = (
    "\x1bP+q5463\x1b\\\x1bP+q524742\x1b\\"  # Tc, RGB
    "\x1b[0;48;2;{};{};{}m\x1bP$qm\x1b\\\x1b[m".format(*_TOLD)
)
_ASK_LAST: Final = "\x1b[c"
#: Updates of the colour scheme, each of which says that it is dark (1) or light (2) now: "Color
#: Palette Update Notifications" of contour, which kitty, ghostty, foot and tmux 3.6 took over.
FOLLOW_SCHEME, UNFOLLOW_SCHEME = "\x1b[?2031h", "\x1b[?2031l"

_ANSWER: Final = re.compile(
    rb"\x1b(?:\]11;(?P<background>[^\x07\x1b]*)(?:\x07|\x1b\\)"
    rb"|P(?P<report>[01](?:\+r|\$r)[^\x1b]*)\x1b\\"
    rb"|\[\?997;(?P<scheme>[12])n"
    rb"|\[\?[0-9;]*(?P<last>c))"
)
#: The beginning of an answer at the end of what came.
_BEGUN: Final = re.compile(
    rb"\x1b(?:\](?:1(?:1(?:;[^\x07\x1b]*\x1b?)?)?)?"
    rb"|P(?:[01](?:[+$](?:r[^\x1b]*\x1b?)?)?)?"
    rb"|\[(?:\?[0-9;]*)?)?\Z"
)
#: What may also be a key: Escape, or one with Alt.
_MAY_BE_KEYS: Final = (b"\x1b", b"\x1b]", b"\x1bP", b"\x1b[")
_COLOR: Final = re.compile(
    rb"rgba?:([0-9a-f]{1,4})/([0-9a-f]{1,4})/([0-9a-f]{1,4})(?:/[0-9a-f]{1,4})?"
    rb"|#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})",
    re.IGNORECASE,
)
#: The colour that was told, as it comes back: with colons (xterm "0;48:2::1:2:3", kitty
#: "0;48:2:1:2:3") or with semicolons, a colour space between or none.
_GIVEN_BACK: Final = re.compile(
    rb"1\$r(?:0?;)*48[:;]2[:;](?:[01]?[:;])?%d[:;]%d[:;]%dm" % _TOLD,
)


class Listener:
    """Takes what a terminal sends and gives back the keys, in their order and at once; the answers
    are kept in `says`. The start of what may be an answer is held until the rest comes."""

    def __init__(self) -> None:
        self.says = TerminalSays()
        self.asked: float | None = None
        """When (time.monotonic); None if nothing was asked."""
        self.typed = bytearray()
        """Keys that came before there was anybody to take them."""
        self._over = False
        self._held = b""

    def ask(self, depth: bool, background: bool) -> str:
        """What to write; "" to ask for nothing."""
        if not (depth or background):
            return ""
        self.asked = monotonic()
        return ASK_BACKGROUND * background + _ASK_DEPTH * depth + _ASK_LAST

    @property
    def waits(self) -> bool:
        """Whether answers may still come that the shell must not get."""
        return self.asked is not None and not self._over and monotonic() < self.asked + LAST_WAIT

    def keys_of(self, data: bytes) -> bytes:
        """The keys among what came."""
        data = self._held + data
        keys = bytearray()
        at = 0
        for answer in _ANSWER.finditer(data):
            keys += data[at : answer.start()]
            at = answer.end()
            self._hear(answer)
        begun = _BEGUN.search(data, at)
        end = begun.start() if begun else len(data)
        self._held = data[end:]
        return bytes(keys + data[at:end])

    def keys_held(self) -> bytes:
        """Keys that looked like the beginning of an answer, once nothing more came."""
        keys, self._held = (self._held, b"") if self._held in _MAY_BE_KEYS else (b"", self._held)
        return keys

    def _hear(self, answer: re.Match[bytes]) -> None:
        if answer["last"]:
            self._over = True
        elif answer["scheme"]:
            self.says = replace(self.says, light=answer["scheme"] == b"2")
        elif answer["background"] is not None:
            if found := _COLOR.fullmatch(answer["background"]):
                parts = [part for part in found.groups() if part]
                red, green, blue = (int(part, 16) / (16 ** len(part) - 1) for part in parts)
                self.says = replace(self.says, background=(red, green, blue))
        elif not self.says.truecolor:
            report = answer["report"]
            named = report[:3] == b"1+r" and report[3:].partition(b"=")[0] in (b"5463", b"524742")
            given = _GIVEN_BACK.fullmatch(report) is not None
            self.says = replace(self.says, truecolor=named or given)

    def listen(self, terminal: int, seconds: float) -> None:
        """Reads what comes within this time, until the last answer; keys are kept in `typed`."""
        end = monotonic() + seconds
        while self.asked is not None and not self._over:
            if not select.select([terminal], [], [], max(end - monotonic(), 0))[0]:
                return
            data = os.read(terminal, 4096)
            if not data:
                return
            self.typed += self.keys_of(data)


#: Of the terminal of this process.
LISTENER: Final = Listener()


def to_ask(env: Mapping[str, str], color: str, theme: str) -> tuple[bool, bool]:
    """Whether to ask for the depth and for the background, with these settings."""
    term = env.get("TERM", "")
    depth = color == "auto" and not names_its_depth(env)
    # Terminal.app prints what it does not know, and has no such answer.
    depth = depth and env.get("TERM_PROGRAM") != "Apple_Terminal"
    in_screen = bool(env.get("STY")) or (term.startswith("screen") and not env.get("TMUX"))
    return depth, theme == "auto" and not (in_screen or term.startswith("linux"))


def told_beside(env: Mapping[str, str], color: str, says: TerminalSays) -> TerminalSays:
    """With what tmux and terminfo say, where it matters."""
    if color != "auto" or env.get("NO_COLOR"):
        return says
    if env.get("TMUX") and says.tmux is None:
        says = replace(says, tmux=_tmux_features())
    if depth_of(color, env, says)[0] is Depth.TRUECOLOR or says.colors is not None:
        return says
    return _with_terminfo(env.get("TERM", ""), says)


def _tmux_features() -> str | None:
    """What tmux (3.2 and later) says of the terminal that shows this pane."""
    import subprocess

    command = ("tmux", "display-message", "-p", "#{client_termfeatures}")
    try:
        told = subprocess.run(command, capture_output=True, timeout=_TMUX_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.decode(errors="replace").strip() or None


def _with_terminfo(term: str, says: TerminalSays) -> TerminalSays:
    """RGB is a flag, a number or a string of terminfo (user_caps(5)); Tc is tmux's flag."""
    try:
        import curses

        stream = sys.__stdout__
        curses.setupterm(term, stream.fileno() if stream is not None else 1)
        direct = any(curses.tigetflag(name) > 0 for name in ("RGB", "Tc"))
        direct = direct or curses.tigetnum("RGB") > 0 or bool(curses.tigetstr("setrgbf"))
        return replace(says, colors=max(curses.tigetnum("colors"), 0), direct=direct)
    except Exception:  # no curses here (ImportError), or nothing known of this terminal
        return says
