"""Which tensor of a GGUF file a weight of a Hugging Face model became, and how to undo what the
conversion did to its values.

Names are from gguf's tensor map. What llama.cpp's converter does to values is from its
`conversion` package: `LlamaModel.permute` and the classes built on it, `norm.weight` + 1 of Gemma
and Nemotron, the transposed Conv1D of GPT-2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qtui_core.errors import UsageError
from qtui_core.extras import importing
from qtui_core.models import ModelSource
from qtui_core.models.files.layout import GGUF_SUFFIX
from qtui_core.packed.stored_tensors import Float32
from qtui_core.quant.elements import RowSource

#: Architectures whose query and key rows the converter permutes.
_PAIRED_ROWS = frozenset(
    {"llama", "llama-embed", "arcee", "smollm3", "granite", "granitemoe", "minicpm"}
)
_NORMS_PLUS_ONE = frozenset({"gemma", "gemma2", "gemma3", "nemotron"})
#: Architectures whose weights the converter does not change.
_AS_THEY_ARE = frozenset(
    {
        "qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi2", "phi3", "olmo", "olmo2", "starcoder2",
        "llama4", "command-r", "cohere2", "stablelm", "glm4", "gpt-oss",
    }
)  # fmt: skip
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
_EXPERT = re.compile(r"\.experts\.(\d{1,4})\.")
_QUERY_OR_KEY = re.compile(r"\.attn_([qk])\.(weight|bias)$")


class GgufPlace(NamedTuple):
    """Where a Hugging Face weight is stored: the name of a tensor, and for a weight of an expert
    the number of that expert in it."""

    tensor: str
    expert: int | None = None


def find_in_gguf(names: Iterable[str], source: ModelSource) -> dict[str, GgufPlace]:
    """The places of the Hugging Face `names` that the GGUF model `source` has.

    Raises:
        UsageError: the gguf library is missing, or does not know this architecture.
    """
    with importing("Finding the tensors of a GGUF file", "gguf"):
        from gguf.constants import MODEL_ARCH_NAMES
        from gguf.tensor_mapping import get_tensor_name_map
    architecture = _architecture(source)
    known = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    if architecture not in known:
        raise UsageError(
            f"{source.id} is of the architecture {architecture!r}, whose tensor names the "
            f"installed gguf library does not know: pip install -U gguf."
        )
    blocks = (source.config or {}).get("num_hidden_layers")
    mapping = get_tensor_name_map(known[architecture], blocks if type(blocks) is int else 512)
    places: dict[str, GgufPlace] = {}
    for name in names:
        for candidate, expert in reversed(_candidates(name)):
            place = mapping.get_name(candidate, try_suffixes=(".weight", ".bias"))
            if place in source.tensors:
                places[name] = GgufPlace(place, expert)
    return places


def _candidates(name: str) -> list[tuple[str, int | None]]:
    """What to look up for a name: the name; the name without the wrappers around a language model;
    for a weight of an expert, the tensor of all experts with the number of this one."""
    short = re.sub(r"^(model\.)?language_model\.(model\.)?", "model.", name)
    match = _EXPERT.search(short)
    if match is None:
        return [(name, None), (short, None)]
    expert = int(match[1])
    merged = short.replace(match[0], ".experts.", 1)
    mixtral = re.sub(r"^model\.layers\.(\d+)\..*\.experts\.", r"layers.\1.feed_forward.experts.",
                     merged)  # fmt: skip
    return [(merged, expert), (mixtral, expert)]


def restore(
    rows: RowSource, name: str, place: GgufPlace, source: ModelSource, height: int
) -> RowSource:
    """The rows of a GGUF tensor, turned back to those of the Hugging Face weight `name`, which has
    `height` rows."""
    architecture = _architecture(source)
    config: Mapping[str, Any] = source.config or {}
    if place.expert is not None:
        return ShiftedRows(rows, place.expert * height, height)
    match = _QUERY_OR_KEY.search(place.tensor)
    if match and architecture in _PAIRED_ROWS:
        heads = config.get("num_attention_heads")
        if match[1] == "k":
            heads = config.get("num_key_value_heads", heads)
        if type(heads) is int and heads > 0 and rows.shape[0] % (2 * heads) == 0:
            return HalvesOfHeads(rows, heads)
    if architecture in _NORMS_PLUS_ONE and name.endswith("norm.weight"):
        return ShiftedRows(rows, added=-1.0)
    if is_transposed(name, source):
        return KeptWhole(rows, rows.shape[::-1], np.transpose)
    return rows


def doubt(source: ModelSource) -> str | None:
    """A warning if qtui does not know what the converter does to this architecture, else None."""
    architecture = _architecture(source)
    if architecture in _PAIRED_ROWS | _NORMS_PLUS_ONE | _AS_THEY_ARE | {"gpt2"}:
        return None
    return (
        f"What llama.cpp's converter does to the weights of {architecture} is not known to qtui: "
        f"a very large error may be another order of rows."
    )


def _architecture(source: ModelSource) -> str:
    return str((source.config or {}).get("model_type", ""))


def is_gguf(source: ModelSource) -> bool:
    """Whether a model comes from a GGUF file and its tensors have that format's names."""
    return source.location.lower().endswith(GGUF_SUFFIX)


