"""Runs a model on text and keeps what flows through chosen modules. Needs torch.

Only the chosen modules have hooks, which keep an ActivationRecord of each side. Nothing else of the
forward pass is kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import torch

from qtui_core.activations.observers import ActivationRecord, ModuleRecord
from qtui_core.errors import QtuiError
from qtui_core.job import IDLE, Job
from qtui_core.loading.hooks import hooked
from qtui_core.loading.model import LoadedModel
from qtui_core.loading.tokens import Windows
from qtui_core.models.quoting import printable, quoted

#: Bytes of rows kept of the inputs, and of the outputs, of a module over one text.
KEEP_BYTES = 32 << 20
#: Tokens that go through the model in one batch.
BATCH_TOKENS = 1024
#: A smaller model than this runs in one thread: its operations are so short that waiting for a
#: second thread on a busy machine would take longer.
THREADED_PARAMETERS = 50_000_000


def capture(
    loaded: LoadedModel,
    windows: Windows,
    modules: Sequence[str],
    job: Job = IDLE,
) -> dict[str, ModuleRecord]:
    """Inputs and outputs of linear modules while the model reads the windows.

    Args:
        modules: names in the model, as `LoadedModel.module_of` gives them.
        job: hears of the tokens that were read, after each batch.

    Raises:
        Cancelled: as `job` says.
        QtuiError: the forward pass failed (the sentence names the module), or a module was never
            reached.
    """
    sides: dict[str, list[ActivationRecord]] = {name: [] for name in modules}
    _run(loaded, windows, sides, job)
    if missed := next((name for name, both in sides.items() if not both), None):
        raise QtuiError(
            f"No token reached {printable(missed)}: the model does not use it for this text."
        )
    return {
        name: ModuleRecord(name, type(loaded.model.get_submodule(name)).__name__, *both)
        for name, both in sides.items()
    }


def _run(
    loaded: LoadedModel, windows: Windows, sides: dict[str, list[ActivationRecord]], job: Job
) -> None:
    # The logits of all tokens are often the largest tensor, and are not needed here.
    base = loaded.model.base_model
    inside = {id(module) for module in base.modules()}
    chosen = {name: loaded.model.get_submodule(name) for name in sides}
    head = any(id(module) not in inside for module in chosen.values())
    runner = loaded.model if head else base
    settings = {"use_cache": False} if hasattr(loaded.model.config, "use_cache") else {}
    if sum(p.numel() for p in loaded.model.parameters()) < THREADED_PARAMETERS:
        torch.set_num_threads(1)
    done = 0
    job.check()
    with hooked(chosen, partial(_see, sides)), torch.inference_mode():
        for batch in _batches(windows, 1 if head else BATCH_TOKENS):
            try:
                runner(input_ids=torch.from_numpy(batch), **settings)
            except Exception as error:  # a model's code may raise anything
                raise _refusal(loaded, error) from error
            done += batch.size
            job.at(done, windows.tokens)


def _batches(windows: Windows, tokens: int) -> Iterator[np.ndarray]:
    """Consecutive windows of equal length, stacked to `[windows, length]`, so that none is
    padded."""
    for size, group in groupby(windows.ids, len):
        ids, most = list(group), max(1, tokens // max(1, size))
        for start in range(0, len(ids), most):
            yield np.stack(ids[start : start + most])


def _see(sides: dict[str, list[ActivationRecord]], name: str, *values: torch.Tensor) -> None:
    """Records the input and the output of a forward pass of a module, `[..., features]`."""
    for at, tensor in enumerate(values):
        rows = tensor.detach().reshape(-1, tensor.shape[-1]).to(torch.float32).numpy()
        if len(sides[name]) == at:
            sides[name].append(ActivationRecord(rows.shape[1], KEEP_BYTES))
        sides[name][at].add(rows)


def _refusal(loaded: LoadedModel, error: Exception) -> QtuiError:
    """The sentence on a failed forward pass."""
    lines = str(error).strip().splitlines()
    what = f": {printable(lines[0])[:200]}" if lines else ""
    return QtuiError(
        f"The forward pass of {quoted(loaded.source.id)} failed in "
        f"{_failing_module(loaded, error)} ({type(error).__name__}{what}). Nothing was captured."
    )


def _failing_module(loaded: LoadedModel, error: Exception) -> str:
    """The innermost module whose code was running when the exception was raised."""
    names = {id(module): name for name, module in loaded.model.named_modules()}
    innermost = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        innermost = names.get(id(frame.f_locals.get("self"))) or innermost
    return printable(innermost) or type(loaded.model).__name__
