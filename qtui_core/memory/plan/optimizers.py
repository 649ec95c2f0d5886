"""The optimizers that a plan can name, a row each: the states they keep, and what a step does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple

Optimizer = Literal[
    "adamw", "adamw-fused", "adamw8bit", "paged-adamw8bit", "paged-adamw", "adamw4bit", "sgd"
]


class _Moment(NamedTuple):
    """A state of an optimizer: its name, how many elements it has for those of a tensor, its dtype
    (empty: that of the tensor), and whether it can be paged."""

    name: str
    elements: Callable[[int], int] = lambda count: count
    dtype: str = ""
    pages: bool = False


class OptimizerKind(NamedTuple):
    """What an optimizer is; a row says all of it.

    Attributes:
        update: the name of its rule.
        work: floating-point operations of a step for each trained element.
        rates: learning rates of a run, for adapters and for the weights themselves.
        library: that has it.
        precision: of its states; that of the trained tensor, or of their own.
        moments: its states of a tensor.
        packed: those of a large tensor, of `block` elements or a multiple; empty for the same.
        passes: how often a step over lists of tensors (foreach) reads or writes each element; 0 if
            a kernel updates it at once.
    """

    update: str
    work: int
    rates: tuple[float, float]
    library: Literal["torch", "bitsandbytes", "torchao"]
    precision: Literal["tensor", "fp32", "8 bits", "4 bits", "none"]
    moments: tuple[_Moment, ...]
    packed: tuple[_Moment, ...]
    block: int
    passes: int

    @property
    def learns(self) -> tuple[str, str]:
        """What decides the numbers of a run, which a fused kernel or paged states do not change."""
        return self.update, self.precision


#: Adapters take about ten times as much as the weights (Hu et al. 2021, appendix D: 2e-4 for GPT-2,
#: where 1e-5 to 5e-5 are usual for the weights). Both are at the upper end here, so that a run of
#: few steps shows that something is learned.
_AdamW: Final = partial(OptimizerKind, "AdamW", 14, (1e-3, 1e-4))

#: torch.optim.AdamW: two moments in the parameter's dtype; the step counter is on the CPU
#: (torch/optim/adam.py, _init_group). The fused kernel reads it on the device.
_ADAMW: Final = (_Moment("exp_avg"), _Moment("exp_avg_sq"))
_FUSED: Final = (_Moment("step", lambda n: 1, "fp32"), *_ADAMW)
#: bitsandbytes keeps float32 moments whatever the parameter's dtype.
_32_BITS: Final = tuple(_Moment(name, dtype="fp32", pages=True) for name in ("state1", "state2"))
#: bitsandbytes: a byte for each element and moment, an absmax for each block. Only the bytes are
#: paged, the absmaxes are not (get_state_buffer, init_state).
_BLOCK_8BIT: Final = 256
_8_BITS: Final = (
    *(_Moment(name, dtype="uint8", pages=True) for name in ("state1", "state2")),
    *(_Moment(name, lambda n: -(-n // _BLOCK_8BIT), "fp32") for name in ("absmax1", "absmax2")),
)
#: torchao packs tensors that whole blocks divide (optim/adam.py, _new_buffer): for each moment two
#: elements per byte, a float32 scale for each block, and a table of 16 codes.
BLOCK_4BIT: Final = 128
_4_BITS: Final = tuple(
    _Moment(f"{moment}.{part}", elements, dtype)
    for moment in ("exp_avg", "exp_avg_sq")
    for part, elements, dtype in (
        ("codes", lambda n: n // 2, "uint8"),
        ("scale", lambda n: n // BLOCK_4BIT, "fp32"),
        ("qmap", lambda n: 16, "fp32"),
    )
)

OPTIMIZERS: Final[dict[Optimizer, OptimizerKind]] = {
    "adamw": _AdamW("torch", "tensor", _ADAMW, (), 1, 20),
    "adamw-fused": _AdamW("torch", "tensor", _FUSED, (), 1, 0),
    "adamw8bit": _AdamW("bitsandbytes", "8 bits", _32_BITS, _8_BITS, 1, 0),
    "paged-adamw8bit": _AdamW("bitsandbytes", "8 bits", _32_BITS, _8_BITS, 1, 0),
    "paged-adamw": _AdamW("bitsandbytes", "fp32", _32_BITS, (), 1, 0),
    "adamw4bit": _AdamW("torchao", "4 bits", _ADAMW, _4_BITS, BLOCK_4BIT, 0),
    "sgd": OptimizerKind("SGD", 2, (1e-2, 1e-2), "torch", "none", (), (), 1, 0),  # no momentum
}
