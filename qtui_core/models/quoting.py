"""Names from files, put into messages.

Tensor names, file names and configuration values are data that somebody else wrote. Raw in
a message they could move the cursor or recolour the terminal; here they are quoted as
Python would, every unprintable character escaped, and cut when absurdly long.
"""

from __future__ import annotations


def quoted(value: object, limit: int = 100) -> str:
    """`value` in quotes, unprintable characters escaped, at most about `limit` characters."""
    text = str(value)
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return repr(text)


def printable(text: str) -> str:
    """`text` without quotes, unprintable characters (and lone surrogates) escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def listed(names: list[str], limit: int = 3) -> str:
    """The first few names, quoted, and how many more there are."""
    shown = ", ".join(quoted(n) for n in names[:limit])
    more = len(names) - limit
    return f"{shown} and {more:,} more" if more > 0 else shown
