"""Decoding through the libraries that own a format: bitsandbytes and compressed-tensors.

Both need torch, which is imported inside the functions, so that listing or pairing weights does
not load it. Weights are decoded in float32; rounding to the dtype that a model computes in is not
part of decoding.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qtui_core.errors import QtuiError
from qtui_core.extras import importing
from qtui_core.packed.stored_tensors import Array, Float32

_LARGEST_TILE = 4096


def bitsandbytes_4bit(codes: Array, absmax: Float32, block: int, kind: str) -> Float32:
    """Decodes whole blocks, two codes to a byte: uint8 `[n·block/2]` with absmaxes float32 `[n]` to
    float32 `[n·block]`.

    The blocks are passed as one flat row: a matrix whose rows are not whole blocks is decoded
    wrongly by bitsandbytes 0.50 on CPUs with AVX-512.
    """
    with _quietly("bitsandbytes"):
        import bitsandbytes.functional as bnb
        import torch
    state = bnb.QuantState(
        absmax=torch.from_numpy(np.array(absmax, np.float32)),
        shape=torch.Size((codes.size * 2,)),
        dtype=torch.float32,
        blocksize=block,
        quant_type=kind,
    )
    with _decoding("bitsandbytes"):
        return bnb.dequantize_4bit(_torch(codes.reshape(-1, 1)), state).reshape(-1).numpy()


def bitsandbytes_scales(
    codes: Array, absmax: Float32, levels: Float32, block: int, offset: float
) -> Float32:
    """Decodes scales that double quantization stored in 8 bits: uint8 `[n]` to float32 `[n]`."""
    with _quietly("bitsandbytes"):
        import bitsandbytes.functional as bnb
        import torch
    state = bnb.QuantState(
        absmax=torch.from_numpy(np.array(absmax, np.float32)),
        code=torch.from_numpy(np.array(levels, np.float32)),
        blocksize=block,
        dtype=torch.float32,
    )
    with _decoding("bitsandbytes"):
        scales = bnb.dequantize_blockwise(_torch(codes.reshape(-1)), state)
    return (scales + np.float32(offset)).numpy()


def bitsandbytes_int8(codes: Array, scales: Float32) -> Float32:
    """Decodes LLM.int8() rows: int8 `[n, m]` with the absmax of each row `[n]` to float32
    `[n, m]`."""
    with _quietly("bitsandbytes"):
        import bitsandbytes.functional as bnb
        import torch
    with _decoding("bitsandbytes"):
        stats = torch.from_numpy(np.array(scales, np.float32))
        return bnb.int8_vectorwise_dequant(_torch(codes), stats).numpy()


def compressed_tensors(
    tensors: Mapping[str, Array], form: str, settings: Mapping[str, Any]
) -> Float32:
    """Decodes a weight of a compressed-tensors checkpoint to float32.

    Args:
        tensors: the stored tensors by their names in the module (`weight_packed`,
            `weight_scale`, …); E4M3 codes are bytes under `weight`.
        form: compressed-tensors' name for the format they are stored in.
        settings: the quantization arguments of the weights, from the config.

    Raises:
        MissingLibrary: compressed-tensors is not installed, or too old.
        QtuiError: compressed-tensors refuses these tensors.
    """
    with _quietly("compressed-tensors"):
        import torch
        from compressed_tensors.compressors.base import BaseCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import dequantize
    with _decoding("compressed-tensors"):
        weights = QuantizationArgs(**settings)
        # The library pads a weight to whole tiles.
        if max(weights.block_structure or (0,)) > _LARGEST_TILE:
            raise ValueError(f"its tiles have more than {_LARGEST_TILE:,} rows or columns")
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        state = {name: _torch(array) for name, array in tensors.items()}
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


def _torch(array: Array) -> Any:
    import torch

    # A copy, as torch warns of arrays that are not writable.
    return torch.from_numpy(np.array(array))


@contextlib.contextmanager
def _quietly(*libraries: str) -> Iterator[None]:
    """Silences stderr and warnings while `libraries` are imported."""
    with (
        importing("Reading these weights", *libraries),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _decoding(name: str) -> Iterator[None]:
    """Turns what the library `name` raises over unsuitable tensors into a QtuiError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise QtuiError(f"{name} does not decode this: {said or type(error).__name__}.") from error
