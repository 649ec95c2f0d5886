"""The values that options of a plan can have, and parsers for those that are texts."""

from __future__ import annotations

import re
from typing import Final, Literal, get_args

from qtui_core.errors import UsageError
from qtui_core.memory.shape.packings import STORED

Method = Literal["full", "lora", "qlora", "inference"]
Optimizer = Literal[
    "adamw", "adamw-fused", "adamw8bit", "paged-adamw8bit", "paged-adamw", "adamw4bit", "sgd"
]
KbitPrep = Literal["none", "norms", "all"]
AttentionKernel = Literal["sdpa", "flash", "efficient", "eager"]
Loop = Literal["trainer", "manual", "script"]
Segments = Literal["native", "expandable"]
Kernels = Literal["torch", "fused", "liger"]

METHODS: Final = get_args(Method)
OPTIMIZERS: Final = get_args(Optimizer)
KBIT_PREPARATIONS: Final = get_args(KbitPrep)
ATTENTION_KERNELS: Final = get_args(AttentionKernel)
LOOPS: Final = get_args(Loop)
SEGMENTS: Final = get_args(Segments)
KERNELS: Final = get_args(Kernels)
#: How bitsandbytes can store frozen weights; "-dq" also quantizes the block absmaxes.
QUANTS: Final = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8")
#: Types in which bitsandbytes can store packed 4-bit weights (bnb_4bit_quant_storage), its default
#: first.
QUANT_STORAGES: Final = ("uint8", "bf16", "fp16", "fp32")
#: These, and a checkpoint that another library packed.
STORAGES: Final = (*QUANTS, STORED)
#: A quantized checkpoint that is unpacked while it is loaded.
UNPACKED: Final = "none"
#: Losses by name; "chunked" may be followed by a colon and the tokens of a chunk.
LOSSES: Final = ("stock", "stock-4.48", "tiled", "chunked", "fused", "in-place", "in-place-4.48")
#: All linear layers except the one that gives logits.
ALL_LINEAR: Final = "all-linear"

_DEFAULT_CHUNK: Final = 256  # TRL's default
_MOST_TOKENS: Final = 1 << 30


def parse_targets(text: str) -> tuple[str, ...]:
    """The modules that get adapters: names separated by commas, or "all-linear".

    Raises UsageError for an empty list, for something that is no name, and for all-linear beside
    names.
    """
    names = tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
    if not names:
        raise UsageError(
            f"No module is named to put adapters on; write {ALL_LINEAR}, or names with commas "
            "between, such as q_proj,v_proj."
        )
    if ALL_LINEAR in names and len(names) > 1:
        raise UsageError(
            f"{ALL_LINEAR} already takes every linear layer; leave out "
            f"{', '.join(name for name in names if name != ALL_LINEAR)}."
        )
    for name in names:
        if name != ALL_LINEAR and not name.replace(".", "_").isidentifier():
            raise UsageError(
                f"{name!r} is no name of a module; names are like q_proj or mlp.down_proj."
            )
    return names


def parse_loss(text: str) -> str:
    """The canonical text of a loss: "chunked" becomes "chunked:256", TRL's default.

    Raises UsageError for an unknown loss and for a chunk of no tokens.
    """
    name, colon, tokens = text.strip().lower().partition(":")
    if name not in LOSSES or (colon and name != "chunked"):
        raise UsageError(
            f"{text!r} is no loss that is known; use stock, stock-4.48, tiled, chunked:256, fused, "
            "in-place or in-place-4.48."
        )
    if name != "chunked":
        return name
    if not colon:
        return f"chunked:{_DEFAULT_CHUNK}"
    whole = tokens.isascii() and tokens.isdigit() and len(tokens) <= 12
    if not whole or not 1 <= int(tokens) <= _MOST_TOKENS:
        raise UsageError(
            f"A chunk of the loss is one token or more; {text!r} says {tokens or 'nothing'} after "
            "the colon. Write chunked:256."
        )
    return f"chunked:{int(tokens)}"


def parse_torch(text: str) -> str:
    """The canonical text of a torch version. Raises UsageError if it is not a version."""
    if re.fullmatch(r"\d{1,3}\.\d{1,3}(\.\d+)?(\+\w+)?", text) is None:
        raise UsageError(f"{text!r} is no version of torch; versions are like 2.13.")
    return text


def chunk_of(loss: str) -> int | None:
    """Tokens of a chunk in a "chunked:N" loss; None for other losses."""
    return int(parse_loss(loss).partition(":")[2]) if loss.startswith("chunked") else None


def without_logits(loss: str) -> bool:
    """Whether a loss takes the head's input and weight, so that the logits of all tokens are never
    computed at once."""
    return loss in ("tiled", "fused") or chunk_of(loss) is not None
