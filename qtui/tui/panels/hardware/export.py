"""The contents of the Hardware panel as JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from qtui.tui.panels.hardware.shown import HardwareShown
from qtui_core.roofline.hierarchy import hierarchy


def panel_data(shown: HardwareShown, sentence: str) -> dict[str, Any]:
    """The device, its memory levels and rates, measured rates, and the operations on it."""
    device = shown.device
    return {
        "device": device.name,
        "here": shown.choice.here or None,
        "sentence": sentence,
        "gpus": None if shown.gpus is None else [asdict(reading) for reading in shown.gpus],
        "levels": [asdict(level) for level in hierarchy(device)],
        "rates": dict(device.rates),
        "bandwidth_bytes_per_second": device.bandwidth,
        "source": device.source,
        "measured": {
            "device": None if shown.facts is None else asdict(shown.facts),
            "rates": [asdict(rate) for rate in shown.rates],
        },
        "plan": None if shown.resolved is None else asdict(shown.resolved),
        "assumed": shown.assumed,
        "operations": [asdict(each) for each in shown.placed],
    }


def operations_table(shown: HardwareShown) -> Iterable[Sequence[object]]:
    """A header, and a row for each operation."""
    yield (
        "operation", "group", "times", "operations", "bytes", "operations_per_byte",
        "attainable_per_second", "seconds", "waits_for", "fused_bytes", "fusing_saves_seconds",
    )  # fmt: skip
    for each in shown.placed:
        one = each.operation
        yield (
            one.name, one.group, one.times, one.operations, one.bytes, one.intensity,
            each.attainable, each.seconds, each.presses, one.fused_bytes, each.saves_seconds,
        )  # fmt: skip
