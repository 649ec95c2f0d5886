"""Recipes for tools with a type for each module: llm-compressor, torchao and GPTQModel."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from qtui_core.inspection.recipes.recipe import (
    NOT_LINEAR,
    UNQUANTIZED,
    RecipeTensor,
    StandIn,
    ToolRecipe,
    integer_standing_in,
    is_plain,
    kept_as_stored,
    most_common,
    short_group,
    vllm_note,
)
from qtui_core.schemes.granularity import PerTile
from qtui_core.schemes.scheme import Family, Scheme

_SHARED = "the head shares it, and would keep a copy"


def llm_compressor(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """A recipe of llm-compressor (0.14): a QuantizationModifier with a group of modules for each
    kind of weights, in the words of compressed-tensors' QuantizationArgs."""
    groups: dict[str, list[str]] = {}
    ignored: list[str] = []
    left: list[StandIn] = []
    for tensor in tensors:
        if tensor.keeps or not tensor.is_linear:
            ignored += [tensor.module] if tensor.is_linear else []
            left += kept_as_stored(tensor)
            continue
        arguments, instead, why = _compressed(tensor)
        if instead:
            left.append(StandIn(tensor.name, str(tensor.scheme), instead, why))
        if arguments is None:
            ignored.append(tensor.module)
        else:
            groups.setdefault(json.dumps(arguments).replace('"', ""), []).append(tensor.module)
    kinds = {name: weights for weights, names in groups.items() for name in names}
    kinds |= dict.fromkeys(ignored, UNQUANTIZED)
    lines = ["quant_stage:", "  quant_modifiers:", "    QuantizationModifier:"]
    lines += ["      ignore:" if ignored else "      ignore: []"]
    lines += [f"        - {json.dumps(name)}" for name in ignored]
    lines += ["      config_groups:" if groups else "      config_groups: {}"]
    for number, (weights, modules) in enumerate(groups.items()):
        lines += [f"        group_{number}:", f"          weights: {weights}", "          targets:"]
        lines += [f"            - {json.dumps(name)}" for name in modules]
    return ToolRecipe(
        "\n".join(lines) + "\n",
        'llmcompressor.oneshot(model=…, recipe="FILE")',
        tuple(left),
        vllm_note(kinds),
    )


def _compressed(tensor: RecipeTensor) -> tuple[dict[str, Any] | None, str, str]:
    """(QuantizationArgs of the weights or None, what is used instead of the scheme or "", why)."""
    scheme = tensor.scheme
    assert scheme is not None
    floating = _compressed_float(tensor, scheme)
    if floating is not None:
        arguments, same = floating
        short = short_group(tensor, arguments.get("group_size", 0))
        if short:
            return None, UNQUANTIZED, short
        return arguments, "" if same else _described(arguments), ""
    bits, group, symmetric = integer_standing_in(tensor)
    if short := short_group(tensor, group):
        return None, UNQUANTIZED, short
    strategy = {-1: "channel", 0: "tensor"}.get(group, "group")
    arguments = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy}
    if group > 0:
        arguments["group_size"] = group
    exact = _is_integer_of_tools(tensor)
    return arguments, "" if exact else _integer_text(bits, group, symmetric), _scale_why(scheme)


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


def _is_integer_of_tools(tensor: RecipeTensor) -> bool:
    """Whether a scheme equals the integers of compressed-tensors and torchao: symmetric with all
    codes (`full`), or asymmetric with an integer zero point."""
    scheme = tensor.scheme
    if scheme is None or scheme.family is not Family.INTEGER or tensor.group is None:
        return False
    right = scheme.scale_rule == "full" if scheme.symmetric else not scheme.float_zero_point
    return right and is_plain(scheme)


def _integer_text(bits: int, group: int, symmetric: bool) -> str:
    whose = {-1: "a row", 0: "the tensor"}.get(group, f"groups of {group}")
    scale = f", scale absmax/{2**bits / 2 - 0.5:g}" if symmetric else ", asymmetric"
    return f"int{bits} of {whose}{scale}"


def _scale_why(scheme: Scheme) -> str:
    """Why the integers of the tools differ from an integer scheme."""
    if scheme.family is not Family.INTEGER:
        return ""
    return "the tool has no other rounding, scale or zero point"


