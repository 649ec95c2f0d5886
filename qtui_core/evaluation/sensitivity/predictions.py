"""What quantizing one tensor at a time does to the predictions of a model: the KL divergence of the
whole model with only this tensor quantized, measured or estimated from gradients. Needs torch.

Measured: what a layer returns depends only on what ran before it. So the outputs of all layers are
kept while the original runs, and a model with one tensor changed begins at the layer of that
tensor.

Estimated: for a small change dw of the weights, KL(original || changed) is half of dw F dw, where F
is the Fisher information: the mean of g g^T over what the model predicts, g the gradient of the log
probability (Kullback, Information Theory and Statistics, 1959, section 2.6). Rounding errors of
different elements have little to do with each other, so the diagonal is enough: half of the sum of
g^2 dw^2. This is the sensitivity of SqueezeLLM (Kim et al. 2023, arXiv 2306.07629, equation 4),
with two differences: the factor 1/2 makes it an estimate of nats, and next tokens are drawn from
the model's own prediction, not taken from the text, which is what the Fisher information is of
(Kunstner et al. 2019, arXiv 1905.12558).

One window at a time, g is the gradient of the sum over its scored tokens. Given the text, drawn
tokens are independent and their gradients have mean zero, so g^2 is in expectation the sum over
tokens. Only the weights of one layer are in memory: the layer is run again in the backward pass,
and its gradients are used up before those of the next are made.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.checkpoint import checkpoint

from qtui_core.activations.capture import THREADED_PARAMETERS
from qtui_core.answers import PredictionErrors
from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.evaluation.changes import StoredWeight, WeightChange, assigned
from qtui_core.evaluation.evaluate import LOGIT_BYTES
from qtui_core.evaluation.scores import score
from qtui_core.evaluation.settings import ORIGINAL, EvaluationSettings
from qtui_core.evaluation.streamed import ForwardPass, StreamedModel
from qtui_core.evaluation.windows import TextWindows, cut_windows
from qtui_core.job import IDLE, Job
from qtui_core.loading.text import Text
from qtui_core.loading.tokens import Ids, Tokenizer, positions_of
from qtui_core.models import ModelSource
from qtui_core.models.quoting import listed, quoted
from qtui_core.quant import quantize
from qtui_core.schemes.scheme import Scheme
from qtui_core.threads import thread_limit

#: Windows that are read. On the demo, the standard error of a tensor's divergence is then about a
#: seventh of it; that of the difference of two schemes is less, as both read the same windows.
WINDOWS: Final = 8
#: Of the tokens that are drawn for gradients.
SEED: Final = 0

#: Nats a token of each scheme on each window, float64 `[schemes, windows]`.
Nats = npt.NDArray[np.float64]


def prediction_errors(
    by: Literal["fisher", "kl"],
    source: ModelSource,
    tensors: Sequence[str],
    schemes: Sequence[Scheme],
    text: Text,
    *,
    windows: int = WINDOWS,
    job: Job = IDLE,
) -> PredictionErrors:
    """KL(original || changed), nats a token, for each tensor in each scheme, all else original, on
    windows of the first half of the text. `kl` measures it, as `qtui_core.evaluation.evaluate` does
    for an assignment of that one tensor; `fisher` estimates it.

    Raises:
        Cancelled: the job was cancelled, which is looked at before each layer.
        UsageError: the text is too short.
        ModelError: the model cannot be run here, does not use one of the tensors, or its logits are
            not finite.
    """
    subject = _weighed_model(source, tensors, schemes, text, windows)
    nats = (_divergences if by == "kl" else _estimates)(subject, job)
    # What is not finite counts as the logarithm of the vocabulary, which a model that knows nothing
    # is away from one that is certain.
    most, cut = math.log(subject.model.loaded.vocabulary), subject.windows
    rows = {name: np.where(np.isfinite(nats[name]), nats[name], most) for name in tensors}
    return PredictionErrors(
        by=by,
        text=text.origin,
        window=cut.ids.shape[1],
        scored=cut.scored,
        windows=len(cut.ids),
        nats={name: tuple(map(tuple, values.tolist())) for name, values in rows.items()},
    )


@dataclass(frozen=True, eq=False)
class _WeighedModel:
    """A model, the tensors and schemes to weigh, and the windows that it reads."""

    source: ModelSource
    model: StreamedModel
    tensors: tuple[str, ...]
    schemes: tuple[Scheme, ...]
    windows: TextWindows

    def refuse_unused(self, used: Mapping[str, object] | set[str]) -> None:
        if lost := [name for name in self.tensors if name not in used]:
            raise ModelError(
                f"The model that runs does not use {listed(lost)} of {quoted(self.source.id)} as "
                f"stored, so what they do to its predictions is unknown: choose --objective "
                f"weights, or other --tensors."
            )


def _weighed_model(
    source: ModelSource,
    tensors: Sequence[str],
    schemes: Sequence[Scheme],
    text: Text,
    windows: int,
) -> _WeighedModel:
    model = StreamedModel(source, "cpu")
    tokenizer, limit = Tokenizer(model.loaded), positions_of(model.loaded.model)
    ids = tokenizer.encode(text.content)
    settings = EvaluationSettings(windows=windows)
    cut = cut_windows(ids[: ids.size // 2], tokenizer, settings, limit, source.parameters)
    subject = _WeighedModel(source, model, tuple(tensors), tuple(schemes), cut)
    subject.refuse_unused({weight.info.name for weight in model.weights})
    return subject


def _divergences(subject: _WeighedModel, job: Job) -> dict[str, Nats]:
    ids, scored, source = subject.windows.ids, subject.windows.scored, subject.source
    small = source.parameters < THREADED_PARAMETERS
    # Models in threads of their own: operations of a small one are too short to be shared.
    count = min(thread_limit(), len(ids)) if small else 1
    models: SimpleQueue[StreamedModel] = SimpleQueue()
    for number in range(count):
        models.put(StreamedModel(source, "cpu") if number else subject.model)
    most = LOGIT_BYTES // (4 * scored * subject.model.loaded.vocabulary)
    size = max(1, min(-(-len(ids) // count), most))
    batches = [ids[start : start + size] for start in range(0, len(ids), size)]
    steps = len(batches) * len(subject.tensors) * len(subject.schemes)
    done, lock = 0, Lock()

    def tick() -> None:
        nonlocal done
        with lock:
            done += 1
            job.at(done, steps)

    def work(batch: Ids) -> dict[str, Nats]:
        model = models.get()
        try:
            return _Batch(subject, model, batch, job).divergences(tick)
        finally:
            models.put(model)

    with ThreadPoolExecutor(count) as pool:
        parts = list(pool.map(work, batches))
    return {name: np.concatenate([part[name] for part in parts], 1) for name in subject.tensors}


class _Batch:
    """The original on some windows, and what its layers returned."""

    def __init__(self, subject: _WeighedModel, model: StreamedModel, ids: Ids, job: Job) -> None:
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
        subject, nats = self._subject, {}
        for name in subject.tensors:
            rows = []
            for scheme in subject.schemes:
                change = assigned(str(scheme), {name: scheme}, subject.source)
                logits = self._logits(change, self._before[name])
                with torch.inference_mode():
                    scores = score(logits, self._original, self._targets)
                rows.append(scores["divergence"].mean(1, dtype=np.float64))
                tick()
            nats[name] = np.array(rows)
        return nats

    def _logits(self, change: WeightChange, known: int) -> torch.Tensor:
        """The logits of a model whose first `known` layers return what the original's did."""
        called = 0

        def layer(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal called
            called += 1
            return self._outputs[called - 1] if called <= known else run(*args, **kwargs)

        how = ForwardPass(change, step=self._step, layer=layer)
        return self._model.logits(self._ids, self._subject.windows.scored, how)


def _estimates(subject: _WeighedModel, job: Job) -> dict[str, Nats]:
    model, scored, ids = subject.model, subject.windows.scored, subject.windows.ids
    # Each unit runs forwards, and layers run again backwards.
    steps, done = 2 * model.units * len(ids), 0

    def step() -> None:
        nonlocal done
        job.at(min(done, steps), steps)
        done += 1

    sums = {name: np.zeros((len(subject.schemes), len(ids))) for name in subject.tensors}
    original = WeightChange(ORIGINAL, subject.source)
    reached: set[str] = set()
    generator = torch.Generator().manual_seed(SEED)
    for number in range(len(ids)):
        gradients = _Gradients(sums, partial(_add, sums, subject.schemes, number))
        how = ForwardPass(original, step=step, layer=_again, loaded=gradients.listen)
        with model.running(how), torch.enable_grad():
            logits = model.forward(ids[number : number + 1], scored)[0]
            model.refuse_broken(logits)
            likely = torch.log_softmax(logits, -1)
            drawn = torch.multinomial(likely.detach().exp(), 1, generator=generator)
            gradients.backward(likely.gather(1, drawn).sum())
        reached |= gradients.reached
    subject.refuse_unused(reached)
    return {name: nats / (2 * scored) for name, nats in sums.items()}


def _again(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Activation checkpointing: the layer runs again in the backward pass."""
    # A checkpoint that is not reentrant would hold the weights until then.
    keeping = partial(run, **kwargs)
    return checkpoint(keeping, *args, use_reentrant=True, preserve_rng_state=False)


class _Gradients:
    """The gradients of wanted weights in one pass; `use` gets each as soon as it is whole."""

    def __init__(
        self, wanted: Collection[str], use: Callable[[StoredWeight, torch.Tensor], None]
    ) -> None:
        self._wanted, self._use = wanted, use
        #: How many times the pass loads a weight: a tied one several times.
        self._uses: Counter[str] = Counter()
        self._sums: dict[str, tuple[StoredWeight, torch.Tensor]] = {}
        self._forward = True
        self.reached: set[str] = set()

    def listen(self, weight: StoredWeight, parameter: torch.nn.Parameter) -> None:
        """As `ForwardPass.loaded`."""
        self._uses[weight.info.name] += self._forward
        # All of them, so that gradients get to the layers below.
        parameter.requires_grad_()
        if weight.info.name in self._wanted:
            parameter.register_post_accumulate_grad_hook(partial(self._take, weight))

    def backward(self, of: torch.Tensor) -> None:
        """Uses the gradients of a scalar."""
        self._forward = False
        of.backward()
        for weight, gradient in self._sums.values():
            self._use(weight, gradient)

    def _take(self, weight: StoredWeight, parameter: torch.Tensor) -> None:
        name, gradient = weight.info.name, parameter.grad
        assert gradient is not None
        parameter.grad = None
        self.reached.add(name)
        if self._uses[name] == 1:
            self._use(weight, gradient)
        elif name in self._sums:
            self._sums[name][1].add_(gradient)
        else:
            self._sums[name] = weight, gradient


def _add(
    sums: dict[str, Nats],
    schemes: Sequence[Scheme],
    window: int,
    weight: StoredWeight,
    gradient: torch.Tensor,
) -> None:
    """Adds the sum of g^2 dw^2 for each scheme. The changes are made anew for each window: to keep
    them, or the squares of the gradients, takes as much memory as the model."""
    values = torch.from_numpy(weight.values())
    for index, scheme in enumerate(schemes):
        changed = quantize(weight.rows, scheme).dequantize()
        change = torch.from_numpy(changed).reshape(values.shape).sub_(values)
        squares = change.mul_(gradient).square_()
        sums[weight.info.name][index, window] += float(squares.sum(dtype=torch.float64))
