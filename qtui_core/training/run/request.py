"""The request of a run, as one line of JSON, and the commands that other threads give it: pause,
resume, one step, stop, and a reading of the ranges in the next step. Standard library only."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import field, fields, replace
from typing import Any, Final, Literal, get_args

from qtui_core.codec import CodecError, from_plain
from qtui_core.dataclass import dataclass
from qtui_core.errors import QtuiError, UsageError
from qtui_core.memory.plan.run_plan import RunPlan

#: Steps of a run where the user chose none.
USUAL_STEPS: Final = 10
#: Tokens of a sequence of the demo on a CPU where the user chose none: one step of the usual 2,048
#: takes 12 s on two cores, and one of these 2 s.
DEMO_TOKENS: Final = 128
#: The sentence that says so.
DEMO_NOTE: Final = f"On a CPU the demo takes {DEMO_TOKENS} tokens."
#: The kind of the fault that a child tells of `NotBegun`.
NOT_BEGUN: Final = "not begun"


class NotBegun(QtuiError):
    """A run would take memory that other processes need, and nobody has agreed to that. Whoever
    asks the user adds how to."""


@dataclass(frozen=True)
class RunRequest:
    """The request of a run.

    Attributes:
        model: as the user typed it.
        plan: options that it leaves open are filled in later.
        steps: how many; None runs until it is stopped.
        data: path of a text file; None takes the built-in text.
        device: "auto", "cpu", "cuda" or "cuda:N", where N counts the GPUs that CUDA_VISIBLE_DEVICES
            leaves, in the order of NVML.
        text: a prompt whose logits are compared with the adapters on and off; None compares
            nothing.
        usual: the user did not choose the sequence length, so a model with fewer learned positions
            may lower it, and so does the demo on a CPU.
        ranges: whether the last step reports where its numbers lie.
        taking: whether it may take memory that other processes need; otherwise it is refused
            before it takes any.
    """

    model: str
    plan: RunPlan = field(default_factory=RunPlan)
    steps: int | None = None
    data: str | None = None
    device: str = "auto"
    text: str | None = None
    usual: bool = False
    ranges: bool = False
    taking: bool = True


def on_cpu(model: str, plan: RunPlan) -> RunPlan:
    """The plan of a run on a CPU whose sequence length was not chosen: of the demo, a short one."""
    return replace(plan, sequence=min(plan.sequence, DEMO_TOKENS)) if model == "demo" else plan


def parse_request(line: str | bytes) -> RunRequest:
    """The run that a line requests.

    Raises UsageError if it is not such a line, which the program that starts the run should write.
    """
    try:
        fields_given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"A run is requested in one line of JSON: {error}.") from error
    if not isinstance(fields_given, dict) or not isinstance(fields_given.get("model"), str):
        raise UsageError(
            'The request for a run names a model, as in {"model": "demo", "plan": {}}.'
        )
    kinds: Any = (
        (fields_given, RunRequest, "A request for a run has no {}."),
        (fields_given.get("plan"), RunPlan, "A plan has no {}."),
    )
    for given, kind, sentence in kinds:
        names: Any = fields(kind)  # a mistyped one would be ignored
        if unknown := sorted(
            set(given if isinstance(given, dict) else ()) - {n.name for n in names}
        ):
            raise UsageError(sentence.format(", ".join(unknown)))
    try:
        request = from_plain(RunRequest, fields_given)
    except CodecError as error:
        raise UsageError(f"The request for a run is wrong: {error.reason}.") from None
    if request.steps is not None and request.steps < 1:
        raise UsageError(f"The number of steps is a whole number from 1 on, not {request.steps}.")
    return request


Control = Literal["pause", "resume", "step", "stop", "ranges"]
CONTROLS: Final[tuple[Control, ...]] = get_args(Control)


class Stopped(BaseException):
    """The run was asked to stop. It is not derived from Exception, so that no code treats it as a
    failure."""


class Controls:
    """The commands that a run has been given. Any thread may call `say`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._paused = False
        self.stopping = False
        self._single = 0
        self._ranges = False

    def say(self, control: Control) -> None:
        """Gives a command. Pause and step take effect between two steps, ranges in the next step,
        stop at the next phase."""
        with self._changed:
            if control == "pause":
                self._paused, self._single = True, 0
            elif control == "resume":
                self._paused, self._single = False, 0
            elif control == "step":
                self._paused = True
                self._single += 1
            elif control == "ranges":
                self._ranges = True
            else:
                self.stopping = True
            self._changed.notify_all()

    def take_ranges(self) -> bool:
        """Whether ranges were requested since the last call."""
        with self._changed:
            wanted, self._ranges = self._ranges, False
            return wanted

    def check(self) -> None:
        """Raises Stopped if the run should stop."""
        if self.stopping:
            raise Stopped

    def before_step(self, report: Callable[[str], None]) -> None:
        """Returns when the next step may begin. Calls `report` with "paused" if it has to wait, and
        with "running" once it no longer has to. Raises Stopped."""
        with self._changed:
            self.check()
            if not self._paused:
                return
            if not self._single:
                report("paused")
                self._changed.wait_for(lambda: self.stopping or self._single or not self._paused)
                self.check()
                report("running")
            self._single = max(0, self._single - 1)
