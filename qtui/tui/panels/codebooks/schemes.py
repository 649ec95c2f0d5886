"""How keys and typed text change the schemes that are compared."""

from __future__ import annotations

from typing import Any, Final

from qtui.screen.picker.picking import PickerRow, Picking
from qtui.screen.picker.schemes import bits_text, listed_schemes, scheme_row
from qtui.tui.panels.codebooks.shown import CodebooksShown
from qtui_core.errors import UsageError
from qtui_core.quantities import plural
from qtui_core.schemes.scheme import Family, Scheme, check_side_by_side
from qtui_core.schemes.stepping import resize_scheme

#: The sizes that keys choose, of blocks and groups (in elements) and of nested blocks (in scales).
SIZES: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def schemes_picking(shown: CodebooksShown) -> Picking:
    """One more scheme beside those that are compared, or several in their place."""
    shape = shown.entry.shape if shown.entry is not None and shown.entry.elements else None
    names = [str(each) for each in map(Scheme.parse, listed_schemes()) if each.bits <= 8]

    def typed(text: str) -> PickerRow:
        found = taken_schemes(shown, text)
        words = [f"{each} {bits_text(each, shape)}" for each in found]
        if len(split_schemes(text)) == 1:
            there = found == shown.asked
            more = "It is compared already." if there else f"Beside it: {', '.join(words[:-1])}."
            return scheme_row(Scheme.parse(text), shape, more)
        facts = plural(len(found), "scheme")
        return PickerRow(facts, f"Compares {facts}, and no others: {', '.join(words)}.")

    def row(at: int) -> PickerRow:
        try:
            return typed(names[at])
        except UsageError as error:  # they would be too many
            return PickerRow(bits_text(Scheme.parse(names[at]), shape), str(error))

    return Picking(
        title="Schemes",
        names=names,
        row=row,
        none="No scheme that is listed has these letters in this order.",
        hint="one more, or all to compare: nf4 int4:group64 int4:group64:asym",
        typed=typed,
    )


def split_schemes(text: str) -> list[str]:
    """The texts of schemes, between which are blanks or commas."""
    return text.replace(",", " ").split()


def taken_schemes(shown: CodebooksShown, text: str) -> tuple[Scheme, ...]:
    """What is compared after `text` is taken: with one more scheme, or with several in place of the
    others; without duplicates. Raises UsageError for a text that is no scheme, and for schemes that
    cannot be compared code by code."""
    typed = [Scheme.parse(word) for word in split_schemes(text)]
    if not typed:
        raise UsageError("Type at least one scheme, for example: nf4 int4 int4:group64:asym.")
    schemes = tuple(dict.fromkeys(typed if len(typed) > 1 else (*shown.asked, *typed)))
    check_side_by_side(schemes)
    return schemes


def take_schemes(shown: CodebooksShown, text: str) -> None:
    """Compares what `taken_schemes` finds; the cursor is on the scheme that was added."""
    words, schemes = split_schemes(text), taken_schemes(shown, text)
    shown.chosen = schemes.index(Scheme.parse(words[0])) if len(words) == 1 else 0
    shown.asked = schemes
    nested = (scheme.nested_block for scheme in schemes if scheme.double_quantization)
    shown.nested_block = next(nested, shown.nested_block)


def turn_equal_bits(shown: CodebooksShown) -> None:
    """Gives all schemes the bits per parameter of the first one, or their own again."""
    shown.at_equal_bits = not shown.at_equal_bits


def remove_chosen(shown: CodebooksShown) -> None:
    """Removes the scheme under the cursor. Raises UsageError for the last one."""
    if len(shown.asked) < 2:
        raise UsageError("The last scheme cannot be removed: s types others in its place.")
    # At equal bits two of the schemes may have become the same; both are removed.
    column = shown.column
    now = [row.scheme for row in shown.equal]
    if len(now) != len(shown.asked):
        now = list(shown.asked)
    kept = [
        asked
        for asked, scheme in zip(shown.asked, now, strict=True)
        if column is None or scheme != column.scheme
    ]
    shown.asked = tuple(kept) or shown.asked
    shown.chosen = min(shown.chosen, len(shown.asked) - 1)


def step_block(shown: CodebooksShown, by: int) -> None:
    """Takes the next larger (1) or smaller (-1) size of blocks and groups. Raises UsageError if no
    scheme has any, and at the ends of SIZES."""
    if not shown.has_blocks:
        raise UsageError("None of these schemes has blocks or groups whose size can be changed.")
    size = _step(shown.block, by)
    if size == shown.block:
        raise UsageError(f"Blocks and groups here have {SIZES[0]} to {SIZES[-1]:,} elements.")
    _resize(shown, size=size)


def step_nested_block(shown: CodebooksShown, by: int, *, budget: bool) -> None:
    """Lets more (1) or fewer (-1) scales share a constant of double quantization. Raises UsageError
    at the ends of SIZES, and if double quantization is off, unless the `budget` is shown, which
    also has the bits with double quantization."""
    if not shown.double_quantization and not budget:
        raise UsageError("Double quantization is off here: D turns it on.")
    size = _step(shown.nested_block, by)
    if size == shown.nested_block:
        raise UsageError(
            f"Here {SIZES[0]} to {SIZES[-1]:,} scales share a constant of double quantization."
        )
    shown.nested_block = size
    _resize(shown, nested=size)


def turn_double_quantization(shown: CodebooksShown) -> None:
    """Turns double quantization on or off. Raises UsageError if no scheme can have it."""
    if not any(scheme.family is Family.CODEBOOK for scheme in shown.asked):
        raise UsageError("Only nf4 and fp4 have double quantization; neither is compared here.")
    on = not shown.double_quantization
    _resize(shown, double_quantization=on, nested=shown.nested_block)


def _resize(shown: CodebooksShown, **changes: Any) -> None:
    found = (resize_scheme(scheme, **changes) for scheme in shown.asked)
    shown.asked = tuple(dict.fromkeys(found))


def _step(size: int, by: int) -> int:
    """The next larger or smaller of SIZES; at the ends the same."""
    if by > 0:
        return next((each for each in SIZES if each > size), SIZES[-1])
    return next((each for each in reversed(SIZES) if each < size), SIZES[0])
