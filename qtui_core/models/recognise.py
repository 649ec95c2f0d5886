"""Which quantization a checkpoint was already stored with.

Told from the tensor names and shapes first, which are what is really there, and from
`quantization_config` for what names cannot tell. Sources: the serialization code of
bitsandbytes 0.50, AutoGPTQ/GPTQModel, AutoAWQ, compressed-tensors 0.20, transformers 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.models.packing import Packed, find_packed
from qtui_core.models.quoting import named, printable
from qtui_core.models.tensors import Role, TensorInfo
from qtui_core.quantities import plural

_TITLES = {
    "bitsandbytes-nf4": "bitsandbytes NF4",
    "bitsandbytes-fp4": "bitsandbytes FP4",
    "bitsandbytes-int8": "bitsandbytes LLM.int8()",
    "gptq": "GPTQ",
    "awq": "AWQ",
    "compressed-tensors": "compressed-tensors",
    "fp8": "FP8",
    "modelopt": "ModelOpt",
    "fbgemm_fp8": "FP8 (fbgemm)",
    "int8": "scaled INT8",
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
    "bitnet": "BitNet ternary",
}
#: What a config may call what its names alone call otherwise.
_DIALECTS = {
    **dict.fromkeys(("gptq", "awq"), ("gptq", "awq")),
    **dict.fromkeys(("fp8", "int8"), ("compressed-tensors", "fbgemm_fp8")),
}


@dataclass(frozen=True)
class QuantizationInfo:
    """What a checkpoint is quantized with.

    Attributes:
        method: "bitsandbytes-nf4", "bitsandbytes-fp4", "bitsandbytes-int8", "gptq", "awq",
            "compressed-tensors", "fp8", "nvfp4", "mxfp4", "bitnet", "int8", "gguf", or what
            the config calls it.
        detail: one sentence for people.
        tensors: names of the tensors that hold codes.
        parameters: how many weights each of them unpacks to, where names and shapes tell.
        scales: names of the tensors that hold scales, zero points and codebooks of those.
        methods: by name of a tensor of codes, the method its own names and shape tell.
        companions: by name of a tensor of codes, its own scales, zero points and codebooks.
    """

    method: str
    detail: str
    tensors: tuple[str, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    scales: frozenset[str] = frozenset()
    methods: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def quantization_config(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The part of a config.json that describes its quantization, wherever it is put."""
    if config is None:
        return None
    for holder in (config, config.get("text_config")):
        if isinstance(holder, dict):
            for key in ("quantization_config", "compression_config"):
                if isinstance(settings := holder.get(key), dict) and settings:
                    return settings
    return None


def recognise(
    config: Mapping[str, Any] | None, tensors: Mapping[str, TensorInfo]
) -> QuantizationInfo | None:
    """What the weights are quantized with, or None for plain weights."""
    settings = quantization_config(config)
    declared = declared_method(settings)
    packed = find_packed(tensors, settings, declared)
    if packed is None:
        if declared is None:
            return None
        return QuantizationInfo(declared, _announced(declared, settings, bool(tensors)))
    # The names decide between families; the config between dialects of the same names.
    method = packed.method
    if declared in _DIALECTS.get(method, ()):
        method = str(declared)
    return QuantizationInfo(
        method=method,
        detail=_detail(method, packed, settings, tensors),
        tensors=tuple(packed.codes),
        parameters={n: count for n, count in packed.codes.items() if count is not None},
        scales=packed.scales,
        methods=packed.methods,
        companions=packed.companions,
    )


def with_roles(
    tensors: Mapping[str, TensorInfo], quantization: QuantizationInfo | None
) -> dict[str, TensorInfo]:
    """The same tensors, with the parameters they stand for and their role filled in."""
    result = dict(tensors)
    if quantization is None:
        return result
    for name in quantization.tensors:
        info = result[name]
        count = quantization.parameters.get(name, info.parameters)
        result[name] = replace(info, parameters=count, role=Role.CODES)
    for name in quantization.scales:
        result[name] = replace(result[name], parameters=0, role=Role.SCALES)
    return result


def declared_method(settings: Mapping[str, Any] | None) -> str | None:
    """The method a quantization_config announces, in the words of `QuantizationInfo.method`."""
    if settings is None:
        return None
    method = settings.get("quant_method")
    four, eight = settings.get("load_in_4bit"), settings.get("load_in_8bit")
    if method in (None, "bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit"):
        if four is True or method == "bitsandbytes_4bit":
            kind = settings.get("bnb_4bit_quant_type", "fp4")
            return "bitsandbytes-nf4" if kind == "nf4" else "bitsandbytes-fp4"
        if eight is True or method == "bitsandbytes_8bit":
            return "bitsandbytes-int8"
        if method is None and isinstance(settings.get("quant_algo"), str):
            return "modelopt"  # whose exporter has not always named itself
        return "bitsandbytes" if method else None
    return (printable(method[:40]) or None) if isinstance(method, str) else None


def _announced(method: str, settings: Mapping[str, Any] | None, has_tensors: bool) -> str:
    stored = f"{_TITLES.get(method, method)}{_settings(settings)}"
    if not has_tensors:
        return f"The config says the weights are stored as {stored}."
    return (
        f"The config announces {stored}, but qtui recognises no tensor as quantized that way; "
        f"parameter counts are of stored elements."
    )


def _detail(
    method: str,
    packed: Packed,
    settings: Mapping[str, Any] | None,
    tensors: Mapping[str, TensorInfo],
) -> str:
    counts = {name: count for name, count in packed.codes.items() if count is not None}
    known, unknown = sum(counts.values()), len(packed.codes) - len(counts)
    elements = sum(tensors[name].elements for name in counts)
    title = _TITLES.get(method, method)
    hold, pack = ("holds", "it packs") if len(packed.codes) == 1 else ("hold", "they pack")
    of = f"{len(packed.codes):,} of {plural(len(tensors), 'tensor')}"
    text = f"{of} {hold} {title} codes{_settings(settings)}: "
    if not known:
        return f"{text}the names do not say how many weights {pack}."
    text += f"{known:,} weights"
    if known != elements:
        text += f" packed into {elements:,} stored elements"
    if unknown:
        text += f", and {plural(unknown, 'tensor')} whose number of weights the names do not say"
    return text + "."


def _settings(settings: Mapping[str, Any] | None) -> str:
    """The few settings people compare, in parentheses, or nothing."""
    settings = settings or {}
    words = []
    bits = settings.get("bits", settings.get("w_bit"))
    if type(bits) is int:
        words.append(f"{bits} bits")
    group = settings.get("group_size", settings.get("q_group_size"))
    if type(group) is int:
        words.append(f"groups of {group}" if group > 0 else "one group per channel")
    block = settings.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(type(b) is int for b in block):
        words.append(f"blocks of {block[0]}x{block[1]}")
    if settings.get("bnb_4bit_use_double_quant") is True:
        words.append("double quantization")
    if isinstance(settings.get("format"), str):
        words.append(named(settings["format"]))
    return f" ({', '.join(words)})" if words else ""
