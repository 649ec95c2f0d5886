"""Recipes for tools with one type for the whole model and a list of modules to skip: bitsandbytes
in transformers, and vLLM when loading."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from qtui_core.inspection.recipes.recipe import (
    UNQUANTIZED,
    RecipeTensor,
    StandIn,
    ToolRecipe,
    fused_modules,
    is_plain,
    kept_as_stored,
    most_common,
)
from qtui_core.schemes.scheme import Scheme

_HEAD: Final = "the tool leaves the head unquantized"
_ONE_TYPE: Final = "one type for the whole model"
_FEWER_BITS: Final = "one type for the whole model, and that has fewer bits"
#: Kind -> (bits, options of BitsAndBytesConfig).
_BITSANDBYTES: Final[dict[str, tuple[int, dict[str, Any]]]] = {
    "nf4:block64": (4, {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False}),
    "nf4:block64:dq": (4, {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}),
    "fp4:block64": (4, {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False}),
    "fp4:block64:dq": (4, {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}),
    "int8:row": (8, {"llm_int8_threshold": 6.0}),
}
#: Kind -> (bits, the name of vLLM's online quantization).
_VLLM: Final[dict[str, tuple[int, str]]] = {
    "e4m3:row": (8, "fp8_per_channel"),
    "e4m3:tensor": (8, "fp8_per_tensor"),
    "e4m3:tile128x128": (8, "fp8_per_block"),
    "mxfp8-e4m3": (8, "mxfp8"),
    "mxfp4": (4, "mxfp4"),
}
_EXPERTS: Final = re.compile(r"(.*\.experts)\.\d+\..*")


def bitsandbytes(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The options of a BitsAndBytesConfig of transformers, with `llm_int8_skip_modules`."""
    kind, kept, left = _one_kind(tensors, {name: bits for name, (bits, _) in _BITSANDBYTES.items()})
    bits, options = _BITSANDBYTES[kind]
    whole = {
        "quant_method": "bitsandbytes",
        f"load_in_{bits}bit": True,
        **options,
        "llm_int8_skip_modules": kept,
    }
    notes = (
        "LLM.int8() computes columns of activations beyond llm_int8_threshold in 16 bits; the "
        "error of the weights is the same.",
    )
    return ToolRecipe(
        json.dumps(whole, indent=1) + "\n",
        "from_pretrained(…, quantization_config=BitsAndBytesConfig(**json.load(open('FILE'))))",
        left,
        notes if bits == 8 else (),
    )


def vllm(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The `--quantization-config` of vLLM (0.33), which quantizes while it loads: a type for linear
    layers and experts, and the modules to ignore; by `targets` where there are several types."""
    linear = [tensor for tensor in tensors if not tensor.is_head]
    heads = [each for tensor in tensors if tensor.is_head for each in kept_as_stored(tensor, _HEAD)]
    kinds, left = _vllm_kinds(linear)
    # All experts of a layer are one module, named without their numbers.
    named = {_EXPERTS.sub(r"\1", name): kind for name, kind in kinds.items()}
    used = sorted({kind for kind in kinds.values() if kind})
    kept = [name for name, kind in named.items() if kind is None]
    kept += [tensor.module for tensor in tensors if tensor.is_head]
    whole: dict[str, Any]
    if len(used) > 1:
        types = {name: _VLLM[kind][1] for name, kind in named.items() if kind}
        whole = {"targets": {f"re:^{re.escape(name)}$": kind for name, kind in types.items()}}
    else:
        kind = _VLLM[used[0]][1] if used else "fp8_per_channel"
        experts = any(_EXPERTS.fullmatch(name) for name, found in kinds.items() if found)
        whole = {"linear": kind, **({"moe": kind} if experts else {}), "ignore": kept}
    return ToolRecipe(
        json.dumps(whole, indent=1) + "\n",
        'vllm serve MODEL --quantization online --quantization-config "$(cat FILE)"',
        (*left, *heads),
        (
            "vLLM rounds activations to the same type where the GPU multiplies it, which is not "
            "measured here.",
        ),
    )


def _one_kind(
    tensors: Sequence[RecipeTensor], kinds: dict[str, int]
) -> tuple[str, list[str], tuple[StandIn, ...]]:
    """(the kind with the most parameters, the modules to skip, the substitutions)."""
    quantized = [t for t in tensors if t.is_linear and not t.keeps]
    common = most_common([(_nearest(t, kinds), t.rows * t.columns) for t in quantized])
    kind = common or next(iter(kinds))
    kept: list[str] = []
    left: list[StandIn] = []
    for tensor in tensors:
        if tensor.keeps or not tensor.is_linear:
            kept += [tensor.module] if tensor.is_linear else []
            left += kept_as_stored(tensor)
            continue
        if _bits(tensor) > kinds[kind]:
            kept.append(tensor.module)
            left.append(_stands(tensor, UNQUANTIZED, _FEWER_BITS))
        elif not _is(tensor, kind):
            left.append(_stands(tensor, kind, _ONE_TYPE))
    return kind, kept, tuple(left)


def _vllm_kinds(
    tensors: Sequence[RecipeTensor],
) -> tuple[dict[str, str | None], tuple[StandIn, ...]]:
    """(module -> its kind, None if it is skipped; the substitutions)."""
    kinds: dict[str, str | None] = {}
    left: list[StandIn] = []
    for tensor in tensors:
        if tensor.keeps or not tensor.is_linear:
            if tensor.is_linear:
                kinds[tensor.module] = None
            left += kept_as_stored(tensor)
            continue
        kind = next((kind for kind in _VLLM if _is(tensor, kind)), None)
        kinds[tensor.module] = kind or "e4m3:row"
        if kind is None:
            left.append(_stands(tensor, "e4m3:row", "the tool has no such type while it loads"))
    schemes = {tensor.module: tensor for tensor in tensors}
    for shards in fused_modules(kinds):
        found = {kinds[name] for name in shards}
        if len(found) == 1:
            continue
        # A fused module gets the largest kind of its parts.
        best = None if None in found else max(filter(None, found), key=lambda k: _VLLM[k][0])
        for name in shards:
            if kinds[name] != best:
                why = "vLLM makes one module of this and others"
                left = [each for each in left if each.tensor != schemes[name].name]
                left.append(_stands(schemes[name], best or UNQUANTIZED, why))
                kinds[name] = best
    return kinds, tuple(left)


def _stands(tensor: RecipeTensor, instead: str, why: str) -> StandIn:
    return StandIn(tensor.name, str(tensor.scheme), instead, why)


def _bits(tensor: RecipeTensor) -> int:
    return tensor.scheme.bits if tensor.scheme else 16


def _is(tensor: RecipeTensor, kind: str) -> bool:
    """Whether the tensor's scheme is that kind."""
    scheme = tensor.scheme
    if scheme is None or not is_plain(scheme):
        return False
    if scheme.format.startswith("mx"):
        return scheme.format == kind  # whichever scale rule: its error is of the same size
    return scheme == Scheme.parse(kind)


def _nearest(tensor: RecipeTensor, kinds: dict[str, int]) -> str:
    """The first kind that the scheme is, or else that has at least its bits."""
    exact = next((kind for kind in kinds if _is(tensor, kind)), None)
    enough = (kind for kind, bits in kinds.items() if bits >= _bits(tensor))
    return exact or next(enough, list(kinds)[-1])
