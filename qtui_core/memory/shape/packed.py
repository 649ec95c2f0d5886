"""How a checkpoint stores quantized layers: its quantization_config as a Packing, by its
quant_method, and which modules of a shape it packs, checked against the headers of its files.

Which modules are packed follows the quantizers of transformers 5.23 (quantizers/quantizer_*.py),
optimum for GPTQ, and the matching rules of compressed-tensors. If a setting cannot be read or a
method is unknown, the packing says so and has no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.shape.config_reader import written
from qtui_core.memory.shape.model_shape import (
    Layer,
    Linear,
    ModelShape,
    Module,
    Parameter,
    modules_of_layer,
    named_modules,
)
from qtui_core.memory.shape.packings import (
    HELD,
    STORED,
    UNPACKED_BY_FORWARD,
    Layout,
    PackedTensor,
    Packing,
    Rule,
)
from qtui_core.models.quoting import printable
from qtui_core.models.recognise import declared_method, quantization_config
from qtui_core.models.tensors import TensorInfo

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
        packing = read(settings)
    except _Unreadable as error:
        return _unknown_layout(method, f"as {method}, but {error}")
    note = f"The checkpoint is stored quantized ({packing.title}). {packing.note}"
    return replace(packing, note=note.strip())


def packing_of_files(method: str) -> Packing:
    """How a checkpoint is stored of which only the files say that it is quantized, in the words of
    `QuantizationInfo.method`."""
    found = _unknown_layout(method, f"as {method}, which config.json does not say")
    if method != "gguf":
        return found
    loads = "transformers unpacks it as it is loaded; llama.cpp keeps it packed"
    return replace(found, title="GGUF", dequantizes=True, experts="packed", untrained=loads)


def as_served(packing: Packing) -> Packing:
    """The same as engines keep it that never unpack it (vLLM), experts too: codes of 4 or 8 bits,
    and scales of a byte, two where they have 16 bits."""

    def served(layout: Layout | None) -> Layout | None:
        if layout is None or layout.kind not in UNPACKED_BY_FORWARD:
            return layout
        group = layout.group if layout.scales else layout.group // 2
        return Layout("modelopt", 8 if layout.bits > 4 else 4, group)

    rules = tuple(replace(rule, layout=served(rule.layout)) for rule in packing.rules)
    return replace(packing, layout=served(packing.layout), rules=rules, experts="packed")


def _unknown_layout(method: str, stored: str) -> Packing:
    return Packing(
        method,
        printable(method),
        untrained="what its layers compute with is not known",
        note=f"The checkpoint is stored quantized {printable(stored)}. {_UNTOLD}",
    )


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
    names = _names(settings.get("ignore") or settings.get("exclude_modules"))
    rules = [Rule(names, "glob")] if names else []
    layout = None
    if algorithm == "MIXED_PRECISION":
        rules += _by_part(settings.get("quantized_layers"))
    elif algorithm in ("NVFP4", "FP8"):
        group = _whole({"group_size": settings.get("group_size", 16)}, "group_size", (16,))
        layout = Layout("modelopt", 4 if algorithm == "NVFP4" else 8, group)
    if layout is None and not any(rule.layout for rule in rules):
        raise _Unreadable(f"its quant_algo is {written(algorithm)}, of which no layout is built in")
    return Packing(
        "modelopt",
        f"ModelOpt {algorithm}",
        layout,
        tuple(rules),
        head=True,
        experts="packed",
        untrained=_NO_LOADER,
        note=f"{_NO_LOADER.capitalize()}; vLLM and TensorRT-LLM do. What their kernels take beside "
        "the weights is not counted.",
    )


def _by_part(listed: object) -> Iterator[Rule]:
    """A rule for each part of a layer in ModelOpt's list of modules: those of a part are alike."""
    kinds = {"FP8": 8, "NVFP4": 4, "W4A16_NVFP4": 4}
    for part in ("attn", "mlp", "lm_head"):
        for name, how in listed.items() if isinstance(listed, Mapping) else ():
            algorithm = how.get("quant_algo") if isinstance(how, Mapping) else None
            if part in name and isinstance(algorithm, str) and algorithm in kinds:
                yield Rule((f"*{part}*",), "glob", Layout("modelopt", kinds[algorithm], 16))
                break


