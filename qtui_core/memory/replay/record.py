"""The format of recordings: what is allocated and freed, in order. The estimate writes one from a
shape, the trace from a real model on fake tensors; allocator, curve and report read it.

A recording is a list of events; they are plain tuples because there are tens of thousands:

    (ALLOCATE, id, bytes, label)     bytes as requested, before any rounding
    (FREE, id)
    (PHASE, name)                    a phase begins
    (LAYER, index, direction)        work on layer `index` begins, FORWARD or BACKWARD; index -1 is
                                     what comes before, between and after layers
    (OPERATION, name, module)        the operation that the following events belong to
    (EMPTY_CACHE,)                   torch.cuda.empty_cache(): the allocator gives back unused
                                     memory; live tensors do not change

one that only a tape writes that builds few turns of a loop; folding.py reads it:

    (TURN, index, more)              a turn of a loop in a layer begins; one stands for `more`
                                     others; index -1 is what comes between loops

and two that only the allocator gets:

    (HOLD_BACK, id)                  the buffer counts as freed, but its memory is not reused
    (HAND_BACK,)                     until this event, or until the device is full

Ids are unique in a recording. What is alive when the step begins (weights, optimizer states) is
allocated in the phases "load", "prepare" and "optimizer" of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from qtui_core.dataclass import dataclass

ALLOCATE: Final = 0
FREE: Final = 1
PHASE: Final = 2
LAYER: Final = 3
OPERATION: Final = 4
EMPTY_CACHE: Final = 5
HOLD_BACK: Final = 6
HAND_BACK: Final = 7
TURN: Final = 8
#: Events that end the life of a buffer.
FREES: Final = (FREE, HOLD_BACK)

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OUTSIDE: Final = -1

Event = tuple[Any, ...]


class Phase(StrEnum):
    """Phases of a run, in order. The last five are a step."""

    LOAD = "load"
    PREPARE = "prepare"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    BETWEEN = "between steps"


class Component(Enum):
    """What bytes are for, in the order in which they are stacked: what stays lies below what comes
    and goes."""

    WEIGHTS = "weights"
    QUANTIZATION = "quantization constants"
    ADAPTERS = "adapters"
    BUFFERS = "buffers"
    WORKSPACES = "workspaces"
    OPTIMIZER = "optimizer states"
    CACHE = "key-value cache"
    GRADIENTS = "gradients"
    INPUTS = "inputs"
    ACTIVATIONS = "activations"
    LOSS = "loss"
    TEMPORARIES = "temporaries"


#: What stays from one step to the next.
RESIDENT: Final = frozenset(
    (
        Component.WEIGHTS,
        Component.QUANTIZATION,
        Component.ADAPTERS,
        Component.BUFFERS,
        Component.OPTIMIZER,
        Component.WORKSPACES,
    )
)


class Label(NamedTuple):
    """What an allocation is. If `component` is None, its lifetime decides: what a forward pass
    keeps for the backward pass is an activation, what a backward pass leaves for the optimizer a
    gradient, anything else a temporary."""

    what: str
    component: Component | None = None


@dataclass(frozen=True)
class Recording:
    """Events of a run, from loading the model through its steps.

    Attributes:
        events: in order.
        origin: "tape" or "trace".
        paged_bytes: of optimizer states that the driver may move to the host.
        steady: whether its first step is like all later ones.
    """

    events: Sequence[Event]
    origin: str
    paged_bytes: int = 0
    steady: bool = False


def rounded(nbytes: int) -> int:
    """Bytes that the CUDA allocator takes for a tensor: a multiple of 512 (kMinBlockSize in
    c10/core/AllocatorConfig.h)."""
    return -(-int(nbytes) // 512) * 512
