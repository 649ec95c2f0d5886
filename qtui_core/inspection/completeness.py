"""Whether a checkpoint has the tensors that its config.json implies, by its headers alone.

The implied tensors are the parameters of the transformers class, from the shapes that memory
estimates use. Checkpoints name some of them differently, and transformers renames them on loading:
a base model without its wrapper, experts as separate tensors, LayerNorm.gamma. So a tensor counts
as stored too if its layer has one of the same shape that nothing else implies. No numpy here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from qtui_core.errors import UsageError
from qtui_core.inspection.report import Completeness, Misshapen
from qtui_core.memory.shape.from_config import UnknownFamily, shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape, named_parameters
from qtui_core.models import ModelSource, Role
from qtui_core.models.quoting import listed, named, printable, quoted
from qtui_core.models.recognise import name_of_weight
from qtui_core.quantities import plural

Sizes = tuple[int, ...]

#: Name prefixes of wrapper modules, which only some checkpoints have.
_WRAPPERS: Final = re.compile(
    r"^(model\.language_model\.|language_model\.model\.|language_model\.|module\.|_orig_mod\.|"
    r"transformer\.|gpt_neox\.|bert\.|roberta\.|model\.)+"
)
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers?|h|blocks)\.\d{1,9}\.")


def check_completeness(source: ModelSource) -> Completeness:
    """Which of the parameters that config.json implies are stored, in their shapes."""
    config = source.config
    if not source.tensors:
        return Completeness(unchecked="there are no weights")
    if config is None:
        return Completeness(unchecked="there is no config.json beside the weights")
    if any(name.lower().endswith(".gguf") for name in source.files):
        return Completeness(unchecked="GGUF files name tensors in a way of their own")
    try:
        shape = _shape_of(config)
    except UnknownFamily:
        family = quoted(config.get("model_type"))
        return Completeness(unchecked=f"no shape of models of type {family} is built in")
    except UsageError as error:
        return Completeness(unchecked=str(error))
    stored = _stored(source)
    given = config.get("architectures")
    classes = given if isinstance(given, list) else []
    other = bool(classes) and shape.architecture not in classes
    whole = isinstance(config.get("text_config"), Mapping)
    implied = dict(named_parameters(shape))
    if other and not whole:  # a class with another head
        heads = {module.name for module in shape.head_modules}
        heads |= {shape.head.name} if shape.head is not None else set()
        implied = {n: s for n, s in implied.items() if not n.startswith(tuple(heads))}
    cores = {_core(name) for name in implied}
    # Tensors that nothing implies by name, which may be implied ones under other names.
    left = Counter(_place(name, s) for core, (name, s) in stored.items() if core not in cores)
    missing, misshapen = [], []
    for name, sizes in implied.items():
        if (core := _core(name)) in stored:
            there = stored[core][1]
            # Some classes turn stacks of experts as they are loaded.
            turned = (sizes[0], *sizes[:0:-1]) if len(sizes) == 3 else sizes
            if there is not None and there not in (sizes, turned):
                misshapen.append(Misshapen(name, there, sizes))
            continue
        ways: list[tuple[Sizes | None, int]] = [(sizes, 1)]
        if name.rpartition(".")[0].endswith("experts") and len(sizes) == 3:
            # Experts may be stored as separate matrices: of the stacks, that of gates has the gate
            # above the up matrix.
            parts = 2 if name.endswith("gate_up_proj") else 1
            count = parts * sizes[0]
            ways += [((sizes[1] // parts, sizes[2]), count), (None, count)]
        places = [(_place(name, size), count) for size, count in ways]
        place, count = next(((p, c) for p, c in places if left[p] >= c), (None, 0))
        if place is None:
            missing.append(name)
        else:
            left[place] -= count
    return Completeness(
        architecture=shape.architecture,
        implied=len(implied),
        missing=tuple(missing),
        misshapen=tuple(misshapen),
        partly_of=named(classes[0]) if (other or whole) and classes else "",
    )


def _shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of the class that config.json names. If that class is not built in, the shape of
    the family's language model, which has the same body."""
    try:
        return shape_from_config(config)
    except UnknownFamily:
        return shape_from_config({k: v for k, v in config.items() if k != "architectures"})


def _stored(source: ModelSource) -> dict[str, tuple[str, Sizes | None]]:
    """For the name of each parameter without wrappers: the name of its tensor in this checkpoint,
    and its shape; None for codes, whose shape is that of the packing."""
    stored: dict[str, tuple[str, Sizes | None]] = {}
    for info in source.tensors.values():
        if info.role is Role.VALUES:
            stored[_core(info.name)] = info.name, info.shape
        elif info.role is Role.CODES:
            stored[_core(name_of_weight(info.name))] = info.name, None
    return stored


def _core(name: str) -> str:
    return _WRAPPERS.sub("", name)


def _place(name: str, sizes: Sizes | None) -> tuple[str, bool, Sizes | None]:
    """The layer, whether it is a bias, and the shape: what stays of a tensor under another name."""
    layer = _LAYER.search(name)
    return layer[0].strip(".") if layer else "", name.endswith(("bias", "beta")), sizes


def faults(complete: Completeness, model: str) -> str:
    """What is wrong and what loading the checkpoint would do, as the beginning of a sentence; "" if
    nothing is wrong or nothing was checked."""
    wrong, then = [], []
    if complete.missing:
        count, names = plural(len(complete.missing), "tensor"), listed(list(complete.missing))
        wrong.append(f"lacks {count} that its config.json implies, {names}")
        then.append("fills what is missing with random numbers")
    if complete.misshapen:
        bad, count = complete.misshapen[0], plural(len(complete.misshapen), "tensor")
        shapes = f"'{printable(bad.name)}' {list(bad.shape)} for {list(bad.implied)}"
        wrong.append(f"has {count} of another shape, {shapes}")
        then.append("refuses another shape")
    said = f"{model} {' and '.join(wrong)} (transformers {' and '.join(then)})"
    return said if wrong else ""
