"""What the Codebooks panel shows at the moment."""

from __future__ import annotations

from qtui.engine.answers.codes import CodeColumn, SchemeBudget, SweepRow
from qtui.engine.answers.tensors import ModelIndex, TensorEntry
from qtui.screen.tensors.subject import Subject
from qtui_core.answers.codes import EqualBits, NF4Construction
from qtui_core.dataclass import dataclass
from qtui_core.schemes.formats import NESTED_BLOCK
from qtui_core.schemes.granularity import PerBlock, PerGroup
from qtui_core.schemes.scheme import FIXED_GRANULARITY, Scheme

#: All take 4.5 bits per parameter but the one with a zero point, which takes 4.5625.
FIRST_SCHEMES = tuple(map(Scheme.parse, (
    "nf4:block64", "int4:group64", "int4:group64:asym", "fp4:block64", "e2m1:group64", "nvfp4",
)))  # fmt: skip
BLOCK = 64


@dataclass(frozen=True)
class TensorAnswers:
    """What is known of schemes on a tensor: each of them, the sentence about all, where their bits
    go, and the same over block sizes; `equal` are the schemes at equal bits, if that was asked."""

    read: Subject
    equal: tuple[EqualBits, ...]
    columns: tuple[CodeColumn, ...]
    verdict: str
    budgets: tuple[SchemeBudget, ...]
    sweep: tuple[SweepRow, ...]


@dataclass
class CodebooksShown:
    """Filled piece by piece; None or empty is what is not known yet.

    `asked` are the schemes as they were chosen, `columns` what is known of them on the tensor,
    resized as in `equal` where that is not empty, and `verdict` is the sentence about them.
    They are of the subject `read`, which is not yet `subject` while that is being read: the
    tensor as it is stored, whatever the Quantize panel has put into it. `chosen` is the scheme and
    `code` the bar that the cursor is on; `step` is that of the construction.
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
        """The schemes that are shown."""
        return tuple(column.name for column in self.columns)

    @property
    def column(self) -> CodeColumn | None:
        """The scheme that the cursor is on."""
        return self.columns[min(self.chosen, len(self.columns) - 1)] if self.columns else None

    @property
    def current(self) -> bool:
        """Whether what is known is of the tensor that is named."""
        return bool(self.columns) and self.read == self.subject

    @property
    def subject(self) -> Subject | None:
        """What is looked at."""
        return None if self.entry is None else Subject(self.entry.name)

    @property
    def block(self) -> int:
        """The size of the blocks or groups of the first scheme that has any."""
        return next(filter(None, map(group_size, self.asked)), BLOCK)

    @property
    def has_blocks(self) -> bool:
        """Whether any of the schemes has blocks or groups of a size that it says."""
        return any(map(group_size, self.asked))

    @property
    def double_quantization(self) -> bool:
        return any(scheme.double_quantization for scheme in self.asked)

    def choose(self, entry: TensorEntry) -> None:
        """Another tensor; what is known stays until its own is."""
        self.entry = entry

    def take(self, answers: TensorAnswers) -> None:
        self.read, self.equal, self.columns = answers.read, answers.equal, answers.columns
        self.verdict, self.budgets, self.sweep = answers.verdict, answers.budgets, answers.sweep

    def forget(self) -> None:
        """What is known is of no use any more."""
        self.columns, self.verdict, self.read = (), "", None
        self.budgets, self.sweep, self.equal = (), (), ()


def group_size(scheme: Scheme) -> int | None:
    """The size of its blocks or groups, where that is chosen and not part of the format."""
    granularity = scheme.granularity
    if scheme.family in FIXED_GRANULARITY or not isinstance(granularity, PerBlock | PerGroup):
        return None
    return granularity.size
