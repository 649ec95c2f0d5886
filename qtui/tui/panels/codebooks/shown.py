"""The current state of the Codebooks panel."""

from __future__ import annotations

from qtui.engine.answers.codes import CodeColumn, SchemeBudget, SweepRow
from qtui.engine.answers.tensors import ModelIndex, TensorEntry
from qtui.screen.tensors.subject import Subject
from qtui_core.answers import EqualBits, NF4Construction
from qtui_core.dataclass import dataclass
from qtui_core.schemes.formats import NESTED_BLOCK
from qtui_core.schemes.granularity import PerBlock, PerGroup
from qtui_core.schemes.scheme import FIXED_GRANULARITY, Scheme

#: The scheme with a zero point takes 4.5625 bits per parameter, all others 4.5.
FIRST_SCHEMES = tuple(map(Scheme.parse, (
    "nf4:block64", "int4:group64", "int4:group64:asym", "fp4:block64", "e2m1:group64", "nvfp4",
)))  # fmt: skip
BLOCK = 64


@dataclass(frozen=True)
class TensorAnswers:
    """The answers about a tensor under the schemes.

    Attributes:
        read: the subject.
        equal: the schemes at equal bits per parameter; empty if that was not requested.
        columns: codes and errors of each scheme.
        verdict: the sentence that compares the schemes.
        budgets: the bits of each scheme by part.
        sweep: the bits of the first codebook format by block size.
    """

    read: Subject
    equal: tuple[EqualBits, ...]
    columns: tuple[CodeColumn, ...]
    verdict: str
    budgets: tuple[SchemeBudget, ...]
    sweep: tuple[SweepRow, ...]


@dataclass
class CodebooksShown:
    """The state is filled piece by piece; None or empty means not known yet.

    `asked` are the schemes that the user chose. `columns`, `verdict`, `budgets`, `sweep` and
    `equal` are the answers of TensorAnswers; they belong to the subject `read`, which differs from
    `subject` while that is being read. The subject is the tensor as stored, without an outlier that
    the Quantize panel injected. The cursor is on scheme `chosen` and bar `code`; `step` is the
    current step of the construction of NF4.
    """

    model: str
    index: ModelIndex | None = None
    entry: TensorEntry | None = None
    asked: tuple[Scheme, ...] = FIRST_SCHEMES
    at_equal_bits: bool = False
    equal: tuple[EqualBits, ...] = ()
    columns: tuple[CodeColumn, ...] = ()
    verdict: str = ""
    budgets: tuple[SchemeBudget, ...] = ()
    sweep: tuple[SweepRow, ...] = ()
    construction: NF4Construction | None = None
    chosen: int = 0
    code: int = 0
    step: int = 0
    read: Subject | None = None
    nested_block: int = NESTED_BLOCK

    @property
    def schemes(self) -> tuple[str, ...]:
        """The names of the schemes that are shown."""
        return tuple(column.name for column in self.columns)

    @property
    def column(self) -> CodeColumn | None:
        """The scheme that the cursor is on."""
        return self.columns[min(self.chosen, len(self.columns) - 1)] if self.columns else None

    @property
    def current(self) -> bool:
        """Whether the answers belong to the current subject."""
        return bool(self.columns) and self.read == self.subject

    @property
    def subject(self) -> Subject | None:
        """The chosen tensor as stored; None before one is chosen."""
        return None if self.entry is None else Subject(self.entry.name)

    @property
    def block(self) -> int:
        """The block or group size of the first scheme that has one."""
        return next(filter(None, map(group_size, self.asked)), BLOCK)

    @property
    def has_blocks(self) -> bool:
        """Whether any scheme has blocks or groups whose size can be chosen."""
        return any(map(group_size, self.asked))

    @property
    def double_quantization(self) -> bool:
        return any(scheme.double_quantization for scheme in self.asked)

    def choose(self, entry: TensorEntry) -> None:
        """Chooses a tensor; the answers about the previous one stay until its own are known."""
        self.entry = entry

    def take(self, answers: TensorAnswers) -> None:
        self.read, self.equal, self.columns = answers.read, answers.equal, answers.columns
        self.verdict, self.budgets, self.sweep = answers.verdict, answers.budgets, answers.sweep

    def forget(self) -> None:
        """Drops all answers about a tensor."""
        self.columns, self.verdict, self.read = (), "", None
        self.budgets, self.sweep, self.equal = (), (), ()


def group_size(scheme: Scheme) -> int | None:
    """The size of a scheme's blocks or groups; None without any, or if the format fixes it."""
    granularity = scheme.granularity
    if scheme.family in FIXED_GRANULARITY or not isinstance(granularity, PerBlock | PerGroup):
        return None
    return granularity.size
