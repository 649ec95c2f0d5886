"""The beginning of a recording: what was run, on which device, and the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from qtui_core.dataclass import dataclass

#: The version of the format. A reader refuses a later one.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class RunDevice:
    """The device of a run.

    Attributes:
        kind: "cuda" or "cpu".
        name: from its driver.
        index: its number among the machine's GPUs in NVML; None on a CPU.
        capacity_bytes: of its memory.
    """

    kind: str
    name: str
    index: int | None = None
    capacity_bytes: int | None = None


@dataclass(frozen=True)
class PredictedPhase:
    """A phase of the estimate: the most bytes allocated in it over all steps; and by component,
    what it holds at its end and at its peak in any step after the first."""

    name: str
    allocated_bytes: int
    held: Mapping[str, int] = field(default_factory=dict)
    peak_held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictedCurve:
    """The bytes alive in a step, to be drawn: for each of `components` a row of values at
    `positions` (ascending event numbers); rows are stacked. `spans` are (phase, first event, one
    after the last)."""

    positions: tuple[int, ...]
    components: tuple[str, ...]
    bytes: tuple[tuple[int, ...], ...]
    spans: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Predicted:
    """The part of the run's estimate that is compared with measurements. Levels are as in
    qtui_core.memory.estimate.Estimate.

    `memory` is the object of the same name from `qtui memory --json`. `paged_bytes` are optimizer
    states that the driver may move to the host. `counted` is as in
    qtui_core.live.snapshot.PhaseEnded: if it is "tensors", all levels are those of live tensors,
    without workspaces, and reserved bytes are None.
    """

    resident_bytes: int
    peak_allocated_bytes: int
    peak_phase: str
    peak_reserved_bytes: int | None
    process_bytes: int
    context_bytes: int
    workspace_bytes: int
    phases: tuple[PredictedPhase, ...]
    curve: PredictedCurve
    advice: tuple[tuple[str, int], ...] = ()
    warning: str = ""
    memory: Mapping[str, Any] = field(default_factory=dict)
    paged_bytes: int = 0
    counted: str = "allocator"


@dataclass(frozen=True)
class RecordingHeader:
    """The first line of a recording.

    Attributes:
        made: when, ISO 8601 with the time zone.
        model, architecture, parameters: of the model that is run.
        device, versions: the device; versions of qtui, torch and the other libraries by name.
        plan: every field of the resolved plan.
        steps: as requested; None runs until it is stopped.
        data: what it learns from: a file's name, or "built-in text".
        predicted: None if there is no estimate, and then `why_not` says why.
    """

    made: str
    model: str
    architecture: str
    parameters: int | None
    device: RunDevice
    versions: Mapping[str, str]
    plan: Mapping[str, Any]
    steps: int | None
    data: str
    predicted: Predicted | None
    why_not: str = ""
    schema_version: int = SCHEMA_VERSION

    PRINTED = (
        "model",
        "architecture",
        "parameters",
        "made",
        "device",
        "versions",
        "plan",
        "steps",
        "data",
    )
