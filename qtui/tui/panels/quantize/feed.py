"""The requests of the Quantize panel to the engine, whose answers are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qtui.engine.answers.evaluation import EvaluationProgress
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
from qtui.engine.requests import EvaluationRequest
from qtui.screen.panel.feed import Feed
from qtui.screen.tensors.subject import WEIGHT, Subject
from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui.screen.widgets.histogram import HistogramData
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui_core.answers import ErrorReport
from qtui_core.codec import from_plain
from qtui_core.evaluation.results import Evaluation
from qtui_core.evaluation.settings import EvaluationSettings


class QuantizeFeed(Feed):
    """Every method may raise QtuiError (also EngineLost)."""

    def __init__(self, engine: EngineClient) -> None:
        super().__init__(engine)
        self._captures: dict[str, int] = {}

    async def open(self, model: str, on_progress: ProgressCallback) -> ModelIndex:
        found = await self.ask(ModelIndex, "open_model", {"model": model}, on_progress=on_progress)
        self.answers.clear()
        self._captures.clear()
        return found

    async def numbers(
        self, model: str, subject: Subject, on_progress: ProgressCallback
    ) -> TensorNumbers:
        params, key = {"model": model, **subject.params}, ("numbers", model, subject)
        return await self.ask(TensorNumbers, "statistics", params, key=key, on_progress=on_progress)

    async def histogram(
        self, model: str, subject: Subject, bins: int, on_progress: ProgressCallback
    ) -> HistogramData | None:
        """The histogram of the values in `bins` bins; None without a finite value."""

        async def ask() -> HistogramData | None:
            params = {"model": model, **subject.params, "bins": bins}
            found = await self.ask(BinCounts, "histogram", params, on_progress=on_progress)
            if not found.edges:
                return None
            low, high = found.edges
            return HistogramData(low, high, found.counts.tolist())

        return await self.answers.remembered(("histogram", model, subject, bins), ask)

    async def errors(
        self, model: str, subject: Subject, scheme: str, on_progress: ProgressCallback
    ) -> ErrorReport:
        params = {"model": model, **subject.params, "scheme": scheme}
        key = ("errors", model, subject, scheme)
        return await self.ask(ErrorReport, "measure", params, key=key, on_progress=on_progress)

    async def explanation(
        self, model: str, subject: Subject, schemes: Sequence[str], on_progress: ProgressCallback
    ) -> Explanation:
        """The sentence about the error of the first scheme; the others are alternatives."""
        params = {"model": model, **subject.params, "schemes": list(schemes)}
        return await self.ask(Explanation, "explain", params, on_progress=on_progress)

    async def map(
        self, model: str, subject: Subject, request: MapRequest, on_progress: ProgressCallback
    ) -> MapPicture:
        async def ask() -> MapPicture:
            params = {"model": model, **subject.params, **request.params}
            found = await self.ask(MapCells, "map", params, on_progress=on_progress)
            height, width = found.cells.shape
            cells = found.cells.tolist()
            grid = HeatGrid(found.rows, found.columns, height, width, cells, request.window)
            peaks = tuple(found.peak_rows.tolist()), tuple(found.peak_columns.tolist())
            return MapPicture(request, grid, *peaks)

        return await self.answers.remembered(("map", model, subject, request), ask)

    async def element(
        self, model: str, subject: Subject, scheme: str, row: int, column: int
    ) -> Element:
        at = {"scheme": scheme, "row": row, "column": column}
        return await self.ask(Element, "element", {"model": model, **subject.params, **at})

    async def rank(
        self, model: str, scheme: str, on_tensor: Callable[[str, float | None], None]
    ) -> bool:
        """Calls `on_tensor` with the name and SQNR in dB of each tensor; the SQNR is minus infinity
        if values became infinite or NaN, None if there is no error, and NaN if no element was
        finite before. Returns whether a tensor was measured from a sample of its rows."""

        def on_progress(fraction: float, data: dict[str, Any]) -> None:
            if data:
                ranked = from_plain(Ranked, data)
                on_tensor(ranked.name, ranked.sqnr_db)

        params = {"model": model, "scheme": scheme}
        return (await self.ask(AllRanked, "rank", params, on_progress=on_progress)).sampled

    async def evaluation(
        self,
        model: str,
        settings: EvaluationSettings,
        heard: Callable[[float, Evaluation | None], None],
    ) -> Evaluation:
        """How far the model is from the original under each scheme. `heard` gets the progress, 0 to
        1, and the result so far if there is more of it."""

        def on_progress(fraction: float, data: dict[str, Any]) -> None:
            heard(fraction, from_plain(EvaluationProgress, data).found if data else None)

        asked = EvaluationRequest(model=model, settings=settings)
        return await self.ask(Evaluation, "evaluation_so_far", asked, on_progress=on_progress)

    def forget_other_captures(self, tensor: str, number: int) -> None:
        """Drops answers about earlier captures of a weight's module; `number` is the number of the
        latest."""
        if self._captures.get(tensor) != number:
            self._captures[tensor] = number
            self.answers.forget(lambda key: any(_captured_of(part, tensor) for part in key))


def _captured_of(part: Any, tensor: str) -> bool:
    return isinstance(part, Subject) and part.tensor == tensor and part.source != WEIGHT
