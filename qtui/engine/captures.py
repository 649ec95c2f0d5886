"""The running model and its captured activations, kept while the model is open.

The first capture imports torch and transformers, because most sessions look at weights only.
"""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from qtui_core.activations.observers import ActivationRecord, ModuleRecord, Side
from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.extras import require
from qtui_core.job import Cancelled, Job
from qtui_core.loading.text import Text
from qtui_core.loading.tokens import (
    Tokenizer,
    Windows,
    positions_of,
    split_windows,
    token_budget,
)
from qtui_core.models import ModelSource

#: Modules whose captured rows are kept. A module takes up to 4 x 32 MiB (two sides, two texts).
MODULES_KEPT = 4

#: Progress of a capture (0 to 1) when the model and its text are ready.
RUN_FROM = 0.1

Records = dict[str, ModuleRecord]


@dataclass(frozen=True, eq=False)
class Capture:
    """The captured activations of one module.

    Attributes:
        number: differs for each capture.
        tensor: the name of the module's weight.
        calibration, held_out: the recordings over the two texts; `held_out` is None if the text is
            too short to be split.
        text: the source of the text, in words.
    """

    number: int
    tensor: str
    calibration: ModuleRecord
    held_out: ModuleRecord | None
    text: str
    seconds: float

    def sides(self, side: Side) -> tuple[ActivationRecord, ActivationRecord | None]:
        """The recordings of one side over both texts."""
        held_out = None if self.held_out is None else self.held_out.side(side)
        return self.calibration.side(side), held_out


