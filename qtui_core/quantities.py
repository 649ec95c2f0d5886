"""Numbers as people read and type them, for all sentences and reports."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from qtui_core.errors import UsageError

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL = ("K", "M", "B", "T")


def format_bytes(count: int) -> str:
    """`1536` -> `1.5 KiB`; three significant digits, binary units."""
    if count < 0:
        return f"-{format_bytes(-count)}"
    return scaled(count, 1024, _BINARY) if count >= 1000 else f"{count:,} B"


def format_count(count: int) -> str:
    """`4558080` -> `4.56 M`; exact below ten thousand."""
    return scaled(count, 1000, _DECIMAL) if count >= 10_000 else f"{count:,}"


def scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    """A count of at least about `step`, in the largest unit (a power of `step`) that suits it.
    Beyond the last unit as `1,234 EiB`, and from a million of it on as `1.23e+6 EiB`."""
    power = 1
    # In integers: no float can represent a count of 1e309.
    while power < len(units) and 2 * count >= 1999 * step**power:
        power += 1
    unit, name = step**power, units[power - 1]
    if 2 * count < 1999 * unit:
        return f"{count / unit:.3g} {name}"
    if 2 * count < 1_999_999 * unit:
        return f"{count / unit:,.0f} {name}"
    from decimal import Decimal

    return f"{Decimal(count) / unit:.2e} {name}"


def signed_bytes(count: int) -> str:
    """The bytes with a minus sign if they are negative: `−1.5 KiB`."""
    return f"{'−' if count < 0 else ''}{format_bytes(abs(count))}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 column`, `1,200 columns`. `many` is the plural if it is
    irregular."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def phrase(names: Sequence[str], word: str = "and") -> str:
    """Names as in a sentence: "a, b and c"."""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def percent(share: float) -> str:
    """A share of 0 to 1 as `63%`. Rounded down, so that `100%` means all."""
    if 0 < share < 0.01:
        return "under 1%"
    return f"{math.floor(100 * share)}%"


def db_text(db: float) -> str:
    """Decibels with one decimal, never `-0.0`."""
    return f"{round(db, 1) + 0.0:.1f}"


def power_text(exponent: int) -> str:
    """2 to the power of `exponent`: `1024`, `2^11`."""
    return str(1 << exponent) if exponent <= 10 else f"2^{exponent}"


def shortened(text: str) -> str:
    """The text, shortened to what is readable."""
    return text if len(text) <= 60 else f"{text[:60]}…"


#: Bytes of each binary unit, as people type it in any case.
BINARY_UNITS: Final = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
#: The least and the most bytes that can be the memory of a GPU; anything else is a typing error.
_LEAST: Final = 1 << 20
_MOST: Final = 1 << 50


def parse_memory(text: str) -> int:
    """Bytes of an amount of memory: "24GiB", "24 GB", "81559 MiB", "40g", or a plain number of GiB.
    GB means GiB, as GPU vendors (nearly) use it.

    Raises UsageError if the text is no amount of memory.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgt])(?:i?b)?|b)?", text.strip().lower())
    if match is None:
        raise UsageError(
            f"{shortened(text)!r} is no amount of memory; write it with its unit, as in 24GiB or "
            "81559MiB."
        )
    unit = match[2] or ("" if "b" in text.lower() else "g")
    amount = float(match[1]) * BINARY_UNITS[f"{unit}ib" if unit else "b"]
    if not _LEAST <= amount <= _MOST:
        raise UsageError(
            f"{shortened(text)!r} is not the memory of a GPU, which is between 1 MiB and 1 PiB; "
            "write it with its unit, as in 24GiB. A plain number means GiB."
        )
    return int(amount)
