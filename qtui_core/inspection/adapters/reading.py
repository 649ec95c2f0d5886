"""The tensors of a LoRA, as peft stores them: which module each belongs to.

peft writes, for the module M of the base, `base_model.model.M.lora_A.weight` [r, in] and
`lora_B.weight` [out, r]; for an embedding `lora_embedding_A` [r, tokens] and `lora_embedding_B`
[features, r]; with DoRA `lora_magnitude_vector` [out]; with lora_bias `lora_B.bias` [out]. Tensors
under names of the base (modules_to_save, bias, resized embeddings) replace those of the base.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.adapters.settings import (
    LONGEST_NAME,
    LoraSettings,
    read_settings,
)
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.files.arrays import Float32, read_float32
from qtui_core.models.opening_adapter import AdapterSource
from qtui_core.models.quoting import quoted

_PREFIX = "base_model.model."
_PARTS = re.compile(
    r"(?P<module>.+)\.(?P<part>lora_A\.weight|lora_B\.weight|lora_B\.bias|lora_embedding_A|"
    r"lora_embedding_B|lora_magnitude_vector)(?:(?<=vector)\.weight)?"
)
#: Names between a module and its own tensors where peft wraps it.
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")
#: What belongs to an adapter and is not read here.
_UNKNOWN = re.compile(r"lora_|token_adapter|trainable_tokens")
_FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True, eq=False)
class LoraModule:
    """The update of one module.

    Attributes:
        name: of the module in the base, `model.layers.0.self_attn.q_proj`.
        a: float32 `[r, in]`; of an embedding `[r, tokens]`.
        b: float32 `[out, r]`; of an embedding `[features, r]`.
        scale: what b @ a is multiplied by.
        embedding: whether the module is an embedding, whose weight is `[tokens, features]`.
        magnitude: of DoRA, float32 `[out]`, or `[features]`; None without.
        bias: what is added to the module's bias times `scale`, float32 `[out]`; None without.
    """

    name: str
    a: Float32
    b: Float32
    scale: float
    embedding: bool
    magnitude: Float32 | None
    bias: Float32 | None

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter with its values.

    Attributes:
        source: its tensors as stored.
        modules: by name.
        replaced: name of a tensor of the base -> the stored tensor that takes its place.
    """

    source: ModelSource
    settings: LoraSettings
    modules: Mapping[str, LoraModule]
    replaced: Mapping[str, str]


def read_adapter(found: AdapterSource) -> Adapter:
    """Reads an adapter: all of its values, but those that replace tensors of the base.

    Raises ModelError if it is no LoRA that can be merged, or if its tensors contradict each other
    or its configuration.
    """
    source = found.weights
    where = quoted(source.id)
    settings = read_settings(found.config, where)
    parts: dict[str, dict[str, TensorInfo]] = {}
    replaced: dict[str, str] = {}
    for stored, info in source.tensors.items():
        name = stored.removeprefix(_PREFIX)
        if len(name) > LONGEST_NAME:
            raise ModelError(
                f"The adapter {where} has the tensor {quoted(stored)}, whose name is too long to "
                f"be real."
            )
        if match := _PARTS.fullmatch(name):
            parts.setdefault(match["module"], {})[match["part"]] = info
            continue
        plain = _WRAPPED.sub("", name)
        if _UNKNOWN.search(plain) or plain in replaced:
            raise ModelError(
                f"The adapter {where} has the tensor {quoted(stored)}, which qtui does not know "
                f"how to merge: merge it with peft and compare the result with --against."
            )
        replaced[plain] = stored
    if not parts and not replaced:
        raise ModelError(f"The adapter {where} has no tensors: there is nothing to merge.")
    modules = {name: _module(source, settings, name, each) for name, each in parts.items()}
    return Adapter(source, settings, modules, replaced)


def _module(
    source: ModelSource, settings: LoraSettings, name: str, parts: Mapping[str, TensorInfo]
) -> LoraModule:
    embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
    first, second = (
        ("lora_embedding_A", "lora_embedding_B")
        if embedding
        else ("lora_A.weight", "lora_B.weight")
    )

    def fault(words: str) -> ModelError:
        return ModelError(f"The adapter {quoted(source.id)} at {quoted(name)}: {words}.")

    for here, other in ((first, second), (second, first)):
        if here not in parts:
            present = other if other in parts else next(iter(parts))
            raise fault(f"it has {present} and no {here}")
    if embedding and len(parts.keys() & {"lora_A.weight", "lora_B.weight", "lora_B.bias"}):
        raise fault("it has the parts of a linear layer and of an embedding")
    a, b = (_values(source, parts[part]) for part in (first, second))
    if a.ndim != 2 or b.ndim != 2:
        raise fault(
            f"{first} {list(a.shape)} and {second} {list(b.shape)} are not matrices, and qtui "
            f"merges no convolutions"
        )
    rank = settings.rank_of(name)
    if a.shape[0] != rank or b.shape[1] != rank:
        raise fault(
            f"{first} is {list(a.shape)} and {second} {list(b.shape)}, where adapter_config.json "
            f"gives the rank {rank}"
        )
    outputs = b.shape[0]
    magnitude, bias = (
        _vector(source, parts.get(part), outputs, fault)
        for part in ("lora_magnitude_vector", "lora_B.bias")
    )
    if settings.dora != (magnitude is not None):
        has = "no lora_magnitude_vector" if settings.dora else "a lora_magnitude_vector"
        raise fault(f"it has {has}, and use_dora is {str(settings.dora).lower()}")
    return LoraModule(name, a, b, settings.scale_of(name), embedding, magnitude, bias)


def _vector(
    source: ModelSource, info: TensorInfo | None, size: int, fault: Callable[[str], ModelError]
) -> Float32 | None:
    if info is None:
        return None
    values = _values(source, info)
    if values.size != size or max(values.shape, default=0) != size:
        raise fault(f"{quoted(info.name)} is {list(values.shape)}, where {size:,} values belong")
    return values.reshape(-1)


def _values(source: ModelSource, info: TensorInfo) -> Float32:
    """A tensor of the adapter in its own shape. peft too loads adapters as float32."""
    if info.dtype not in _FLOATS:
        raise ModelError(
            f"The adapter {quoted(source.id)} stores {quoted(info.name)} as {info.dtype}, where "
            f"floating-point numbers of 16 bits or more belong."
        )
    if not info.elements:
        raise ModelError(f"The adapter {quoted(source.id)} has {quoted(info.name)} without values.")
    values = read_float32(source, info.name).reshape(info.shape)
    if not np.isfinite(values).all():
        raise ModelError(
            f"The adapter {quoted(source.id)} has NaN or infinite values in {quoted(info.name)}: "
            f"the training broke, and so would the merged model."
        )
    return values
