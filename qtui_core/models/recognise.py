"""Which quantization a checkpoint was already stored with, and how many weights each of its tensors
packs.

Told from the tensor names and shapes first, which are what is really there, and from
`quantization_config` for what names cannot tell. Sources: the serialization code of
bitsandbytes 0.50, AutoGPTQ/GPTQModel, AutoAWQ, compressed-tensors 0.20, transformers 5.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.quoting import named, printable, quoted
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
Tensors = Mapping[str, TensorInfo]

#: A tensor of codes: method, name, the weights that it unpacks to (None: unknown), the names that
#: its scales may have.
Finding = tuple[str, str, int | None, list[str]]

_BNB_COMPANIONS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
#: The suffixes of a scale: after the name of the weight ("…weight" + "_scale"), and after that of
#: its module.
_WEIGHT_COMPANIONS = ("_scale", "_scale_inv", "_scale_2", "_zero_point", "_shape", "_g_idx",
                      "_global_scale")  # fmt: skip
_MODULE_COMPANIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale",
                      "output_zero_point", "activation_scale")  # fmt: skip
_MOST_STEPS: Final = 30_000_000
_MOST_CHARACTERS: Final = 10_000


@dataclass(frozen=True)
class CodeTensor:
    """A tensor of codes.

    Attributes:
        method: the family that its own names and shape tell.
        parameters: how many weights it unpacks to; None where names and shapes do not tell.
        companions: the tensors of its scales, zero points and codebooks.
    """

    method: str
    parameters: int | None
    companions: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuantizationInfo:
    """What a checkpoint is quantized with.

    Attributes:
        method: "bitsandbytes-nf4", "bitsandbytes-fp4", "bitsandbytes-int8", "gptq", "awq",
            "compressed-tensors", "fp8", "nvfp4", "mxfp4", "bitnet", "int8", "gguf", or what
            the config calls it.
        detail: one sentence for people.
        codes: the tensors of codes by name.
    """

    method: str
    detail: str
    codes: Mapping[str, CodeTensor] = field(default_factory=dict)


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
    codes = _code_tensors(tensors, settings, declared)
    if not codes:
        if declared is None:
            return None
        return QuantizationInfo(declared, _announced(declared, settings, bool(tensors)))
    # The names decide between families, by most of the tensors; the config between dialects of the
    # same names.
    method = Counter(code.method for code in codes.values()).most_common(1)[0][0]
    if declared in _DIALECTS.get(method, ()):
        method = str(declared)
    return QuantizationInfo(method, _detail(method, codes, settings, tensors), codes)


def with_roles(
    tensors: Mapping[str, TensorInfo], quantization: QuantizationInfo | None
) -> dict[str, TensorInfo]:
    """The same tensors, with the parameters they stand for and their role filled in."""
    result = dict(tensors)
    codes = {} if quantization is None else quantization.codes
    for name in (name for code in codes.values() for name in code.companions):
        result[name] = replace(result[name], parameters=0, role=Role.SCALES)
    for name, code in codes.items():
        info = tensors[name]
        count = info.parameters if code.parameters is None else code.parameters
        result[name] = replace(info, parameters=count, role=Role.CODES)
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
    codes: Mapping[str, CodeTensor],
    settings: Mapping[str, Any] | None,
    tensors: Mapping[str, TensorInfo],
) -> str:
    counts = {n: code.parameters for n, code in codes.items() if code.parameters is not None}
    known, unknown = sum(counts.values()), len(codes) - len(counts)
    elements = sum(tensors[name].elements for name in counts)
    title = _TITLES.get(method, method)
    hold, pack = ("holds", "it packs") if len(codes) == 1 else ("hold", "they pack")
    of = f"{len(codes):,} of {plural(len(tensors), 'tensor')}"
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


def _code_tensors(
    tensors: Tensors, settings: Mapping[str, Any] | None, declared: str | None
) -> dict[str, CodeTensor]:
    """The tensors of codes in a checkpoint, by name."""
    codes: dict[str, CodeTensor] = {}
    bits = _bits(settings or {})
    for method, name, count, others in chain(
        _bitsandbytes(tensors, declared),
        _qweight(tensors, bits),
        _by_suffix(tensors, bits, declared),
    ):
        code = codes.get(name, CodeTensor(method, count))
        companions = (*code.companions, *(other for other in others if other in tensors))
        codes[name] = replace(code, companions=companions)
    return codes


def _bitsandbytes(tensors: Tensors, declared: str | None) -> Iterator[Finding]:
    # X: packed codes, stored with X.absmax, X.quant_map, X.quant_state.bitsandbytes__nf4; two a
    # byte, whatever dtype the bytes are stored as.
    states: dict[str, str] = {}
    for name in tensors:
        base, _, kind = name.partition(".quant_state.bitsandbytes__")
        if kind:
            states[base] = kind
        elif name.endswith(".absmax"):
            states.setdefault(name.removesuffix(".absmax"), "")
    for base, kind in states.items():
        if base in tensors:
            others = [f"{base}.{c}" for c in _BNB_COMPANIONS]
            others.append(f"{base}.quant_state.bitsandbytes__{kind}")
            if kind not in ("nf4", "fp4"):
                kind = "fp4" if declared == "bitsandbytes-fp4" else "nf4"
            yield f"bitsandbytes-{kind}", base, 2 * tensors[base].nbytes, others
    # X.weight of 8 bits, and X.SCB.
    for name in tensors:
        stem = name.removesuffix(".SCB")
        weight = tensors.get(f"{stem}.weight")
        if stem != name and weight is not None:
            others = [name, f"{stem}.weight_format"]
            yield "bitsandbytes-int8", weight.name, weight.elements, others


def _qweight(tensors: Tensors, bits: int | None) -> Iterator[Finding]:
    for name, info in tensors.items():
        stem = name.removesuffix("qweight")
        others = [f"{stem}{c}" for c in ("qzeros", "scales", "g_idx")]
        if stem != name and any(c in tensors for c in others):
            zeros, scales = (tensors.get(c) for c in others[:2])
            method, count = _qweight_layout(info, scales, zeros, bits)
            yield method, name, count, others


def _qweight_layout(
    codes: TensorInfo, scales: TensorInfo | None, zeros: TensorInfo | None, bits: int | None
) -> tuple[str, int | None]:
    """GPTQ packs along the input: qweight [in·bits/32, out], scales [groups, out].
    AWQ packs along the output: qweight [in, out·bits/32], scales [groups, out]."""
    if scales is None or len(codes.shape) != 2 or len(scales.shape) != 2:
        return "gptq", None
    rows, columns = codes.shape
    out = scales.shape[1]
    if columns != out:
        return "awq", rows * out
    if bits is None and zeros is not None and len(zeros.shape) == 2 and out:
        bits = 32 * zeros.shape[1] // out
    return "gptq", codes.elements * 32 // bits if bits else None


def _by_suffix(tensors: Tensors, bits: int | None, declared: str | None) -> Iterator[Finding]:
    for name, info in tensors.items():
        # X.weight_packed: dense codes in I32 words or in bytes, along the last dimension.
        weight = name.removesuffix("_packed")
        if weight != name and weight.endswith("weight"):
            width = bits or (4 if info.dtype == "U8" else None)
            count = 8 * info.nbytes // width if width else None
            yield "compressed-tensors", name, count, _companions(weight)
    for name, info in tensors.items():
        # X in 8 bits, or packed in bytes, and X_scale or X_scale_inv.
        kind, scale = info.dtype, f"{name}_scale"
        if scale in tensors or f"{scale}_inv" in tensors:
            if kind.startswith("F8_") or kind == "I8":
                method = "int8" if kind == "I8" else "fp8"
                yield method, name, info.elements, _companions(name)
            elif kind == "U8" and f"{scale}_2" in tensors:
                yield "nvfp4", name, 2 * info.elements, _companions(name)
            elif kind == "U8" and declared == "bitnet":
                yield "bitnet", name, 4 * info.elements, _companions(name)
        # X_blocks [..., groups, 16] of U8, X_scales [..., groups]: 32 codes in 16 bytes.
        scales = name.removesuffix("_blocks") + "_scales"
        if name.endswith("_blocks") and scales in tensors and kind == "U8":
            yield "mxfp4", name, 2 * info.elements, [scales]


def _companions(weight: str) -> list[str]:
    """The names that a weight's scales and zero points may have."""
    module = weight.rpartition(".")[0]
    stem = f"{module}." if module else ""
    names = [f"{weight}{c}" for c in _WEIGHT_COMPANIONS]
    return names + [f"{stem}{c}" for c in _MODULE_COMPANIONS]


