"""Runs a model on text and keeps what flows through chosen modules. Needs torch.

Only the chosen modules have hooks. A hook keeps float32 rows up to a limit, and the numbers of an
Observer. Nothing else of the forward pass is kept.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from qtui_core.activations.observers import ActivationRecord, EvenSample, ModuleRecord, Observer
from qtui_core.errors import QtuiError
from qtui_core.job import IDLE, Job
from qtui_core.loading.hooks import hooked
from qtui_core.loading.model import LoadedModel
from qtui_core.loading.tokens import Windows
from qtui_core.models.quoting import printable, quoted
from qtui_core.quant.elements import Float32

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
    *,
    keep_bytes: int = KEEP_BYTES,
    keep_outputs: bool = True,
    histogram: bool = True,
    job: Job = IDLE,
) -> dict[str, ModuleRecord]:
    """Inputs and outputs of linear modules while the model reads the windows.

    Args:
        modules: names in the model, as `LoadedModel.module_of` gives them.
        keep_bytes: of rows, for the inputs and for the outputs of each module. With 0 no rows are
            kept; `Observed.second_moment` and the other numbers still cover all tokens.
        keep_outputs: whether rows of the outputs are kept as well as those of the inputs.
        histogram: whether to keep the histogram that percentiles need, 4 MiB for each side.
        job: hears of the tokens that were read, after each batch.

    If the CPU has no kernel for an operation in the model's dtype, the run starts again in float32,
    and `loaded.note` says so.

    Raises:
        Cancelled: as `job` says.
        QtuiError: the forward pass failed (the sentence names the module), or a module was never
            reached.
    """
    kept = (keep_bytes, keep_bytes if keep_outputs else 0)
    while True:
        probes = {name: _Probe(kept, histogram=histogram) for name in modules}
        try:
            _run(loaded, windows, probes, job)
        except _MissingOperation as error:  # only of 16 bits, so at most once
            loaded.use_float32(printable(str(error)))
        else:
            return {
                name: probe.record(name, type(loaded.model.get_submodule(name)).__name__)
                for name, probe in probes.items()
            }


def _run(loaded: LoadedModel, windows: Windows, probes: dict[str, _Probe], job: Job) -> None:
    # The logits of all tokens are often the largest tensor, and are not needed here.
    base = loaded.model.base_model
    inside = {id(module) for module in base.modules()}
    chosen = {name: loaded.model.get_submodule(name) for name in probes}
    head = any(id(module) not in inside for module in chosen.values())
    runner = loaded.model if head else base
    settings = {"use_cache": False} if hasattr(loaded.model.config, "use_cache") else {}
    if sum(p.numel() for p in loaded.model.parameters()) < THREADED_PARAMETERS:
        torch.set_num_threads(1)
    done = 0
    job.check()
    with hooked(chosen, lambda name, x, y: probes[name].see(x, y)), torch.inference_mode():
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


class _Probe:
    """Records the inputs and outputs of one module while the model runs, `keep_bytes` of rows
    each."""

    def __init__(self, keep_bytes: tuple[int, int], *, histogram: bool) -> None:
        self._keep_bytes = keep_bytes
        self._histogram = histogram
        self._sides: list[tuple[Observer, EvenSample]] = []

    def see(self, *sides: torch.Tensor) -> None:
        """The input and the output of a forward pass, `[..., features]`."""
        rows = [_rows(values) for values in sides]
        if not self._sides:
            for side, kept in zip(rows, self._keep_bytes, strict=True):
                width = side.shape[1]
                observer = Observer(width, histogram=self._histogram)
                self._sides.append((observer, EvenSample(width, kept // (4 * width))))
        for side, (observer, sample) in zip(rows, self._sides, strict=True):
            observer.add(side)
            sample.add(side)

    def record(self, module: str, kind: str) -> ModuleRecord:
        if not self._sides:
            raise QtuiError(
                f"No token reached {printable(module)}: the model does not use it for this text."
            )
        sides = (ActivationRecord(seen.observed(), sample.rows()) for seen, sample in self._sides)
        return ModuleRecord(module, kind, *sides)


def _rows(values: torch.Tensor) -> Float32:
    """`[..., features]` as float32 `[tokens, features]`; may share memory with the tensor."""
    flat = values.detach().reshape(-1, values.shape[-1])
    rows: Float32 = flat.to(torch.float32).numpy()
    return rows


class _MissingOperation(Exception):
    """There is no kernel for this operation, which the message names, in the dtype."""


def _refusal(loaded: LoadedModel, error: Exception) -> Exception:
    """The exception to raise for a failed forward pass."""
    half = loaded.model.dtype in (torch.bfloat16, torch.float16)
    if half and isinstance(error, RuntimeError) and "not implemented for" in str(error):
        named = re.match(r'"(\w+)"', str(error))
        return _MissingOperation(named.group(1) if named else "operation")
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
