"""What an inference keeps of the tokens that it has seen, by kind of layer: keys and values,
latents, or a state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import Final, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import FLOATING, SIZES
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.shape.model_shape import Attention, CachedTensor, LatentAttention, ModelShape
from qtui_core.quantities import format_bytes, plural

#: The most tokens that a cache of integers holds in the dtype of activations, less one
#: (`residual_length` of QuantizedLayer in transformers' cache_utils.py).
_RESIDUAL: Final = 128


class KvStorage(NamedTuple):
    """How elements are stored: bits of one; how many share a scale and a zero point in the dtype of
    activations, 0 without; bytes of the scales of a layer; the class that does it so."""

    bits: int
    group: int
    scales: int
    by: str

    def bits_each(self, dtype: str) -> float:
        """Bits of an element with its share of scales, whose dtype is that of activations."""
        return self.bits + (16 * SIZES[dtype] / self.group if self.group else 0)


_INTEGERS = (
    "QuantizedCache of transformers (backend hqq): a scale and a zero point for 64 elements; after "
    "the prompt up to 127 tokens wait in the type of activations"
)
#: By the type of the cache. vLLM's --kv-cache-dtype has the same bytes for bf16, fp16 and fp8.
KV_STORAGES: Final = {
    **{name: KvStorage(8 * SIZES[name], 0, 0, "DynamicCache of transformers") for name in FLOATING},
    "fp8": KvStorage(8, 0, 8, "QuantizedCache of transformers (backend fp8): a scale for the keys "
                     "of a layer and one for its values"),
    "int8": KvStorage(8, 64, 0, _INTEGERS),
    "int4": KvStorage(4, 64, 0, _INTEGERS),
}  # fmt: skip


def quantized_as(plan: RunPlan) -> KvStorage | None:
    """How the cache of a resolved plan is quantized, None if it is not."""
    return KV_STORAGES[plan.kv_dtype] if plan.recasts_cache else None


@dataclass(frozen=True)
class CacheKind:
    """What the layers of one kind keep, at the context and batch of a plan.

    Attributes:
        kind: of the layers; `layers`: how many.
        each: "token" or "sequence".
        formula: of the bytes of one layer for a token or a sequence; `numbers`: the same in
            numbers, empty if nothing is kept.
        bytes_each: of a token or a sequence, in all these layers.
        dtype: of the elements.
        tokens: of each sequence that are kept; None for a state.
        bytes: of the whole batch.
        basis: "exact"; "derived" for a family that is not built in, whose kinds are read from the
            keys of config.json, under autocast, and where no class of transformers stores such a
            layer so.
        source: the class that keeps it so.
    """

    kind: str
    layers: int
    each: str
    formula: str
    numbers: str
    bytes_each: int
    dtype: str
    tokens: int | None
    bytes: int
    basis: str
    source: str


def cache_of(shape: ModelShape, plan: RunPlan) -> tuple[CacheKind, ...]:
    """The cache of a resolved inference after the last token that is generated, by kind of layer;
    empty of an encoder. Tensors are counted without rounding, of all GPUs together."""
    if shape.is_encoder:
        return ()
    attentions = [layer.attention for layer in shape.plain.layers]
    layers = Counter((kept, _dtype(each, plan)) for each in attentions for kept in each.kept)
    stored = not plan.recasts_cache or (
        plan.kv_dtype not in FLOATING and _as_transformers(kept for kept, _ in layers)
    )
    exact = stored and shape.known == "exact" and not plan.autocast
    basis = "exact" if exact else "derived"
    return tuple(_kind(kept, n, dtype, plan, basis) for (kept, dtype), n in layers.items())


def _as_transformers(kinds: Iterable[CachedTensor | CacheKind]) -> bool:
    """Whether all layers are of kinds that QuantizedCache takes (`invalid_layer_types` there)."""
    return all(kept.kind in ("full attention", "latent attention") for kept in kinds)


def _dtype(attention: Attention | LatentAttention, plan: RunPlan) -> str:
    """Of keys and values that are not quantized. Under autocast a product gives another type, and
    norms and rotations in that of the model mostly make them float32."""
    if not plan.autocast or plan.autocast_dtype == plan.dtype:
        return plan.dtype or "bf16"
    mixed = isinstance(attention, LatentAttention) or attention.positions == "rope"
    return "fp32" if mixed else plan.autocast_dtype


def _kind(kept: CachedTensor, layers: int, dtype: str, plan: RunPlan, basis: str) -> CacheKind:
    cached = plan.kv_dtype if plan.recasts_cache else dtype
    own = {"cache": cached, "activations": dtype}.get(kept.dtype, kept.dtype)
    stored = KV_STORAGES[own]
    generated = max(0, plan.generate - 1)
    tokens = plan.sequence + generated
    if kept.window is not None:
        tokens = min(tokens, kept.window - 1)
    cast = kept.dtype == "cache" and plan.recasts_cache and own in FLOATING
    count = tokens if kept.each == "token" else 1
    waiting = min(count, generated % _RESIDUAL) if stored.group else 0
    bits = stored.bits_each(dtype) * (count - waiting) + 8 * SIZES[dtype] * waiting
    scales = stored.scales if kept.sizes else 0
    sums = " + " in kept.formula
    formula, numbers = (f"({text})" if sums else text for text in (kept.formula, kept.numbers))
    return CacheKind(
        kind=kept.kind,
        layers=layers,
        each=kept.each,
        formula=f"{formula} · bytes" if kept.sizes else kept.formula,
        numbers=f"{numbers} · {stored.bits_each(dtype) / 8:g}" if kept.sizes else "",
        bytes_each=round(kept.elements * layers * stored.bits_each(dtype) / 8),
        dtype=own,
        tokens=count if kept.each == "token" and kept.sizes else None,
        bytes=layers * ceil(plan.batch * kept.elements * bits / 8 + scales),
        basis=basis,
        source="vLLM with --kv-cache-dtype" if cast else stored.by,
    )


def explained(kinds: Sequence[CacheKind], plan: RunPlan) -> Iterator[str]:
    """What the kinds sum to, by which class, and what is not as it is in one."""
    total, tokens = sum(kind.bytes for kind in kinds), plan.sequence + max(0, plan.generate - 1)
    yield (
        f"They sum to {total:,} bytes ({format_bytes(total)}): {plural(plan.batch, 'sequence')} of "
        f"{plural(tokens, 'token')}{', of all GPUs together' * (plan.gpus > 1)}"
        f"{', without what is unknown' * any('unknown' in kind.formula for kind in kinds)}."
    )
    for source in dict.fromkeys(kind.source for kind in kinds if kind.numbers):
        named = (kind.kind for kind in kinds if kind.source == source and kind.numbers)
        yield f"{', '.join(named).capitalize()}: as in {source}."
    if plan.recasts_cache and plan.kv_dtype not in FLOATING and not _as_transformers(kinds):
        yield (
            "QuantizedCache refuses models that have other layers than full attention: here its "
            "bytes are those of the same rule in every layer."
        )
    if any(kind.tokens not in (None, tokens) for kind in kinds):
        yield (
            "Until the token after the prompt a window is a view of the whole prompt, all of which "
            "is then in memory: the key-value cache among the components."
        )
