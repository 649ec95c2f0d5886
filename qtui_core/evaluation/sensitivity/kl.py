"""The KL divergence of the whole model with one tensor at a time quantized. Needs torch.

What a layer returns depends only on what ran before it. So the outputs of all layers are kept while
the original runs, and a model with one tensor changed begins at the layer of that tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

import numpy as np
import torch

from qtui_core.activations.capture import THREADED_PARAMETERS
from qtui_core.answers.tensors import PredictionErrors
from qtui_core.evaluation.changes import StoredWeight, WeightChange, assigned
from qtui_core.evaluation.evaluate import LOGIT_BYTES
from qtui_core.evaluation.scores import score
from qtui_core.evaluation.sensitivity.subject import Nats, WeighedModel, weighed_model
from qtui_core.evaluation.settings import ORIGINAL
from qtui_core.evaluation.streamed import ForwardPass, StreamedModel
from qtui_core.job import IDLE, Job
from qtui_core.loading.text import Text
from qtui_core.loading.tokens import Ids
from qtui_core.models import ModelSource
from qtui_core.schemes.scheme import Scheme
from qtui_core.threads import thread_limit

#: Windows that are read. On the demo, the standard error of a tensor's divergence is then about a
#: seventh of it; that of the difference of two schemes is less, as both read the same windows.
WINDOWS: Final = 8


def divergences(
    source: ModelSource,
    tensors: Sequence[str],
    schemes: Sequence[Scheme],
    text: Text,
    *,
    windows: int = WINDOWS,
    job: Job = IDLE,
) -> PredictionErrors:
    """KL(original || changed), nats a token, for each tensor in each scheme, all else original.
    As `qtui_core.evaluation.evaluate` computes it for an assignment of that one tensor.

    Raises:
        Cancelled: the job was cancelled, which is looked at before each layer.
        UsageError: the text is too short.
        ModelError: the model cannot be run here, does not use one of the tensors, or its logits are
            not finite.
    """
    subject = weighed_model(source, tensors, schemes, text, windows)
    small = source.parameters < THREADED_PARAMETERS
    # Models in threads of their own: operations of a small one are too short to be shared.
    count = min(thread_limit(), len(subject.windows.ids)) if small else 1
    models = [subject.model, *(StreamedModel(source, "cpu") for _ in range(count - 1))]
    batches = _batches(subject, count)
    steps = len(batches) * len(tensors) * len(schemes)
    done, lock = 0, Lock()

    def tick() -> None:
        nonlocal done
        with lock:
            done += 1
            job.at(done, steps)

    def work(number: int) -> list[dict[str, Nats]]:
        """The batches of one model: every `count`-th."""
        mine = batches[number::count]
        return [_Batch(subject, models[number], ids, job).divergences(tick) for ids in mine]

    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(work, range(count)))
    parts = [found[i % count][i // count] for i in range(len(batches))]
    joined = {name: np.concatenate([part[name] for part in parts], axis=1) for name in tensors}
    return subject.result("kl", joined)


def _batches(subject: WeighedModel, workers: int) -> list[Ids]:
    ids, scored = subject.windows.ids, subject.windows.scored
    most = LOGIT_BYTES // (4 * scored * subject.model.loaded.vocabulary)
    size = max(1, min(-(-len(ids) // workers), most))
    return [ids[start : start + size] for start in range(0, len(ids), size)]


class _Batch:
    """The original on some windows, and what its layers returned."""

    def __init__(self, subject: WeighedModel, model: StreamedModel, ids: Ids, job: Job) -> None:
        self._subject, self._model, self._ids, self._step = subject, model, ids, job.check
        self._outputs: list[Any] = []
        #: Name of a weight -> how many layers had returned when it was first loaded.
        self._before: dict[str, int] = {}
        scored = subject.windows.scored
        self._targets = torch.from_numpy(ids[:, -scored:])
        original = WeightChange(ORIGINAL, subject.source)

        def keep(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._outputs.append(run(*args, **kwargs))
            return self._outputs[-1]

        def loaded(weight: StoredWeight, _: Any) -> None:
            self._before.setdefault(weight.info.name, len(self._outputs))

        how = ForwardPass(original, step=job.check, layer=keep, loaded=loaded)
        self._original = model.logits(ids, scored, how)
        model.refuse_broken(self._original)
        subject.refuse_unused(self._before)
        # A model may change in place what a layer returned; then every layer runs each time.
        if not torch.equal(self._logits(original, len(self._outputs) - 1), self._original):
            self._before = dict.fromkeys(self._before, 0)

    def divergences(self, tick: Callable[[], None]) -> dict[str, Nats]:
        """By the name of the tensor. `tick` is called after each model."""
        subject, found = self._subject, {}
        for name in subject.tensors:
            rows = []
            for scheme in subject.schemes:
                change = assigned(str(scheme), {name: scheme}, subject.source)
                logits = self._logits(change, self._before[name])
                with torch.inference_mode():
                    scores = score(logits, self._original, self._targets)
                rows.append(scores["divergence"].mean(1, dtype=np.float64))
                tick()
            found[name] = np.array(rows)
        return found

    def _logits(self, change: WeightChange, known: int) -> torch.Tensor:
        """The logits of a model whose first `known` layers return what the original's did."""
        called = 0

        def layer(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal called
            called += 1
            return self._outputs[called - 1] if called <= known else run(*args, **kwargs)

        how = ForwardPass(change, step=self._step, layer=layer)
        return self._model.logits(self._ids, self._subject.windows.scored, how)
