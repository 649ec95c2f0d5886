"""The recipe of llama-quantize: a type of ggml for each tensor, by its name in GGUF."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from qtui_core.inspection.recipes.recipe import RecipeTensor, StandIn, ToolRecipe
from qtui_core.models.files.gguf import BY_NAME

#: Schemes that equal a type of ggml, except that ggml stores 16-bit scales and breaks ties
#: otherwise.
_SAME: Final = {
    "int4:group32:signed": "q4_0",
    "int5:group32:signed": "q5_0",
    "int8:group32": "q8_0",
    "int4:group32:asym:zpfloat": "q4_1",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
    "fp16": "f16",
    "tf32": "f32",
}
#: Bits, or format with "asym", or format -> the nearest types, best first. The first whose blocks
#: divide the rows is taken, else f16.
_NEAREST: Final[Mapping[int | str, tuple[str, ...]]] = {
    2: ("q2_k", "q4_0"),
    3: ("q3_k", "q4_0"),
    4: ("iq4_nl",),
    5: ("q5_0",),
    6: ("q6_k", "q8_0"),
    "int4": ("q4_0",),
    "int4:asym": ("q4_k", "q4_1"),
    "int5:asym": ("q5_k", "q5_1"),
    "mxfp4": ("mxfp4",),
    "nvfp4": ("nvfp4", "iq4_nl"),
    "ternary": ("tq2_0", "q2_k", "q4_0"),
}
_STORED: Final = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f32"}
#: model_type of config.json -> architecture of GGUF, where the names differ.
_ARCHITECTURES: Final = {
    "mistral": "llama", "mixtral": "llama", "gpt_neox": "gptneox", "phi": "phi2",
    "gemma3_text": "gemma3", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "phimoe": "phimoe", "smollm3": "smollm3",
}  # fmt: skip
_LAYER: Final = re.compile(r"\.(\d{1,4})\.")
_EXPERT: Final = re.compile(r"\.experts\.\d+\.")


def llama_quantize(tensors: Sequence[RecipeTensor], model_type: str | None) -> ToolRecipe:
    """The file of `--tensor-type-file`, with a line `regular expression=type` for each tensor.
    llama-quantize takes the first line whose expression is found in the name.

    Experts that the converter stacks into one tensor get the largest of their types. Needs the
    library gguf for names.
    """
    names = _gguf_names([tensor.name for tensor in tensors], model_type)
    chosen: dict[str, str] = {}
    left: list[StandIn] = []
    for tensor in tensors:
        if name := names.get(tensor.name):
            kind, before = _type_of(tensor), chosen.get(name)
            if before is None or _bits(kind) > _bits(before):
                chosen[name] = kind
        elif tensor.scheme is not None:
            why = "GGUF has no name for it, so that llama-quantize chooses"
            left.append(StandIn(tensor.name, str(tensor.scheme), "the type of the file", why))
    for tensor in tensors:
        if tensor.scheme is not None and (name := names.get(tensor.name)):
            own, kind = _type_of(tensor), chosen[name]
            if kind != own or _SAME.get(str(tensor.scheme)) != kind:
                stacked = "experts of a layer are one tensor in GGUF, which has one type"
                why = "the nearest type of ggml" if kind == own else stacked
                left.append(StandIn(tensor.name, str(tensor.scheme), kind, why))
    return ToolRecipe(
        "".join(f"^{re.escape(name)}$={kind}\n" for name, kind in chosen.items()),
        "llama-quantize --tensor-type-file FILE model-bf16.gguf model.gguf Q4_0",
        tuple(left),
        ("ggml keeps scales in 16 bits, where the budget and the errors count 32.",),
    )


def _type_of(tensor: RecipeTensor) -> str:
    """The type for a tensor: that of its scheme, the nearest one, or the stored type."""
    scheme = tensor.scheme
    if scheme is None:
        return _STORED.get(tensor.dtype, "f16")
    keys = (f"{scheme.format}{':asym' * (not scheme.symmetric)}", scheme.format, scheme.bits)
    nearest = next((_NEAREST[key] for key in keys if key in _NEAREST), ("q8_0",))
    fitting = (*filter(None, [_SAME.get(str(scheme))]), *nearest)
    return next((k for k in fitting if tensor.columns % BY_NAME[k.upper()].block == 0), "f16")


def _bits(kind: str) -> float:
    ggml = BY_NAME[kind.upper()]
    return 8 * ggml.nbytes / ggml.block


def has_gguf_name(name: str) -> bool:
    """Whether the name is one of GGUF."""
    return name.startswith(("blk.", "token_embd."))


def _gguf_names(names: Sequence[str], model_type: str | None) -> dict[str, str]:
    """Name in the checkpoint -> name in GGUF, for those that have one."""
    if any(map(has_gguf_name, names)):
        return {name: name for name in names}
    import gguf

    wanted = _ARCHITECTURES.get(model_type or "", (model_type or "").replace("_", ""))
    known = {text: arch for arch, text in gguf.MODEL_ARCH_NAMES.items()}
    layers = [int(number) for name in names for number in _LAYER.findall(name)[:1]]
    table = gguf.get_tensor_name_map(
        known.get(wanted, gguf.MODEL_ARCH.LLAMA), max(layers, default=0) + 1
    )
    suffixes = (".weight", ".bias")
    known_names = (
        (name, table.get_name(_EXPERT.sub(".experts.", name), try_suffixes=suffixes))
        for name in names
    )
    return {name: other for name, other in known_names if other}
