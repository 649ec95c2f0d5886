"""Which modules of a shape a checkpoint stores packed, from its configuration and the headers of
its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.shape.model_shape import Layer, Linear, ModelShape, Module, Parameter
from qtui_core.memory.shape.modules import modules_of_layer, named_modules
from qtui_core.memory.shape.packings import (
    HELD,
    NOT_REPLACED,
    STORED,
    Layout,
    PackedTensor,
    Packing,
)
from qtui_core.models.tensors import TensorInfo

#: Names of experts in checkpoints, which store them as modules where transformers 5 stacks them.
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
        if name.endswith(NOT_REPLACED.get(shape.family, ())):
            return None
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
        encoder=layered(shape.encoder_prefix, shape.encoder),
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
        owner, suffix = (owner, f"weight.{constant}") if constant else _parted(name)
        stored.setdefault(owner, {})[suffix] = info
    changed: dict[str, Layout | None] = {}
    words = ""
    for name, module in named_modules(shape):
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


def _parted(name: str) -> tuple[str, str]:
    module, _, suffix = name.rpartition(".")
    return module, suffix


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
        PackedTensor(name, info.shape, _TYPES.get(info.dtype, "uint8"))
        for name, info in own.items()
        if name != "bias" and info.dtype in _TYPES
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
