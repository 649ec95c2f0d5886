"""A model as memory reports describe it, before any plan, with its shape checked against the
headers of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Final, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.modules import named_parameters, parameter_count
from qtui_core.memory.shape.packed import packing_of
from qtui_core.memory.shape.packed_modules import held_by_files
from qtui_core.models.source import ModelSource
from qtui_core.models.tensors import DESCRIBED_IN, Role, TensorInfo


class StoredAs(NamedTuple):
    """How a checkpoint is stored: the dtype of its weights, None if config.json does not say; and
    the `quant` of a plan that keeps it as it is, None if it is not quantized."""

    dtype: str | None
    packed_as: str | None


def stored_as(config: Mapping[str, Any]) -> StoredAs:
    """How a checkpoint of any family is stored, from its config.json. Raises what `packing_of`
    raises."""
    dtype = config.get("dtype") or config.get("torch_dtype")
    packing = packing_of(config)
    return StoredAs(
        None if dtype is None else str(dtype), None if packing is None else packing.quant
    )


@dataclass(frozen=True)
class ModelDescription:
    """A model: the name that was asked for, where it was found, its config.json and its class.
    `quantized`: the checkpoint is quantized already. `stored` has the sizes of tensors from the
    headers by name: all of a GGUF file (`gguf`), else those stored as plain values. `tensors` are
    all tensors of a quantized checkpoint."""

    name: str
    location: str
    config: Mapping[str, Any]
    architecture: str
    quantized: bool
    stored: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    gguf: bool = False
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)

    def read_shape(self) -> ModelShape:
        """Its shape, checked against the headers. Raises what shape_from_config raises."""
        shape = held_by_files(shape_from_config(self.config), self.tensors)
        return held_against(shape, self.stored, gguf=self.gguf)


def describe(source: ModelSource) -> ModelDescription:
    """An open model as reports describe it. If config.json does not name the dtype of the weights,
    it is that of most of their bytes, as in from_pretrained (`_get_dtype` in
    transformers/modeling_utils.py). Raises ModelError if there is no config.json."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    gguf = DESCRIBED_IN in source.config
    return ModelDescription(
        name=source.id,
        location=source.location,
        config=_with_dtype(source.config, source),
        architecture=source.architecture or "a model",
        quantized=source.quantization is not None,
        stored={
            name: info.shape
            for name, info in source.tensors.items()
            if gguf or info.role is Role.VALUES
        },
        gguf=gguf,
        tensors={} if gguf or source.quantization is None else source.tensors,
    )


#: Safetensors dtypes that a model computes in, with their names in config.json.
_FLOATING: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _with_dtype(config: Mapping[str, Any], source: ModelSource) -> Mapping[str, Any]:
    if stated_dtype(config) or source.quantization is not None:
        return config
    stored = next((_FLOATING[dtype] for dtype in source.dtypes if dtype in _FLOATING), None)
    return config if stored is None else {**config, "dtype": stored}


def stated_dtype(config: Mapping[str, Any]) -> object:
    """What config.json says about the dtype of the weights; "auto" counts as nothing."""
    stated = config.get("dtype") or config.get("torch_dtype")
    return None if stated == "auto" else stated


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
