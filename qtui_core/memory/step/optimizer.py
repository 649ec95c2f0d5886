"""What optimizers keep for each trained tensor, and what a step of theirs allocates meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.choices import Loop, Optimizer
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import rounded
from qtui_core.memory.shape.storage import StoredTensor

#: bitsandbytes: tensors below so many elements keep float32 states, others one byte an element
#: with an absmax for each block (optim/optimizer.py, Optimizer2State: min_8bit_size, init_state).
_SMALLEST_8BIT: Final = 4096
_BLOCK_8BIT: Final = 256
#: bitsandbytes: states of so many elements live in managed memory (get_state_buffer).
_SMALLEST_PAGED: Final = 100_000
#: Optimizers that keep states in 8 bits.
_EIGHT_BITS: Final = ("adamw8bit", "paged-adamw8bit")
#: torchao: tensors of so many elements that whole blocks divide are packed (optim/adam.py).
_SMALLEST_4BIT: Final = 4096
_BLOCK_4BIT: Final = 128


class OptimizerState(NamedTuple):
    """A tensor that an optimizer keeps.

    Attributes:
        name: of the trained tensor and of the state, as "lm_head.weight.exp_avg".
        elements, dtype: of the state.
        paged: whether it is managed memory, which the allocator of torch knows nothing of.
    """

    name: str
    elements: int
    dtype: str
    paged: bool = False

    @property
    def bytes(self) -> int:
        """As asked of the allocator, before it rounds."""
        return self.elements * SIZES[self.dtype]

    @property
    def allocated(self) -> int:
        """As the allocator of torch takes them; 0 where it is paged."""
        return 0 if self.paged else rounded(self.bytes)


class Temporary(NamedTuple):
    """An allocation of a step of the optimizer. Those of one `group` are made one after the
    other; a group is freed when the next has been made, the last at the end of the step."""

    name: str
    bytes: int
    group: int


def states_of(tensor: StoredTensor, plan: RunPlan) -> tuple[OptimizerState, ...]:
    """States of one trained tensor on its device, in the order they are made at the first step.
    Step counters that live on the CPU are not among them."""
    paged = plan.pages and tensor.elements >= _SMALLEST_PAGED
    if plan.optimizer in _EIGHT_BITS and _in_8_bits(tensor, plan.loop):
        return tuple(_adamw_8bit(tensor, paged))
    return tuple(_STATES[plan.optimizer](tensor, paged))


def shared_states(trained: Iterable[StoredTensor], plan: RunPlan) -> tuple[OptimizerState, ...]:
    """Code tables that an 8-bit optimizer has once for all tensors it keeps in 8 bits."""
    if plan.optimizer in _EIGHT_BITS and any(_in_8_bits(t, plan.loop) for t in trained):
        return (OptimizerState("dynamic", 256, "fp32"), OptimizerState("udynamic", 256, "fp32"))
    return ()


def step_temporaries(trained: Iterable[StoredTensor], plan: RunPlan) -> Iterator[Temporary]:
    """What a step allocates and frees again.

    AdamW over lists of tensors (foreach) holds the roots of all second moments of a type at once
    (torch/optim/adam.py, _multi_tensor_adam: exp_avg_sq_sqrt), one type after the other. Fused
    and 8-bit kernels work in place.
    """
    if plan.optimizer != "adamw":
        return
    groups: dict[str, int] = {}
    for tensor in sorted(trained, key=lambda t: groups.setdefault(t.dtype, len(groups))):
        yield Temporary(f"{tensor.name}.exp_avg_sq_sqrt", tensor.bytes, groups[tensor.dtype])


def passes_one_by_one(plan: RunPlan) -> bool:
    """Whether the update of each tensor has temporaries of its own (`passing_temporaries`)."""
    return plan.optimizer == "adamw4bit"


def passing_temporaries(tensor: StoredTensor, plan: RunPlan) -> tuple[Temporary, ...]:
    """What the update of one tensor allocates and frees again before the next is updated: at its
    fullest all of these, made in this order.

    AdamW in 4 bits of torchao is compiled. For each moment its kernels unpack the codes, then
    write scales, the moment in float32 and an int64 index for each new code. That is what Inductor
    makes for a CPU; on a GPU it may fuse more and need less.
    """
    if not passes_one_by_one(plan) or not _in_4_bits(tensor):
        return ()
    n = tensor.elements
    parts = {"codes": n, "scale": 4 * n // _BLOCK_4BIT, "moment": 4 * n, "index": 8 * n}
    return tuple(
        Temporary(f"{tensor.name}.{moment}.{part}", nbytes, 0)
        for part, nbytes in parts.items()
        for moment in ("exp_avg", "exp_avg_sq")
    )


def _adamw(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """torch.optim.AdamW: two moments in the type of the parameter; the step counter is on the
    CPU (torch/optim/adam.py, _init_group)."""
    yield OptimizerState(f"{tensor.name}.exp_avg", tensor.elements, tensor.dtype)
    yield OptimizerState(f"{tensor.name}.exp_avg_sq", tensor.elements, tensor.dtype)


def _fused(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """The fused kernel reads the step counter on the device, a float32 for each tensor."""
    yield OptimizerState(f"{tensor.name}.step", 1, "fp32")
    yield from _adamw(tensor, paged)


def _adamw_32bit(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """bitsandbytes keeps float32 moments whatever the parameter's type."""
    yield OptimizerState(f"{tensor.name}.state1", tensor.elements, "fp32", paged)
    yield OptimizerState(f"{tensor.name}.state2", tensor.elements, "fp32", paged)


