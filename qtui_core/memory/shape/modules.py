"""The modules of a shape and their parameters, with their names in transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from qtui_core.memory.shape.model_shape import (
    Attention,
    Embedding,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    ModelShape,
    Module,
    Moe,
    Norm,
    Parameter,
)


def modules_of_layer(layer: Layer) -> Iterator[Module]:
    """The modules of a layer; names are without the layer's prefix."""
    for part in (layer.attention, layer.cross, layer.mlp):
        if part is not None:
            yield from modules_of(part)
    yield from layer.norms


def modules_of(part: Attention | LatentAttention | Mlp | Moe) -> Iterator[Module]:
    """The modules of a part of a layer, in the order of its fields."""
    for name in part.__dataclass_fields__:
        value = getattr(part, name)
        if isinstance(value, Mlp):
            yield from modules_of(value)
        elif isinstance(value, Module):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Module))


def named_modules(shape: ModelShape) -> Iterator[tuple[str, Module]]:
    """(full name, module) of all modules, without a tied head."""
    for embedding in shape.embeddings:
        yield embedding.name, embedding
    for module in shape.embedding_modules:
        yield module.name, module
    for prefix, layers in (
        (shape.encoder_prefix, shape.encoder),
        (shape.layer_prefix, shape.layers),
    ):
        for index, layer in enumerate(layers):
            for module in modules_of_layer(layer):
                yield f"{prefix}.{index}.{module.name}", module
    for norm in (shape.encoder_norm, shape.final_norm):
        if norm is not None:
            yield norm.name, norm
    for module in shape.head_modules:
        yield module.name, module
    if shape.head is not None and not shape.tied:
        yield shape.head.name, shape.head
    elif shape.head is not None and shape.head.bias:
        yield shape.head.name, Parameter(f"{shape.head.name}.bias", (shape.head.outputs,))


def parameters_of(module: Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(suffix, shape) of the parameters of a module; the suffix of a parameter without a module is
    empty."""
    match module:
        case Linear():
            sizes = (module.outputs, module.inputs)
            yield "weight", sizes[::-1] if module.transposed else sizes
            if module.bias:
                yield "bias", (module.outputs,)
        case Norm():
            if module.weight:
                yield "weight", module.shape or (module.size,)
            if module.bias:
                yield "bias", module.shape or (module.size,)
        case Embedding():
            yield "weight", (module.rows, module.columns)
        case Parameter():
            yield "", module.shape


def named_parameters(shape: ModelShape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every parameter, like `named_parameters` of the transformers class, in no
    particular order."""
    for name, module in named_modules(shape):
        for suffix, sizes in parameters_of(module):
            if isinstance(module, Parameter) and name.endswith(module.name):
                yield name, sizes
            elif isinstance(module, Parameter):
                yield module.name, sizes
            else:
                yield f"{name}.{suffix}", sizes


def parameter_count(shape: ModelShape) -> int:
    """How many parameters a model has; those of tied weights count once."""
    outside = replace(shape, encoder=(), layers=())
    found = sum(prod(sizes) for _, sizes in named_parameters(outside))
    # Most layers of a model are one object, whose parameters are counted once.
    alike: dict[int, int] = {}
    for layer in (*shape.encoder, *shape.layers):
        count = alike.get(id(layer))
        if count is None:
            modules = modules_of_layer(layer)
            count = sum(prod(sizes) for module in modules for _, sizes in parameters_of(module))
            alike[id(layer)] = count
        found += count
    return found
