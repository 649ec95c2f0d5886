"""Training steps as a Trainer takes them, with marks for their phases."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice, repeat
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import without_logits
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.shape import from_config as classes
from qtui_core.training.model.build import Built, autocast_of
from qtui_core.training.model.optimizers import host_tensors, optimizer_tensors, scaler_tensors
from qtui_core.training.tracing.tracker import ComponentOf, NamedTensors, Tracker


def batch_of(built: Built, plan: RunPlan, device: torch.device | str) -> dict[str, torch.Tensor]:
    """The inputs of a step: int64 `input_ids` `[batch, sequence]`, the labels that the class takes,
    and under a padding mask an int64 `attention_mask` that hides the last token of the first
    row."""
    size = (plan.batch, plan.sequence)
    ids = torch.randint(0, built.configuration.get_text_config().vocab_size, size, device=device)
    batch = {"input_ids": ids} | (_labels_of(built, ids) if plan.trains else {})
    if plan.padding_mask:
        mask = torch.ones(size, dtype=torch.int64, device=device)
        mask[0, -1] = 0
        batch["attention_mask"] = mask
    return batch


def _labels_of(built: Built, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Labels for int64 ids `[batch, sequence]`, by the kind of class:

    - a language model: the ids themselves.
    - a class that labels tokens: int64 `[batch, sequence]`.
    - a class that labels sequences: int64 `[batch]`, or float32 `[batch]` or `[batch, labels]` if
      labels are numbers.
    - a class that finds answers: the positions of start and end, int64 `[batch]` each.

    Raises UsageError for a class without a loss.
    """
    model, config = built.model, built.configuration
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    name = type(base).__name__
    if name.endswith(classes.LANGUAGE_MODELS):
        return {"labels": ids}
    rows = ids.new_zeros(len(ids))
    if name.endswith(classes.TOKENS):
        return {"labels": torch.zeros_like(ids)}
    if name.endswith(classes.ANSWERS):
        return {"start_positions": rows, "end_positions": rows.clone()}
    if name.endswith(classes.PRETRAINING):
        return {"labels": ids, "next_sentence_label": rows}
    if name.endswith(classes.NEXT_SENTENCES):
        return {"labels": rows}
    if name.endswith(classes.SEQUENCES):
        problem, count = config.problem_type, config.num_labels
        if count > 1 and problem in ("regression", "multi_label_classification"):
            return {"labels": torch.zeros(len(ids), count, device=ids.device)}
        return {"labels": rows.float() if count == 1 else rows}
    raise UsageError(
        f"{name} has no head to train on; use --method inference, or name a class with a head "
        "under architectures in config.json."
    )


