"""A model as memory reports describe it, before any plan, with its shape checked against the
headers of the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from math import prod
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.memory.shape.config_reader import Config, stored_dtype
from qtui_core.memory.shape.from_config import (
    UnknownFamily,
    nearest_shape,
    shape_from_config,
    with_parameters,
)
from qtui_core.memory.shape.model_shape import ModelShape, named_parameters, parameter_count
from qtui_core.memory.shape.packed import held_by_files, packed
from qtui_core.memory.shape.packings import as_served, packing_of, packing_of_files
from qtui_core.models.source import ModelSource
from qtui_core.models.tensors import DESCRIBED_IN, Role, TensorInfo


@dataclass(frozen=True)
class ModelDescription:
    """A model: the name that was asked for, where it was found, its config.json and its class.
    `quantization` is what the checkpoint is quantized with already, empty if it is not. `stored`
    has the sizes of tensors from the headers by name: all of a GGUF file (`gguf`), else those
    stored as plain values. `tensors` are all tensors of a quantized checkpoint, under the names
    that the classes of transformers have for them. `parameters` of the files, 0 without any."""

    name: str
    location: str
    config: Mapping[str, Any]
    architecture: str
    quantization: str
    stored: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    gguf: bool = False
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict, repr=False)
    parameters: int = 0

    def read_shape(self, *, strict: bool = False) -> ModelShape:
        """Its shape, checked against the headers. A family that is not built in, and one whose
        config.json contradicts itself, have that of the nearest kind of decoder. Raises UsageError
        if that has no sizes; if `strict`, for every contradiction."""
        try:
            shape = shape_from_config(self.config)
        except UsageError as error:
            if strict and not isinstance(error, UnknownFamily):
                raise
            return self._nearest(str(error))
        if self.tensors and shape.packing is None:
            shape = packed(shape, packing_of_files(self.quantization))
            if self.gguf:
                note = "Its embedding is counted unpacked, whatever the file packs it in."
                shape = replace(shape, known="derived", notes=(*shape.notes, note))
        return held_against(held_by_files(shape, self.tensors), self.stored, gguf=self.gguf)

    def for_step(self, shape: ModelShape, why: str) -> ModelShape:
        """The shape to estimate a plan with: `shape`, its own; if its class cannot run the step,
        for the reason `why` of `without_step`, that of the nearest kind of decoder."""
        return self._nearest(why, parameter_count(shape)) if why else shape

    def _nearest(self, why: str, parameters: int = 0) -> ModelShape:
        """The shape of the nearest kind of decoder, for the reason `why`, with the parameters of
        the files, or without any with as many as are known otherwise."""
        shape = with_parameters(nearest_shape(self.config, why), self.parameters or parameters)
        packing = packing_of(self.config)
        return shape if packing is None else packed(shape, as_served(packing))


def describe(source: ModelSource) -> ModelDescription:
    """An open model as reports describe it. If config.json does not name the dtype of the weights,
    it is that of most of their bytes, as in from_pretrained (`_get_dtype` in
    transformers/modeling_utils.py). Raises ModelError if there is no config.json."""
    if source.config is None:
        raise ModelError(
            f"{source.id} has no config.json, from which memory is estimated; give a folder or a "
            "hub id that has one."
        )
    gguf, dtype = DESCRIBED_IN in source.config, None
    if source.quantization is None and not stored_dtype(Config(source.config)):
        dtype = next((_FLOATING[dtype] for dtype in source.dtypes if dtype in _FLOATING), None)
    return ModelDescription(
        name=source.id,
        location=source.location,
        config=source.config if dtype is None else {**source.config, "dtype": dtype},
        architecture=source.architecture or "a model",
        quantization="" if source.quantization is None else source.quantization.method,
        stored={
            name: info.shape
            for name, info in source.tensors.items()
            if gguf or info.role is Role.VALUES
        },
        gguf=gguf,
        parameters=source.parameters,
        tensors={}
        if source.quantization is None
        else {_as_module(name): info for name, info in source.tensors.items()}
        if gguf
        else source.tensors,
    )


#: Safetensors dtypes that a model computes in, with their names in config.json.
_FLOATING: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


#: Modules of a layer that GGUF names otherwise (llama.cpp, gguf-py/gguf/tensor_mapping.py).
_OF_GGUF: Final = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.0.gate_proj", "ffn_up_exps": "mlp.experts.0.up_proj",
    "ffn_down_exps": "mlp.experts.0.down_proj",
}  # fmt: skip


def _as_module(name: str) -> str:
    """The name of a tensor as classes like Llama have it: "blk.3.attn_q.weight" is that of
    "model.layers.3.self_attn.q_proj". Experts, which GGUF stacks, are named as the first one; other
    tensors keep their names."""
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _OF_GGUF:
        return "lm_head.weight" if name == "output.weight" else name
    return f"model.layers.{match[1]}.{_OF_GGUF[match[2]]}.{match[3]}"


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
    count = sum(prod(s) for name, s in tensors.items() if not name.startswith(_NO_PARAMETERS))
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
