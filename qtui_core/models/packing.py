"""How quantized checkpoints name their tensors, and how many weights each one packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.models.tensors import TensorInfo

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
    bits = _bits(settings or {})
    findings = chain(
        _bitsandbytes(tensors, declared),
        _qweight(tensors, bits),
        _by_suffix(tensors, bits, declared),
    )
    for method, name, count, others in findings:
        if name not in codes:
            codes[name], methods[name] = count, method
        companions[name] = (*companions.get(name, ()), *(n for n in others if n in tensors))
    if not codes:
        return None
    return Packed(Counter(methods.values()).most_common(1)[0][0], codes, methods, companions)


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
