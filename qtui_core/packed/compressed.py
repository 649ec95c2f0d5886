"""Weights of compressed-tensors checkpoints, decoded by the library of that name.

The settings of a weight are looked up in `config_groups`, as the library does without the model's
modules. Its format is told from the stored tensors, as mixed checkpoints name only one format.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from qtui_core.errors import QtuiError
from qtui_core.extras import importing
from qtui_core.models.recognise import matches
from qtui_core.packed.stored_tensors import (
    Array,
    Description,
    Float32,
    StoredTensors,
)

#: The library pads a weight to whole tiles.
_LARGEST_TILE = 4096
#: The suffixes after "weight" in the names of the tensors that belong to a weight.
_SUFFIXES = ("_scale", "_zero_point", "_global_scale")
_INT_WORDS = {"U8": "mxfp4-pack-quantized", "I32": "pack-quantized"}


def describe_compressed(parts: StoredTensors) -> Description:
    """The shape of a weight, and how the config says that it is quantized.

    Raises:
        ModelError: the config has no settings for this weight, or its tensors do not fit together.
    """
    settings = weight_settings(parts)
    form = _form(parts)
    shape = _shape(parts, settings, form)
    return Description(shape, *_words(settings, form, shape))


def weight_settings(parts: StoredTensors) -> Mapping[str, Any]:
    """The quantization arguments of the config group whose targets name this module. Otherwise
    those of the first group: its target is taken to be the class of the module, which the
    checkpoint does not tell. Raises ModelError if there is no group."""
    module = parts.code.rpartition(".")[0]
    groups = parts.settings.get("config_groups")
    fallback = None
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            continue
        targets = group.get("targets")
        for target in map(str, targets if isinstance(targets, list) else ()):
            pattern = target.removeprefix("re:")
            if matches(pattern, module) if pattern != target else target == module:
                return weights
        fallback = fallback or weights
    if fallback is None:
        raise parts.fault(
            "the config has no quantization_config.config_groups with settings for it, without "
            "which compressed-tensors weights cannot be read",
        )
    return fallback


def _form(parts: StoredTensors) -> str:
    info = parts.tensors[parts.code]
    stem = parts.code.removesuffix("_packed")
    if stem != parts.code:
        if f"{stem}_global_scale" in parts.tensors:
            return "nvfp4-pack-quantized"
        if info.dtype in _INT_WORDS:
            return _INT_WORDS[info.dtype]
    elif info.dtype == "I8":
        return "int-quantized"
    elif info.dtype == "F8_E4M3":
        scale = parts.tensors.get(f"{stem}_scale")
        return "mxfp8-quantized" if scale and scale.dtype == "U8" else "float-quantized"
    raise parts.fault(f"compressed-tensors codes stored as {info.dtype}")


def _shape(parts: StoredTensors, settings: Mapping[str, Any], form: str) -> tuple[int, ...]:
    stored = parts.matrix()
    if form.endswith("4-pack-quantized"):
        return stored[0], 2 * stored[1]
    if form != "pack-quantized":
        return stored
    name = f"{parts.code.removesuffix('_packed')}_shape"
    # Three numbers are enough to tell that they are not two.
    shape = tuple(map(int, parts.integers(name).reshape(-1)[:3]))
    bits = settings.get("num_bits")
    words = bits if type(bits) is int and 1 <= bits <= 8 else 0
    if not words or len(shape) != 2 or (shape[0], -(-shape[1] * words // 32)) != stored:
        raise parts.fault(
            f"words of shape {list(stored)} do not hold a weight of shape {list(shape)} in "
            f"{bits!s:.20} bits",
        )
    return shape


def _words(
    settings: Mapping[str, Any], form: str, shape: tuple[int, ...]
) -> tuple[str, str | None]:
    """How the weight is stored, in words, and the closest scheme, if there is one."""
    if form == "nvfp4-pack-quantized":
        return "c-t NVFP4", "nvfp4"
    if form.startswith("mxfp"):
        scheme = "mxfp4" if form.startswith("mxfp4") else "mxfp8-e4m3"
        return f"c-t {scheme.upper()}", scheme
    size, block = settings.get("group_size"), settings.get("block_structure")
    strategy = settings.get("strategy") or ("group" if type(size) is int else "tensor")
    if strategy == "group" and type(size) is int:
        granularity = "row" if size >= shape[-1] else f"group{size}"
    elif strategy == "block" and isinstance(block, list) and len(block) == 2:
        granularity = f"tile{block[0]!s:.9}x{block[1]!s:.9}"
    else:
        granularity = "row" if strategy == "channel" else "tensor"
    if form == "float-quantized":
        return f"c-t FP8 {granularity}", f"e4m3:{granularity}"
    bits = f"{settings.get('num_bits', 8)!s:.9}"
    rule = "full" if settings.get("symmetric", True) else "asym"
    return f"c-t {bits} bits {granularity}", f"int{bits}:{granularity}:{rule}"


class CompressedDecoder:
    """Decodes only the wanted rows if every stored tensor has one row for each row of the weight.
    Otherwise (packed zero points, tiles) it decodes the whole weight once and keeps it."""

    def __init__(self, parts: StoredTensors) -> None:
        self._parts = parts
        source, code = parts.source, parts.code
        self._settings = weight_settings(parts)
        self._form = _form(parts)
        stem = code.removesuffix("_packed")
        if f"{stem}_g_idx" in source.tensors:
            # A g_idx of -1 everywhere means groups in order.
            index = parts.integers(f"{stem}_g_idx").reshape(-1)
            if (np.diff(index.astype(np.int64)) < 0).any():
                raise parts.fault(
                    "its groups are in order of activation (weight_g_idx), which the library no "
                    "longer decodes"
                )
        module = stem.rpartition(".")[0]
        prefix = f"{module}." if module else ""
        self._tensors: dict[str, Array] = {code.removeprefix(prefix): parts.integers(code)}
        if f"{stem}_scale" not in source.tensors:
            raise parts.fault("its scales are missing")
        for suffix in _SUFFIXES:
            name = f"{stem}{suffix}"
            if name in source.tensors:
                whole = source.tensors[name].dtype in ("U8", "I8", "I32")
                array = parts.integers(name) if whole else parts.floats(name)
                self._tensors[f"weight{suffix}"] = array
        of_all = self._tensors.get("weight_global_scale")
        self._by_rows = all(
            array.ndim == 2 and len(array) == parts.shape[0]
            for array in self._tensors.values()
            if array is not of_all
        )
        self._whole: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        if self._by_rows:
            of_rows = {
                name: array if name == "weight_global_scale" else array[start:stop]
                for name, array in self._tensors.items()
            }
            return self._decode(of_rows, stop - start)
        if self._whole is None:
            self._whole = self._decode(self._tensors, self._parts.shape[0])
        return self._whole[start:stop]

    def _decode(self, tensors: Mapping[str, Array], rows: int) -> Float32:
        if self._form == "pack-quantized":
            tensors = {**tensors, "weight_shape": np.array([rows, self._parts.shape[1]])}
        return _decompressed(tensors, self._form, self._settings)


def _decompressed(tensors: Mapping[str, Array], form: str, settings: Mapping[str, Any]) -> Float32:
    """The weight that compressed-tensors decodes, in float32. `tensors` are by their names in the
    module (`weight_packed`, `weight_scale`, …), E4M3 codes as bytes; `form` is the library's name
    for their format. Raises QtuiError if the library is missing, or refuses them."""
    with (
        importing("Reading these weights", "compressed-tensors"),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(action="ignore"),
    ):
        import torch
        from compressed_tensors.compressors.base import BaseCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize
    try:
        weights = QuantizationArgs(**settings)
        if max(weights.block_structure or (0,)) > _LARGEST_TILE:
            raise ValueError(f"its tiles have more than {_LARGEST_TILE:,} rows or columns")
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        # Copies, as torch warns of arrays that are not writable.
        state = {name: torch.from_numpy(np.array(array)) for name, array in tensors.items()}
        if form in ("float-quantized", "mxfp8-quantized"):
            state["weight"] = state["weight"].view(torch.float8_e4m3fn)
        if form == "nvfp4-pack-quantized":
            # Unpacked without the library's compressor, which rounds the result to bfloat16.
            packed = state["weight_packed"]
            rows, columns = packed.shape
            values = dequantize(
                x_q=unpack_fp4_from_uint8(packed, rows, 2 * columns, dtype=torch.float32),
                scale=state["weight_scale"],
                args=weights,
                dtype=torch.float32,
                global_scale=state["weight_global_scale"],
            )
        else:
            compressor = BaseCompressor.get_value_from_registry(form)
            values = compressor.decompress(state, scheme)["weight"]
        return values.to(torch.float32).numpy()
    except Exception as error:
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise QtuiError(f"compressed-tensors does not decode this: {said}.") from error
