"""What a run reports while it runs: a header, which says what is run and what was predicted, then
snapshots, the last of them an `End`.

A run is a child process that writes them as lines of JSON (qtui_core.recorded_lines); a recording
is those lines in a file. So a live run and a replay are read in the same way. Bytes are integers,
`seconds` count from the beginning of the run; None means unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from qtui_core.dataclass import dataclass
from qtui_core.formats.magnitudes import Magnitudes

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
    PhaseEnded: if it is "tensors", all levels are those of live tensors,
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

    PRINTED = ("model", "architecture", "parameters", "made", "device", "versions", "plan", "steps",
               "data")  # fmt: skip


@dataclass(frozen=True)
class PhaseBegun:
    """A phase begins. Its name is one of qtui_core.memory.replay.record.Phase, or "import" or
    "quantize" before the first step. `step` is 0 before the first."""

    seconds: float
    step: int
    phase: str


@dataclass(frozen=True)
class PhaseEnded:
    """A phase has ended: exact values, read at its end.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: the peaks in this phase alone.
        allocated_bytes, reserved_bytes: at its end.
        inactive_split_bytes, segments, retries, out_of_memory: from torch.cuda.memory_stats.
        held: bytes at its end by component (the names of qtui_core.memory.replay.record.Component),
            from the storages of parameters, gradients, optimizer states and inputs; "activations"
            are all other allocated bytes.
        peak_held: the same at the peak; empty if unknown (on a GPU).
        process_bytes: of this process on the device, from NVML; on a CPU the resident set size.
        device_used_bytes: of all processes.
        counted: "allocator" on a GPU, "tensors" if bytes of live tensors were counted instead.
    """

    seconds: float
    step: int
    phase: str
    peak_allocated_bytes: int
    allocated_bytes: int
    peak_reserved_bytes: int | None = None
    reserved_bytes: int | None = None
    inactive_split_bytes: int | None = None
    segments: int | None = None
    retries: int | None = None
    out_of_memory: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    peak_held: Mapping[str, int] = field(default_factory=dict)
    process_bytes: int | None = None
    device_used_bytes: int | None = None
    counted: str = "allocator"


@dataclass(frozen=True)
class Sample:
    """The state of the machine, read twenty times a second. Each value may be None."""

    seconds: float
    step: int
    phase: str
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    active_bytes: int | None = None
    inactive_split_bytes: int | None = None
    process_bytes: int | None = None
    device_used_bytes: int | None = None
    device_free_bytes: int | None = None
    rss_bytes: int | None = None
    utilisation_percent: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    clock_mhz: int | None = None


@dataclass(frozen=True)
class StepTaken:
    """A step has ended: its loss (nats per token; NaN if it is not a number), how long it took, and
    how many tokens it learned from. An inference has no loss."""

    seconds: float
    step: int
    loss: float | None
    step_seconds: float
    tokens: int


@dataclass(frozen=True)
class AdaptersCompared:
    """The logits of one text with the adapters on and off, from one copy of the base.

    Attributes:
        largest_difference: of any logit, between adapters on and off.
        reference_difference: the largest between adapters off and the base before adapters were
            added: 0 if the base did not change.
        on, off: (token, probability) of the most likely next tokens, best first.
    """

    seconds: float
    step: int
    largest_difference: float
    reference_difference: float | None
    on: tuple[tuple[str, float], ...]
    off: tuple[tuple[str, float], ...]


#: A tensor of a linear layer: its input, the gradient of its output, its weight, and the gradient
#: of its weight.
RangeKind = Literal["activations", "output gradients", "weights", "weight gradients"]


@dataclass(frozen=True)
class TensorRange:
    """The magnitudes of one tensor of the linear layer `name`."""

    kind: RangeKind
    name: str
    found: Magnitudes


@dataclass(frozen=True)
class StepRanges:
    """The magnitudes of a step's tensors. Gradients are reported without the loss scale, which was
    `scale`."""

    seconds: float
    step: int
    scale: float
    ranges: tuple[TensorRange, ...]


@dataclass(frozen=True)
class LogMessage:
    """A line for the log: what the run is doing, or what a library printed."""

    seconds: float
    text: str


@dataclass(frozen=True)
class Fault:
    """Something went wrong; the run ends, or continues if the fault is not fatal.

    Attributes:
        kind: "out of memory", "not a number", "driver", "killed", "model", "not begun",
            "failure".
        text: a sentence for the user: what happened, and what to do.
        asked_bytes: the request that failed, if memory ran out.
        largest: (component, bytes) that were held then, the largest first.
        advice: (change, bytes that it saves), the best first.
    """

    seconds: float
    step: int
    phase: str
    kind: str
    text: str
    fatal: bool = True
    asked_bytes: int | None = None
    largest: tuple[tuple[str, int], ...] = ()
    advice: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class State:
    """The run pauses or continues: "running", "paused"."""

    seconds: float
    state: str


@dataclass(frozen=True)
class End:
    """The run is over: "done", "stopped" or "failed"."""

    seconds: float
    reason: str


Snapshot = (
    PhaseBegun | PhaseEnded | Sample | StepTaken | AdaptersCompared | StepRanges | LogMessage
    | Fault | State | End
)  # fmt: skip
