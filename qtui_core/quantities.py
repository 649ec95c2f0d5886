"""Numbers as people read them, for the sentences of the library and every report."""

from __future__ import annotations

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(count: int) -> str:
    """`1536` -> `1.5 KiB`; three significant digits, binary units."""
    if count < 0:
        return f"-{format_bytes(-count)}"
    return scaled(count, 1024, _BINARY) if count >= 1000 else f"{count:,} B"


def scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    """A count of at least `step` or nearly, in the unit (a power of `step`) that suits it. Beyond
    the last one `1,234 EiB`, and from a million of it on `1.23e+6 EiB`."""
    power = 1
    # In integers: no float holds a count of 1e309.
    while power < len(units) and 2 * count >= 1999 * step**power:
        power += 1
    unit, name = step**power, units[power - 1]
    if 2 * count < 1999 * unit:
        return f"{count / unit:.3g} {name}"
    if 2 * count < 1_999_999 * unit:
        return f"{count / unit:,.0f} {name}"
    from decimal import Decimal

    return f"{Decimal(count) / unit:.2e} {name}"
