"""Schemes and their formats to pick from, with the bits that they take."""

from __future__ import annotations

from functools import lru_cache

from qtui.screen.picker.picking import PickerRow, Picking
from qtui_core.errors import UsageError
from qtui_core.schemes.formats import SCHEME_FORMATS
from qtui_core.schemes.scheme import Scheme
from qtui_core.schemes.stepping import with_format

#: Endings that are listed of each format that can have them.
_ENDINGS = (
    "", "tensor", "row", "group32", "group64", "group128", "group128:asym", "group64:asym",
    "row:asym", "block32", "block64", "block128", "block64:dq", "block128:dq", "tile128x128",
)  # fmt: skip
#: The shape without a tensor: a common matrix.
COMMON = (4096, 4096)
Shape = tuple[int, ...] | None


@lru_cache(maxsize=1)
def listed_schemes() -> tuple[str, ...]:
    """The schemes that people use of each format; any other can be typed."""
    found: dict[str, None] = {}
    for name in SCHEME_FORMATS:
        for ending in _ENDINGS:
            try:
                found[str(Scheme.parse(f"{name}:{ending}".rstrip(":")))] = None
            except UsageError:
                continue  # the format has no such granularity
    return tuple(found)


def bits_text(scheme: Scheme, shape: Shape) -> str:
    """ "4.25 bits" for each parameter of a tensor, scales included."""
    from qtui_core.quant.storage import bits_per_parameter  # numpy, which the first panel lacks

    return f"{bits_per_parameter(scheme, shape or COMMON):.4g} bits"


def scheme_row(scheme: Scheme, shape: Shape, more: str = "") -> PickerRow:
    """Of a scheme; `more` is a sentence about what Enter does."""
    of = "of this tensor" if shape else "of a 4096 by 4096 matrix"
    bits = bits_text(scheme, shape)
    note = f"{scheme}: {bits} for each parameter {of}, scales included. {more}"
    return PickerRow(bits, note.rstrip())


def scheme_picking(present: Scheme, shape: Shape) -> Picking:
    """Another scheme in place of the present one: a usual one, or any that is typed."""
    names = tuple(dict.fromkeys((str(present), *listed_schemes())))
    return Picking(
        title="Scheme",
        names=names,
        row=lambda at: scheme_row(Scheme.parse(names[at]), shape),
        none="No scheme that is listed has these letters in this order.",
        hint="letters, or a scheme: int4:group64:asym",
        typed=lambda text: scheme_row(Scheme.parse(text), shape),
    )


def format_picking(present: Scheme, shape: Shape) -> Picking:
    """Another format of a scheme, which keeps what the format can have of its other parts."""
    names = tuple(SCHEME_FORMATS)

    def row(at: int) -> PickerRow:
        fmt = SCHEME_FORMATS[names[at]]
        scheme = with_format(present, fmt.name)
        note = f"The scheme becomes {scheme}, {bits_text(scheme, shape)} for each parameter."
        return PickerRow(f"{fmt.family.value}, {fmt.bits} bits", note)

    none = "No format has these letters in this order."
    return Picking("Format", names, row, none, names.index(present.format))