def _adamw_8bit(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """bitsandbytes: a byte an element and moment, an absmax for each 256. Only the bytes are
    paged, the absmax are not (get_state_buffer, init_state)."""
    yield OptimizerState(f"{tensor.name}.state1", tensor.elements, "uint8", paged)
    yield OptimizerState(f"{tensor.name}.state2", tensor.elements, "uint8", paged)
    blocks = -(-tensor.elements // _BLOCK_8BIT)
    yield OptimizerState(f"{tensor.name}.absmax1", blocks, "fp32")
    yield OptimizerState(f"{tensor.name}.absmax2", blocks, "fp32")


def _in_8_bits(tensor: StoredTensor, loop: Loop) -> bool:
    """The Trainer asks bitsandbytes for 32 bits for all embeddings (trainer.py,
    create_optimizer: register_module_override)."""
    spared = loop == "trainer" and tensor.kind == "embedding"
    return tensor.elements >= _SMALLEST_8BIT and not spared


def _adamw_4bit(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """torchao: two elements a byte, a float32 scale for each 128, and a table of 16 codes, for
    each moment; other tensors keep moments in their own type (optim/adam.py, _new_buffer)."""
    if not _in_4_bits(tensor):
        yield from _adamw(tensor, paged)
        return
    n = tensor.elements
    for moment in ("exp_avg", "exp_avg_sq"):
        yield OptimizerState(f"{tensor.name}.{moment}.codes", n // 2, "uint8")
        yield OptimizerState(f"{tensor.name}.{moment}.scale", n // _BLOCK_4BIT, "fp32")
        yield OptimizerState(f"{tensor.name}.{moment}.qmap", 16, "fp32")


def _in_4_bits(tensor: StoredTensor) -> bool:
    return tensor.elements >= _SMALLEST_4BIT and tensor.elements % _BLOCK_4BIT == 0


def _sgd(tensor: StoredTensor, paged: bool) -> Iterator[OptimizerState]:
    """Without momentum nothing is kept."""
    return iter(())


#: The states of a tensor, of which those that may be paged are or are not.
_STATES: Final[dict[Optimizer, Callable[[StoredTensor, bool], Iterator[OptimizerState]]]] = {
    "adamw": _adamw,
    "adamw-fused": _fused,
    "adamw8bit": _adamw_32bit,  # of what is not kept in 8 bits
    "paged-adamw8bit": _adamw_32bit,
    "paged-adamw": _adamw_32bit,
    "adamw4bit": _adamw_4bit,
    "sgd": _sgd,
}
