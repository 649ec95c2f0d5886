"""Encoders of images before a language model, with what projects their output into it.

A row of towers.json, by model_type, is a class of transformers 5.23: sizes, each a key of
vision_config (or of the `whole` config.json) with its default, or a rule; modules and buffers, each
as often as a rule says (# is the number). A rule multiplies sizes, numbers and quotients (a/b).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

from qtui_core.memory.shape.config_reader import LARGEST_COUNT, Config
from qtui_core.memory.shape.model_shape import Linear, Module, Norm, Parameter, Tower

_ROWS: Final = json.loads(Path(__file__).with_name("towers.json").read_text(encoding="utf-8"))


def tower_of(config: Config, text: int) -> Tower | None:
    """The encoder of images in a multimodal config.json, before a language model of hidden size
    `text`; None if it has none that is known. Raises UsageError for impossible sizes."""
    row, part = _ROWS.get(config.text("model_type", ""), {}), config.within("vision_config")
    row = {**_ROWS.get(row.get("as"), {}), **row}
    part = Config(row["absent"]) if part is None and "absent" in row else part
    if not row or part is None or part.text("model_type", "") not in ("", *row["model_types"]):
        return None
    given = {key: config.values[key] for key in row.get("whole", ()) if key in config.values}
    part = replace(part, values={**given, **part.values, **row.get("fixed", {})})
    sizes = {"text": text}
    for name, rule in row["sizes"].items():
        sizes[name] = _product(rule, sizes) if isinstance(rule, str) else _read(part, *rule)
    made = [
        (kind, name.replace("#", str(index)), *(_product(rule, sizes) for rule in rules))
        for times, modules in row["modules"].items()
        for index in range(_product(times, sizes))
        for kind, name, *rules in modules
    ]
    buffers = tuple(size for kind, _, size, *_ in made if kind == "buffer")
    return Tower(tuple(_module(*each) for each in made if each[0] != "buffer"), buffers, sizes)


def _read(config: Config, key: str, default: Any) -> int:
    """A size as a plain number, whether a flag is set, or the length of a list."""
    if isinstance(default, list):
        listed = config.values.get(key)
        return len(listed if isinstance(listed, list | tuple) else default)
    if isinstance(default, bool):
        return config.flag(key, default)
    return int(config.size(key, default, most=LARGEST_COUNT))


def _product(rule: str, sizes: Mapping[str, int]) -> int:
    known = [[sizes.get(part, part) for part in word.split("/")] for word in rule.split()]
    return prod(int(first) // prod(map(int, others)) for first, *others in known)


def _module(kind: str, name: str, *shape: int) -> Module:
    """A module of a kind, with a bias if that ends in a plus."""
    bias = kind.endswith("+")
    if kind.startswith("linear"):
        return Linear(name, shape[1], shape[0], bias)
    return Norm(name, shape[0], bias=bias) if "norm" in kind else Parameter(name, shape)
