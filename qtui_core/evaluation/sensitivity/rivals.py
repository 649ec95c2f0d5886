"""What an assignment of schemes to tensors is held against: single schemes of about as many bytes,
and a rule that needs no measurement. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.sensitivity.report import Sensitivity, UniformPoint
from qtui_core.evaluation.settings import NamedAssignment
from qtui_core.inspection.recipes.recipe import RecipeTensor, tensors_of
from qtui_core.models import ModelSource
from qtui_core.models.quoting import quoted
from qtui_core.schemes.scheme import Scheme

#: The rule: the first scheme for every matrix, the second for the head, whose error reaches the
#: logits directly.
RULE: Final = ("nf4:dq", "int8")
#: The name of the row of the assignment.
THE_ASSIGNMENT: Final = "the assignment"
#: How many single schemes with at most the bytes of the assignment are evaluated with it, and how
#: many with more: those nearest in bytes. Each costs as much as the assignment.
AT_MOST: Final = 3
ABOVE: Final = 1

RivalKind = Literal["assignment", "rule", "uniform"]


@dataclass(frozen=True)
class Rivals:
    """The candidates of a judgement, `given`, the assignment first, with the kind of each by its
    name. `rule` says what the rule means for this model, or why it is no candidate."""

    kinds: Mapping[str, RivalKind]
    given: tuple[NamedAssignment, ...]
    rule: str


def rivals_of(source: ModelSource, found: Sensitivity) -> Rivals:
    """The assignment, the rule, and the nearest single schemes, all for the tensors that were
    weighed; other tensors stay as stored."""
    chosen = found.schemes
    own = {name: None if text is None else Scheme.parse(text) for name, text in chosen.items()}
    kinds: dict[str, RivalKind] = {THE_ASSIGNMENT: "assignment"}
    given = [NamedAssignment(THE_ASSIGNMENT, own)]

    def add(name: str, kind: RivalKind, scheme: Scheme, **heads: Scheme) -> None:
        kinds[name] = kind
        given.append(NamedAssignment(name, {**dict.fromkeys(chosen, scheme), **heads}))

    heads, words = _heads(tensors_of(source.tensors.values(), chosen), source.config or {})
    if heads and set(heads) <= set(chosen):
        scheme, for_head = map(Scheme.parse, RULE)
        head = heads[0].removesuffix(".weight").rpartition(".")[2]
        name = f"{RULE[0]} with {head} in {RULE[1]}"
        add(name, "rule", scheme, **dict.fromkeys(heads, for_head))
    elif heads:
        words = f"not evaluated: {quoted(heads[0])}, the head, is not among the chosen tensors"
    for uniform in nearest(found.uniform, found.point.nbytes):
        add(uniform.scheme, "uniform", Scheme.parse(uniform.scheme))
    return Rivals(kinds, tuple(given), words)


def nearest(uniform: Sequence[UniformPoint], nbytes: int) -> list[UniformPoint]:
    """The AT_MOST single schemes nearest to `nbytes` that take no more, and the ABOVE nearest that
    take more. Of several with the same bytes, the one with the least error counts."""
    best: dict[int, UniformPoint] = {}
    for each in sorted(uniform, key=lambda each: each.point.error):
        best.setdefault(each.point.nbytes, each)
    sizes = sorted(best)
    fitting = [size for size in sizes if size <= nbytes]
    chosen = fitting[-AT_MOST:] + sizes[len(fitting) : len(fitting) + ABOVE]
    return [best[size] for size in chosen]


def _heads(tensors: Sequence[RecipeTensor], config: Mapping[str, Any]) -> tuple[list[str], str]:
    """The tensors that make the logits, and what the rule means by them. A tied head is the
    embedding."""
    rule = f"{RULE[0]} for every matrix, {RULE[1]} for"
    heads = sorted((t.name for t in tensors if t.is_head), key=lambda name: name.count("."))[:1]
    if heads and config.get("tie_word_embeddings") is not True:
        return heads, f"{rule} {heads[0]}"
    # The embedding of tokens has more rows than those of positions and kinds of tokens.
    table = max((t for t in tensors if t.is_embedding), key=lambda t: t.rows, default=None)
    if table is None:
        return [], "not evaluated: no tensor is known as the head of this model"
    return [table.name, *heads], f"{rule} {table.name}, which is the head too (tied)"