def torchao(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The JSON of a torchao FqnToConfig (0.18), for `torchao.core.config.config_from_dict`."""
    configs: dict[str, Any] = {}
    left: list[StandIn] = []
    shared = not any(tensor.is_head for tensor in tensors)
    for tensor in tensors:
        usable = tensor.is_linear or (tensor.is_embedding and not shared)
        if tensor.keeps or not usable:
            left += kept_as_stored(tensor, _SHARED if tensor.is_embedding else NOT_LINEAR)
            continue
        config, instead, why = _torchao_config(tensor)
        if instead:
            left.append(StandIn(tensor.name, str(tensor.scheme), instead, why))
        if config is not None:
            configs[tensor.module] = config
    whole = _ao("FqnToConfig", 1, fqn_to_config=configs)
    return ToolRecipe(
        json.dumps(whole, indent=1) + "\n",
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


def _torchao_config(tensor: RecipeTensor) -> tuple[dict[str, Any] | None, str, str]:
    scheme = tensor.scheme
    assert scheme is not None
    group = tensor.group
    if short := short_group(tensor, group or 0):
        return None, UNQUANTIZED, short
    if scheme.format in ("e4m3", "e5m2"):
        dtype = _ao_enum("torch.dtype", f"float8_{scheme.format}{'fn' * (scheme.format == 'e4m3')}")
        granularity = _ao_granularity(-1 if group is None else group, axis=False)
        config = _ao("Float8WeightOnlyConfig", 2, weight_dtype=dtype, granularity=granularity)
        exact = is_plain(scheme) and group is not None
        return config, "" if exact else f"{scheme.format} of a row", _scale_why(scheme)
    bits, size, symmetric = integer_standing_in(tensor)
    if bits == 8 and symmetric:
        config = _ao("Int8WeightOnlyConfig", 2, granularity=_ao_granularity(size, axis=False))
        exact = _is_integer_of_tools(tensor)
        return config, "" if exact else _integer_text(8, size, True), _scale_why(scheme)
    config = _ao(
        "IntxWeightOnlyConfig",
        2,
        weight_dtype=_ao_enum("torch.dtype", f"int{bits}"),
        granularity=_ao_granularity(size or -1, axis=True),
        mapping_type=_ao_enum("MappingType", "SYMMETRIC" if symmetric else "ASYMMETRIC"),
    )
    exact = _is_integer_of_tools(tensor) and size != 0
    return config, "" if exact else _integer_text(bits, size or -1, symmetric), _scale_why(scheme)


def gptqmodel(tensors: Sequence[RecipeTensor]) -> ToolRecipe:
    """The JSON of a GPTQModel QuantizeConfig (7.7): the most common kind as its base, the others as
    rules of `dynamic`, `-:` for modules that stay as they are."""
    kinds: dict[str, tuple[int, int, bool] | None] = {}
    left: list[StandIn] = []
    for tensor in tensors:
        if not tensor.is_linear:
            left += kept_as_stored(tensor)
            continue
        if tensor.keeps:
            kinds[tensor.module] = None
            left += kept_as_stored(tensor)
            continue
        bits, group, symmetric = integer_standing_in(tensor)
        if short := short_group(tensor, group):
            kinds[tensor.module] = None
            left.append(StandIn(tensor.name, str(tensor.scheme), UNQUANTIZED, short))
            continue
        kinds[tensor.module] = bits, group or -1, symmetric
        if not _is_integer_of_tools(tensor) or group == 0:
            assert tensor.scheme is not None
            text = _integer_text(bits, group or -1, symmetric)
            left.append(StandIn(tensor.name, str(tensor.scheme), text, _scale_why(tensor.scheme)))
    sizes = {tensor.module: tensor.rows * tensor.columns for tensor in tensors}
    base_text = most_common(
        [(json.dumps(kind), sizes[name]) for name, kind in kinds.items() if kind]
    )
    base = json.loads(base_text) if base_text else [4, 128, True]
    heads = [t.module for t in tensors if t.is_head and kinds.get(t.module)]
    whole = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": base[0],
        "group_size": base[1],
        "sym": base[2],
        "desc_act": False,
        "lm_head": bool(heads),
        "dynamic": dict(_rules(kinds, base)),
    }
    return ToolRecipe(
        json.dumps(whole, indent=1) + "\n",
        "QuantizeConfig.from_quant_config(json.load(open('FILE')))",
        tuple(left),
        (
            "GPTQ fits each layer's output on a calibration text: outputs come out nearer to the "
            "original than by plain rounding, which was measured here, and weights farther.",
            *vllm_note(kinds),
        ),
    )


def _rules(
    kinds: dict[str, tuple[int, int, bool] | None], base: list[Any]
) -> list[tuple[str, dict[str, Any]]]:
    rules: list[tuple[str, dict[str, Any]]] = []
    for name, kind in kinds.items():
        pattern = f"^{re.escape(name)}$"
        if kind is None:
            rules.append((f"-:{pattern}", {}))
        elif list(kind) != base:
            bits, group, symmetric = kind
            rules.append((f"+:{pattern}", {"bits": bits, "group_size": group, "sym": symmetric}))
    return rules
