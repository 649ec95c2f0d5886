"""The KL divergence of the model with one tensor quantized, estimated from gradients. Needs torch.

For a small change dw of the weights, KL(original || changed) is half of dw F dw, where F is the
Fisher information: the mean of g g^T over what the model predicts, g the gradient of the log
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

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from qtui_core.answers.tensors import PredictionErrors
from qtui_core.evaluation.changes import StoredWeight, WeightChange
from qtui_core.evaluation.sensitivity.subject import Nats, weighed_model
from qtui_core.evaluation.settings import ORIGINAL
from qtui_core.evaluation.streamed import ForwardPass
from qtui_core.job import IDLE, Job
from qtui_core.loading.text import Text
from qtui_core.models import ModelSource
from qtui_core.quant import quantize
from qtui_core.schemes.scheme import Scheme

#: Windows that are read, each with a backward pass of its own.
WINDOWS: Final = 8
#: Of the tokens that are drawn.
SEED: Final = 0


def estimates(
    source: ModelSource,
    tensors: Sequence[str],
    schemes: Sequence[Scheme],
    text: Text,
    *,
    windows: int = WINDOWS,
    job: Job = IDLE,
) -> PredictionErrors:
    """Half of the sum of g^2 dw^2 over the elements of each tensor in each scheme, nats a token.

    Raises what `qtui_core.evaluation.sensitivity.kl.divergences` raises.
    """
    subject = weighed_model(source, tensors, schemes, text, windows)
    model, scored, ids = subject.model, subject.windows.scored, subject.windows.ids
    # Each unit runs forwards, and layers run again backwards.
    steps, done = 2 * model.units * len(ids), 0

    def step() -> None:
        nonlocal done
        job.at(min(done, steps), steps)
        done += 1

    found = {name: np.zeros((len(schemes), len(ids))) for name in tensors}
    reached: set[str] = set()
    generator = torch.Generator().manual_seed(SEED)
    for number in range(len(ids)):
        gradients = _Gradients(found, partial(_add, found, schemes, number))
        how = ForwardPass(
            WeightChange(ORIGINAL, source), step=step, layer=_again, loaded=gradients.listen
        )
        with model.running(how), torch.enable_grad():
            logits = model.forward(ids[number : number + 1], scored)[0]
            model.refuse_broken(logits)
            likely = torch.log_softmax(logits, -1)
            drawn = torch.multinomial(likely.detach().exp(), 1, generator=generator)
            gradients.backward(likely.gather(1, drawn).sum())
        reached |= gradients.reached
    subject.refuse_unused(reached)
    return subject.result("fisher", {name: nats / (2 * scored) for name, nats in found.items()})


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
    found: dict[str, Nats],
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
        each = change.mul_(gradient).square_()
        found[weight.info.name][index, window] += float(each.sum(dtype=torch.float64))