class CapturedTensor:
    """One side of a module over the calibration text, as a tensor for the engine's operations.

    Attributes:
        shape: (kept tokens, features).
        key: differs for each capture.
        extent: smallest and largest value over all tokens: the range of an activation under
            granularity `model`.
    """

    def __init__(self, capture: Capture, side: Side) -> None:
        recording = capture.sides(side)[0]
        self._rows = recording.rows
        self.shape: tuple[int, ...] = self._rows.shape
        self.key = f"{capture.tensor}\0{side}\0{capture.number}"
        observed = recording.observed
        self.extent = (observed.min or 0.0, observed.max or 0.0)

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop), float32 `[stop - start, features]`."""
        return self._rows[start:stop]


@dataclass(eq=False)
class _Running:
    """A model in memory, and the texts that it has read, split into windows."""

    source: ModelSource
    loaded: Any
    tokenizer: Tokenizer
    windows: dict[Text, tuple[Windows, Windows | None]] = field(default_factory=dict)


class Captures:
    """The captures of the open model, by the weight of the module. Several lanes (threads) may use
    it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._captures: dict[tuple[str, str], Capture] = {}
        self._texts: dict[tuple[str, str], Text] = {}
        # Not from 0: after a restart of the engine the screen still has the earlier numbers.
        self._count = time.time_ns()
        self._opened = 0

    def forget(self) -> None:
        """Frees the memory of the model, because another one is open."""
        with self._lock:
            self._opened += 1
            held = self._running is not None
            self._running = None
            self._captures.clear()
            self._texts.clear()
        if held:
            gc.collect()  # modules refer to each other in circles

    def find(self, model: str, tensor: str) -> Capture | None:
        """The capture of the module with this weight, if there is one."""
        with self._lock:
            return self._captures.get((model, tensor))

    def held(self, model: str) -> list[str]:
        """The weights of the modules whose captures are still held."""
        with self._lock:
            return [tensor for opened, tensor in self._captures if opened == model]

    def need(self, model: str, tensor: str, side: object) -> Capture:
        """As `find`. Raises UsageError if nothing was captured, or `side` is not a side."""
        if side not in ("input", "output"):
            raise UsageError(
                f"A tensor has no source {side!r}: weight, input and output are the sources."
            )
        found = self.find(model, tensor)
        if found is None:
            raise UsageError(
                f"No {side} of the module of {tensor} was captured: let the model run on a "
                f"text first."
            )
        return found

    def subject(self, model: str, tensor: str, side: Any) -> CapturedTensor:
        """One side of a captured module as a tensor. Raises as `need`."""
        return CapturedTensor(self.need(model, tensor, side), side)

    def capture(
        self,
        model: str,
        source: ModelSource,
        tensors: list[str],
        text: Text,
        job: Job,
    ) -> list[Capture]:
        """Runs the model on a text and keeps both sides of the modules of these weights. Modules
        that were captured with the same text before are not captured again. Each stage is reported
        once in words.

        Raises:
            Cancelled: as `job` says, or another model was opened meanwhile.
            QtuiError: the model cannot be run, or its forward pass failed.
        """
        opened, running = self._opened, self._running
        if running is None or running.source is not source:
            require("Letting a model read a text", "torch", "transformers")
            job.at(0.0, words="starting torch")
            from qtui_core.loading.model import load_model

            job.at(0.05, words="loading the model")
            loaded = load_model(source)
            running = _Running(source, loaded, Tokenizer(loaded))
            self._keep_running(running, opened)
        if text not in running.windows:
            job.at(0.08, words="reading the text")
            running.windows = {text: self._split(running, text)}
        wanted = [name for name in tensors if not self._has(model, name, text)]
        modules = {name: running.loaded.module_of(name) for name in wanted}
        if wanted:
            chosen = sorted(set(modules.values()))
            started = time.monotonic()
            first, second = _run_both(running, text, chosen, job)
            seconds = time.monotonic() - started
            for name, module in modules.items():
                found = Capture(
                    number=self._next_number(),
                    tensor=name,
                    calibration=first[module],
                    held_out=None if second is None else second[module],
                    text=_words(text, running.tokenizer),
                    seconds=seconds,
                )
                self._keep(model, opened, text, found)
        return [self.need(model, name, "input") for name in tensors]

    def _split(self, running: _Running, text: Text) -> tuple[Windows, Windows | None]:
        ids = running.tokenizer.encode(text.content)
        limit = positions_of(running.loaded.model)
        budget = token_budget(running.source.parameters)
        return split_windows(ids, running.tokenizer, limit, budget)

    def _has(self, model: str, tensor: str, text: Text) -> bool:
        with self._lock:
            return (model, tensor) in self._captures and self._texts.get((model, tensor)) == text

    def _keep_running(self, running: _Running, opened: int) -> None:
        with self._lock:
            self._check(opened)
            self._running = running

    def _keep(self, model: str, opened: int, text: Text, capture: Capture) -> None:
        with self._lock:
            self._check(opened)
            key = (model, capture.tensor)
            self._captures.pop(key, None)
            self._captures[key], self._texts[key] = capture, text
            while len(self._captures) > MODULES_KEPT:
                oldest = next(iter(self._captures))
                del self._captures[oldest], self._texts[oldest]

    def _next_number(self) -> int:
        with self._lock:
            self._count += 1
            return self._count

    def _check(self, opened: int) -> None:
        if opened != self._opened:
            raise Cancelled("Another model was opened.")


def _run_both(
    running: _Running, text: Text, modules: list[str], job: Job
) -> tuple[Records, Records | None]:
    """Runs the model on both texts; there may be no held-out text."""
    from qtui_core.activations.capture import capture

    texts = [windows for windows in running.windows[text] if windows is not None]
    records = []
    parts = job.part(RUN_FROM, 1.0).parts([windows.tokens for windows in texts])
    for windows, part, words in zip(texts, parts, ("calibration", "held-out"), strict=False):
        part.at(0.0, words=f"running on the {words} text")
        records.append(capture(running.loaded, windows, modules, job=part))
    return records[0], records[1] if len(records) > 1 else None


def _words(text: Text, tokenizer: Tokenizer) -> str:
    cut = ", its beginning" if text.partial else ""
    return f"{text.origin}{cut}, {tokenizer.words}"
