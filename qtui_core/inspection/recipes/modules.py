"""Recipes for tools with a type for each module (llm-compressor and torchao), and for those
with one type for the whole model and a list of modules to skip (bitsandbytes in transformers,
and vLLM when loading)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from qtui_core.inspection.recipes.recipe import (
    RecipeTensor,
    StandIn,
    ToolRecipe,
    as_json,
    fused_modules,
    kept_as_stored,
    kinds_of,
    nearest_integers,
    stands_in,
    vllm_note,
    with_whole_groups,
)
from qtui_core.schemes.granularity import PerGroup, PerRow, PerTensor, PerTile
from qtui_core.schemes.scheme import Family, Scheme


def llm_compressor(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """A recipe of llm-compressor (0.14): a QuantizationModifier with a group of modules for each
    kind of weights, in the words of compressed-tensors' QuantizationArgs."""
    kinds, left = kinds_of(tensors, _nearest_compressed)
    ignored = [name for name, kind in kinds.items() if kind is None]
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        if kind is not None:
            arguments = json.dumps(_compressed_arguments(kind)).replace('"', "")
            groups.setdefault(arguments, []).append(name)
    lines = ["quant_stage:", "  quant_modifiers:", "    QuantizationModifier:"]
    lines += ["      ignore:" if ignored else "      ignore: []"]
    lines += [f"        - {json.dumps(name)}" for name in ignored]
    lines += ["      config_groups:" if groups else "      config_groups: {}"]
    for number, (weights, modules) in enumerate(groups.items()):
        lines += [f"        group_{number}:", f"          weights: {weights}", "          targets:"]
        lines += [f"            - {json.dumps(name)}" for name in modules]
    use = 'llmcompressor.oneshot(model=…, recipe="FILE")'
    return ToolRecipe("\n".join(lines) + "\n", use, tuple(left), vllm_note(kinds))


def _nearest_compressed(tensor: RecipeTensor) -> tuple[Scheme | None, str]:
    """Floats of 8 bits in E4M3; microscaling formats with the rule `even`, of 6 bits in E2M3."""
    scheme = tensor.scheme
    assert scheme is not None
    if scheme.format in ("e4m3", "e5m2"):
        near = Scheme.parse(f"e4m3:{tensor.grouped(PerTile)}")
    elif scheme.format.startswith("mxfp"):
        near = Scheme.parse({4: "mxfp4", 6: "mxfp6-e2m3", 8: "mxfp8-e4m3"}[scheme.bits] + ":even")
    elif scheme.format == "nvfp4":
        near = Scheme.parse("nvfp4")
    else:
        near = nearest_integers(tensor)
    return with_whole_groups(tensor, near)


