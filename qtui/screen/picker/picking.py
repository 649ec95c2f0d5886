"""What can be picked, and what is shown of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qtui_core.dataclass import dataclass


@dataclass(frozen=True)
class PickerRow:
    """What helps to choose a row: a few words at its end, and a sentence for the line below the
    list. `below`: a typed text that is offered after what matches it, not before."""

    facts: str = ""
    note: str = ""
    below: bool = False


def _nothing_typed(text: str) -> PickerRow | None:
    return None


def _nothing_completed(text: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Picking:
    """A question with its possible answers. The answer is the place of a name, or the text of a row
    that is not among the names: the typed text itself, or what it was completed to.

    Attributes:
        title: what is picked: "Tensor".
        names: what can be picked, in the order without a text.
        row: of a name, by its place. Only rows on the screen are asked for, so that 100,000 names
            cost no more than 40.
        at: the place of the present one.
        hint: what the empty field says.
        none: the sentence where no name has the typed letters.
        typed: the row of the text itself, or None if it means nothing. A UsageError says why the
            text is wrong, where no name matches it.
        completed: texts that the text can become, such as paths; `typed` makes their rows.
    """

    title: str
    names: Sequence[str]
    row: Callable[[int], PickerRow]
    none: str
    at: int = 0
    hint: str = "letters of the name"
    typed: Callable[[str], PickerRow | None] = _nothing_typed
    completed: Callable[[str], Sequence[str]] = _nothing_completed


def text_of(picking: Picking, picked: int | str) -> str:
    """An answer as a text."""
    return picked if isinstance(picked, str) else picking.names[picked]
