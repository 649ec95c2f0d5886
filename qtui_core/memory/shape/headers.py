"""Checks a shape against the headers of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.modules import named_parameters, parameter_count

#: Tensors of GGUF files that are no parameters: factors of rotary positions.
_NO_PARAMETERS: Final = ("rope_freqs", "rope_factors")


def held_against(
    shape: ModelShape, tensors: Mapping[str, tuple[int, ...]], *, gguf: bool = False
) -> ModelShape:
    """The shape, with a note and the basis "derived" if `tensors` contradict it: the sizes, by
    name, of those stored as plain values. GGUF files have other names, so all their parameters are
    given and only their number is compared.

    A class is built from its configuration, whatever the file contains: tensors that the file lacks
    or has in addition are no contradiction.
    """
    why = _counted(shape, tensors) if gguf else _sizes(shape, tensors) or _tied(shape, tensors)
    return replace(shape, known="derived", notes=(*shape.notes, why)) if why else shape


def _counted(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]]) -> str:
    count = 0
    for name, sizes in tensors.items():
        if not name.startswith(_NO_PARAMETERS):
            elements = 1
            for size in sizes:
                elements *= size
            count += elements
    described = parameter_count(shape)
    if count in (0, described):
        return ""
    return (
        f"The file holds {count:,} parameters and its metadata describes {described:,}: "
        "nothing that follows from them is exact."
    )


def _sizes(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]]) -> str:
    for name, sizes in named_parameters(shape):
        stored = tensors.get(name) or tensors.get(name.partition(".")[2])
        if stored is not None and stored != sizes:
            return (
                f"The file stores {name} as {_written(stored)} and {shape.described_in} makes it "
                f"{_written(sizes)}: one of them is of another model, and nothing that follows "
                "from the sizes is exact."
            )
    return ""


def _tied(shape: ModelShape, tensors: Mapping[str, tuple[int, ...]]) -> str:
    head = shape.head
    if head is None or not shape.tied or f"{head.name}.weight" not in tensors:
        return ""
    return (
        f"{shape.described_in} ties {head.name} to the embedding, and the file stores both: where "
        f"they differ transformers 5 does not tie them, which is {head.inputs * head.outputs:,} "
        "parameters more."
    )


def _written(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))
