"""Asks the estimator for what a panel with a plan shows. Answers are typed, and kept as long as the
plan is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from qtui.engine.answers.tensors import Devices
from qtui.engine.client import ProgressCallback
from qtui.engine.estimator.answers import (
    Answer,
    Assessment,
    CaseFigures,
    MapCell,
    ModelFacts,
    Traced,
)
from qtui.engine.estimator.requests import (
    AssessmentRequest,
    FitMapRequest,
    PlanRequest,
    RequestedDevice,
    SubjectRequest,
)
from qtui.screen.panel.feed import Feed
from qtui.screen.plan.shown import MAP_BATCHES, MAP_SEQUENCES, GpuChoice, Shown
from qtui_core.codec import from_plain

T = TypeVar("T")


class MemoryFeed(Feed):
    """Every method may raise QtuiError (also EngineLost)."""

    async def open(self, shown: Shown) -> ModelFacts:
        """Reads the model's configuration."""
        asked = SubjectRequest(model=shown.model, case=shown.case)
        return await self.ask(ModelFacts, "open", asked)

    async def live(self) -> tuple[GpuChoice, ...]:
        """The GPUs of this machine whose memory is known."""
        found = map(GpuChoice.live, (await self.ask(Devices, "devices")).devices)
        return tuple(choice for choice in found if choice is not None)

    def known(self, shown: Shown) -> Answer | None:
        """The whole answer, if it is known already."""
        found: Answer | None = self.answers.known(("full", shown.asked))
        return found

    async def first(self, shown: Shown) -> Answer:
        """The curve of tensors, within some milliseconds."""
        return await self.ask(Answer, "first", PlanRequest(**_named(shown)))

    async def full(self, shown: Shown) -> Answer:
        """The whole estimate."""
        params, key = PlanRequest(**_named(shown)), ("full", shown.asked)
        return await self.ask(Answer, "full", params, key=key)

    async def trace(self, shown: Shown) -> tuple[Answer, Assessment]:
        """The estimate, and what surrounds it, from a trace of the transformers classes; takes ten
        seconds or more. From then on this is the answer for the plan."""
        asked = shown.asked
        traced = await self.ask(Traced, "trace", _around(shown))
        self.answers.put(("full", asked), traced.answer)
        self.answers.put(("around", asked), traced.around)
        return traced.answer, traced.around

    async def around(self, shown: Shown) -> Assessment:
        """What would save memory, what the plan fits, and the sentence."""
        return await self.ask(Assessment, "around", _around(shown), key=("around", shown.asked))

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
        await self.engine.request("map", params, on_progress=_each(MapCell, on_cell))

    async def cases(self, on_case: Callable[[CaseFigures], None]) -> None:
        """The worked cases with our figures, one by one."""
        await self.engine.request("cases", on_progress=_each(CaseFigures, on_case))


def _each(kind: type[T], tell: Callable[[T], None]) -> ProgressCallback:
    """A progress callback that reads each report as `kind` and passes it to `tell`."""
    return lambda _, data: tell(from_plain(kind, data)) if data else None


def _around(shown: Shown) -> AssessmentRequest:
    live = tuple(RequestedDevice(**choice.params) for choice in shown.live)
    return AssessmentRequest(**_named(shown), live=live)


def _named(shown: Shown) -> dict[str, Any]:
    """The parameters of every request about a plan."""
    return {
        "model": shown.model,
        "case": shown.case,
        "plan": shown.wanted,
        "device": None if shown.gpu is None else RequestedDevice(**shown.gpu.params),
    }
