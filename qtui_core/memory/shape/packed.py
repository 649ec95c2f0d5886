"""Turns a quantization_config into a Packing, which says how a checkpoint is stored, by its
quant_method.

Which modules are packed follows the quantizers of transformers 5.23 (quantizers/quantizer_*.py),
optimum for GPTQ, and the matching rules of compressed-tensors. If a setting cannot be read or a
method is unknown, the packing says so and has no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from qtui_core.memory.shape.config_reader import written
from qtui_core.memory.shape.packings import (
    UNPACKED_BY_FORWARD,
    Layout,
    PackedTensor,
    Packing,
    Rule,
)
from qtui_core.models.quoting import printable
from qtui_core.models.recognise import declared_method, quantization_config

Settings = Mapping[str, Any]

_UNTOLD: Final = (
    "config.json does not say how many bytes its weights take: they are counted as if they were "
    "unpacked, which is an upper bound, and no figure that rests on it is exact."
)
_KERNELS: Final = (
    "Its kernels unpack each weight to 16 bits for a product, which is counted; those that unpack "
    "as they multiply (Marlin, taken for inference on Ampere and later) need less."
)
_NO_LOADER: Final = "the installed transformers (5.23) does not load it"


class _Unreadable(Exception):
    """A setting that is missing or invalid. Its message is the end of a sentence."""


def packing_of(config: Settings) -> Packing | None:
    """How the checkpoint of a parsed config.json is stored; None if it is not quantized."""
    settings = quantization_config(config)
    if settings is None:
        return None
    declared = declared_method(settings) or ""
    method = "bitsandbytes" if declared.startswith("bitsandbytes") else declared
    read = _METHODS.get(method)
    if read is None:
        what = f"as {method!r}" if method else "by a method that quantization_config does not name"
        return _unknown_layout(method or "unnamed", f"{what}, of which no layout is built in")
    try:
        return _noted(read(settings))
    except _Unreadable as error:
        return _unknown_layout(method, f"as {method}, but {error}")


def _unknown_layout(method: str, stored: str) -> Packing:
    return Packing(
        method,
        printable(method),
        untrained="what its layers compute with is not known",
        note=f"The checkpoint is stored quantized {printable(stored)}. {_UNTOLD}",
    )


def _noted(packing: Packing) -> Packing:
    stored = f"The checkpoint is stored quantized ({packing.title})."
    return replace(packing, note=f"{stored} {packing.note}".strip())


def _gptq(settings: Settings) -> Packing:
    """The linear layers inside the rows of layers (optimum's convert_model), or those in a list of
    names; GPTQModel's `dynamic` adds others and removes those after a minus."""
    bits = _whole(settings, "bits", (2, 3, 4, 8))
    group = _group(settings)
    layout = Layout("gptq", bits, group)
    rules = list(_dynamic(settings.get("dynamic"), layout))
    within = settings.get("modules_in_block_to_quantize")
    if isinstance(within, list) and within:
        flat = [name for each in within for name in (*_names([each]), *_names(each))]
        names = tuple(f"*{name}" for name in flat)
        rules += [Rule(names, "glob", layout), Rule(("*",), "glob")]
    return Packing(
        "gptq",
        f"GPTQ, {bits} bits {_groups(group)}",
        layout,
        tuple(rules),
        head=settings.get("lm_head") is True,
        outside=False,
        transposed=True,
        note=f"{_KERNELS} In training what is unpacked is kept for the backward pass, but where "
        "layers are checkpointed.",
    )


def _dynamic(found: object, layout: Layout) -> list[Rule]:
    rules = []
    for pattern, changes in found.items() if isinstance(found, dict) else ():
        if not isinstance(pattern, str):
            continue
        named = (f"re:{pattern.removeprefix('-:').removeprefix('+:')}",)
        if pattern.startswith("-:"):
            rules.append(Rule(named, "full"))
        elif isinstance(changes, dict):
            merged = {"bits": layout.bits, "group_size": layout.group or -1, **changes}
            bits, group = _whole(merged, "bits", (2, 3, 4, 8)), _group(merged)
            rules.append(Rule(named, "full", replace(layout, bits=bits, group=group)))
    return rules


def _awq(settings: Settings) -> Packing:
    form = settings.get("version", settings.get("format", "gemm"))
    kinds = {"gemm": "awq", "gemv": "awq-gemv", "gemv_fast": "awq-gemv-fast"}
    kind = kinds.get(form.lower()) if isinstance(form, str) else None
    if kind is None:
        raise _Unreadable(f"its packing is {written(form)}, of which no layout is built in")
    bits = _whole({"bits": settings.get("bits", settings.get("w_bit", 4))}, "bits", (4,))
    group = _group({"group_size": settings.get("group_size", settings.get("q_group_size", 128))})
    return Packing(
        "awq",
        f"AWQ, {bits} bits {_groups(group)}",
        Layout(kind, bits, group),
        _skipped(settings, "modules_to_not_convert"),
        note=_KERNELS,
    )


def _fp8(settings: Settings) -> Packing:
    found = settings.get("weight_block_size", (128, 128))
    tiles = () if found is None else _tile(found, "weight_block_size")
    static = settings.get("activation_scheme") == "static"
    skipped = "modules_to_not_convert"
    if settings.get(skipped) is None:
        skipped = "ignored_layers"
    return Packing(
        "fp8",
        f"FP8 in tiles of {tiles[0]} x {tiles[1]}" if tiles else "FP8, a scale a tensor",
        Layout(
            "fp8",
            8,
            block=tiles,
            scales="uint8" if settings.get("scale_fmt") == "ue8m0" else "fp32",
            extra=(PackedTensor("activation_scale", (), "fp32"),) if static else (),
        ),
        _skipped(settings, skipped),
        head=isinstance(settings.get(skipped), list),
        experts="packed",
        dequantizes=True,
        note="Its kernels need a GPU of compute capability 8.9; on an older one transformers loads "
        "it unpacked.",
    )


def _fbgemm(settings: Settings) -> Packing:
    return Packing(
        "fbgemm_fp8",
        "FP8 of FBGEMM, a scale an output",
        Layout("fbgemm", 8),
        _skipped(settings, "modules_to_not_convert"),
        head=isinstance(settings.get("modules_to_not_convert"), list),
        untrained="transformers trains nothing over weights of FBGEMM",
    )


def _bitsandbytes(settings: Settings) -> Packing:
    eight = settings.get("load_in_8bit") is True
    kind = "int8"
    if not eight:
        kind = "nf4" if settings.get("bnb_4bit_quant_type") == "nf4" else "fp4"
        kind += "-dq" * (settings.get("bnb_4bit_use_double_quant") is True)
    skipped = "llm_int8_skip_modules"
    return Packing(
        "bitsandbytes",
        "bitsandbytes LLM.int8" if eight else f"bitsandbytes {kind}",
        Layout(kind, 8 if eight else 4),
        _skipped(settings, skipped),
        head=isinstance(settings.get(skipped), list),
        transposed=True,
        experts="plain",
    )


def _hqq(settings: Settings) -> Packing:
    found = settings.get("quant_config")
    if not isinstance(found, dict):
        found = {"weight_quant_params": settings}  # the arguments of HqqConfig
    skipped = settings.get("skip_modules", ["lm_head"])
    rules = [Rule(_names(skipped), "tag")]
    if "weight_quant_params" in found:
        layout: Layout | None = _hqq_layout(found)
    else:
        rules += [
            Rule((tag,), "tag", _hqq_layout(each))
            for tag, each in found.items()
            if isinstance(each, dict)
        ]
        layout = next((rule.layout for rule in rules if rule.layout), None)
        rules.append(Rule(("*",), "glob"))
    if layout is None:
        raise _Unreadable("its quant_config names no settings")
    return Packing(
        "hqq",
        f"HQQ, {layout.bits} bits {_groups(layout.group)}",
        layout,
        tuple(rules),
        head=True,
        note=f"{_NO_LOADER.capitalize()}; counted are the layers of the package hqq, which unpack "
        "each weight for a product.",
    )


def _hqq_layout(found: Settings) -> Layout:
    weights = found.get("weight_quant_params")
    if not isinstance(weights, Mapping):
        raise _Unreadable("its quant_config has no weight_quant_params")
    if found.get("scale_quant_params") or found.get("zero_quant_params"):
        raise _Unreadable("its scales or zero points are quantized again, which hqq has given up")
    bits = _whole({"nbits": weights.get("nbits", 4)}, "nbits", (1, 2, 3, 4, 5, 6, 8))
    group = weights.get("group_size", 64)
    if group is not None and not _positive(group):
        raise _Unreadable(f"its group_size is {written(group)}")
    axis = _whole({"axis": weights.get("axis", 1)}, "axis", (0, 1))
    return Layout("hqq", 8 if bits in (5, 6) else bits, group or 0, axis=axis)


def _compressed(settings: Settings) -> Packing:
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _Unreadable("it has no config_groups")
    rules = [Rule(_names(settings.get("ignore")), "full")]
    layout, titles, active = None, [], False
    for group in groups.values():
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            continue
        one = _compressed_layout(settings, group)
        titles.append(one.kind)
        active = active or bool(group.get("input_activations"))
        targets = _names(group.get("targets"))
        if "Linear" in targets:
            layout = layout or one
        named = tuple(target for target in targets if target != "Linear")
        if named:
            rules.append(Rule(named, "full", one))
    if not titles:
        raise _Unreadable("its config_groups say nothing of weights")
    if layout is None and not any(rule.layout for rule in rules):
        raise _Unreadable("none of its config_groups names a module")
    packed = any(title.endswith("pack-quantized") for title in titles)
    return Packing(
        "compressed-tensors",
        f"compressed-tensors, {' and '.join(dict.fromkeys(titles))}",
        layout,
        tuple(rules),
        head=True,
        experts="plain",
        dequantizes=True,
        untrained="its layers have no weight that peft could put adapters over until the first "
        "forward pass has unpacked them"
        if packed
        else "",
        note="transformers keeps it packed only until the first forward pass, which unpacks every "
        "layer for good (compressed-tensors' hook); vLLM and others keep it packed."
        + (
            " Inputs are rounded as quantized ones would be, and what that takes is not counted."
            if active
            else ""
        ),
    )


def _compressed_layout(settings: Settings, group: Settings) -> Layout:
    weights = group["weights"]
    bits = _whole(weights, "num_bits", tuple(range(1, 9)))
    size, strategy = weights.get("group_size"), weights.get("strategy")
    strategy = strategy or ("group" if _positive(size) else "tensor")
    kind = group.get("format") or settings.get("format")
    if kind in (None, "mixed-precision", "naive-quantized", "dense"):
        kind = _inferred(weights, bits, bool(group.get("input_activations")))
    if not isinstance(kind, str) or kind not in UNPACKED_BY_FORWARD:
        raise _Unreadable(f"its format is {written(kind)}, of which no layout is built in")
    block: tuple[int, int] | tuple[()] = ()
    if strategy in ("group", "tensor_group"):
        if not _positive(size):
            raise _Unreadable(f"its group_size is {written(size)}")
    elif strategy == "block":
        block = _tile(weights.get("block_structure"), "block_structure")
    elif strategy == "tensor":
        block = (0, 0)
    elif strategy != "channel":
        raise _Unreadable(f"its strategy is {written(strategy)}")
    return Layout(
        kind,
        bits,
        size if strategy in ("group", "tensor_group") else 0,
        block,
        asymmetric=weights.get("symmetric") is False,
        scales=UNPACKED_BY_FORWARD[kind],
        extra=tuple(_of_inputs(group.get("input_activations"))),
    )


def _of_inputs(found: object) -> list[PackedTensor]:
    """The tensors stored for inputs whose scales are fixed (initialize_qparams)."""
    if not isinstance(found, Mapping) or found.get("dynamic") is True:
        return []
    if found.get("strategy") == "tensor_group":
        return [PackedTensor("input_global_scale", (1,), "fp32")]
    parts = [PackedTensor("input_scale", (1,), "bf16")]
    if found.get("symmetric") is False:
        parts.append(PackedTensor("input_zero_point", (1,), "int8"))
    return parts


def _inferred(weights: Settings, bits: int, active: bool) -> str:
    """infer_module_format of compressed-tensors."""
    if weights.get("type") == "float" and bits == 4:
        return f"{'nv' if weights.get('group_size') == 16 else 'mx'}fp4-pack-quantized"
    if weights.get("type") == "float":
        return "float-quantized"
    return "int-quantized" if active else "pack-quantized"


def _modelopt(settings: Settings) -> Packing:
    algorithm = settings.get("quant_algo")
    if algorithm not in ("NVFP4", "FP8"):
        raise _Unreadable(f"its quant_algo is {written(algorithm)}, of which no layout is built in")
    group = _whole({"group_size": settings.get("group_size", 16)}, "group_size", (16,))
    names = _names(settings.get("ignore") or settings.get("exclude_modules"))
    return Packing(
        "modelopt",
        f"ModelOpt {algorithm}",
        Layout("modelopt", 4 if algorithm == "NVFP4" else 8, group),
        (Rule(names, "glob"),) if names else (),
        head=True,
        untrained=_NO_LOADER,
        note=f"{_NO_LOADER.capitalize()}; vLLM and TensorRT-LLM do. What their kernels take beside "
        "the weights is not counted.",
    )


def _mxfp4(settings: Settings) -> Packing:
    raise _Unreadable("transformers packs experts of gpt-oss alone in it, which this model has not")


def _skipped(settings: Settings, key: str) -> tuple[Rule, ...]:
    names = _names(settings.get(key))
    return (Rule(names, "module"),) if names else ()


def _names(found: object) -> tuple[str, ...]:
    """The names in a list; none if it is not a list."""
    listed = found if isinstance(found, list | tuple) else ()
    return tuple(name for name in listed if isinstance(name, str) and name)


def _whole(settings: Settings, key: str, allowed: tuple[int, ...]) -> int:
    value = settings.get(key)
    if type(value) is not int or value not in allowed:
        raise _Unreadable(f"its {key} is {written(value)}")
    return value


def _group(settings: Settings) -> int:
    value = settings.get("group_size", 128)
    if value == -1:
        return 0
    if not _positive(value):
        raise _Unreadable(f"its group_size is {written(value)}")
    return int(value)


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _tile(found: object, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if isinstance(found, list | tuple) and len(found) == 2 and all(map(_positive, found)):
        return found[0], found[1]
    raise _Unreadable(f"its {key} is {written(found)}")


def _groups(group: int) -> str:
    return f"in groups of {group}" if group else "with a scale an output"


_METHODS: Final[Mapping[str, Callable[[Settings], Packing]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "bitsandbytes": _bitsandbytes,
    "hqq": _hqq,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
}