def _bits(settings: Mapping[str, Any]) -> int | None:
    """Bits per weight a config names, when it names one number for all tensors."""
    named = [settings.get("bits", settings.get("w_bit"))]
    if isinstance(groups := settings.get("config_groups"), dict):
        weights = [g.get("weights") if isinstance(g, dict) else None for g in groups.values()]
        named = [w.get("num_bits") if isinstance(w, dict) else None for w in weights]
    counts = {n if type(n) is int and 1 <= n <= 32 else None for n in named}
    return counts.pop() if len(counts) == 1 else None


def name_of_weight(code: str) -> str:
    """`….qweight`, `….weight_packed` and `…_blocks` by the name without quantization."""
    for suffix, instead in (("qweight", "weight"), ("weight_packed", "weight"), ("_blocks", "")):
        if code.endswith(suffix):
            return code.removesuffix(suffix) + instead
    return code


@lru_cache(maxsize=4096)
def takes_forever(text: str, length: int) -> bool:
    """Whether matching a name of that length by a pattern that somebody else wrote may take
    forever: what is repeated shares the characters of the name in each possible way, for each
    choice of alternatives."""
    # With the flag x, blanks may stand between a group and what repeats it.
    if len(text) > _MOST_CHARACTERS or re.search(r"\)[*+{]|\(\?[a-zA-Z]*x", text):
        return True
    repeated = len(re.findall(r"(?<!\()[*+?{]\??", text))
    choices = math.prod(1 + piece.count("|") for piece in text.split(")"))
    return choices * math.comb(length + repeated, repeated) > _MOST_STEPS


def matches(text: str, name: str, after: str = "") -> bool:
    """Whether a pattern of a quantization_config, followed by `after`, matches the beginning of a
    name. What is no regular expression matches none.

    Raises ModelError if it may take forever.
    """
    if takes_forever(text, len(name)):
        raise ModelError(
            f"The quantization_config has the pattern {quoted(text)}, which may take forever to "
            f"match: write one with fewer repetitions, and none of a group."
        )
    pattern = _compiled(f"(?:{text}){after}" if after else text)
    return pattern is not None and pattern.match(name) is not None


@lru_cache(maxsize=4096)
def _compiled(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None
