"""Hypothesis strategies for annotated types and for classes with annotated fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from qtui_core.formats.magnitudes import FIELDS, Magnitudes
from qtui_core.schemes.scheme import Scheme

WORDS = st.text(max_size=12)
SCHEMES = st.sampled_from(
    [
        Scheme.parse(text)
        for text in ("int4:group64:asym", "nf4:dq128", "mxfp4:rceil", "bf16", "int8:outliers6.5",
                     "e4m3:tile128x128:stochastic7", "ternary", "nvfp4")
    ]
)  # fmt: skip
KNOWN: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    str: WORDS,
    bool: st.booleans(),
    float: st.floats(),
    NoneType: st.none(),
    Any: st.none() | st.booleans() | st.integers() | WORDS,
    Scheme: SCHEMES,
    Fraction: st.fractions(),
    Magnitudes: st.builds(
        Magnitudes,
        st.lists(st.integers(0), min_size=FIELDS, max_size=FIELDS).map(tuple),
        st.integers(0),
        st.floats(0, 2.0**127),
    ),
}


def values_of(hint: Any, depth: int = 4) -> st.SearchStrategy[Any]:
    """A strategy for the values of a type annotation. `depth` bounds nesting."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in KNOWN:
        return KNOWN[hint]
    if origin in (UnionType, Union):
        return st.one_of(*(values_of(part, depth) for part in inner))
    if origin is Literal:
        return st.sampled_from(inner)
    if origin in (tuple, list):
        if origin is list or Ellipsis in inner:
            items = values_of(inner[0], depth)
            return st.lists(items, max_size=0 if items.is_empty else 3).map(origin)
        return st.tuples(*(values_of(part, depth) for part in inner))
    if origin is not None:
        items = values_of(inner[1], depth)
        most = 0 if items.is_empty else 3
        return st.dictionaries(values_of(inner[0], depth), items, max_size=most)
    if is_dataclass(hint):
        return instances_of(hint, depth - 1)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    return instances_of(hint, depth - 1)  # a NamedTuple


def instances_of(kind: Any, depth: int = 4, **given: Any) -> st.SearchStrategy[Any]:
    """A strategy for instances of a dataclass or a NamedTuple. `given` has strategies or values for
    some fields."""
    if depth < 0:
        return st.nothing()
    hints = get_type_hints(kind)
    if is_dataclass(kind):
        names = [entry.name for entry in fields(kind) if entry.init]
    else:
        names = kind._fields
    parts = {name: values_of(hints[name], depth) for name in names}
    for name, value in given.items():
        parts[name] = value if isinstance(value, st.SearchStrategy) else st.just(value)
    return st.builds(kind, **parts)
