"""Recipes for tools with a type for each module (llm-compressor and torchao), and for those
with one type for the whole model and a list of modules to skip (bitsandbytes in transformers,
and vLLM when loading)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from qtui_core.inspection.recipes.recipe import (
    NOT_LINEAR,
    UNQUANTIZED,
    ModuleKind,
    RecipeTensor,
    StandIn,
    ToolRecipe,
    as_json,
    fused_modules,
    integer_standing_in,
    is_plain,
    kept_as_stored,
    kinds_of,
    short_group,
    vllm_note,
)
from qtui_core.schemes.granularity import PerTile
from qtui_core.schemes.scheme import Family, Scheme

_SHARED = "the head shares it, and would keep a copy"


def llm_compressor(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """A recipe of llm-compressor (0.14): a QuantizationModifier with a group of modules for each
    kind of weights, in the words of compressed-tensors' QuantizationArgs."""
    kinds, left = kinds_of(tensors, _compressed)
    ignored = [name for name, arguments in kinds.items() if arguments is None]
    groups: dict[str, list[str]] = {}
    for name, arguments in kinds.items():
        if arguments is not None:
            groups.setdefault(json.dumps(arguments).replace('"', ""), []).append(name)
    lines = ["quant_stage:", "  quant_modifiers:", "    QuantizationModifier:"]
    lines += ["      ignore:" if ignored else "      ignore: []"]
    lines += [f"        - {json.dumps(name)}" for name in ignored]
    lines += ["      config_groups:" if groups else "      config_groups: {}"]
    for number, (weights, modules) in enumerate(groups.items()):
        lines += [f"        group_{number}:", f"          weights: {weights}", "          targets:"]
        lines += [f"            - {json.dumps(name)}" for name in modules]
    use = 'llmcompressor.oneshot(model=…, recipe="FILE")'
    return ToolRecipe("\n".join(lines) + "\n", use, tuple(left), vllm_note(kinds))


def _compressed(tensor: RecipeTensor) -> ModuleKind:
    scheme = tensor.scheme
    assert scheme is not None
    if floating := _compressed_float(tensor, scheme):
        arguments, same = floating
        if short := short_group(tensor, arguments.get("group_size", 0)):
            return ModuleKind(None, UNQUANTIZED, short)
        return ModuleKind(arguments, "" if same else _described(arguments))
    bits, group, symmetric = integer_standing_in(tensor)
    if short := short_group(tensor, group):
        return ModuleKind(None, UNQUANTIZED, short)
    strategy = {-1: "channel", 0: "tensor"}.get(group, "group")
    arguments = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    if group > 0:
        arguments["group_size"] = group
    return _integer(arguments, tensor, bits, group, symmetric)


def _compressed_float(tensor: RecipeTensor, scheme: Scheme) -> tuple[dict[str, Any], bool] | None:
    """(the arguments of a floating-point type, whether it equals the scheme)."""
    common = {"num_bits": scheme.bits, "type": "float", "symmetric": True}
    match scheme.format:
        case "e4m3" | "e5m2":
            same = scheme.format == "e4m3" and is_plain(scheme)
            if isinstance(scheme.granularity, PerTile):
                tile = [scheme.granularity.rows, scheme.granularity.columns]
                return {**common, "strategy": "block", "block_structure": tile}, same
            group = tensor.group
            if group is not None and group > 0:
                return {**common, "strategy": "group", "group_size": group}, same
            strategy = "tensor" if group == 0 else "channel"
            return {**common, "strategy": strategy}, same and group is not None
        case "mxfp4" | "mxfp6-e2m3" | "mxfp6-e3m2" | "mxfp8-e4m3" | "mxfp8-e5m2":
            dtype = "torch.uint8"
            more = {"group_size": 32, "scale_dtype": dtype, "zp_dtype": dtype}
            same = scheme.format in ("mxfp4", "mxfp6-e2m3", "mxfp8-e4m3") and is_plain(scheme)
            return {**common, "strategy": "group", **more}, same and scheme.scale_rule == "even"
        case "nvfp4":
            dtype = "torch.float8_e4m3fn"
            more = {"group_size": 16, "scale_dtype": dtype, "zp_dtype": dtype}
            return {**common, "strategy": "tensor_group", **more}, is_plain(scheme)
    return None


