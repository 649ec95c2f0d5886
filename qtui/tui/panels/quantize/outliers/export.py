"""What the Outliers view shows, as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from qtui.tui.panels.quantize.outliers.data import (
    Attribution,
    Decomposition,
    Granularities,
    OutlierNumbers,
)


def outliers_data(
    numbers: OutlierNumbers,
    granularities: Granularities | None,
    attribution: Attribution | None,
    decomposition: Decomposition | None,
    *,
    chosen: int,
) -> dict[str, Any]:
    """Everything that is known, null where it is not; `threshold` is where the slider stands;
    what was detected, and beyond which limit, stands in `outliers`."""
    data: dict[str, Any] = {
        "outliers": dataclasses.asdict(numbers),
        "granularities": None if granularities is None else dataclasses.asdict(granularities),
        "attribution": None if attribution is None else dataclasses.asdict(attribution),
        "decomposition": None if decomposition is None else dataclasses.asdict(decomposition),
        "threshold": None,
    }
    if decomposition is not None and decomposition.points:
        data["threshold"] = decomposition.points[chosen].threshold
    return data
