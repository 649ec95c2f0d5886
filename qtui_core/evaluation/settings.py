"""The settings of an evaluation. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.schemes.granularity import PerModel
from qtui_core.schemes.scheme import Scheme

#: The default schemes, if there is no scheme, no assignment and no other checkpoint.
USUAL_SCHEMES: Final = ("int8", "nf4", "nf4:dq", "int4", "mxfp4", "nvfp4")
#: The name of the row of the original.
ORIGINAL: Final = "original"
#: Tokens of a window: the default, and the fewest, of which half are context.
WINDOW: Final = 256
LEAST_WINDOW: Final = 16
#: The default number of windows is what a model reads in this many operations (two for each
#: parameter and token), between the least and the most.
OPERATIONS: Final = 10**11
LEAST_WINDOWS: Final = 16
MOST_WINDOWS: Final = 64

Scored = Literal["half", "all"]


@dataclass(frozen=True)
class NamedAssignment:
    """A scheme for each tensor, and the name of its row. None, or no entry, leaves a tensor as
    stored."""

    name: str
    schemes: Mapping[str, Scheme | None]


@dataclass(frozen=True)
class EvaluationSettings:
    """What to compare with the original, and on which text.

    Attributes:
        schemes: each applied to every matrix of the model, as in an inspection.
        activations: schemes for the inputs of linear layers. Every change of the weights is also
            evaluated with each of them.
        assignment: files with a scheme for each tensor.
        given: assignments that are in no file.
        against: another checkpoint of the model, quantized or trained further.
        adapter: a LoRA of peft; then the original is the model as the adapter was trained, and each
            scheme is applied to the merged model, and to the base with the adapter kept apart.
        trained_on: the scheme of the base while the adapter was trained; None if it was as stored.
        keep: shell patterns of names of tensors that schemes leave as stored.
        text: a file; None means a built-in text.
        second_half: whether only the second half of its tokens is read, as the first chose schemes.
        windows: None means as many as a model of this size reads in seconds or minutes.
        window: tokens of a window; None means 256.
        scored: "half" scores the second half of each window, as llama.cpp does; "all" every token
            but the first.
    """

    schemes: tuple[Scheme, ...] = ()
    activations: tuple[Scheme, ...] = ()
    assignment: tuple[str, ...] = ()
    given: tuple[NamedAssignment, ...] = ()
    against: str | None = None
    adapter: str | None = None
    trained_on: Scheme | None = None
    keep: tuple[str, ...] = ()
    text: str | None = None
    second_half: bool = False
    windows: int | None = None
    window: int | None = None
    scored: Scored = "half"
    device: Literal["cpu", "cuda"] = "cpu"

    def settled(self) -> EvaluationSettings:
        """The settings with the default schemes if there is nothing to compare, without duplicates.

        Raises UsageError for settings that cannot be evaluated.
        """
        for name, value, least in (("s", self.windows, 1), ("", self.window, LEAST_WINDOW)):
            if value is not None and value < least:
                raise UsageError(f"--window{name} is {value}; it takes {least} or more.")
        for scheme in (*self.schemes, *self.activations):
            if isinstance(scheme.granularity, PerModel):
                raise UsageError(
                    f"{scheme} shares one scale among all tensors, which an evaluation does not "
                    f"look for beforehand: write {scheme.format}:tensor."
                )
        schemes = self.schemes
        if not (schemes or self.assignment or self.given or self.against is not None):
            schemes = tuple(Scheme.parse(text) for text in USUAL_SCHEMES)
        if self.keep and not schemes:
            raise UsageError(
                "--keep says which tensors --schemes leave as stored: give --schemes too."
            )
        return replace(
            self,
            schemes=tuple(dict.fromkeys(schemes)),
            activations=tuple(dict.fromkeys(self.activations)),
            assignment=tuple(dict.fromkeys(self.assignment)),
        )


def usual_windows(length: int, parameters: int) -> int:
    """The default number of windows of `length` tokens; a short text may have fewer."""
    affordable = OPERATIONS // (2 * max(1, parameters) * length)
    return max(LEAST_WINDOWS, min(MOST_WINDOWS, affordable))
