"""An assignment held against the model: how far it and its rivals are from the original on text
that did not choose it, and which of them to take. The rivals are single schemes of about as many
bytes, and a rule that needs no measurement.

All candidates read the same windows, so the standard error of a difference is computed from the
differences of the windows. One candidate beats another if its mean divergence is lower by more
standard errors than `beyond_chance` (in `conclude`) says, as in `qtui eval`: chance does that in
less than 1 of 100 cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.conclude import (
    Comparisons,
    PairedDifference,
    beyond_chance,
    broken_original,
    errors_apart,
    figures_of,
    short_figures,
    windows_of,
)
from qtui_core.evaluation.results import TEXT_ROWS, EvaluationBegun, EvaluationRow, PartScored
from qtui_core.evaluation.sensitivity.report import Sensitivity, UniformPoint
from qtui_core.evaluation.settings import NamedAssignment
from qtui_core.evaluation.summary import compare_candidates
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
#: The simplest first.
_SIMPLE: Final[tuple[RivalKind, ...]] = ("uniform", "rule", "assignment")


@dataclass(frozen=True)
class Rivals:
    """The candidates of a judgement, `given`, the assignment first, with the kind of each by its
    name. `rule` says what the rule means for this model, or why it is no candidate."""

    kinds: Mapping[str, RivalKind]
    given: tuple[NamedAssignment, ...]
    rule: str


def rivals_of(source: ModelSource, result: Sensitivity) -> Rivals:
    """The assignment, the rule, and the nearest single schemes, all for the tensors that were
    weighed; other tensors stay as stored."""
    chosen = result.schemes
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
    for uniform in nearest(result.uniform, result.point.nbytes):
        add(uniform.scheme, "uniform", Scheme.parse(uniform.scheme))
    return Rivals(kinds, tuple(given), words)


def nearest(uniform: Sequence[UniformPoint], nbytes: int) -> list[UniformPoint]:
    """The AT_MOST single schemes nearest to `nbytes` that take no more, and the ABOVE nearest that
    take more. Of several with the same bytes, the one with the least error counts."""
    best: dict[int, UniformPoint] = {}
    for row in sorted(uniform, key=lambda row: row.point.error):
        best.setdefault(row.point.nbytes, row)
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


@dataclass(frozen=True)
class JudgedRow:
    """A candidate. `difference` is its divergence minus that of the assignment; None for the
    assignment itself, and if one of both is not finite."""

    row: EvaluationRow
    kind: RivalKind
    difference: PairedDifference | None

    PRINTED = (
        ("", "row"),
        "kind",
        ("kl_difference", lambda row: row.difference and row.difference.difference),
        ("kl_difference_stderr", lambda row: row.difference and row.difference.stderr),
    )

    @property
    def name(self) -> str:
        return f"the rule {self.row.name}" if self.kind == "rule" else self.row.name


@dataclass(frozen=True)
class Judgement:
    """The result.

    Attributes:
        windows: the number that every row has read.
        rows: the assignment first.
        limit: the number of standard errors beyond which a difference counts.
        recommended: the name of the row to take; "" if nothing is decided.
        ended: "done" or "stopped".
    """

    begun: EvaluationBegun
    windows: int
    rows: tuple[JudgedRow, ...]
    limit: float
    recommended: str
    conclusion: str
    ended: str

    PRINTED = (
        ("text", TEXT_ROWS),
        ("assignment", lambda judgement: judgement.rows[0] if judgement.rows else None),
        "rows",
        ("standard_errors_that_count", "limit"),
        ("recommended", lambda judgement: judgement.recommended or None),
        ("notes", "begun.notes"),
        "ended",
        "conclusion",
    )

    @property
    def tokens(self) -> int:
        """The scored tokens of all windows."""
        return self.windows * self.begun.text.scored

    @property
    def other(self) -> str:
        """The name of what is recommended in place of the assignment; "" if nothing is."""
        return self.recommended if self.rows and self.recommended != self.rows[0].row.name else ""


def judge(
    begun: EvaluationBegun,
    parts: Sequence[PartScored],
    kinds: Mapping[str, RivalKind],
    ended: str = "done",
) -> Judgement:
    """The judgement of an evaluation whose first candidate after the original is the assignment.
    `kinds` are those of the candidates, by name."""
    windows, evaluated, compared = compare_candidates(begun, parts)
    if len(evaluated) < len(begun.candidates):
        said = (
            "Stopped before every candidate had read a window, so nothing is known of how far the "
            "assignment is from the model: run it again."
        )
        return Judgement(begun, 0, (), beyond_chance(0), "", said, ended)
    original, own, *_ = evaluated
    rows = tuple(
        JudgedRow(row, kinds[row.name], compared.get((row.name, own.name))) for row in evaluated[1:]
    )
    take, said = None, broken_original(original, windows * begun.text.scored)
    if not original.nonfinite:
        take, said = _verdict(rows, windows, compared)
    if ended == "stopped":
        said = f"Stopped after {windows:,} of {windows_of(begun.text.windows)}. {said}"
    name = "" if take is None else take.row.name
    return Judgement(begun, windows, rows, beyond_chance(windows), name, said, ended)


def _verdict(
    rows: Sequence[JudgedRow], windows: int, compared: Comparisons
) -> tuple[JudgedRow | None, str]:
    """What to take of the rows, None if that is not decided; and the sentence."""
    own, limit = rows[0], beyond_chance(windows)
    finite = [row for row in rows if row.row.kl_mean is not None]
    # That take no more bytes than the assignment.
    fitting = [row for row in finite if row.row.nbytes <= own.row.nbytes]
    others = [row for row in fitting if row is not own]

    def beats(row: JudgedRow, other: JudgedRow) -> bool:
        apart = compared[row.row.name, other.row.name]
        return apart.difference < 0 and apart.errors > limit

    def beaten(row: JudgedRow, by: Sequence[JudgedRow]) -> bool:
        return any(beats(other, row) for other in by if other is not row)

    def simplest(of: Sequence[JudgedRow]) -> JudgedRow:
        """The simplest of the rows that no other of them beats; of several the smallest."""
        return min(
            (row for row in of if not beaten(row, of)),
            key=lambda row: (_SIMPLE.index(row.kind), row.row.nbytes, row.row.kl_mean),
        )

    best = min(others, key=_order, default=None)
    if own.row.kl_mean is None:
        bad = f"The assignment gives logits that are not finite for {own.row.nonfinite:,} of the"
        advice = "name schemes that reach further, as nothing else in its bytes gives finite ones"
        if best is not None:
            advice = f"take {best.name} instead, {figures_of(best.row)}"
        return best, f"{bad} tokens: {advice}."
    on = f"On {windows_of(windows).replace(' window', ' held-out window')} the assignment"
    if best is None:
        return own, (
            f"{on} is {figures_of(own.row)}, and nothing to compare it with takes as few bytes: "
            f"take it if there is no room for more."
        )
    mine = short_figures(own.row)
    if windows < 2:
        return None, (
            f"One held-out window gives no standard error, so nothing is decided: {own.name} has a "
            f"KL of {mine}, {best.name} {short_figures(best.row)}; give a longer text."
        )
    if beating := [row for row in others if beats(row, own)]:
        take = simplest(beating)
        size = "as many" if take.row.nbytes == own.row.nbytes else "fewer"
        return take, (
            f"{on} is worse than {take.name}, which takes {size} bytes, by {_apart(take)} (KL "
            f"{mine} against {short_figures(take.row)}): take {take.name}, not the assignment."
        )
    if any(not beaten(row, fitting) for row in others):
        take = simplest(fitting)
        return take, (
            f"{on} and {take.name} cannot be told apart (KL {mine} and {short_figures(take.row)}, "
            f"{_apart(take)}, where {limit:.1f} count), so the assignment gains nothing that this "
            f"text shows: take {take.name}, which is simpler."
        )
    return own, (
        f"{on} is the best of its bytes: {figures_of(own.row)}, {_apart(best)} below {best.name} "
        f"({short_figures(best.row)}), the next: take it."
    )


def _apart(row: JudgedRow) -> str:
    """The distance of a row from the assignment, in words."""
    return errors_apart(0.0 if row.difference is None else row.difference.errors)


def _order(row: JudgedRow) -> tuple[float, int]:
    return row.row.kl_mean or 0.0, row.row.nbytes
