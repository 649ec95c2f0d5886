"""How quantized checkpoints name their tensors, and how many weights each one packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.models.tensors import TensorInfo

Tensors = Mapping[str, TensorInfo]

#: A tensor of codes: method, name, the weights that it unpacks to (None: unknown), its scales.
Finding = tuple[str, str, int | None, list[str]]

_BNB_COMPANIONS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
#: The suffixes of a scale: after the name of the weight ("…weight" + "_scale"), and after that of
#: its module.
_WEIGHT_COMPANIONS = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_zero_point",
    "_shape",
    "_g_idx",
    "_global_scale",
)
_MODULE_COMPANIONS = (
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "activation_scale",
)


@dataclass(frozen=True)
class Packed:
    """Attributes:
    method: the family most code tensors belong to.
    codes: code tensors, each with the number of weights it unpacks to, or None.
    methods: the family of each.
    companions: the tensors of scales, zero points and codebooks that belong to each.
    """

    method: str
    codes: Mapping[str, int | None]
    methods: Mapping[str, str]
    companions: Mapping[str, tuple[str, ...]]

    @property
    def scales(self) -> frozenset[str]:
        """Every tensor that belongs to one of the code tensors."""
        return frozenset(n for names in self.companions.values() for n in names) - self.codes.keys()


def find_packed(
    tensors: Tensors, settings: Mapping[str, Any] | None, declared: str | None
) -> Packed | None:
    """The tensors of codes in a checkpoint, or None when there are none."""
    codes: dict[str, int | None] = {}
    methods: dict[str, str] = {}
    companions: dict[str, tuple[str, ...]] = {}
    finders: tuple[Callable[..., Iterator[Finding]], ...] = (
        _bitsandbytes_4bit,
        _bitsandbytes_int8,
        _qweight,
        _compressed,
        _scaled,
        _mxfp4_blocks,
    )
    for finder in finders:
        for method, name, count, found in finder(tensors, settings or {}, declared):
            if name not in codes:
                codes[name], methods[name] = count, method
            companions[name] = (*companions.get(name, ()), *found)
    if not codes:
        return None
    return Packed(Counter(methods.values()).most_common(1)[0][0], codes, methods, companions)


def _bitsandbytes_4bit(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    # X: packed codes, stored with X.absmax, X.quant_map, X.quant_state.bitsandbytes__nf4.
    states: dict[str, str] = {}
    for name in tensors:
        base, _, kind = name.partition(".quant_state.bitsandbytes__")
        if kind:
            states[base] = kind
        elif name.endswith(".absmax"):
            states.setdefault(name.removesuffix(".absmax"), "")
    for base, kind in states.items():
        if base not in tensors:
            continue
        companions = [f"{base}.{c}" for c in _BNB_COMPANIONS if f"{base}.{c}" in tensors]
        if kind:
            companions.append(f"{base}.quant_state.bitsandbytes__{kind}")
        if kind not in {"nf4", "fp4"}:
            kind = "fp4" if declared == "bitsandbytes-fp4" else "nf4"
        # Two codes a byte, whatever dtype the bytes are stored as.
        yield f"bitsandbytes-{kind}", base, 2 * tensors[base].nbytes, companions


def _bitsandbytes_int8(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    for name in tensors:
        stem = name.removesuffix(".SCB")
        weight = f"{stem}.weight"
        if stem == name or weight not in tensors:
            continue
        companions = [n for n in (name, f"{stem}.weight_format") if n in tensors]
        yield "bitsandbytes-int8", weight, tensors[weight].elements, companions


def _qweight(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    for name, info in tensors.items():
        stem = name.removesuffix("qweight")
        companions = [f"{stem}{c}" for c in ("qzeros", "scales", "g_idx")]
        companions = [c for c in companions if c in tensors]
        if stem == name or not companions:
            continue
        scales, zeros = tensors.get(f"{stem}scales"), tensors.get(f"{stem}qzeros")
        method, count = _qweight_layout(info, scales, zeros, _bits(settings))
        yield method, name, count, companions


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


def _compressed(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    # X.weight_packed: dense codes in I32 words or in bytes, along the last dimension.
    for name, info in tensors.items():
        weight = name.removesuffix("_packed")
        if weight == name or not weight.endswith("weight"):
            continue
        bits = _bits(settings) or (4 if info.dtype == "U8" else None)
        count = 8 * info.nbytes // bits if bits else None
        yield "compressed-tensors", name, count, _companions(tensors, weight)


def _scaled(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    # X in 8 bits, or packed in bytes, and X_scale or X_scale_inv.
    for name, info in tensors.items():
        if f"{name}_scale" not in tensors and f"{name}_scale_inv" not in tensors:
            continue
        companions = _companions(tensors, name)
        if info.dtype.startswith("F8_"):
            yield "fp8", name, info.elements, companions
        elif info.dtype == "I8":
            yield "int8", name, info.elements, companions
        elif info.dtype == "U8" and f"{name}_scale_2" in tensors:
            yield "nvfp4", name, 2 * info.elements, companions
        elif info.dtype == "U8" and declared == "bitnet":
            yield "bitnet", name, 4 * info.elements, companions


def _companions(tensors: Tensors, weight: str) -> list[str]:
    module = weight.rpartition(".")[0]
    stem = f"{module}." if module else ""
    names = [f"{weight}{c}" for c in _WEIGHT_COMPANIONS]
    names += [f"{stem}{c}" for c in _MODULE_COMPANIONS]
    return [n for n in names if n in tensors]


def _mxfp4_blocks(
    tensors: Tensors, settings: Mapping[str, Any], declared: str | None
) -> Iterator[Finding]:
    # X_blocks [..., groups, 16] of U8, X_scales [..., groups]: 32 codes in 16 bytes.
    for name, info in tensors.items():
        scales = name.removesuffix("_blocks") + "_scales"
        if name.endswith("_blocks") and scales in tensors and info.dtype == "U8":
            yield "mxfp4", name, 2 * info.elements, [scales]


def _bits(settings: Mapping[str, Any]) -> int | None:
    """Bits per weight a config names, when it names one number for all tensors."""
    groups = settings.get("config_groups")
    if isinstance(groups, dict):
        found = {_group_bits(group) for group in groups.values()}
    else:
        found = {_bit_count(settings.get("bits", settings.get("w_bit")))}
    return found.pop() if len(found) == 1 else None


def _group_bits(group: Any) -> int | None:
    weights = group.get("weights") if isinstance(group, dict) else None
    return _bit_count(weights.get("num_bits")) if isinstance(weights, dict) else None


def _bit_count(value: Any) -> int | None:
    return value if type(value) is int and 1 <= value <= 32 else None


def name_of_weight(code: str) -> str:
    """`….qweight`, `….weight_packed` and `…_blocks` by the name without quantization."""
    for suffix, instead in (("qweight", "weight"), ("weight_packed", "weight"), ("_blocks", "")):
        if code.endswith(suffix):
            return code.removesuffix(suffix) + instead
    return code
