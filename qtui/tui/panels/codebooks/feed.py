"""What the Codebooks panel asks of the engine, typed, and remembered while it is looked at."""

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
from qtui.engine.client import EngineClient, ProgressCallback
from qtui.screen.panel.answers import Answers
from qtui.screen.tensors.subject import Subject
from qtui.tui.panels.codebooks.shown import CodebooksShown, TensorAnswers
from qtui_core.answers.codes import EqualBits, NF4Construction
from qtui_core.schemes.granularity import PerBlock
from qtui_core.schemes.scheme import MAX_DOUBLE_QUANTIZED_BLOCK, Family, Scheme
from qtui_core.schemes.stepping import resize_scheme

SWEEP = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class CodebooksFeed:
    """Answers by what was asked. Every method may raise QtuiError (EngineLost among them) and
    RequestCancelled."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self._answers = Answers()

    async def index(self, model: str) -> ModelIndex:
        """The tensors of a model, which is opened where no other panel has."""
        reply = await self.engine.request("model_index", {"model": model}, kind="codebooks.index")
        self._answers.clear()
        return reply.read(ModelIndex)

    async def columns(
        self,
        model: str,
        subject: Subject,
        schemes: Sequence[Scheme],
        resized: bool,
        on_progress: ProgressCallback,
    ) -> CodesSideBySide:
        """Each scheme on what is looked at, and the sentence about all of them."""

        async def ask() -> CodesSideBySide:
            params = {
                "model": model,
                **subject.params,
                "schemes": list(map(str, schemes)),
                "resized": resized,
            }
            reply = await self.engine.request("codebooks", params, on_progress=on_progress)
            return reply.read(CodesSideBySide)

        return await self._answers.remembered(
            ("columns", model, subject, tuple(schemes), resized), ask
        )

    async def equal_bits(
        self, schemes: Sequence[Scheme], shape: tuple[int, ...]
    ) -> tuple[EqualBits, ...]:
        """The schemes at the bits per parameter of the first one."""
        params = {"schemes": list(map(str, schemes)), "shape": list(shape)}
        reply = await self.engine.request("equal_bits", params, kind=None)
        return reply.read(AtEqualBits).schemes

    async def budgets(
        self, schemes: Sequence[Scheme], shape: tuple[int, ...]
    ) -> tuple[SchemeBudget, ...]:
        async def ask() -> tuple[SchemeBudget, ...]:
            params = {"schemes": list(map(str, schemes)), "shape": list(shape)}
            reply = await self.engine.request("bit_budget", params, kind=None)
            return reply.read(Budgets).budgets

        return await self._answers.remembered(("budgets", tuple(schemes), shape), ask)

    async def sweep(
        self, name: str, nested_block: int, sizes: Sequence[int], shape: tuple[int, ...]
    ) -> tuple[SweepRow, ...]:
        """A codebook format over block sizes, with and without double quantization."""
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
        """Everything about a tensor under the schemes that were asked for."""
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
        async def ask() -> NF4Construction:
            reply = await self.engine.request("nf4_construction", kind=None)
            return reply.read(NF4Construction)

        return await self._answers.remembered(("construction",), ask)


def _with_and_without(schemes: Sequence[Scheme], nested: int) -> list[Scheme]:
    """The schemes, codebooks with and without double quantization."""
    found = []
    for scheme in schemes:
        found.append(resize_scheme(scheme, double_quantization=False))
        found.append(resize_scheme(scheme, double_quantization=True, nested=nested))
    return list(dict.fromkeys(found))