def _compressed_arguments(scheme: Scheme) -> dict[str, Any]:
    kind = "int" if scheme.family is Family.INTEGER else "float"
    arguments = {"num_bits": scheme.bits, "type": kind, "symmetric": scheme.symmetric}
    match scheme.granularity:
        case PerTile(rows, columns):
            return {**arguments, "strategy": "block", "block_structure": [rows, columns]}
        case PerTensor():
            return {**arguments, "strategy": "tensor"}
        case PerGroup(size):
            arguments |= {"strategy": "group", "group_size": size}
        case _:
            return {**arguments, "strategy": "channel"}
    if scheme.family is Family.MICROSCALING:
        arguments |= {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
    elif scheme.format == "nvfp4":
        dtype = "torch.float8_e4m3fn"
        arguments |= {"strategy": "tensor_group", "scale_dtype": dtype, "zp_dtype": dtype}
    return arguments


def torchao(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The JSON of a torchao FqnToConfig (0.18), for `torchao.core.config.config_from_dict`."""
    kinds, left = kinds_of(tensors, _nearest_torchao)
    configs = {name: _torchao_config(kind) for name, kind in kinds.items() if kind is not None}
    return ToolRecipe(
        as_json(_ao("FqnToConfig", 1, fqn_to_config=configs)),
        "quantize_(model, config_from_dict(json.load(open('FILE'))), filter_fn=None), or "
        "TorchAoConfig(quant_type=…, modules_to_not_convert=[]) of transformers",
        tuple(left),
        ("torchao keeps the scales of integers in the dtype of the weight; qtui counts 32 bits.",),
    )


def _nearest_torchao(tensor: RecipeTensor) -> tuple[Scheme | None, str]:
    """Floats of 8 bits and integers; of these only int8 has one scale for a tensor."""
    scheme = tensor.scheme
    assert scheme is not None
    if scheme.format in ("e4m3", "e5m2"):
        near = Scheme.parse(f"{scheme.format}:{tensor.grouped()}")
    else:
        near = nearest_integers(tensor)
        if isinstance(near.granularity, PerTensor) and not (near.bits == 8 and near.symmetric):
            near = replace(near, granularity=PerRow())
    return with_whole_groups(tensor, near)


def _ao(kind: str, version: int, **data: Any) -> dict[str, Any]:
    return {"_type": kind, "_version": version, "_data": data}


def _torchao_config(scheme: Scheme) -> dict[str, Any]:
    is_integer = scheme.family is Family.INTEGER
    of_any_bits = is_integer and not (scheme.bits == 8 and scheme.symmetric)
    # Whole rows are PerAxis(0) to IntxWeightOnlyConfig and PerRow to others.
    granularity = _ao("PerAxis", 1, axis=0) if of_any_bits else _ao("PerRow", 1, dim=-1)
    match scheme.granularity:
        case PerGroup(size):
            granularity = _ao("PerGroup", 1, group_size=size)
        case PerTensor():
            granularity = _ao("PerTensor", 1)
    if not of_any_bits and is_integer:
        return _ao("Int8WeightOnlyConfig", 2, granularity=granularity)
    name = f"int{scheme.bits}" if is_integer else f"float8_{scheme.format}"
    dtype = {"_type": "torch.dtype", "_data": name + "fn" * (scheme.format == "e4m3")}
    if not is_integer:
        return _ao("Float8WeightOnlyConfig", 2, weight_dtype=dtype, granularity=granularity)
    mapping = {"_type": "MappingType", "_data": "SYMMETRIC" if scheme.symmetric else "ASYMMETRIC"}
    return _ao(
        "IntxWeightOnlyConfig",
        2,
        weight_dtype=dtype,
        granularity=granularity,
        mapping_type=mapping,
    )


#: Scheme -> options of BitsAndBytesConfig, the fewest bits first.
_BITSANDBYTES: Final[dict[Scheme, dict[str, Any]]] = {
    Scheme.parse(f"{kind}:block64{':dq' * double}"): {
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": double,
    }
    for kind in ("nf4", "fp4")
    for double in (False, True)
} | {Scheme.parse("int8:row"): {"llm_int8_threshold": 6.0}}
#: Scheme -> the name of vLLM's online quantization.
_VLLM: Final[dict[Scheme, str]] = {
    Scheme.parse("e4m3:row"): "fp8_per_channel",
    Scheme.parse("e4m3:tensor"): "fp8_per_tensor",
    Scheme.parse("e4m3:tile128x128"): "fp8_per_block",
    Scheme.parse("mxfp8-e4m3"): "mxfp8",
    Scheme.parse("mxfp4"): "mxfp4",
}
_EXPERTS: Final = re.compile(r"(.*\.experts)\.\d+\..*")


def bitsandbytes(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The options of a BitsAndBytesConfig of transformers, with `llm_int8_skip_modules`. Its one
    type is that of most elements."""
    common: Counter[Scheme] = Counter()
    for tensor in tensors:
        if tensor.is_linear and tensor.scheme is not None and not tensor.keeps:
            enough = [kind for kind in _BITSANDBYTES if kind.bits >= tensor.scheme.bits]
            near = tensor.scheme if tensor.scheme in _BITSANDBYTES else enough[0]
            common[near] += tensor.rows * tensor.columns
    chosen = common.most_common(1)[0][0] if common else next(iter(_BITSANDBYTES))

    def nearest(tensor: RecipeTensor) -> tuple[Scheme | None, str]:
        fewer = tensor.scheme is not None and tensor.scheme.bits > chosen.bits
        return None if fewer else chosen, f"one type for the model{', of fewer bits' * fewer}"

    kinds, left = kinds_of(tensors, nearest)
    whole = {
        "quant_method": "bitsandbytes",
        f"load_in_{chosen.bits}bit": True,
        **_BITSANDBYTES[chosen],
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
        (note,) if chosen.bits == 8 else (),
    )


def vllm(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The `--quantization-config` of vLLM (0.33), which quantizes while it loads: a type for linear
    layers and experts, and the modules to ignore; by `targets` where there are several types."""
    heads = [tensor for tensor in tensors if tensor.is_head]
    kinds, left = kinds_of([t for t in tensors if not t.is_head], _nearest_online)
    left = _fused(tensors, kinds, left)
    for tensor in heads:
        left += kept_as_stored(tensor, "the tool leaves the head unquantized")
    # All experts of a layer are one module, named without their numbers.
    named = {_EXPERTS.sub(r"\1", name): kind for name, kind in kinds.items()}
    used = {_VLLM[kind] for kind in kinds.values() if kind is not None}
    whole: dict[str, Any]
    if len(used) > 1:
        targets = {f"re:^{re.escape(n)}$": _VLLM[kind] for n, kind in named.items() if kind}
        whole = {"targets": targets}
    else:
        kind = next(iter(used), "fp8_per_channel")
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


def _nearest_online(tensor: RecipeTensor) -> tuple[Scheme | None, str]:
    scheme = tensor.scheme
    assert scheme is not None
    if scheme.format in ("mxfp4", "mxfp8-e4m3"):  # of any scale rule: the error is of one size
        scheme = replace(scheme, scale_rule="floor")
    return scheme if scheme in _VLLM else Scheme.parse("e4m3:row"), ""


def _fused(
    tensors: Sequence[RecipeTensor], kinds: dict[str, Scheme | None], left: list[StandIn]
) -> list[StandIn]:
    """Gives the parts of a module that vLLM fuses the largest kind of any of them; the
    substitutions."""
    by_module = {tensor.module: tensor for tensor in tensors}
    for shards in fused_modules(kinds):
        parts = [kinds[name] for name in shards]
        best = None if None in parts else max(parts, key=lambda kind: kind.bits if kind else 0)
        for name in shards:
            if kinds[name] != best:
                tensor, kinds[name] = by_module[name], best
                left = [other for other in left if other.tensor != tensor.name]
                left += stands_in(tensor, best, "vLLM makes one module of this and others")
    return left
