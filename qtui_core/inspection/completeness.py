"""Whether a checkpoint has the tensors that its config.json implies, by its headers alone.

The implied tensors are the parameters of the transformers class, from the shapes that memory
estimates use. Checkpoints name some of them differently, and transformers renames them on loading
(conversion_mapping.py of transformers 5): a base model without its wrapper, experts as separate
tensors, LayerNorm.gamma. No numpy here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.inspection.report import Completeness, Misshapen
from qtui_core.memory.shape.from_config import UnknownFamily, shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape, named_parameters
from qtui_core.models import ModelSource, Role
from qtui_core.models.packing import name_of_weight
from qtui_core.models.quoting import named, printable, quoted

Sizes = tuple[int, ...]

#: Name prefixes of wrapper modules, which only some checkpoints have.
_WRAPPERS: Final = re.compile(
    r"^(model\.language_model\.|language_model\.model\.|language_model\.|module\.|_orig_mod\.|"
    r"transformer\.|gpt_neox\.|bert\.|roberta\.|model\.)+"
)
#: Older names: (in checkpoints, in today's class).
_RENAMED: Final = (
    (re.compile(r"\.gamma$"), ".weight"),
    (re.compile(r"\.beta$"), ".bias"),
    (re.compile(r"^embed_out\."), "lm_head."),
    (re.compile(r"_moe\.router\.layer\.weight$"), "_moe.router.weight"),
    (re.compile(r"_moe\.input_linear\.weight$"), "_moe.experts.gate_up_proj"),
    (re.compile(r"_moe\.output_linear\.weight$"), "_moe.experts.down_proj"),
)
#: The matrices of an expert: gate, up and down.
_QWEN: Final = ("gate_proj", "up_proj", "down_proj")
_MIXTRAL: Final = ("w1", "w3", "w2")
#: Tensors that today's classes compute, hold as buffers or leave out on purpose.
_LEFT_OUT: Final = re.compile(
    r"(rotary_emb\.inv_freq|att(n|ention)\.(masked_)?bias|position_ids|e_score_correction_bias"
    r"|layer_scalar)$"
)


def check_completeness(source: ModelSource) -> Completeness:
    """Which of the parameters that config.json implies are stored, and what is stored besides."""
    why = _unchecked(source)
    if why or source.config is None:
        return Completeness(unchecked=why)
    try:
        shape = _shape_of(source.config)
    except UnknownFamily:
        family = source.config.get("model_type")
        return Completeness(unchecked=f"no shape of models of type {quoted(family)} is built in")
    except UsageError as error:
        return Completeness(unchecked=str(error))
    stored = _stored(source)
    classes = told if isinstance(told := source.config.get("architectures"), list) else []
    other = bool(classes) and shape.architecture not in classes
    whole = isinstance(source.config.get("text_config"), Mapping)
    implied = _spelled(_implied(shape, headless=other and not whole), stored)
    missing = tuple(
        name
        for name in implied
        if _core(name) not in stored and not _tied_elsewhere(name, shape, stored)
    )
    turns = shape.family == "qwen3_vl_moe_text"  # its experts are transposed as they are loaded
    misshapen = tuple(
        Misshapen(name, there, sizes)
        for name, sizes in implied.items()
        if (there := stored.get(_core(name), (name, None))[1])
        not in (None, sizes, (*sizes[:1], *sizes[:0:-1]) if turns else sizes)
    )
    unexpected: tuple[str, ...] = ()
    if not other and not whole:
        cores = {_core(name) for name in implied} | _twins(shape)
        unexpected = tuple(
            name
            for core, (name, _) in stored.items()
            if core not in cores and not _is_left_out(core, name, shape, source)
        )
    return Completeness(
        architecture=shape.architecture,
        implied=len(implied),
        missing=missing,
        misshapen=misshapen,
        unexpected=unexpected,
        partly_of=named(classes[0]) if (other or whole) and classes else "",
    )


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of the class that config.json names. If that class is not built in, the shape of
    the family's language model, which has the same body."""
    try:
        return shape_from_config(config)
    except UnknownFamily:
        return shape_from_config({k: v for k, v in config.items() if k != "architectures"})


def _unchecked(source: ModelSource) -> str:
    """Why nothing can be checked; "" if it can be."""
    if not source.tensors:
        return "there are no weights"
    if source.config is None:
        return "there is no config.json beside the weights"
    if any(name.lower().endswith(".gguf") for name in source.files):
        return "GGUF files name tensors in a way of their own"
    return ""


def _stored(source: ModelSource) -> dict[str, tuple[str, Sizes | None]]:
    """For the canonical name of each parameter: the name of its tensor in this checkpoint, and its
    shape; None for codes, whose shape is that of the packing."""
    found: dict[str, tuple[str, Sizes | None]] = {}
    for info in source.tensors.values():
        if info.role is Role.VALUES:
            found[_core(info.name)] = info.name, info.shape
        elif info.role is Role.CODES:
            found[_core(name_of_weight(info.name))] = info.name, None
    return found


