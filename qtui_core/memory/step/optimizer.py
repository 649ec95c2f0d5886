"""The states that optimizers keep for each trained tensor, and the temporaries of their steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.optimizers import BLOCK_4BIT, OPTIMIZERS
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.weights import StoredTensor
from qtui_core.memory.step.backbones import Model
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Buffer

ROOTS: Final = Label("_foreach_sqrt", Component.TEMPORARIES)

#: bitsandbytes (optim/optimizer.py, Optimizer2State: min_8bit_size, init_state) and torchao
#: (optim/adam.py): tensors with fewer elements are not packed.
_SMALLEST_PACKED: Final = 4096
#: bitsandbytes: states with at least this many elements are in managed memory (get_state_buffer).
_SMALLEST_PAGED: Final = 100_000


class OptimizerState(NamedTuple):
    """A tensor that an optimizer keeps.

    Attributes:
        name: of the trained tensor and of the state, as "lm_head.weight.exp_avg".
        elements, dtype: of the state.
        paged: whether it is in managed memory, which torch's allocator does not see.
    """

    name: str
    elements: int
    dtype: str
    paged: bool = False

    @property
    def bytes(self) -> int:
        """As requested from the allocator, before rounding."""
        return self.elements * SIZES[self.dtype]


def states_of(tensor: StoredTensor, plan: RunPlan) -> tuple[OptimizerState, ...]:
    """States of one trained tensor on its device, in the order in which the first step makes them.
    Step counters on the CPU are not included."""
    n = tensor.elements
    paged = plan.pages and n >= _SMALLEST_PAGED
    kind = OPTIMIZERS[plan.optimizer]
    moments = kind.packed if _packs(tensor, plan) else kind.moments
    return tuple(
        OptimizerState(f"{tensor.name}.{name}", elements(n), dtype or tensor.dtype, pages and paged)
        for name, elements, dtype, pages in moments
    )


def shared_states(trained: Iterable[StoredTensor], plan: RunPlan) -> tuple[OptimizerState, ...]:
    """The code tables that an 8-bit optimizer has once for all tensors with 8-bit states."""
    if OPTIMIZERS[plan.optimizer].precision == "8 bits" and any(_packs(t, plan) for t in trained):
        return (OptimizerState("dynamic", 256, "fp32"), OptimizerState("udynamic", 256, "fp32"))
    return ()


def passing_temporaries(tensor: StoredTensor, plan: RunPlan) -> dict[str, int]:
    """What the update of one tensor allocates by name, in bytes, and frees before the next tensor
    is updated: at its peak all of these, made in this order.

    torchao's 4-bit AdamW is compiled. For each moment its kernels unpack the codes, then write
    scales, the moment in float32 and an int64 index for each new code. That is what Inductor
    generates for a CPU; on a GPU it may fuse more and need less.
    """
    if plan.optimizer != "adamw4bit" or not _packs(tensor, plan):
        return {}
    n = tensor.elements
    parts = {"codes": n, "scale": 4 * n // BLOCK_4BIT, "moment": 4 * n, "index": 8 * n}
    return {
        f"{tensor.name}.{moment}.{part}": nbytes
        for part, nbytes in parts.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }


def _packs(tensor: StoredTensor, plan: RunPlan) -> bool:
    """Whether a tensor has packed states. The Trainer asks bitsandbytes for 32 bits for all
    embeddings (trainer.py, create_optimizer: register_module_override)."""
    kind = OPTIMIZERS[plan.optimizer]
    trainer = kind.library == "bitsandbytes" and plan.loop == "trainer"
    spared = not kind.packed or (trainer and tensor.kind == "embedding")
    return not spared and tensor.elements >= _SMALLEST_PACKED and tensor.elements % kind.block == 0


class OptimizerOnTape:
    """The optimizer states, made in the first step, and the temporaries of each step."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.states: list[Buffer] | None = None

    def step(self, tape: Tape) -> None:
        """`optimizer.step()`."""
        if self.states is None:
            self.begin(tape)
        # AdamW over lists of tensors (foreach) holds the roots of all second moments of a dtype at
        # once (torch/optim/adam.py, _multi_tensor_adam: exp_avg_sq_sqrt), and frees them when it
        # has made those of the next. Fused and 8-bit kernels work in place.
        roots = self.model.plan.optimizer == "adamw"
        before: list[list[Buffer]] = []
        for dtype in dict.fromkeys(stored.dtype for stored in self._trained()):
            made = [
                [
                    Buffer(tape, stored.bytes, ROOTS)
                    for stored, _ in weights.trained()
                    if roots and stored.dtype == dtype
                ]
                for weights in self.model.sweep(tape)
            ]
            self._release(tape, before)
            before = made
            del made
        self._release(tape, before)
        if self.model.plan.optimizer == "adamw4bit":  # updates tensors one after the other
            for weights in self.model.sweep(tape):
                for stored, _ in weights.trained():
                    passing = [
                        Buffer(tape, nbytes, Label(name, Component.TEMPORARIES))
                        for name, nbytes in passing_temporaries(stored, self.model.plan).items()
                    ]
                    passing.clear()

    def begin(self, tape: Tape) -> None:
        """Makes the states."""
        self.states = [
            Buffer(tape, state.bytes, Label(state.name, Component.OPTIMIZER))
            for state in self._states(tape)
            if not state.paged
        ]

    def _states(self, tape: Tape) -> Iterator[OptimizerState]:
        yield from shared_states(self._trained(), self.model.plan)
        for weights in self.model.sweep(tape):
            for stored, _ in weights.trained():
                yield from states_of(stored, self.model.plan)

    def _release(self, tape: Tape, buffers: list[list[Buffer]]) -> None:
        """Frees the buffers of each group of weights, in order."""
        if any(buffers):
            for own, _ in zip(buffers, self.model.sweep(tape), strict=True):
                own.clear()

    def _trained(self) -> Iterator[StoredTensor]:
        for weights in (self.model.outside, *self.model.layers):
            yield from (stored for stored, _ in weights.trained())