def is_transposed(name: str, source: ModelSource) -> bool:
    """Whether the GGUF model `source` holds the transpose of the Hugging Face weight `name`."""
    return _architecture(source) == "gpt2" and _CONV1D.search(name) is not None


class HalvesOfHeads:
    """The rows of each head in Hugging Face's order, from the order in which llama.cpp stores them.

    In Hugging Face's order, the rotary embedding rotates row j of a head of d rows with row
    j + d/2. llama.cpp's converter writes these pairs next to each other (`LlamaModel.permute`:
    `[heads, 2, d/2]` to `[heads, d/2, 2]`): row j of the first half is stored at 2j, row j of the
    second half at 2j + 1.
    """

    def __init__(self, stored: RowSource, heads: int) -> None:
        self.shape = stored.shape
        self._stored = stored
        self._size = stored.shape[0] // heads

    def rows(self, start: int, stop: int) -> Float32:
        wanted = np.arange(start, stop)
        head, row = np.divmod(wanted, self._size)
        half, pair = np.divmod(row, self._size // 2)
        place = head * self._size + 2 * pair + half
        if not place.size:
            return self._stored.rows(start, stop)
        first = int(place.min())
        return self._stored.rows(first, int(place.max()) + 1)[place - first]


class ShiftedRows:
    """Rows of a weight from row `first` on, with a number added: the matrix of one expert in a
    stored tensor `[experts, out, in]`; or norm weights less one, as Gemma and Nemotron store w and
    multiply by w + 1, and llama.cpp stores w + 1."""

    def __init__(
        self, stored: RowSource, first: int = 0, rows: int | None = None, added: float = 0.0
    ) -> None:
        self.shape = (stored.shape[0] if rows is None else rows, stored.shape[1])
        self._stored, self._first, self._added = stored, first, np.float32(added)

    def rows(self, start: int, stop: int) -> Float32:
        rows = self._stored.rows(self._first + start, self._first + stop)
        return rows + self._added if self._added else rows


class KeptWhole:
    """Rows that `change` makes of a whole weight, decoded at the first read and kept: a transpose,
    or other rows of a small tensor whose dimensions differ only by some of size one."""

    def __init__(
        self, stored: RowSource, shape: tuple[int, ...], change: Callable[[Float32], Float32]
    ) -> None:
        self.shape = shape
        self._stored = stored
        self._change = change
        self._whole: Float32 | None = None

    def rows(self, start: int, stop: int) -> Float32:
        if self._whole is None:
            self._whole = self._change(self._stored.rows(0, self._stored.shape[0]))
        return np.ascontiguousarray(self._whole[start:stop])
