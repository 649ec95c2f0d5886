"""The bytes of a training step from the real classes, without weights and without a GPU.

The classes of transformers, peft and bitsandbytes run two steps over fake CUDA tensors. Every
allocation is recorded in the same format that the estimate writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from qtui_core.errors import ModelError, QtuiError, UsageError
from qtui_core.job import IDLE, Job
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.folding import Fold, NotPeriodic, unfold
from qtui_core.memory.replay.record import ALLOCATE, FREE, Component, Event, Phase, Recording
from qtui_core.memory.step.run import MICRO_BATCHES
from qtui_core.training.limits import check_traceable
from qtui_core.training.model import build
from qtui_core.training.model.optimizers import make_optimizer
from qtui_core.training.step import batch_of, run_steps
from qtui_core.training.tracing.fake_cuda import fake_cuda
from qtui_core.training.tracing.fake_kernels import FakeKernels
from qtui_core.training.tracing.tracker import (
    CpuTracker,
    Dimensions,
    Tracker,
    as_on_a_gpu,
    watch_layers,
)

#: How many layers are built on either side of those that represent the others; the next larger
#: number is tried until the layers are alike. None builds all.
_MARGINS = (1, 2, 4, None)


def record(
    config: Mapping[str, Any],
    plan: RunPlan,
    device: str = "cuda",
    steps: int = 2,
    *,
    whole: bool = False,
    job: Job = IDLE,
) -> Recording:
    """Loads, prepares and trains for `steps` steps, and records what is allocated on `device`:
    "cuda" with fake tensors, "cpu" with real ones. The plan leaves nothing open.

    With fake tensors only the fewest layers are built that show which are alike, and stand for the
    rest; all if `whole`, or if some use the keys of others. `job` hears what is being done.

    Raises ModelError and UsageError for what cannot be built, QtuiError if this system cannot
    trace.
    """
    build.quiet()
    plan = replace(plan, accumulation=min(plan.accumulation, MICRO_BATCHES))
    if device == "cuda":
        check_traceable(plan)
    whole |= bool({**config, **(config.get("text_config") or {})}.get("num_kv_shared_layers"))
    for margin in _MARGINS if device == "cuda" and not whole else (None,):
        events, folds = _run(config, plan, device, steps, margin, job)
        try:
            unfolded = unfold(events, folds)
        except NotPeriodic:
            continue
        if _frees_what_lives(unfolded):
            return Recording(unfolded, "trace")
    raise AssertionError("a whole model needs no folding")


def _frees_what_lives(events: Sequence[Event]) -> bool:
    """Whether each storage is freed at most once, and only after it was allocated. If a storage
    lives on through many layers, its copies may not be distinguishable, and more layers must be
    built."""
    alive: set[int] = set()
    for event in events:
        if event[0] == ALLOCATE:
            alive.add(event[1])
        elif event[0] == FREE and event[1] not in alive:
            return False
        elif event[0] == FREE:
            alive.remove(event[1])
    return True


def _run(
    config: Mapping[str, Any],
    plan: RunPlan,
    device: str,
    steps: int,
    margin: int | None,
    job: Job,
) -> tuple[tuple[Event, ...], tuple[Fold, ...]]:
    on_gpu = device == "cuda"
    tracker = Tracker(device, dimensions=Dimensions(config, plan)) if on_gpu else CpuTracker()
    with ExitStack() as stack:
        stack.enter_context(fake_cuda(plan) if on_gpu else as_on_a_gpu())
        job.at(0, 0, "building the class")
        with _told_as(ModelError, "transformers cannot build the model of this config.json"):
            built = build.load(config, plan, device, margin)
        tracker.places.stacks = built.stacks
        tracker.phase(Phase.LOAD)
        tracker.track(built.state(), build.component_of_state(built))
        stack.enter_context(tracker)
        if on_gpu:
            stack.enter_context(FakeKernels())
        tracker.phase(Phase.PREPARE)
        with _told_as(UsageError, "The model cannot be prepared as the plan asks"):
            build.prepare(built, plan)
        tracker.track(built.state(), build.component_of_state(built))
        batch = batch_of(built, plan, device)
        tracker.track(batch.items(), Component.INPUTS)
        tracker.places.watch(built.model)
        few = sum(len(stack.layers) for stack in built.stacks)
        job.at(0, 0, f"running {few:,} of {few + sum(fold.added for fold in built.folds):,} layers")
        for layers in built.stacks:
            watch_layers(layers, tracker.layer)
        with _told_as(QtuiError, f"A step of {type(built.model).__name__} failed"):
            optimizer = make_optimizer(plan, built.model) if plan.trains else None
            run_steps(built, optimizer, plan, batch, tracker, steps)
    return tracker.events(), built.folds


@contextmanager
def _told_as(kind: type[QtuiError], what: str) -> Iterator[None]:
    """A context in which failures of the libraries become a sentence. Libraries raise whatever a
    configuration or a plan causes in their constructors and functions."""
    try:
        yield
    except QtuiError:
        raise
    except Exception as error:
        if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
            kind = ModelError
            what = "A trace cannot follow this model, whose code depends on values of tensors"
        first = (str(error).strip().splitlines() or [""])[0]
        raise kind(f"{what}: {type(error).__name__}: {first}") from error