def run_steps(
    built: Built,
    optimizer: Any,
    plan: RunPlan,
    batch: dict[str, torch.Tensor],
    tracker: Tracker,
    steps: int = 2,
) -> list[float | None]:
    """Takes steps under a tracker that is entered already, or runs an inference without an
    optimizer. Returns the losses (None on fake tensors). The garbage collector is off meanwhile, so
    that tensors which only a reference cycle keeps alive stay, as they do for a while in a real
    run. The backward pass runs in this thread, where the dispatch modes are entered."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with torch.autograd.set_multithreading_enabled(False):
            if optimizer is None:
                infer(built, plan, batch, tracker)
                return []
            with closing(take_steps(built, optimizer, plan, repeat(batch), tracker)) as taken:
                tracker.calibrate()
                return list(islice(taken, steps))
    finally:
        if enabled:
            gc.enable()


def take_steps(
    built: Built,
    optimizer: Any,
    plan: RunPlan,
    batches: Iterable[dict[str, torch.Tensor]],
    marks: Marks,
    scaler: Any = None,
) -> Generator[float | None]:
    """Takes one step for each loss that is requested. The loss is the mean over the micro batches
    of the step, nats per token; None on fake tensors. A step takes as many batches as it
    accumulates; without more batches the steps end. `scaler` is a torch.amp.GradScaler if the
    gradients need one."""
    outputs = None
    coming = iter(batches)
    with _losses_marked(built.model, plan, marks):
        while True:
            mean: float | None = 0.0
            for batch in islice(coming, plan.accumulation):
                marks.phase(Phase.FORWARD)
                with autocast_of(plan, batch["input_ids"].device.type):
                    outputs = built.model(**batch)
                loss = outputs.loss
                marks.track(
                    cache_tensors(getattr(outputs, "past_key_values", None)), Component.CACHE
                )
                if plan.loop == "trainer":
                    outputs = None
                if plan.accumulation > 1:
                    loss = loss / plan.accumulation
                marks.phase(Phase.BACKWARD)
                (loss if scaler is None else scaler.scale(loss)).backward()
                marks.track(scaler_tensors(scaler), Component.OPTIMIZER)
                value = None if isinstance(loss, FakeTensor) else float(loss.detach())
                mean = None if value is None or mean is None else mean + value
                del loss
            if marks.at is not Phase.BACKWARD:
                return
            marks.phase(Phase.OPTIMIZER)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            marks.leave_out(host_tensors(optimizer))
            states = optimizer_tensors(optimizer, built.model.named_parameters())
            marks.track(states, Component.OPTIMIZER)
            optimizer.zero_grad(set_to_none=True)
            outputs = None
            marks.phase(Phase.BETWEEN)
            yield mean


def infer(built: Built, plan: RunPlan, batch: dict[str, torch.Tensor], marks: Marks) -> None:
    """An inference, without gradients. First the prompt fills the cache and gives the first new
    token; only the logits of each sequence's last token are computed, if the class can leave out
    the others. Then one forward pass follows for each further token; together they are one phase.
    The batch has no labels."""
    model = built.model
    settings: dict[str, Any] = {"use_cache": True} if model.can_generate() else {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        settings["logits_to_keep"] = 1
    if model.config.is_encoder_decoder:
        settings["decoder_input_ids"] = batch["input_ids"][:, :1]
    with torch.no_grad():
        marks.phase(Phase.FORWARD)
        with autocast_of(plan, batch["input_ids"].device.type):
            outputs = model(**batch, **settings)
        cache = getattr(outputs, "past_key_values", None)
        del outputs
        marks.track(cache_tensors(cache), Component.CACHE)
        if plan.generate > 1 and cache is not None:
            marks.phase(Phase.FORWARD)
            _generate(model, plan, batch, settings | {"past_key_values": cache}, marks)
        marks.phase(Phase.BETWEEN)
        del cache


def _generate(
    model: Any, plan: RunPlan, batch: dict[str, Any], settings: dict[str, Any], marks: Marks
) -> None:
    """The tokens after the first. Memory does not depend on which tokens they are, so any token is
    used."""
    given = dict(batch)
    for _ in range(plan.generate - 1):
        given["input_ids"] = batch["input_ids"][:, :1].clone()
        if "attention_mask" in given:
            mask = given["attention_mask"]
            given["attention_mask"] = torch.cat([mask, mask.new_ones(plan.batch, 1)], dim=-1)
        marks.track(given.items(), Component.INPUTS)
        with autocast_of(plan, given["input_ids"].device.type):
            model(**given, **settings)
        marks.track(cache_tensors(settings["past_key_values"]), Component.CACHE)


def cache_tensors(cache: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor) of everything in a cache of transformers, whatever its class."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("cache", cache)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield name, value
        elif id(value) not in seen and not isinstance(value, torch.nn.Module | type):
            seen.add(id(value))
            inner: Iterable[tuple[Any, Any]] = getattr(value, "__dict__", {}).items()
            if isinstance(value, Mapping):
                inner = value.items()
            elif isinstance(value, list | tuple):
                inner = enumerate(value)
            waiting += [(f"{name}.{key}", item) for key, item in inner]


@contextmanager
def _losses_marked(model: Any, plan: RunPlan, marks: Marks) -> Iterator[None]:
    """A context in which the loss is a phase of its own. The phase begins where the model calls its
    loss function, or cross entropy if it has none; the logits belong to it, too."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model

    def marked(function: Any) -> Any:
        def compute(*args: Any, **kwargs: Any) -> Any:
            if marks.at == Phase.FORWARD:
                logits = kwargs.get("logits", args[0] if args else None)
                # A loss without logits receives hidden states.
                if isinstance(logits, torch.Tensor) and not without_logits(plan.loss):
                    marks.track([("logits", logits)], Component.LOSS)
                del logits
                marks.phase(Phase.LOSS)
            return function(*args, **kwargs)

        return compute

    own = base.loss_function
    base.loss_function = marked(own)
    try:
        with patch.object(functional, "cross_entropy", marked(functional.cross_entropy)):
            yield
    finally:
        base.loss_function = own


class Marks(Protocol):
    """Receives the beginning of phases, and tensors that stay with their component or that a step
    on a GPU keeps on the host. `at` is the phase that began last."""

    @property
    def at(self) -> Phase | None: ...
    def phase(self, phase: Phase) -> None: ...
    def track(self, tensors: NamedTensors, component: ComponentOf) -> None: ...
    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None: ...
