"""The requests of the Codebooks panel to the engine, whose answers are cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtui.engine.answers.codes import (
    AtEqualBits,
    Budgets,
    CodesSideBySide,
    SchemeBudget,
    SweepRow,
)
from qtui.engine.answers.tensors import ModelIndex, TensorEntry
from qtui.engine.client import ProgressCallback
from qtui.screen.panel.feed import Feed
from qtui.screen.tensors.subject import Subject
from qtui.tui.panels.codebooks.shown import CodebooksShown, TensorAnswers
from qtui_core.answers import EqualBits, NF4Construction
from qtui_core.schemes.granularity import PerBlock
from qtui_core.schemes.scheme import MAX_DOUBLE_QUANTIZED_BLOCK, Family, Scheme
from qtui_core.schemes.stepping import resize_scheme

SWEEP = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class CodebooksFeed(Feed):
    """Every method may raise QtuiError (also EngineLost)."""

    async def index(self, model: str) -> ModelIndex:
        """The tensors of a model; opens the model if no other panel has."""
        params = {"model": model}
        found = await self.ask(ModelIndex, "model_index", params)
        self.answers.clear()
        return found

    async def columns(
        self,
        model: str,
        subject: Subject,
        schemes: Sequence[Scheme],
        resized: bool,
        on_progress: ProgressCallback,
    ) -> CodesSideBySide:
        """The codes and errors of each scheme on the subject, and the sentence that compares
        them. `resized` says that the schemes were resized to equal bits per parameter."""
        texts = list(map(str, schemes))
        params = {"model": model, **subject.params, "schemes": texts, "resized": resized}
        key = ("columns", model, subject, tuple(schemes), resized)
        return await self.ask(
            CodesSideBySide, "codebooks", params, key=key, on_progress=on_progress
        )

    async def equal_bits(
        self, schemes: Sequence[Scheme], shape: tuple[int, ...]
    ) -> tuple[EqualBits, ...]:
        """Each scheme with groups of the size that gives it the first one's bits per parameter."""
        params = {"schemes": list(map(str, schemes)), "shape": list(shape)}
        return (await self.ask(AtEqualBits, "equal_bits", params)).schemes

    async def budgets(
        self, schemes: Sequence[Scheme], shape: tuple[int, ...]
    ) -> tuple[SchemeBudget, ...]:
        params = {"schemes": list(map(str, schemes)), "shape": list(shape)}
        key = ("budgets", tuple(schemes), shape)
        return (await self.ask(Budgets, "bit_budget", params, key=key)).budgets

    async def sweep(
        self, name: str, nested_block: int, sizes: Sequence[int], shape: tuple[int, ...]
    ) -> tuple[SweepRow, ...]:
        """The bits and the Gaussian SQNR of a codebook format for each block size, with and without
        double quantization."""
        schemes = []
        for size in sizes:
            plain = Scheme(name, PerBlock(size))
            nested = replace(plain, double_quantization=True, nested_block=nested_block)
            schemes += [plain, nested]
        found = await self.budgets(schemes, shape)
        return tuple(
            SweepRow(size, found[2 * at], found[2 * at + 1]) for at, size in enumerate(sizes)
        )

    async def read(
        self, shown: CodebooksShown, entry: TensorEntry, on_progress: ProgressCallback
    ) -> TensorAnswers:
        """Everything that the panel shows of a tensor under the chosen schemes."""
        subject = Subject(entry.name)
        equal: tuple[EqualBits, ...] = ()
        if shown.at_equal_bits:
            equal = await self.equal_bits(shown.asked, entry.matrix)
        schemes = tuple(dict.fromkeys(row.scheme for row in equal)) or shown.asked
        codes = await self.columns(shown.model, subject, schemes, shown.at_equal_bits, on_progress)
        nested = shown.nested_block
        budgets = await self.budgets(_with_and_without(schemes, nested), entry.matrix)
        codebooks = (s.format for s in schemes if s.family is Family.CODEBOOK)
        sizes = sorted({*SWEEP, min(shown.block, MAX_DOUBLE_QUANTIZED_BLOCK)})
        sweep = await self.sweep(next(codebooks, "nf4"), nested, sizes, entry.matrix)
        return TensorAnswers(subject, equal, codes.columns, codes.sentence, budgets, sweep)

    async def construction(self) -> NF4Construction:
        key = ("construction",)
        return await self.ask(NF4Construction, "nf4_construction", key=key)


def _with_and_without(schemes: Sequence[Scheme], nested: int) -> list[Scheme]:
    """The schemes; those with codebooks twice, without and with double quantization."""
    found = []
    for scheme in schemes:
        found.append(resize_scheme(scheme, double_quantization=False))
        found.append(resize_scheme(scheme, double_quantization=True, nested=nested))
    return list(dict.fromkeys(found))
