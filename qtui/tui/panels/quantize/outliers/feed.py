"""What the Outliers view asks of the engine."""

from __future__ import annotations

from typing import Any

from qtui.engine.client import ProgressCallback
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.loading import Look
from qtui.tui.panels.quantize.outliers.data import (
    Attribution,
    Decomposition,
    Granularities,
    OutlierNumbers,
)
from qtui.tui.panels.quantize.outliers.detection import Detection

#: Columns tried one by one, each of which quantizes the whole tensor; fewer of a large one.
TRIES, FEW_TRIES, LARGE = 8, 4, 1 << 25


async def ask_outliers(
    feed: QuantizeFeed, look: Look, detection: Detection, heard: ProgressCallback
) -> OutlierNumbers:
    """Raises as every question to the engine may: QtuiError and RequestCancelled."""
    return OutlierNumbers.parse(await _ask(feed, look, "outliers", detection.params, heard))


async def ask_granularities(
    feed: QuantizeFeed, look: Look, heard: ProgressCallback
) -> Granularities:
    """Of the active scheme's format; each row is also told as progress."""
    scheme = {"scheme": look.schemes[look.active]}
    return Granularities.parse(await _ask(feed, look, "granularities", scheme, heard))


async def ask_attribution(
    feed: QuantizeFeed, look: Look, detection: Detection, elements: int, heard: ProgressCallback
) -> Attribution:
    """Of the active scheme, to the columns that the detection finds."""
    tries = TRIES if elements < LARGE else FEW_TRIES
    params = {"scheme": look.schemes[look.active], "tries": tries, **detection.params}
    return Attribution.parse(await _ask(feed, look, "attribution", params, heard))


async def ask_decomposition(
    feed: QuantizeFeed, look: Look, threshold: float | None, heard: ProgressCallback
) -> Decomposition:
    """Of the active scheme where it can be decomposed; at this threshold among others."""
    params = {"scheme": look.schemes[look.active], "threshold": threshold}
    return Decomposition.parse(await _ask(feed, look, "decomposition", params, heard))


async def _ask(
    feed: QuantizeFeed, look: Look, what: str, params: dict[str, Any], heard: ProgressCallback
) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        request = {"model": look.model, **look.subject.params, **params}
        return (await feed.engine.request(what, request, on_progress=heard)).data

    key = (what, look.model, look.subject, *params.values())
    answer: dict[str, Any] = await feed.answers.remembered(key, ask)
    return answer
