"""What the Quantize panel asks of the engine, typed, and remembered while it is looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from qtui.engine.answers.pictures import BinCounts, MapCells
from qtui.engine.answers.tensors import (
    AllRanked,
    Element,
    Explanation,
    ModelIndex,
    Ranked,
    TensorNumbers,
)
from qtui.engine.client import EngineClient, ProgressCallback
from qtui.screen.panel.answers import Answers
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui.screen.widgets.histogram import HistogramData
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui_core.answers.tensors import ErrorReport
from qtui_core.codec import from_plain


class QuantizeFeed:
    """Answers of the engine by what was asked, so that going back to a scheme or a tensor
    costs nothing. Every method may raise QtuiError (EngineLost among them) and
    RequestCancelled."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.answers = Answers()
        self._captures: dict[str, int] = {}

    async def open(self, model: str, on_progress: ProgressCallback) -> ModelIndex:
        reply = await self.engine.request("open_model", {"model": model}, on_progress=on_progress)
        self.answers.clear()
        self._captures.clear()
        return reply.read(ModelIndex)

    async def numbers(
        self, model: str, subject: Subject, on_progress: ProgressCallback
    ) -> TensorNumbers:
        async def ask() -> TensorNumbers:
            params = {"model": model, **subject.params}
            reply = await self.engine.request("statistics", params, on_progress=on_progress)
            return reply.read(TensorNumbers)

        return await self.answers.remembered(("numbers", model, subject), ask)

    async def histogram(
        self, model: str, subject: Subject, bins: int, on_progress: ProgressCallback
    ) -> HistogramData | None:
        """None for a tensor without a finite element."""

        async def ask() -> HistogramData | None:
            params = {"model": model, **subject.params, "bins": bins}
            reply = await self.engine.request("histogram", params, on_progress=on_progress)
            found = reply.read(BinCounts)
            if not found.edges:
                return None
            low, high = found.edges
            return HistogramData(low, high, found.counts.tolist())

        return await self.answers.remembered(("histogram", model, subject, bins), ask)

    async def errors(
        self, model: str, subject: Subject, scheme: str, on_progress: ProgressCallback
    ) -> ErrorReport:
        async def ask() -> ErrorReport:
            params = {"model": model, **subject.params, "scheme": scheme}
            reply = await self.engine.request("measure", params, on_progress=on_progress)
            return reply.read(ErrorReport)

        return await self.answers.remembered(("errors", model, subject, scheme), ask)

    async def explanation(
        self, model: str, subject: Subject, schemes: Sequence[str], on_progress: ProgressCallback
    ) -> Explanation:
        """What the error of the first scheme means, the others being alternatives."""
        params = {"model": model, **subject.params, "schemes": list(schemes)}
        reply = await self.engine.request("explain", params, on_progress=on_progress)
        return reply.read(Explanation)

    async def map(
        self, model: str, subject: Subject, request: MapRequest, on_progress: ProgressCallback
    ) -> MapPicture:
        async def ask() -> MapPicture:
            params = {"model": model, **subject.params, **request.params}
            reply = await self.engine.request("map", params, on_progress=on_progress)
            found = reply.read(MapCells)
            height, width = found.cells.shape
            cells = found.cells.tolist()
            grid = HeatGrid(found.rows, found.columns, height, width, cells, request.window)
            peaks = tuple(found.peak_rows.tolist()), tuple(found.peak_columns.tolist())
            return MapPicture(request, grid, *peaks)

        return await self.answers.remembered(("map", model, subject, request), ask)

    async def element(
        self, model: str, subject: Subject, scheme: str, row: int, column: int
    ) -> Element:
        params = {
            "model": model,
            **subject.params,
            "scheme": scheme,
            "row": row,
            "column": column,
        }
        reply = await self.engine.request("element", params)
        return reply.read(Element)

    async def rank(
        self, model: str, scheme: str, on_tensor: Callable[[str, float | None], None]
    ) -> bool:
        """SQNR of the tensors, one by one, minus infinity where values became infinite or NaN;
        whether any was measured from a sample."""

        def on_progress(fraction: float, data: dict[str, Any]) -> None:
            if data:
                ranked = from_plain(Ranked, data)
                # Decibels are over what a scheme did not lose, and losing values is worse than any.
                on_tensor(ranked.name, -math.inf if ranked.overflowed else ranked.sqnr_db)

        reply = await self.engine.request(
            "rank", {"model": model, "scheme": scheme}, on_progress=on_progress
        )
        return reply.read(AllRanked).sampled

    def forget_other_captures(self, tensor: str, number: int) -> None:
        """The module of a weight was captured, by a number that differs each time: what was
        answered about an earlier capture of it is no longer true."""
        if self._captures.get(tensor) != number:
            self._captures[tensor] = number
            self.answers.forget(lambda key: any(_captured_of(part, tensor) for part in key))


def _captured_of(part: Any, tensor: str) -> bool:
    return isinstance(part, Subject) and part.tensor == tensor and part.source != WEIGHT