def _mxfp4(settings: Settings) -> Packing:
    """Halves of bytes and a scale for 32 of them, of experts alone (integrations/mxfp4.py of
    transformers)."""
    return Packing(
        "mxfp4",
        "MXFP4",
        rules=(
            *_skipped(settings, "modules_to_not_convert"),
            Rule(("*.experts",), "glob", Layout("mxfp4", 4, 32)),
        ),
        experts="packed",
        dequantizes=True,
        untrained="transformers unpacks it to train",
        note="Its kernels need a GPU of compute capability 7.5 and triton; else transformers loads "
        "it unpacked. Beside the weights what the class makes is counted; they make less.",
    )


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


#: The note on experts whose packing nothing says.
EXPERTS_UNKNOWN: Final = (
    "How its experts are stored once they are stacked is not known: they are counted unpacked, "
    "and no figure that rests on it is exact."
)


def packed(
    shape: ModelShape, packing: Packing, held: Mapping[str, Layout | None] | None = None
) -> ModelShape:
    """The shape with the layout of each module that the checkpoint stores packed. `held` are the
    layouts that the files show, by full name."""
    shown = held or {}

    def of(name: str, module: Module) -> Layout | None:
        if name in shown:
            return shown[name]
        if isinstance(module, Parameter):
            experts, _, _ = name.rpartition(".")
            stacked = experts.endswith(".experts") and len(module.shape) == 3
            return packing.of(experts) if stacked and packing.experts == "packed" else None
        plain = not isinstance(module, Linear) or (module.transposed and not packing.transposed)
        return None if plain else packing.of(name)

    known: dict[tuple[object, ...], Layer] = {}

    def layered(prefix: str, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        found = []
        for index, layer in enumerate(layers):
            names = {m.name: of(f"{prefix}.{index}.{m.name}", m) for m in modules_of_layer(layer)}
            key = (id(layer), *names.values())
            if key not in known:
                known[key] = _with_layouts(layer, names)
            found.append(known[key])
        return tuple(found)

    def outside(module: Module) -> Module:
        within = packing.outside or module.name in shown
        layout = of(module.name, module) if within else None
        return _with_layouts(module, {module.name: layout})

    head = shape.head
    if head is not None and (packing.head or head.name in shown) and not shape.tied:
        head = replace(head, layout=of(head.name, head))
    shape = replace(
        shape,
        packing=packing,
        layers=layered(shape.layer_prefix, shape.layers),
        embedding_modules=tuple(map(outside, shape.embedding_modules)),
        head_modules=tuple(map(outside, shape.head_modules)),
        head=head,
        notes=(*shape.notes, packing.note),
    )
    if packing.layout_known and not shape.storage_known:
        return replace(shape, notes=(*shape.notes, EXPERTS_UNKNOWN))
    return shape


def held_by_files(shape: ModelShape, tensors: Mapping[str, TensorInfo]) -> ModelShape:
    """The shape with the layouts of packed modules that the headers of a checkpoint's files show,
    if they differ from the configuration or the configuration does not say. `tensors` may be empty.

    Modules whose names are not in the files keep the layout from the configuration.
    """
    packing = shape.packing
    if packing is None or not tensors:
        return shape
    stored: dict[str, dict[str, TensorInfo]] = {}
    for name, info in tensors.items():
        owner, _, constant = name.partition(".weight.")  # constants of bitsandbytes
        suffix = f"weight.{constant}"
        if not constant:
            owner, _, suffix = name.rpartition(".")
        stored.setdefault(owner, {})[suffix] = info
    changed: dict[str, Layout | None] = {}
    words = ""
    experts = _stacked(stored)
    for name, module in named_modules(shape):
        if isinstance(module, Parameter) and name in experts and packing.layout is None:
            changed[name] = Layout(HELD, 8, held=(PackedTensor("", (experts[name],), "uint8"),))
            continue
        own = stored.get(name)
        if not isinstance(module, Linear) or own is None or not (own.keys() - {"bias"}):
            continue
        layout = _held(packing, module, own)
        if layout != module.layout:
            changed[name] = layout
            words = words or _contradiction(name, module, own)
    if not changed:
        return shape
    note = f"config.json and the files contradict each other: {words}. Counted is what is stored."
    if not packing.layout_known:
        note = (
            f"The checkpoint is stored quantized as {packing.title}; its bytes are those of its "
            "files. What its kernels take besides is not known."
        )
    notes = tuple(n for n in shape.notes if n != packing.note)
    if packing.layout_known:
        notes = (*notes, packing.note)
    found = replace(packing, note=note, held=True)
    return packed(replace(shape, notes=notes), found, changed)


def _stacked(stored: Mapping[str, Mapping[str, TensorInfo]]) -> dict[str, int]:
    """Bytes of the packed experts of a layer, by the name of the parameter that stacks them."""
    found: dict[str, int] = {}
    for owner, own in stored.items():
        experts, number, which = (*owner.rsplit(".", 2), "", "")[:3]
        if number.isdigit() and which in _OF_EXPERTS:
            name = f"{experts}.{_OF_EXPERTS[which]}"
            found[name] = found.get(name, 0) + sum(info.nbytes for info in own.values())
    return found


def _held(packing: Packing, module: Linear, own: Mapping[str, TensorInfo]) -> Layout | None:
    """How the files store a module: as its layout says, or otherwise, or unpacked (None)."""
    weight = own.get("weight")
    count = module.inputs * module.outputs
    if weight is not None and weight.dtype in _FLOATING and weight.elements == count:
        return None
    if packing.quant != STORED:  # bitsandbytes stores its constants in several forms
        return packing.layout
    layout = module.layout
    if layout is not None:
        codes, *others = layout.parts((module.outputs, module.inputs), "bf16")
        found = own.get(codes.name)
        same = all(_same(part, own[part.name]) for part in others if part.name in own)
        if found is not None and _same(codes, found) and same:
            return layout
    parts = [
        PackedTensor(name, info.shape, _TYPES[info.dtype])
        if info.dtype in _TYPES
        else PackedTensor(name, (info.nbytes,), "uint8")
        for name, info in own.items()
        if name != "bias"
    ]
    parts.sort(key=lambda part: -prod(part.sizes) * SIZES[part.dtype])
    kind = HELD if packing.layout is None else packing.layout.kind
    return Layout(kind, 8, held=tuple(parts)) if parts else layout


def _same(part: PackedTensor, info: TensorInfo) -> bool:
    return prod(part.sizes) * SIZES[part.dtype] == info.nbytes


def _contradiction(name: str, module: Linear, own: Mapping[str, TensorInfo]) -> str:
    nbytes = sum(info.nbytes for suffix, info in own.items() if suffix != "bias")
    if module.layout is None:
        return f"{name} would be in its own type, and is stored packed, in {nbytes:,} bytes"
    parts = module.layout.parts((module.outputs, module.inputs), "bf16")
    needed = sum(prod(part.sizes) * SIZES[part.dtype] for part in parts)
    return f"{name} would take {needed:,} bytes, and is stored in {nbytes:,}"


#: Safetensors dtypes -> the names in the estimate.
_TYPES: Final = {
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "F32": "fp32",
    "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8", "F8_E5M2": "fp8", "F8_E8M0": "uint8",
}  # fmt: skip
_FLOATING: Final = ("F32", "F16", "BF16")

#: Modules of an expert in checkpoints -> the parameter in which transformers 5 stacks them.
_OF_EXPERTS: Final = {
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj",
    "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj",
}  # fmt: skip


def _with_layouts(part: Any, layouts: Mapping[str, Layout | None]) -> Any:
    """A layer, a part of one or a module, with the layouts of its modules, which are given by
    name."""
    if isinstance(part, Linear | Parameter):
        layout = layouts.get(part.name)
        return part if layout == part.layout else replace(part, layout=layout)
    if isinstance(part, tuple):
        return tuple(_with_layouts(each, layouts) for each in part)
    if not hasattr(part, "__dataclass_fields__"):
        return part
    values = {name: getattr(part, name) for name in part.__dataclass_fields__}
    changed = {name: _with_layouts(value, layouts) for name, value in values.items()}
    return replace(part, **{n: v for n, v in changed.items() if v is not values[n]})
