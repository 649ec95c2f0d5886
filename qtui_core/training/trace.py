"""Bytes of a training step from the real classes, without weights and without a GPU.

The classes of transformers, peft and bitsandbytes run two steps over fake CUDA tensors, and every
allocation is recorded into the same format that the estimate writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from qtui_core.memory.plan import RunPlan, resolve
from qtui_core.memory.record import Component, Label, Phase, Recording
from qtui_core.training import build
from qtui_core.training.fake_cuda import fake_cuda
from qtui_core.training.fake_kernels import FakeKernels
from qtui_core.training.optimizers import make_optimizer
from qtui_core.training.places import watch_layers
from qtui_core.training.step import batch_of, run_steps
from qtui_core.training.tracker import Tracker


def record(
    config: Mapping[str, Any], plan: RunPlan, device: str = "cuda", steps: int = 2
) -> Recording:
    """Loads, prepares and trains for `steps` steps, recording what is allocated on `device`:
    "cuda" over fake tensors, "cpu" over real ones.

    Raises ModelError and UsageError for what cannot be built, QtuiError where this system cannot
    trace.
    """
    build.quiet()
    plan = resolve(plan, str(config.get("torch_dtype") or config.get("dtype") or "bf16"))
    tracker = Tracker(device)
    with ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(fake_cuda(plan))
        built = build.load(config, plan, device)
        tracker.phase(Phase.LOAD)
        _track(built, tracker, Component.WEIGHTS)
        stack.enter_context(tracker)
        if device == "cuda":
            stack.enter_context(FakeKernels())
        tracker.phase(Phase.PREPARE)
        build.prepare(built, plan)
        _track(built, tracker, Component.ADAPTERS)
        batch = batch_of(built, plan, device)
        tracker.track(batch.items(), Label("batch", Component.INPUTS))
        tracker.places.watch(built.model)
        for layers, indices in built.stacks:
            watch_layers(list(layers), indices, tracker.layer)
        optimizer = make_optimizer(plan, built.trained)
        run_steps(built, optimizer, plan, batch, tracker, steps)
    return Recording(tuple(tracker.events), "trace")


def _track(built: build.Built, tracker: Tracker, component: Component) -> None:
    tracker.track(built.state(), Label("weights", component))
