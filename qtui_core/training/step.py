"""Steps of training as a Trainer takes them, with the phases marked."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from qtui_core.memory.plan import RunPlan
from qtui_core.memory.record import Component, Phase
from qtui_core.training.build import DTYPES, Built
from qtui_core.training.optimizers import optimizer_tensors
from qtui_core.training.tracker import Tracker


def batch_of(built: Built, plan: RunPlan, device: torch.device | str) -> dict[str, torch.Tensor]:
    """What a step reads: int64 `input_ids` `[batch, sequence]`, which are the labels too, and
    under a padding mask an int64 `attention_mask` that hides the last token of the first row."""
    size = (plan.batch, plan.sequence)
    ids = torch.randint(0, built.configuration.vocab_size, size, device=device)
    batch = {"input_ids": ids, "labels": ids}
    if plan.padding_mask:
        mask = torch.ones(size, dtype=torch.int64, device=device)
        mask[0, -1] = 0
        batch["attention_mask"] = mask
    return batch


def run_steps(
    built: Built,
    optimizer: Any,
    plan: RunPlan,
    batch: dict[str, torch.Tensor],
    tracker: Tracker,
    steps: int = 2,
) -> list[float | None]:
    """Takes steps under the tracker, which is entered already, and gives their losses (None on
    fake tensors). Nothing is collected as garbage meanwhile: what only a cycle keeps alive stays,
    as it does for a while in a real run."""
    losses: list[float | None] = []
    outputs = None
    with _undisturbed(), _losses_marked(built.model, tracker):
        tracker.calibrate()
        for _ in range(steps):
            for _ in range(plan.accumulation):
                tracker.phase(Phase.FORWARD)
                with _autocast(plan, batch):
                    outputs = built.model(**batch)
                loss = outputs.loss
                if plan.loop == "trainer":
                    outputs = None
                if plan.accumulation > 1:
                    loss = loss / plan.accumulation
                tracker.phase(Phase.BACKWARD)
                loss.backward()
                last = _value(loss)
                del loss
            losses.append(last)
            tracker.phase(Phase.OPTIMIZER)
            optimizer.step()
            states = optimizer_tensors(optimizer, built.model.named_parameters())
            tracker.track(states, Component.OPTIMIZER)
            optimizer.zero_grad(set_to_none=True)
            if plan.loop != "script":
                outputs = None
            tracker.phase(Phase.BETWEEN)
    return losses


def run_prefill(
    built: Built, plan: RunPlan, batch: dict[str, torch.Tensor], tracker: Tracker
) -> None:
    """The prompt of an inference: no gradients, a cache, logits of the last token of each sequence
    where the class can leave the others out."""
    del batch["labels"]
    settings: dict[str, Any] = {"use_cache": True} if built.model.can_generate() else {}
    if "logits_to_keep" in inspect.signature(built.model.forward).parameters:
        settings["logits_to_keep"] = 1
    if built.model.config.is_encoder_decoder:
        settings["decoder_input_ids"] = batch["input_ids"][:, :1]
    with _undisturbed(), torch.no_grad():
        tracker.phase(Phase.FORWARD)
        with _autocast(plan, batch):
            outputs = built.model(**batch, **settings)
        del outputs
        tracker.phase(Phase.BETWEEN)


def _autocast(plan: RunPlan, batch: dict[str, torch.Tensor]) -> AbstractContextManager[Any]:
    if not plan.autocast:
        return nullcontext()
    return torch.autocast(batch["input_ids"].device.type, dtype=DTYPES[plan.autocast_dtype])


@contextmanager
def _losses_marked(model: Any, tracker: Tracker) -> Iterator[None]:
    """The loss is a phase of its own, from the logits on: from the model's loss function where it
    has one, else from the cross entropy that it calls itself."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own, plain = base.loss_function, functional.cross_entropy

    def marked(function: Any) -> Any:
        def compute(*args: Any, **kwargs: Any) -> Any:
            if tracker.at == Phase.FORWARD:
                tracker.phase(Phase.LOSS)
            return function(*args, **kwargs)

        return compute

    base.loss_function = marked(own)
    functional.cross_entropy = marked(plain)
    try:
        yield
    finally:
        base.loss_function, functional.cross_entropy = own, plain


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No collection of garbage, and the backward pass in this thread, where modes are entered."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        if enabled:
            gc.enable()


def _value(loss: torch.Tensor) -> float | None:
    from torch._subclasses.fake_tensor import FakeTensor

    return None if isinstance(loss, FakeTensor) else float(loss.detach())
