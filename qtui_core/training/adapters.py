"""What adapters change: logits of one text with them on and off, from one copy of the base."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import torch
from torch import nn

from qtui_core.live.snapshot import AdaptersCompared
from qtui_core.memory.plan import RunPlan
from qtui_core.training.build import DTYPES

#: Tokens of the text that are looked at, from its end, and likeliest next tokens that are told.
LONGEST: Final = 256
_LIKELIEST: Final = 5
_SEED: Final = 7


class Comparison:
    """Runs one text, again and again.

    Args:
        ids: int64 `[1, tokens]` on the device of the model.
        decode: the text of a token.
        base: the model before it has adapters, prepared: its logits are what "off" is held
            against.
    """

    def __init__(
        self, ids: torch.Tensor, decode: Callable[[int], str], plan: RunPlan, base: nn.Module
    ) -> None:
        self._ids = ids
        self._decode = decode
        self._plan = plan
        self._reference = self._logits(base)

    def compare(self, model: Any, seconds: float, step: int) -> AdaptersCompared:
        """The model with its adapters on, then off."""
        on = self._logits(model)
        with model.disable_adapter():
            off = self._logits(model)
        return AdaptersCompared(
            seconds,
            step,
            _largest(on, off),
            _largest(off, self._reference),
            self._likeliest(on),
            self._likeliest(off),
        )

    def _logits(self, model: Any) -> torch.Tensor:
        """float32 `[tokens, vocabulary]` on the CPU."""
        autocast = (
            torch.autocast(self._ids.device.type, dtype=DTYPES[self._plan.autocast_dtype])
            if self._plan.autocast
            else nullcontext()
        )
        with torch.no_grad(), _same_each_time(model), autocast:
            return model(input_ids=self._ids, use_cache=False).logits[0].float().cpu()

    def _likeliest(self, logits: torch.Tensor) -> tuple[tuple[str, float], ...]:
        best = logits[-1].softmax(-1).topk(min(_LIKELIEST, logits.shape[-1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple((self._decode(number), share) for number, share in pairs)


@contextmanager
def _same_each_time(model: nn.Module) -> Iterator[None]:
    """Without dropout. The model itself stays in its mode of training: in that of evaluation
    bitsandbytes packs weights anew for some CPUs (Linear4bit.forward), and then never trains."""
    quiet = [m for m in model.modules() if isinstance(m, nn.Dropout) and m.training]
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_SEED)  # for what draws random numbers besides
        for module in quiet:
            module.eval()
        try:
            yield
        finally:
            for module in quiet:
                module.train()


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())
