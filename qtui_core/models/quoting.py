"""Text that somebody else wrote, made safe to show.

Tensor names, file names, configuration values, what a server or a child process says: raw on a
terminal they could move the cursor, rename the window or turn the direction of writing. What a
terminal obeys or nobody sees is one thing everywhere, `str.isprintable`: the control characters
C0 (ESC among them), DEL and C1, marks that turn the direction of writing and other invisible
format characters, lone surrogates, line ends, code points without a character, and blanks other
than a space. Here each is escaped as Python would.

Every text passes `printable` where it becomes a line: reports in qtui.report.faces.render,
sentences on stderr in qtui.cli.exits, each line of the app in qtui.tui.terminal, exported files
and copies.
"""

from __future__ import annotations


def quoted(value: object, limit: int = 100) -> str:
    """`value` in quotes, unprintable characters escaped, at most about `limit` characters."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return repr(text)


def named(value: object) -> str:
    """`quoted` without the quotes, for a name in the middle of a sentence."""
    return quoted(value)[1:-1]


def printable(text: str) -> str:
    """`text` without quotes, unprintable characters (and lone surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """A `text` of several lines, made printable except for line breaks and tabs."""
    lines = (map(printable, line.split("\t")) for line in text.split("\n"))
    return "\n".join(map("\t".join, lines))


def listed(names: list[str], limit: int = 3) -> str:
    """The first few names, quoted, and how many more there are."""
    first = ", ".join(quoted(n) for n in names[:limit])
    more = len(names) - limit
    return f"{first} and {more:,} more" if more > 0 else first
