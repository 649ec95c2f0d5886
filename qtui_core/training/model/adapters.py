"""What adapters change: the logits of one text with the adapters on and off, from one copy of the
base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from qtui_core.live.snapshot import AdaptersCompared
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.training.model.build import autocast_of

Logits = npt.NDArray[np.float32]

#: How many of the text's last tokens are compared, and how many likely next tokens are reported.
LONGEST: Final = 256
_LIKELIEST: Final = 5
_SEED: Final = 7


class AdapterComparison:
    """Runs the same text repeatedly.

    Args:
        ids: int64 `[1, tokens]` on the device of the model.
        decode: gives the text of a token.
        base: the prepared model before it has adapters; the logits with adapters off are compared
            with its logits.
    """

    def __init__(
        self, ids: torch.Tensor, decode: Callable[[int], str], plan: RunPlan, base: nn.Module
    ) -> None:
        self._ids = ids
        self._decode = decode
        self._plan = plan
        self._reference = self._logits(base)

    def compare(self, model: Any, seconds: float, step: int) -> AdaptersCompared:
        """Compares the model with its adapters on and off."""
        on = self._logits(model)
        with model.disable_adapter():
            off = self._logits(model)
        changed, moved = (float(np.abs(off - other).max()) for other in (on, self._reference))
        likeliest = self._likeliest(on), self._likeliest(off)
        return AdaptersCompared(seconds, step, changed, moved, *likeliest)

    def _logits(self, model: Any) -> Logits:
        """float32 `[tokens, vocabulary]`, as an array: a tensor would count as the run's."""
        autocast = autocast_of(self._plan, self._ids.device.type)
        with torch.no_grad(), _same_each_time(model), autocast:
            logits = model(input_ids=self._ids, use_cache=False).logits[0].float()
            return np.array(logits.cpu().numpy())

    def _likeliest(self, logits: Logits) -> tuple[tuple[str, float], ...]:
        odds = np.exp(logits[-1].astype(np.float64) - logits[-1].max())
        best = np.argsort(-odds, kind="stable")[:_LIKELIEST]
        return tuple((self._decode(int(i)), float(odds[i] / odds.sum())) for i in best)


@contextmanager
def _same_each_time(model: nn.Module) -> Iterator[None]:
    """A context without dropout. The model itself stays in training mode: in evaluation mode
    bitsandbytes repacks weights for some CPUs (Linear4bit.forward), and after that they cannot be
    trained."""
    quiet = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.training]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_SEED)  # for whatever else draws random numbers
        for module in quiet:
            module.eval()
        try:
            yield
        finally:
            for module in quiet:
                module.train()