def _described(arguments: dict[str, Any]) -> str:
    if "scale_dtype" in arguments and arguments["strategy"] == "group":
        element = {4: "FP4 (E2M1)", 6: "FP6 (E2M3)", 8: "FP8 (E4M3)"}[arguments["num_bits"]]
        return f"MX{element} with absmax rounded before its power of two (qtui's rule even)"
    return f"FP{arguments['num_bits']} (E4M3), {arguments['strategy']}"


def _integer(
    value: Any, tensor: RecipeTensor, bits: int, group: int, symmetric: bool, *, same: bool = True
) -> ModuleKind:
    """The integers of compressed-tensors and torchao: symmetric with all codes (`full`),
    or asymmetric with an integer zero point. `same`: whether they may equal the scheme at all."""
    scheme = tensor.scheme
    assert scheme is not None
    is_integer = scheme.family is Family.INTEGER
    if same and is_integer and tensor.group is not None and is_plain(scheme):
        right = scheme.scale_rule == "full" if scheme.symmetric else not scheme.float_zero_point
        if right:
            return ModuleKind(value)
    whose = {-1: "a row", 0: "the tensor"}.get(group, f"groups of {group}")
    scale = f", scale absmax/{2**bits / 2 - 0.5:g}" if symmetric else ", asymmetric"
    why = "the tool has no other rounding, scale or zero point" if is_integer else ""
    return ModuleKind(value, f"int{bits} of {whose}{scale}", why)


def torchao(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The JSON of a torchao FqnToConfig (0.18), for `torchao.core.config.config_from_dict`."""
    shared = not any(tensor.is_head for tensor in tensors)
    kinds, left = kinds_of(
        tensors,
        _torchao_config,
        lambda tensor: tensor.is_linear or (tensor.is_embedding and not shared),
        lambda tensor: _SHARED if tensor.is_embedding else NOT_LINEAR,
    )
    configs = {name: config for name, config in kinds.items() if config is not None}
    return ToolRecipe(
        as_json(_ao("FqnToConfig", 1, fqn_to_config=configs)),
        "quantize_(model, config_from_dict(json.load(open('FILE'))), filter_fn=None), or "
        "TorchAoConfig(quant_type=…, modules_to_not_convert=[]) of transformers",
        tuple(left),
        ("torchao keeps the scales of integers in the dtype of the weight; qtui counts 32 bits.",),
    )


def _ao(kind: str, version: int, **data: Any) -> dict[str, Any]:
    return {"_type": kind, "_version": version, "_data": data}


def _ao_enum(kind: str, name: str) -> dict[str, Any]:
    return {"_type": kind, "_data": name}


def _ao_granularity(group: int, *, axis: bool) -> dict[str, Any]:
    """A Granularity: whole rows are PerAxis(0) to IntxWeightOnlyConfig and PerRow to others."""
    if group > 0:
        return _ao("PerGroup", 1, group_size=group)
    if group == 0:
        return _ao("PerTensor", 1)
    return _ao("PerAxis", 1, axis=0) if axis else _ao("PerRow", 1, dim=-1)


def _torchao_config(tensor: RecipeTensor) -> ModuleKind:
    scheme = tensor.scheme
    assert scheme is not None
    group = tensor.group
    if short := short_group(tensor, group or 0):
        return ModuleKind(None, UNQUANTIZED, short)
    if scheme.format in ("e4m3", "e5m2"):
        dtype = _ao_enum("torch.dtype", f"float8_{scheme.format}{'fn' * (scheme.format == 'e4m3')}")
        granularity = _ao_granularity(-1 if group is None else group, axis=False)
        config = _ao("Float8WeightOnlyConfig", 2, weight_dtype=dtype, granularity=granularity)
        exact = is_plain(scheme) and group is not None
        return ModuleKind(config, "" if exact else f"{scheme.format} of a row")
    bits, size, symmetric = integer_standing_in(tensor)
    if bits == 8 and symmetric:
        config = _ao("Int8WeightOnlyConfig", 2, granularity=_ao_granularity(size, axis=False))
        return _integer(config, tensor, 8, size, True)
    config = _ao(
        "IntxWeightOnlyConfig",
        2,
        weight_dtype=_ao_enum("torch.dtype", f"int{bits}"),
        granularity=_ao_granularity(size or -1, axis=True),
        mapping_type=_ao_enum("MappingType", "SYMMETRIC" if symmetric else "ASYMMETRIC"),
    )
    return _integer(config, tensor, bits, size or -1, symmetric, same=size != 0)


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
