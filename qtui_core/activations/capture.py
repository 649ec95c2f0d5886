"""Runs a model on text and keeps what flows through chosen modules. Needs torch.

Only the chosen modules have hooks. A hook keeps float32 rows up to a limit, and the numbers of an
Observer. Nothing else of the forward pass is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from qtui_core.activations.observers import ActivationRecord, EvenSample, ModuleRecord, Observer
from qtui_core.errors import QtuiError
from qtui_core.loading.hooks import hooked
from qtui_core.loading.model import LoadedModel
from qtui_core.loading.tokens import Windows
from qtui_core.models.quoting import printable, quoted
from qtui_core.quant import Cancelled
from qtui_core.quant.elements import Float32

#: Bytes of rows kept of the inputs, and of the outputs, of a module over one text.
KEEP_BYTES = 32 << 20
#: Tokens that go through the model in one batch.
BATCH_TOKENS = 1024
#: A smaller model than this runs in one thread: its operations are so short that waiting for a
#: second thread on a busy machine would take longer.
THREADED_PARAMETERS = 50_000_000
_MISSING_OPERATION = "not implemented for"


def capture(
    loaded: LoadedModel,
    windows: Windows,
    modules: Sequence[str],
    *,
    keep_bytes: int = KEEP_BYTES,
    keep_outputs: bool = True,
    histogram: bool = True,
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, ModuleRecord]:
    """Inputs and outputs of linear modules while the model reads the windows.

    Args:
        modules: names in the model, as `LoadedModel.module_of` gives them.
        keep_bytes: of rows, for the inputs and for the outputs of each module. With 0 no rows are
            kept; `Observed.second_moment` and the other numbers still cover all tokens.
        keep_outputs: whether rows of the outputs are kept as well as those of the inputs.
        histogram: whether to keep the histogram that percentiles need, 4 MiB for each side.
        progress: called with the fraction done, in (0, 1], between batches.
        cancelled: called before each batch.

    If the CPU has no kernel for an operation in the model's dtype, the run starts again in float32,
    and `loaded.note` says so.

    Raises:
        Cancelled: `cancelled()` was true.
        QtuiError: the forward pass failed (the sentence names the module), or a module was never
            reached.
    """
    kept = (keep_bytes, keep_bytes if keep_outputs else 0)
    probes = {name: _Probe(kept, histogram=histogram) for name in modules}
    try:
        _run(loaded, windows, probes, progress, cancelled)
    except _MissingOperation as error:
        loaded.use_float32(printable(str(error)))
        return capture(
            loaded,
            windows,
            modules,
            keep_bytes=keep_bytes,
            keep_outputs=keep_outputs,
            histogram=histogram,
            progress=progress,
            cancelled=cancelled,
        )
    by_name = dict(loaded.model.named_modules())
    return {
        name: probe.record(name, type(by_name[name]).__name__) for name, probe in probes.items()
    }


def _run(
    loaded: LoadedModel,
    windows: Windows,
    probes: dict[str, _Probe],
    progress: Callable[[float], None] | None,
    cancelled: Callable[[], bool] | None,
) -> None:
    # The logits of all tokens are often the largest tensor, and are not needed here.
    base = loaded.model.base_model
    inside = {id(module) for module in base.modules()}
    chosen = {name: loaded.model.get_submodule(name) for name in probes}
    head = any(id(module) not in inside for module in chosen.values())
    runner = loaded.model if head else base
    batches = list(_batches(windows, 1 if head else BATCH_TOKENS))
    settings = {"use_cache": False} if hasattr(loaded.model.config, "use_cache") else {}
    parameters = sum(p.numel() for p in loaded.model.parameters())
    if parameters < THREADED_PARAMETERS:
        torch.set_num_threads(1)
    done = 0
    with hooked(chosen, lambda name, x, y: probes[name].see(x, y)), torch.inference_mode():
        for batch in batches:
            if cancelled is not None and cancelled():
                raise Cancelled("The work was cancelled.")
            try:
                runner(input_ids=torch.from_numpy(batch), **settings)
            except Exception as error:  # a model's code may raise anything
                raise _refusal(loaded, error) from error
            done += batch.size
            if progress is not None:
                progress(done / windows.tokens)


def _batches(windows: Windows, tokens: int) -> Iterator[np.ndarray]:
    """Consecutive windows of equal length, stacked to `[windows, length]`, so that none is
    padded."""
    waiting: list[np.ndarray] = []
    for ids in windows.ids:
        if waiting and (
            ids.size != waiting[0].size or (len(waiting) + 1) * ids.size > max(tokens, ids.size)
        ):
            yield np.stack(waiting)
            waiting = []
        waiting.append(ids)
    if waiting:
        yield np.stack(waiting)


class _Probe:
    """Records the inputs and outputs of one module while the model runs, `keep_bytes` of rows
    each."""

    def __init__(self, keep_bytes: tuple[int, int], *, histogram: bool) -> None:
        self._keep_bytes = keep_bytes
        self._histogram = histogram
        self._sides: list[tuple[Observer, EvenSample]] = []

    def see(self, values: torch.Tensor, output: torch.Tensor) -> None:
        rows = [_rows(values), _rows(output)]
        if not self._sides:
            self._sides = [
                (
                    Observer(side.shape[1], histogram=self._histogram),
                    EvenSample(side.shape[1], kept // (4 * side.shape[1])),
                )
                for side, kept in zip(rows, self._keep_bytes, strict=True)
            ]
        for side, (observer, sample) in zip(rows, self._sides, strict=True):
            observer.add(side)
            sample.add(side)

    def record(self, module: str, kind: str) -> ModuleRecord:
        if not self._sides:
            raise QtuiError(
                f"No token reached {printable(module)}: the model does not use it for this text."
            )
        sides = [
            ActivationRecord(observer.observed(), sample.rows()) for observer, sample in self._sides
        ]
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
    if (
        isinstance(error, RuntimeError | NotImplementedError)
        and _MISSING_OPERATION in str(error)
        and loaded.model.dtype in (torch.bfloat16, torch.float16)
    ):
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
    found, trace = "", error.__traceback__
    while trace is not None:
        found = names.get(id(trace.tb_frame.f_locals.get("self")), "") or found
        trace = trace.tb_next
    return printable(found) or type(loaded.model).__name__
