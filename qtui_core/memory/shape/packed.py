"""Which modules of a shape a checkpoint stores packed, and what each of them takes by the headers
of its files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import prod
from typing import Any, Final

from qtui_core.memory.shape.model_shape import (
    Layer,
    Linear,
    ModelShape,
    Module,
    Parameter,
    modules_of_layer,
    named_modules,
)
from qtui_core.memory.shape.packings import STORED, Layout, PackedTensor, Packing
from qtui_core.models.tensors import TensorInfo

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

    known: dict[tuple[object, ...], Layer] = {}  # layers that are alike stay one object
    layers = []
    for index, layer in enumerate(shape.layers):
        prefix = f"{shape.layer_prefix}.{index}"
        names = {m.name: of(f"{prefix}.{m.name}", m) for m in modules_of_layer(layer)}
        key = (id(layer), *names.values())
        if key not in known:
            known[key] = _with_layouts(layer, names)
        layers.append(known[key])

    def outside(module: Module) -> Module:
        within = packing.outside or module.name in shown
        layout = of(module.name, module) if within else None
        return _with_layouts(module, {module.name: layout})

    head = shape.head
    if head is not None and (packing.head or head.name in shown) and not shape.tied:
        head = replace(head, layout=of(head.name, head))
    before = () if shape.packing is None else (shape.packing.note, EXPERTS_UNKNOWN)
    shape = replace(
        shape,
        packing=packing,
        layers=tuple(layers),
        embedding_modules=tuple(map(outside, shape.embedding_modules)),
        head_modules=tuple(map(outside, shape.head_modules)),
        head=head,
        notes=(*(note for note in shape.notes if note not in before), packing.note),
    )
    if packing.layout_known and not shape.storage_known:
        return replace(shape, notes=(*shape.notes, EXPERTS_UNKNOWN))
    return shape


def held_by_files(shape: ModelShape, tensors: Mapping[str, TensorInfo]) -> ModelShape:
    """The shape with the layouts of packed modules that the headers of a checkpoint's files show.
    `tensors` may be empty.

    Modules whose names are not in the files keep the layout from the configuration.
    """
    packing = shape.packing
    if packing is None or not tensors:
        return shape
    stored = _by_module(tensors)
    held: dict[str, Layout | None] = {}
    missing, wrong = False, ""
    for name, module in named_modules(shape):
        if not isinstance(module, Linear | Parameter):
            continue
        expected, own = module.layout, stored.get(name, {})
        stacked = packing.experts == "packed" or not packing.layout_known
        if not own or (isinstance(module, Parameter) and not stacked):
            missing = missing or expected is not None
            continue
        held[name] = layout = _held(packing, module, own)
        bits, stored_bits = (16 if each is None else each.bits for each in (expected, layout))
        if not wrong and bits != stored_bits:
            taken = sum(info.nbytes for info in own.values())
            wrong = f"{name} would have {bits} bits a weight, and is stored in {taken:,} bytes"
    if not any(held.values()) and not wrong:
        return shape
    note = packing.note
    if not packing.layout_known:
        note = (
            f"The checkpoint is stored quantized as {packing.title}; its bytes are those of its "
            "files. What its kernels take besides is not known."
        )
    elif wrong:
        note += f" config.json and the files contradict each other: {wrong}. Counted is what is "
        note += "stored."
    return packed(shape, replace(packing, note=note, held=not missing), held)


def _by_module(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, TensorInfo]]:
    """The tensors of each module by what follows its name, codes first; those of the experts of a
    layer as one, under the name of the parameter that stacks them in transformers 5."""
    found: dict[str, dict[str, TensorInfo]] = {}
    for name, info in sorted(tensors.items(), key=lambda item: -item[1].nbytes):
        owner, _, constant = name.partition(".weight.")  # constants of bitsandbytes
        suffix = f"weight.{constant}"
        if not constant:
            owner, _, suffix = name.rpartition(".")
        experts, number, which = (*owner.rsplit(".", 2), "", "")[:3]
        if suffix.endswith(("_blocks", "_scales")):  # MXFP4
            stem, _, what = suffix.rpartition("_")
            owner, suffix = f"{owner}.{stem}", "" if what == "blocks" else "_scale"
        elif number.isdigit() and which in _OF_EXPERTS:
            owner, suffix = f"{experts}.{_OF_EXPERTS[which]}", f"_{suffix}".removeprefix("_weight")
        own = found.setdefault(owner, {})
        if suffix in own:
            size = own[suffix].nbytes + info.nbytes
            info = replace(info, shape=(own[suffix].elements + info.elements,), nbytes=size)
        if suffix != "bias":
            own[suffix] = info
    return found


def _held(
    packing: Packing, module: Linear | Parameter, own: Mapping[str, TensorInfo]
) -> Layout | None:
    """How the files store a module; None if it is unpacked."""
    sizes = module.shape if isinstance(module, Parameter) else (module.outputs, module.inputs)
    weight = own.get("weight", own.get(""))
    if weight is not None and weight.dtype in _FLOATING and weight.elements == prod(sizes):
        return None
    if packing.quant != STORED:  # bitsandbytes stores its constants in several forms
        return packing.layout
    parts = []
    for name, info in own.items():
        elements, dtype = _elements(sizes, info.shape), _TYPES.get(info.dtype)
        if dtype is None:
            elements, dtype = info.nbytes, "uint8"
        elif info.dtype in _FLOATING[1:] and name in ("weight_scale", "scale", "zero"):
            dtype = ""
        parts.append(PackedTensor(name, elements, dtype))
    bits = max(1, round(8 * next(iter(own.values())).nbytes / prod(sizes)))
    known = module.layout or packing.layout or Layout("held")
    return replace(known, bits=bits, held=tuple(parts))


def _elements(weight: tuple[int, ...], stored: tuple[int, ...]) -> int:
    """The elements of a tensor of a packed weight, as a fraction of that weight or of one side of
    it, so that formulas have its letters."""
    count, whole = prod(stored), prod(weight)
    sides: tuple[int, ...] = ()
    if len(weight) > 2:
        sides = weight[:1]
    elif max(stored, default=1) == count:  # a vector
        sides = (weight[-2],) if len(stored) > 1 else (weight[-1], weight[-2])
    for of in (*sides, whole):
        part = Fraction(count, int(of))
        near = of is whole or part.denominator <= 8
        if near and part.numerator < 8 and count > (1 if len(stored) > 1 else 2):
            return of * part.numerator // part.denominator
    return count


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
