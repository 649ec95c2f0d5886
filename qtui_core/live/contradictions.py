"""Whether what a recording says can be drawn: its types are right where this is asked."""

from __future__ import annotations

import math
from itertools import pairwise

from qtui_core.live.header import PredictedCurve, RecordingHeader
from qtui_core.live.snapshot import Snapshot


def wrong_header(header: RecordingHeader) -> str:
    """A sentence on what in a header contradicts itself; empty where nothing does."""
    return "" if header.predicted is None else _wrong_curve(header.predicted.curve)


def wrong_time(told: Snapshot) -> str:
    """The same for the time of a snapshot."""
    if math.isfinite(told.seconds) and told.seconds >= 0:
        return ""
    return f"Its time, {told.seconds} seconds, is none."


def _wrong_curve(curve: PredictedCurve) -> str:
    if len(curve.bytes) != len(curve.components):
        return "Its predicted curve has not one row for each component."
    if any(len(row) != len(curve.positions) for row in curve.bytes):
        return "A row of its predicted curve has not one value for each position."
    if any(value < 0 for row in curve.bytes for value in row):
        return "Its predicted curve has bytes below zero."
    if any(before >= after for before, after in pairwise(curve.positions)):
        return "The positions of its predicted curve do not rise."
    edges = [edge for _, start, stop in curve.spans for edge in (start, stop)]
    if any(before > after for before, after in pairwise([0, *edges])):
        return "The phases of its predicted curve overlap."
    return ""
