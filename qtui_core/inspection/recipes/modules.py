"""Recipes for tools with a type for each module: llm-compressor, torchao and GPTQModel."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from qtui_core.inspection.recipes.recipe import (
    NOT_LINEAR,
    UNQUANTIZED,
    ModuleKind,
    RecipeTensor,
    ToolRecipe,
    as_json,
    integer_standing_in,
    is_plain,
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
    """QuantizationArgs of the weights."""
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
    """A floating-point type of compressed-tensors in a few words."""
    if "scale_dtype" in arguments and arguments["strategy"] == "group":
        element = {4: "FP4 (E2M1)", 6: "FP6 (E2M3)", 8: "FP8 (E4M3)"}[arguments["num_bits"]]
        return f"MX{element} with absmax rounded before its power of two (qtui's rule even)"
    return f"FP{arguments['num_bits']} (E4M3), {arguments['strategy']}"


def _integer(
    value: Any, tensor: RecipeTensor, bits: int, group: int, symmetric: bool, *, same: bool = True
) -> ModuleKind:
    """The integers of compressed-tensors, torchao and GPTQModel: symmetric with all codes (`full`),
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


def gptqmodel(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The JSON of a GPTQModel QuantizeConfig (7.7): the most common kind as its base, the others as
    rules of `dynamic`, `-:` for modules that stay as they are."""
    kinds, left = kinds_of(tensors, _gptq)
    common: Counter[tuple[int, int, bool]] = Counter()
    for tensor in tensors:
        if kind := kinds.get(tensor.module):
            common[kind] += tensor.rows * tensor.columns
    base = common.most_common(1)[0][0] if common else (4, 128, True)
    dynamic: dict[str, dict[str, Any]] = {}
    for name, kind in kinds.items():
        if kind is None:
            dynamic[f"-:^{re.escape(name)}$"] = {}
        elif kind != base:
            dynamic[f"+:^{re.escape(name)}$"] = dict(
                zip(("bits", "group_size", "sym"), kind, strict=True)
            )
    whole = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": base[0],
        "group_size": base[1],
        "sym": base[2],
        "desc_act": False,
        "lm_head": any(tensor.is_head and kinds.get(tensor.module) for tensor in tensors),
        "dynamic": dynamic,
    }
    return ToolRecipe(
        as_json(whole),
        "QuantizeConfig.from_quant_config(json.load(open('FILE')))",
        tuple(left),
        (
            "GPTQ fits each layer's output on a calibration text: outputs come out nearer to the "
            "original than by plain rounding, which was measured here, and weights farther.",
            *vllm_note(kinds),
        ),
    )


def _gptq(tensor: RecipeTensor) -> ModuleKind:
    bits, group, symmetric = integer_standing_in(tensor)
    if short := short_group(tensor, group):
        return ModuleKind(None, UNQUANTIZED, short)
    kind = bits, group or -1, symmetric
    return _integer(kind, tensor, *kind, same=group != 0)
