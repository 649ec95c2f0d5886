"""An Esc and the key behind it are two keys, however their bytes arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.events import Key

from qtui.tui.wire.key_parser import KeyParser
from tests.support.every import every

CASES = {
    "esc j": ("\x1bj", ["escape", "j"]),
    "esc, a digit that Alt makes a character of its own": ("\x1b4", ["escape", "4"]),
    "esc, a letter that Alt makes a movement": ("\x1bfb", ["escape", "f", "b"]),
    "esc tab enter": ("\x1b\t\r", ["escape", "tab", "enter"]),
    "esc, down": ("\x1b\x1b[B", ["escape", "down"]),
    "esc j down": ("\x1bj\x1b[B", ["escape", "j", "down"]),
    "esc twice, q": ("\x1b\x1bq", ["escape", "escape", "q"]),
    "down, esc, question mark": ("\x1b[B\x1b?", ["down", "escape", "question_mark"]),
    "esc, then what may begin a sequence": ("\x1b[", ["escape", "left_square_bracket"]),
    "esc O": ("\x1bO", ["escape", "O"]),
    "F1 by SS3, F5 by CSI": ("\x1bOP\x1b[15~", ["f1", "f5"]),
    "shift and ctrl with arrows": ("\x1b[1;2A\x1b[1;5C", ["shift+up", "ctrl+right"]),
    "shift+tab": ("\x1b[Z", ["shift+tab"]),
    "alt+backspace removes a word": ("\x1b\x7f", ["ctrl+w"]),
    "a letter beyond ASCII": ("\x1bü", ["escape", "ü"]),
}


def keys(*packets: str) -> list[str]:
    """The keys that packets bring, and after them silence."""
    parser = KeyParser()
    found = [event for packet in packets for event in parser.feed(packet)]
    parser._timeout_time = 0.0 if parser._timeout_time is not None else None
    found += parser.tick()
    return [event.key for event in found if isinstance(event, Key)]


def test_each_key_arrives() -> None:
    every(CASES, lambda data, expected: _same(keys(data), expected))


def test_it_does_not_matter_where_a_packet_ends() -> None:
    def check(data: str, expected: list[str]) -> None:
        for cut in range(1, len(data)):
            _same(keys(data[:cut], data[cut:]), expected)
        _same(keys(*data), expected)

    every(CASES, check)


#: Keys that a terminal sends as one character, and as a sequence.
PLAIN = st.sampled_from([*"jkgGnN?/q4]+ \t\r", "\x1b"])
ARROWS = ("\x1b[A", "\x1b[B", "\x1b[5~", "\x1bOP", "\x1b[Z")


@given(st.lists(PLAIN | st.sampled_from(ARROWS), max_size=8))
def test_keys_in_one_packet_are_those_of_many(typed: list[str]) -> None:
    assert keys("".join(typed)) == [key for one in typed for key in keys(one)]
    assert not any(key.startswith("alt+") for key in keys("".join(typed)))


def _same(found: list[str], expected: list[str]) -> None:
    assert found == expected
