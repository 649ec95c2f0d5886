"""The events of an evaluation and its result. Standard library only, so that the command, a
recording and the screen use the same objects."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.evaluation.figures import FIGURES, TOKEN_SCORES, TokenScore
from qtui_core.evaluation.settings import EvaluationSettings
from qtui_core.quantities import plural
from qtui_core.recorded_lines import LineKinds

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Candidate:
    """A model that is compared with the original: how its weights were changed, and the scheme of
    the inputs of its linear layers, if they are quantized too."""

    scheme: str
    activations: str | None = None

    @property
    def name(self) -> str:
        """Its name in sentences and tables."""
        return self.scheme if self.activations is None else f"{self.scheme} + {self.activations}"


@dataclass(frozen=True)
class EvaluatedText:
    """The text that the models read: where it comes from, how it was tokenized, its tokens
    (`available`), and what matches a recording with it. A window has `window` tokens, with the
    special token before it, of which the last `scored` are scored."""

    origin: str
    tokenizer: str
    available: int
    digest: str
    window: int
    scored: int
    windows: int


@dataclass(frozen=True)
class EvaluationBegun:
    """The first event of an evaluation: the candidates, the original first, and how many windows go
    through each of them at once. `nbytes` and `parameters` are of the original as stored."""

    model: str
    architecture: str
    parameters: int
    nbytes: int
    settings: EvaluationSettings
    text: EvaluatedText
    candidates: tuple[Candidate, ...]
    batches: tuple[int, ...]
    device: str
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def parts(self) -> int:
        """The number of parts: each candidate on each batch of windows."""
        return len(self.batches) * len(self.candidates)


@dataclass(frozen=True)
class PartScored:
    """A candidate on a batch of windows, both by number.

    Attributes:
        nbytes: of the candidate, with scales and zero points.
        loss, divergence, agreement: a row of TOKEN_SCORES each: `[windows, scored]`, little-endian,
            as base64 text. Empty where the original has none.
    """

    batch: int
    candidate: int
    nbytes: int
    loss: str = ""
    divergence: str = ""
    agreement: str = ""
    seconds: float = 0.0

    def scores(self) -> Iterator[tuple[str, TokenScore, bytes]]:
        """(name, row, values) of each score that this candidate has. Raises ValueError for a text
        that is no base64."""
        for name, score in TOKEN_SCORES.items():
            text = getattr(self, name)
            if (text or not score.later) and (self.candidate or score.of_original):
                yield name, score, b64decode(text, validate=True)


@dataclass(frozen=True)
class EvaluationRow:
    """A candidate over all scored tokens. None where the score of a token is not finite.

    Attributes:
        bits_per_parameter, nbytes: of the whole model as stored, with scales and zero points.
            Quantized activations are not stored.
        kl_mean, kl_median, kl_p999: of the KL divergence of the candidate's distribution of the
            next token from the original's, nats.
        kl_stderr: the standard error of the mean, from the means of the windows, as tokens of one
            window are correlated. None for one window.
        loss: the mean cross entropy of the next token, nats; `perplexity` is its exponential.
        top1_agreement: the share of tokens for which the most likely next token is that of the
            original; of equally likely ones the first counts.
        nonfinite: tokens with a score that is not finite.
        seconds: that it took.
    """

    scheme: str
    activations: str | None
    bits_per_parameter: float
    nbytes: int
    kl_mean: float | None
    kl_stderr: float | None
    kl_median: float | None
    kl_p999: float | None
    loss: float | None
    perplexity: float | None
    top1_agreement: float
    nonfinite: int = 0
    seconds: float = 0.0
    loss_change: float | None = None

    PRINTED = (
        ("scheme", "name"),
        ("weights", "scheme"),
        "activations",
        *((figure.json_name, figure.name) for figure in FIGURES if not figure.differs),
        "seconds",
    )

    @property
    def name(self) -> str:
        return Candidate(self.scheme, self.activations).name


#: What JSON says of the text, read off an object with `begun`, `tokens` and `windows`.
TEXT_ROWS: Final = (
    ("origin", "begun.text.origin"),
    ("tokenizer", "begun.text.tokenizer"),
    ("tokens", "tokens"),
    ("windows", "windows"),
    ("window", "begun.text.window"),
    ("scored", "begun.text.scored"),
    ("asked_windows", "begun.text.windows"),
    ("available_tokens", "begun.text.available"),
    ("digest", "begun.text.digest"),
)


_MODEL_ROWS: Final = (
    ("id", "begun.model"),
    ("architecture", "begun.architecture"),
    ("parameters", "begun.parameters"),
    ("bytes", "begun.nbytes"),
)


@dataclass(frozen=True)
class Evaluation:
    """The result so far. `windows` is the number that every row has read; `ended` is "done",
    "stopped", or empty while it runs. The row of the original comes first."""

    begun: EvaluationBegun
    windows: int
    rows: tuple[EvaluationRow, ...]
    conclusion: str
    ended: str = ""

    PRINTED = (
        ("schema_version", "begun.schema_version"),
        ("model", _MODEL_ROWS),
        ("text", TEXT_ROWS),
        ("settings", "begun.settings"),
        ("device", "begun.device"),
        "rows",
        ("notes", "begun.notes"),
        "ended",
        ("versions", "begun.versions"),
        "conclusion",
    )

    @property
    def tokens(self) -> int:
        """The scored tokens of all windows."""
        return self.windows * self.begun.text.scored


EvaluationEvent = EvaluationBegun | PartScored | Evaluation


@dataclass(frozen=True)
class EvaluationRecording:
    """A recorded evaluation; `complaint` is a sentence about lines that cannot be read, if any."""

    begun: EvaluationBegun
    parts: tuple[PartScored, ...]
    complaint: str = ""


def _recording(
    begun: EvaluationBegun, events: Iterable[EvaluationEvent], complaint: str
) -> EvaluationRecording:
    parts = {(p.batch, p.candidate): p for p in events if isinstance(p, PartScored)}
    fitting = tuple(part for part in parts.values() if _fits(begun, part))
    if left := len(parts) - len(fitting):
        lacks = f"Left out: {plural(left, 'part')} without a number for each scored token."
        complaint = f"{lacks} {complaint}".strip()
    return EvaluationRecording(begun, fitting, complaint)


def _fits(begun: EvaluationBegun, part: PartScored) -> bool:
    """Whether a part is one of those that were begun, and has a number for each scored token."""
    if part.batch >= len(begun.batches) or part.candidate >= len(begun.candidates):
        return False
    tokens = begun.batches[part.batch] * begun.text.scored
    try:
        return all(len(v) == int(score.dtype[-1]) * tokens for _, score, v in part.scores())
    except ValueError:
        return False


def _out_of_place(event: EvaluationEvent) -> str:
    if isinstance(event, EvaluationBegun) and min(event.text.scored, *event.batches, 1) < 1:
        return "It has batches of no windows, or windows of no tokens."
    if isinstance(event, PartScored) and min(event.batch, event.candidate) < 0:
        return "A part has a negative number."
    return ""


EVALUATION_LINES: Final = LineKinds[EvaluationEvent, EvaluationRecording](
    {
        "evaluation begun": EvaluationBegun,
        "evaluation part": PartScored,
        "evaluation result": Evaluation,
    },
    SCHEMA_VERSION,
    "an evaluation",
    EvaluationBegun,
    "the beginning of one",
    _recording,
    over=lambda event: isinstance(event, Evaluation) and event.ended == "done",
    wrong=_out_of_place,
)
is_evaluation_recording: Final = EVALUATION_LINES.begins
read_evaluation_recording: Final = EVALUATION_LINES.read
