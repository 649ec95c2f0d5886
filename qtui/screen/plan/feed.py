"""Asks the estimator for what a panel with a plan shows. Answers are typed, and kept as long as the
plan is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qtui.engine.answers.tensors import Devices
from qtui.engine.client import EngineClient, ProgressCallback
from qtui.engine.estimator.answers import (
    Answer,
    Around,
    CaseFigures,
    MapCell,
    ModelFacts,
    Traced,
)
from qtui.engine.estimator.requests import (
    AroundRequest,
    DeviceAsked,
    FitMapRequest,
    PlanRequest,
    SubjectRequest,
)
from qtui.screen.panel.answers import Answers
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, GpuChoice, Shown
from qtui_core.codec import from_plain

T = TypeVar("T")


class MemoryFeed:
    """Every method may raise QtuiError (also EngineLost) and RequestCancelled."""

    def __init__(self, estimator: EngineClient) -> None:
        self.estimator = estimator
        self.answers = Answers()

    async def open(self, shown: Shown) -> ModelFacts:
        """Reads the model's configuration."""
        asked = SubjectRequest(model=shown.model, case=shown.case)
        reply = await self.estimator.request("open", asked)
        return reply.read(ModelFacts)

    async def live(self) -> tuple[GpuChoice, ...]:
        """The GPUs of this machine whose memory is known."""
        reply = await self.estimator.request("devices")
        found = map(GpuChoice.live, reply.read(Devices).devices)
        return tuple(choice for choice in found if choice is not None)

    def known(self, shown: Shown) -> Answer | None:
        """The whole answer, if it is known already."""
        found: Answer | None = self.answers.known(("full", shown.asked))
        return found

    async def first(self, shown: Shown) -> Answer:
        """The curve of tensors, within some milliseconds."""
        reply = await self.estimator.request("first", PlanRequest(**_named(shown)), kind="estimate")
        return reply.read(Answer)

    async def full(self, shown: Shown) -> Answer:
        """The whole estimate."""

        async def ask() -> Answer:
            reply = await self.estimator.request("full", params, kind="estimate")
            return reply.read(Answer)

        params = PlanRequest(**_named(shown))
        found: Answer = await self.answers.remembered(("full", shown.asked), ask)
        return found

    async def trace(self, shown: Shown) -> tuple[Answer, Around]:
        """The estimate, and what surrounds it, from a trace of the transformers classes; takes ten
        seconds or more. From then on this is the answer for the plan."""
        asked = shown.asked
        reply = await self.estimator.request("trace", _around(shown), kind="estimate")
        traced = reply.read(Traced)
        self.answers.put(("full", asked), traced.answer)
        self.answers.put(("around", asked), traced.around)
        return traced.answer, traced.around

    async def around(self, shown: Shown) -> Around:
        """What would save memory, what the plan fits, and the sentence."""

        async def ask() -> Around:
            reply = await self.estimator.request("around", params)
            return reply.read(Around)

        params = _around(shown)
        found: Around = await self.answers.remembered(("around", shown.asked), ask)
        return found

    async def map(
        self,
        shown: Shown,
        on_cell: Callable[[MapCell], None],
        batches: Sequence[int] = MAP_BATCHES,
        sequences: Sequence[int] = MAP_SEQUENCES,
    ) -> None:
        """The map, cell by cell: first a peak, later a verdict."""
        grid: dict[str, Any] = {"batches": tuple(batches), "sequences": tuple(sequences)}
        params = FitMapRequest(**_named(shown), **grid)
        await self.estimator.request("map", params, on_progress=_each(MapCell, on_cell))

    async def cases(self, on_case: Callable[[CaseFigures], None]) -> None:
        """The worked cases with our figures, one by one."""
        await self.estimator.request("cases", on_progress=_each(CaseFigures, on_case))


def _each(kind: type[T], tell: Callable[[T], None]) -> ProgressCallback:
    """A progress callback that reads each report as `kind` and passes it to `tell`."""
    return lambda _, data: tell(from_plain(kind, data)) if data else None


def _around(shown: Shown) -> AroundRequest:
    live = tuple(DeviceAsked(**choice.params) for choice in shown.live)
    return AroundRequest(**_named(shown), live=live)


def _named(shown: Shown) -> dict[str, Any]:
    """The parameters of every request about a plan."""
    return {
        "model": shown.model,
        "case": shown.case,
        "plan": shown.plan,
        "device": None if shown.gpu is None else DeviceAsked(**shown.gpu.params),
    }
