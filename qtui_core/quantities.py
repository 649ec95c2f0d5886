"""Numbers as people read them, for the sentences of the library and every report."""

from __future__ import annotations

_BINARY = ("KiB", "MiB", "GiB", "TiB")


def format_bytes(count: int) -> str:
    """`1536` -> `1.5 KiB`; three significant digits, binary units."""
    return scaled(count, 1024, _BINARY) if count >= 1000 else f"{count:,} B"


def scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    """A count of at least `step` or nearly, in the unit (a power of `step`) that suits it."""
    power = 1
    while count / step**power >= 999.5 and power < len(units):
        power += 1
    return f"{count / step**power:.3g} {units[power - 1]}"
