"""Recipes for tools with one type for the whole model and a list of modules to skip: bitsandbytes
in transformers, and vLLM when loading."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from qtui_core.inspection.recipes.recipe import (
    UNQUANTIZED,
    ModuleKind,
    RecipeTensor,
    StandIn,
    ToolRecipe,
    as_json,
    fused_modules,
    is_plain,
    kept_as_stored,
    kinds_of,
)
from qtui_core.schemes.scheme import Scheme

_HEAD: Final = "the tool leaves the head unquantized"
_ONE_TYPE: Final = "one type for the whole model"
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
    common: Counter[str] = Counter()
    for tensor in tensors:
        if tensor.is_linear and not tensor.keeps:
            common[_nearest(tensor)] += tensor.rows * tensor.columns
    chosen = common.most_common(1)[0][0] if common else next(iter(_BITSANDBYTES))
    bits, options = _BITSANDBYTES[chosen]

    def kind_of(tensor: RecipeTensor) -> ModuleKind:
        if _bits(tensor) > bits:
            return ModuleKind(None, UNQUANTIZED, f"{_ONE_TYPE}, and that has fewer bits")
        return ModuleKind(chosen, "" if _is(tensor, chosen) else chosen, _ONE_TYPE)

    kinds, left = kinds_of(tensors, kind_of)
    whole = {
        "quant_method": "bitsandbytes",
        f"load_in_{bits}bit": True,
        **options,
        "llm_int8_skip_modules": [name for name, kind in kinds.items() if kind is None],
    }
    note = (
        "LLM.int8() computes columns of activations beyond llm_int8_threshold in 16 bits; the "
        "error of the weights is the same."
    )
    return ToolRecipe(
        as_json(whole),
        "from_pretrained(…, quantization_config=BitsAndBytesConfig(**json.load(open('FILE'))))",
        tuple(left),
        (note,) if bits == 8 else (),
    )


def vllm(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The `--quantization-config` of vLLM (0.33), which quantizes while it loads: a type for linear
    layers and experts, and the modules to ignore; by `targets` where there are several types."""
    heads = [tensor for tensor in tensors if tensor.is_head]
    kinds, left = kinds_of([t for t in tensors if not t.is_head], _online)
    left = _fused(tensors, kinds, left)
    left += [each for tensor in heads for each in kept_as_stored(tensor, _HEAD)]
    # All experts of a layer are one module, named without their numbers.
    named = {_EXPERTS.sub(r"\1", name): kind for name, kind in kinds.items()}
    used = sorted({kind for kind in kinds.values() if kind})
    whole: dict[str, Any]
    if len(used) > 1:
        whole = {
            "targets": {f"re:^{re.escape(n)}$": _VLLM[kind][1] for n, kind in named.items() if kind}
        }
    else:
        kind = _VLLM[used[0]][1] if used else "fp8_per_channel"
        experts = any(_EXPERTS.fullmatch(name) for name, of in kinds.items() if of)
        ignored = [name for name, of in named.items() if of is None]
        ignored += [tensor.module for tensor in heads]
        whole = {"linear": kind, **({"moe": kind} if experts else {}), "ignore": ignored}
    return ToolRecipe(
        as_json(whole),
        'vllm serve MODEL --quantization online --quantization-config "$(cat FILE)"',
        tuple(left),
        (
            "vLLM rounds activations to the same type where the GPU multiplies it, which is not "
            "measured here.",
        ),
    )


def _online(tensor: RecipeTensor) -> ModuleKind:
    if kind := next((kind for kind in _VLLM if _is(tensor, kind)), None):
        return ModuleKind(kind)
    return ModuleKind("e4m3:row", "e4m3:row", "the tool has no such type while it loads")


def _fused(
    tensors: Sequence[RecipeTensor], kinds: dict[str, Any], left: list[StandIn]
) -> list[StandIn]:
    """Gives the parts of a module that vLLM fuses the largest kind of any of them; the
    substitutions."""
    by_module = {tensor.module: tensor for tensor in tensors}
    for shards in fused_modules(kinds):
        of_parts = [kinds[name] for name in shards]
        best = None if None in of_parts else max(of_parts, key=lambda kind: _VLLM[kind][0])
        for name in shards:
            if kinds[name] != best:
                tensor, kinds[name] = by_module[name], best
                why = "vLLM makes one module of this and others"
                left = [each for each in left if each.tensor != tensor.name]
                left.append(StandIn(tensor.name, str(tensor.scheme), best or UNQUANTIZED, why))
    return left


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


def _nearest(tensor: RecipeTensor) -> str:
    """The first kind that the scheme is, or else that has at least its bits."""
    exact = (kind for kind in _BITSANDBYTES if _is(tensor, kind))
    enough = (kind for kind, (bits, _) in _BITSANDBYTES.items() if bits >= _bits(tensor))
    return next(exact, None) or next(enough, list(_BITSANDBYTES)[-1])
