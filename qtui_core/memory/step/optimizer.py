"""The states that optimizers keep for each trained tensor, and the temporaries of their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.options import Loop, Optimizer
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.shape.weights import StoredTensor

#: bitsandbytes: tensors with fewer elements keep float32 states, others one byte per element with
#: an absmax for each block (optim/optimizer.py, Optimizer2State: min_8bit_size, init_state).
_SMALLEST_8BIT: Final = 4096
_BLOCK_8BIT: Final = 256
#: bitsandbytes: states with at least this many elements are in managed memory (get_state_buffer).
_SMALLEST_PAGED: Final = 100_000
#: Optimizers with 8-bit states.
_EIGHT_BITS: Final = ("adamw8bit", "paged-adamw8bit")
#: torchao: tensors of at least this many elements that whole blocks divide are packed
#: (optim/adam.py).
_SMALLEST_4BIT: Final = 4096
_BLOCK_4BIT: Final = 128


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
    moments = _STATES[plan.optimizer]
    if plan.optimizer in _EIGHT_BITS and _in_8_bits(tensor, plan.loop):
        moments = _8_BITS
    elif plan.optimizer == "adamw4bit" and _in_4_bits(tensor):
        moments = _4_BITS
    return tuple(
        OptimizerState(f"{tensor.name}.{name}", elements(n), dtype or tensor.dtype, pages and paged)
        for name, elements, dtype, pages in moments
    )


def shared_states(trained: Iterable[StoredTensor], plan: RunPlan) -> tuple[OptimizerState, ...]:
    """The code tables that an 8-bit optimizer has once for all tensors with 8-bit states."""
    if plan.optimizer in _EIGHT_BITS and any(_in_8_bits(t, plan.loop) for t in trained):
        return (OptimizerState("dynamic", 256, "fp32"), OptimizerState("udynamic", 256, "fp32"))
    return ()


def step_temporaries(trained: Iterable[StoredTensor], plan: RunPlan) -> list[int]:
    """Bytes that a step allocates for tensors of one dtype, and frees when it has made those of the
    next.

    AdamW over lists of tensors (foreach) holds the roots of all second moments of a dtype at once
    (torch/optim/adam.py, _multi_tensor_adam: exp_avg_sq_sqrt). Fused and 8-bit kernels work in
    place.
    """
    return [tensor.bytes for tensor in trained] if plan.optimizer == "adamw" else []


def passing_temporaries(tensor: StoredTensor, plan: RunPlan) -> dict[str, int]:
    """What the update of one tensor allocates by name, in bytes, and frees before the next tensor
    is updated: at its peak all of these, made in this order.

    torchao's 4-bit AdamW is compiled. For each moment its kernels unpack the codes, then write
    scales, the moment in float32 and an int64 index for each new code. That is what Inductor
    generates for a CPU; on a GPU it may fuse more and need less.
    """
    if plan.optimizer != "adamw4bit" or not _in_4_bits(tensor):
        return {}
    n = tensor.elements
    parts = {"codes": n, "scale": 4 * n // _BLOCK_4BIT, "moment": 4 * n, "index": 8 * n}
    return {
        f"{tensor.name}.{moment}.{part}": nbytes
        for part, nbytes in parts.items()
        for moment in ("exp_avg", "exp_avg_sq")
    }


def _in_8_bits(tensor: StoredTensor, loop: Loop) -> bool:
    """Whether a tensor has 8-bit states. The Trainer asks bitsandbytes for 32 bits for all
    embeddings (trainer.py, create_optimizer: register_module_override)."""
    spared = loop == "trainer" and tensor.kind == "embedding"
    return tensor.elements >= _SMALLEST_8BIT and not spared


def _in_4_bits(tensor: StoredTensor) -> bool:
    return tensor.elements >= _SMALLEST_4BIT and tensor.elements % _BLOCK_4BIT == 0


class _Moment(NamedTuple):
    """A state of an optimizer: its name, how many elements it has for those of a tensor, its dtype
    (empty: that of the tensor), and whether it can be paged."""

    name: str
    elements: Callable[[int], int] = lambda count: count
    dtype: str = ""
    pages: bool = False


#: torch.optim.AdamW: two moments in the parameter's dtype; the step counter is on the CPU
#: (torch/optim/adam.py, _init_group). The fused kernel reads it on the device.
_ADAMW: Final = (_Moment("exp_avg"), _Moment("exp_avg_sq"))
#: bitsandbytes keeps float32 moments whatever the parameter's dtype.
_32_BITS: Final = tuple(_Moment(name, dtype="fp32", pages=True) for name in ("state1", "state2"))
#: bitsandbytes: a byte for each element and moment, an absmax for each 256. Only the bytes are
#: paged, the absmaxes are not (get_state_buffer, init_state).
_8_BITS: Final = (
    *(_Moment(name, dtype="uint8", pages=True) for name in ("state1", "state2")),
    *(_Moment(name, lambda n: -(-n // _BLOCK_8BIT), "fp32") for name in ("absmax1", "absmax2")),
)
#: torchao: for each moment two elements per byte, a float32 scale for each 128, and a table of 16
#: codes; other tensors keep moments in their own dtype (optim/adam.py, _new_buffer).
_4_BITS: Final = tuple(
    _Moment(f"{moment}.{part}", elements, dtype)
    for moment in ("exp_avg", "exp_avg_sq")
    for part, elements, dtype in (
        ("codes", lambda n: n // 2, "uint8"),
        ("scale", lambda n: n // _BLOCK_4BIT, "fp32"),
        ("qmap", lambda n: 16, "fp32"),
    )
)

#: The states of a tensor, by optimizer; of SGD without momentum there are none.
_STATES: Final[dict[Optimizer, tuple[_Moment, ...]]] = {
    "adamw": _ADAMW,
    "adamw-fused": (_Moment("step", lambda n: 1, "fp32"), *_ADAMW),
    "adamw8bit": _32_BITS,  # for states that are not in 8 bits
    "paged-adamw8bit": _32_BITS,
    "paged-adamw": _32_BITS,
    "adamw4bit": _ADAMW,  # for states that are not in 4 bits
    "sgd": (),
}
