"""The memory of a run on a CPU: bytes of all live tensors, in place of an allocator's.

Each storage is counted as CUDA's allocator would, in multiples of 512 bytes, so that the result can
be compared with the estimate of the same run on a GPU. Where only one of them has a kernel,
`held_on_cpu` says what a step holds on a CPU beyond that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import torch

from qtui_core.live.snapshot import PhaseEnded, Sample
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Phase
from qtui_core.memory.replay.timeline import STACK
from qtui_core.telemetry.readings import rss_bytes
from qtui_core.training.measuring.meter import HeldByName
from qtui_core.training.tracing.cpu_tracker import CpuTracker, as_on_a_gpu
from qtui_core.training.tracing.ledger import Ledger

#: Phases of a run that a recording has no name for, and the phases that they count as.
_LIKE: Final = {"import": Phase.LOAD, "quantize": Phase.LOAD, "compare": Phase.BETWEEN}


class CpuMeter:
    """Counts with a tracker what operations allocate and free."""

    def __init__(self) -> None:
        self.standing = HeldByName()
        self._tracker = CpuTracker()
        self._ledger = Ledger()
        self._phase = ""

    @contextmanager
    def watch(self) -> Iterator[None]:
        with as_on_a_gpu(), self._tracker:
            self._tracker.calibrate()
            yield

    def wait(self) -> None:
        """Operations on a CPU are over when they return."""

    def unseen(self) -> AbstractContextManager[Any]:
        """Nothing to do: who reads disables the mode that counts."""
        return nullcontext()

    def begin(self, phase: str) -> None:
        self._phase = phase
        self._tracker.phase(_LIKE.get(phase) or Phase(phase))

    def track(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        component: Component | Callable[[str], Component],
    ) -> None:
        self._tracker.track(tensors, component)

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tracker.leave_out(tensors)

    def end(self, seconds: float, step: int) -> PhaseEnded:
        closed = self._ledger.close(self._tracker.take())
        return PhaseEnded(
            seconds=seconds,
            step=step,
            phase=self._phase,
            peak_allocated_bytes=closed.peak,
            allocated_bytes=closed.end,
            held=_stacked(closed.held),
            peak_held=_stacked(closed.peak_held),
            process_bytes=rss_bytes(),
            counted="tensors",
        )

    def sample(self, seconds: float, step: int, phase: str) -> Sample:
        rss = rss_bytes()
        return Sample(
            seconds,
            step,
            phase,
            allocated_bytes=self._tracker.live,
            process_bytes=rss,
            rss_bytes=rss,
        )

    def close(self) -> None:
        """There is nothing to release."""


def _stacked(found: dict[Component, int]) -> dict[str, int]:
    return {part.value: found[part] for part in STACK if found.get(part)}


#: The names of attention dropout in the configurations of transformers.
_DROPOUTS: Final = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def held_on_cpu(model: Any, plan: RunPlan) -> Iterator[str]:
    """Sentences on what a step holds on a CPU beyond its estimate, which is made for a GPU. `model`
    is a class of transformers without adapters."""
    if not plan.trains:
        return
    config = model.config
    relative = hasattr(config, "relative_attention_num_buckets")
    if plan.attention != "eager":
        dropped = any(getattr(config, name, None) for name in _DROPOUTS)
        if dropped or relative:
            why = "a bias that trains" if relative else "dropout"
            yield (
                f"On a CPU, attention with {why} is composed of several operations, which keep "
                f"the matrix of scores; the GPU kernels that the estimate assumes do not."
            )
    if plan.quant == "int8":
        yield (
            "On a CPU bitsandbytes trains over LLM.int8 with another product, which dequantizes "
            "the weights first: its activations and temporaries differ from the estimate's."
        )
    if plan.autocast and (config.is_encoder_decoder or not model.can_generate()):
        yield (
            "Autocast hands the cross entropy float32 logits on a CPU; on a GPU they stay in 16 "
            "bits, as estimated."
        )