def _core(name: str) -> str:
    """The canonical name: without wrappers, in today's spelling."""
    for old, new in _RENAMED:
        name = old.sub(new, name)
    return _WRAPPERS.sub("", name)


def _implied(shape: ModelShape, *, headless: bool) -> dict[str, Sizes]:
    """Name and shape of every parameter; with `headless` only up to the last layer's norm, for a
    class with another head."""
    found = dict(named_parameters(shape))
    if headless:
        head = {module.name for module in shape.head_modules}
        head |= {shape.head.name} if shape.head is not None else set()
        found = {n: s for n, s in found.items() if not any(n.startswith(part) for part in head)}
    return found


def _spelled(
    implied: Mapping[str, Sizes], stored: Mapping[str, tuple[str, Sizes | None]]
) -> dict[str, Sizes]:
    """The implied parameters with the names of this checkpoint, if it stores experts as separate
    tensors."""
    separate = {name: _one_by_one(name, sizes, *_QWEN) for name, sizes in implied.items()}
    mixtral = {
        name: {new.replace(".mlp.", ".block_sparse_moe."): s for new, s in parts.items()}
        for name, parts in (
            (name, _one_by_one(name, sizes, *_MIXTRAL)) for name, sizes in implied.items()
        )
    }
    plain = {name: {name: sizes} for name, sizes in implied.items()}
    way = max((plain, separate, mixtral), key=lambda way: _found(way, stored))
    return {new: sizes for parts in way.values() for new, sizes in parts.items()}


def _found(
    way: Mapping[str, Mapping[str, Sizes]], stored: Mapping[str, tuple[str, Sizes | None]]
) -> int:
    """How many of these names the checkpoint has."""
    return sum(_core(new) in stored for parts in way.values() for new in parts)


def _one_by_one(name: str, sizes: Sizes, gate: str, up: str, down: str) -> dict[str, Sizes]:
    """Stacked experts `[experts, outputs, inputs]`, with gate above up, as separate matrices."""
    prefix, _, last = name.rpartition(".")
    if not prefix.endswith("experts") or len(sizes) != 3:
        return {name: sizes}
    count, rows, columns = sizes
    each = [(gate, rows // 2), (up, rows // 2)] if last == "gate_up_proj" else [(down, rows)]
    return {
        f"{prefix}.{index}.{part}.weight": (height, columns)
        for index in range(count)
        for part, height in each
    }


def _twins(shape: ModelShape) -> set[str]:
    """Names of tensors that a tied model may store but need not: its head, and the token embedding
    under the names of the parts that share it."""
    if not shape.tied or shape.head is None:
        return set()
    return {_core(f"{shape.head.name}.{part}") for part in ("weight", "bias")}


def _tied_elsewhere(
    name: str, shape: ModelShape, stored: Mapping[str, tuple[str, Sizes | None]]
) -> bool:
    """Whether this is the token embedding, stored under the name of a tensor that is tied to it."""
    first = f"{shape.embeddings[0].name}.weight"
    return name == first and any(twin in stored for twin in _twins(shape))


def _is_left_out(core: str, name: str, shape: ModelShape, source: ModelSource) -> bool:
    if _LEFT_OUT.search(name):
        return True
    # GPTQ writes biases of zeros for layers that have none.
    packed = source.quantization is not None and source.quantization.method == "gptq"
    if packed and core.endswith(".bias"):
        return True
    # Layers that predict further tokens come after the last layer.
    further = source.config.get("num_nextn_predict_layers") if source.config else None
    layer = re.match(r"layers\.(\d{1,9})\.", core)
    return bool(further and layer and int(layer[1]) >= len(shape.layers))


def faults(found: Completeness, model: str) -> str:
    """What is wrong and what loading the checkpoint would do, as the beginning of a sentence; "" if
    nothing is wrong or nothing was checked."""
    said, then = [], []
    if found.missing:
        which = f"'{printable(found.missing[0])}'"
        more = f", first {which}" if len(found.missing) > 1 else f", {which}"
        said.append(f"lacks {_tensors(len(found.missing))} that its config.json implies{more}")
        then.append("fills what is missing with random numbers")
    if found.misshapen:
        first = found.misshapen[0]
        said.append(
            f"has {_tensors(len(found.misshapen))} of another shape, '{printable(first.name)}' "
            f"{list(first.shape)} for {list(first.implied)}"
        )
        then.append("refuses another shape")
    if found.unexpected:
        which = f"'{printable(found.unexpected[0])}'"
        more = f", first {which}" if len(found.unexpected) > 1 else f", {which}"
        said.append(
            f"has {_tensors(len(found.unexpected))} that its config.json does not imply{more}"
        )
        then.append("leaves out what is not implied")
    if not said:
        return ""
    return f"{model} {' and '.join(said)} (transformers {' and '.join(then)})"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count:,} tensors"
