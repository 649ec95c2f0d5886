"""The requests of the Outliers view to the engine."""

from __future__ import annotations

from typing import Any, TypeVar

from qtui.engine.answers.outliers import (
    DecompositionSweep,
    ErrorByColumn,
    Granularities,
    OutlierNumbers,
)
from qtui.engine.client import ProgressCallback
from qtui.tui.panels.quantize.feed import QuantizeFeed
from qtui.tui.panels.quantize.outliers.detection import Detection
from qtui.tui.panels.quantize.tensor_reader import Look

T = TypeVar("T")

#: How many columns are tried one by one, each time quantizing the whole tensor; fewer for tensors
#: with at least LARGE elements.
TRIES, FEW_TRIES, LARGE = 8, 4, 1 << 25


async def ask_outliers(
    feed: QuantizeFeed, look: Look, detection: Detection, heard: ProgressCallback
) -> OutlierNumbers:
    """The detected outliers. Like all functions here it may raise QtuiError."""
    return await _ask(feed, look, "outliers", OutlierNumbers, detection.params, heard)


async def ask_granularities(
    feed: QuantizeFeed, look: Look, heard: ProgressCallback
) -> Granularities:
    """The error of the active scheme's format under each granularity; each row is also reported as
    progress."""
    scheme = {"scheme": look.schemes[look.active]}
    return await _ask(feed, look, "granularities", Granularities, scheme, heard)


async def ask_attribution(
    feed: QuantizeFeed, look: Look, detection: Detection, elements: int, heard: ProgressCallback
) -> ErrorByColumn:
    """The share of the active scheme's error that each detected column causes."""
    tries = TRIES if elements < LARGE else FEW_TRIES
    params = {"scheme": look.schemes[look.active], "tries": tries, **detection.params}
    return await _ask(feed, look, "attribution", ErrorByColumn, params, heard)


async def ask_decomposition(
    feed: QuantizeFeed, look: Look, threshold: float | None, heard: ProgressCallback
) -> DecompositionSweep:
    """The SQNR and bits of the active scheme with LLM.int8() at several thresholds, including this
    one."""
    params = {"scheme": look.schemes[look.active], "threshold": threshold}
    return await _ask(feed, look, "decomposition", DecompositionSweep, params, heard)


async def _ask(
    feed: QuantizeFeed,
    look: Look,
    what: str,
    kind: type[T],
    params: dict[str, Any],
    heard: ProgressCallback,
) -> T:
    request = {"model": look.model, **look.subject.params, **params}
    key = (what, look.model, look.subject, *params.values())
    return await feed.ask(kind, what, request, key=key, on_progress=heard)
