"""How one tensor is stored: in its own dtype, or packed, with its constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final, Literal, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan, adapters_of
from qtui_core.memory.replay.folding import kinds_of
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.model_shape import (
    Embedding,
    Linear,
    ModelShape,
    Module,
    Norm,
    Parameter,
    full_name,
    modules_of_layer,
    named_modules,
    parameters_of,
)
from qtui_core.memory.shape.packings import STORED, UNPACKED_BY_FORWARD, Layout

Kind = Literal["linear", "norm", "embedding", "parameter", "adapter", "buffer"]

#: Weights per absmax, and absmaxes per nested absmax (bitsandbytes functional.py, quantize_4bit).
BLOCK: Final = 64
NESTED_BLOCK: Final = 256


class StoredTensor(NamedTuple):
    """A tensor that stays for the whole run, as one allocation.

    Attributes:
        name: of the parameter or constant in state_dict.
        shape: as stored. A 4-bit weight of n parameters is bytes, `[ceil(n / 2 / s), s]`, where s
            is the size of the type into which they are packed.
        dtype: during the steps, from the first forward pass on.
        component: that it counts as.
        kind: of module that it belongs to.
        requires_grad: whether it is trained.
        loaded: its dtype after from_pretrained; None if the preparation makes it.
        prepared: its dtype after k-bit preparation.
        packing: kind of `Layout` if it holds the codes of a weight that a checkpoint stores packed.
        loaded_shape: as stored until the first forward pass unpacks it; None if none does.
        transposed: whether it is read as `[inputs, outputs]` (Conv1D) before it is quantized.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    component: Component
    kind: Kind
    requires_grad: bool
    loaded: str | None
    prepared: str
    packing: str = ""
    loaded_shape: tuple[int, ...] | None = None
    transposed: bool = False

    @property
    def loaded_elements(self) -> int:
        """Elements until the first forward pass."""
        return self.elements if self.loaded_shape is None else prod(self.loaded_shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """As requested from the allocator, before rounding."""
        return self.elements * SIZES[self.dtype]


def _fixed(
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    component: Component = Component.QUANTIZATION,
    kind: Kind = "linear",
    packing: str = "",
) -> StoredTensor:
    """A tensor that no step changes, such as a constant of quantization."""
    return StoredTensor(name, shape, dtype, component, kind, False, dtype, dtype, packing)


def from_checkpoint(
    name: str, layout: Layout, shape: tuple[int, ...], dtype: str
) -> Iterator[StoredTensor]:
    """The tensors for the weight of the module `name`, `[..., outputs, inputs]`, in a model of
    `dtype`, as a checkpoint packs it. If the first forward pass unpacks it, they have the bytes of
    the unpacked weight from then on (compressors of compressed-tensors: scales in the dtype of the
    weight, zero points as single elements)."""
    unpacked = layout.kind in UNPACKED_BY_FORWARD
    for number, part in enumerate(layout.parts(shape, dtype)):
        full = f"{name}{part.name}" if part.name[:1] in ("", "_") else f"{name}.{part.name}"
        component = Component.QUANTIZATION if number else Component.WEIGHTS
        kind = "" if number else layout.kind
        sizes = (part.elements,)
        fixed = stored = _fixed(full, sizes, part.dtype, component, packing=kind)
        if unpacked and not number:
            stored = stored._replace(name=f"{name}.weight", shape=shape, dtype=dtype)
        elif unpacked and part.name == "weight_scale" and part.dtype != dtype:
            stored = stored._replace(dtype=dtype)
        elif unpacked and part.name == "weight_zero_point" and part.dtype == "int32":
            words = (part.elements * 32 // layout.bits,)
            stored = stored._replace(shape=words, dtype="int8")
        yield stored if stored is fixed else stored._replace(loaded_shape=sizes)


def packed(
    name: str, shape: tuple[int, int], quant: str, storage: str = "uint8", packing: str = ""
) -> Iterator[StoredTensor]:
    """What bitsandbytes stores for the frozen weight `name` of `shape` `[outputs, inputs]`; 4-bit
    codes are packed into the type `storage`. `packing` is as in `StoredTensor`.

    4-bit: two weights per byte, an absmax for each 64 (with `-dq` one byte each, with a float32 for
    each 256 of them, an offset and the table of their codes), and a table of 16 codes
    (functional.py, quantize_4bit). int8: one byte per weight and a float32 for each row
    (nn/modules.py, Int8Params).
    """
    stored = "int8" if quant == "int8" else "uint8"
    width = SIZES[storage]
    size = shape if quant == "int8" else (-(-prod(shape) // (2 * width)), width)
    yield _fixed(name, size, stored, Component.WEIGHTS, packing=packing)
    if quant == "int8":
        yield _fixed(f"{name.removesuffix('.weight')}.SCB", (shape[0],), "fp32")
        return
    blocks = -(-prod(shape) // BLOCK)
    if quant.endswith("-dq"):
        yield _fixed(f"{name}.absmax", (blocks,), "uint8")
        yield _fixed(f"{name}.nested_absmax", (-(-blocks // NESTED_BLOCK),), "fp32")
        yield _fixed(f"{name}.nested_quant_map", (256,), "fp32")
        yield _fixed(f"{name}.nested_offset", (), "fp32")
    else:
        yield _fixed(f"{name}.absmax", (blocks,), "fp32")
    yield _fixed(f"{name}.quant_map", (16,), "fp32")


_KINDS: Final[dict[type, Kind]] = {
    Linear: "linear", Norm: "norm", Embedding: "embedding", Parameter: "parameter",
}  # fmt: skip
#: peft's name for the only adapter of a model.
ADAPTER: Final = "default"


@dataclass(frozen=True)
class WeightBlock:
    """Tensors that belong together: those of a layer, once for all layers that are alike, or those
    outside the layers.

    Attributes:
        prefixes: of the layers, as "model.layers.0"; one empty text outside the layers.
        tensors: of one of them, names without the prefix.
    """

    prefixes: tuple[str, ...]
    tensors: tuple[StoredTensor, ...]


def blocks_of(shape: ModelShape, plan: RunPlan) -> tuple[WeightBlock, ...]:
    """All tensors of the model under a resolved plan, those outside the layers first.

    Raises UsageError if no module has one of the names that are to get adapters.
    """
    storage = WeightStorage(shape, plan)
    storage.adapters.check(shape, plan)
    return (WeightBlock(("",), tuple(storage.outside())), *storage.of_layers())


def tensors_of(shape: ModelShape, plan: RunPlan) -> Iterator[StoredTensor]:
    """Every tensor of `blocks_of` with its full name."""
    for block in blocks_of(shape, plan):
        for prefix in block.prefixes:
            for tensor in block.tensors:
                full = f"{prefix}.{tensor.name}" if prefix else tensor.name
                yield tensor._replace(name=full)


class WeightStorage:
    """How a resolved plan stores the parameters of a model.

    Raises UsageError for names of modules that peft refuses together.
    """

    def __init__(self, shape: ModelShape, plan: RunPlan) -> None:
        self.shape = shape
        self.plan = plan
        self.packing = shape.packing_under(plan.quant)
        self.adapters = adapters_of(shape, plan)

    def is_quantized(self, name: str, module: Module) -> bool:
        """Whether the weight of a module with this full name is packed.

        bitsandbytes packs linear layers and Conv1D, except the output layer and what is tied to the
        embedding (get_keys_to_not_convert in transformers/quantizers/base.py). Stacked experts are
        not linear layers. For a quantized checkpoint its own settings decide.
        """
        if self.packing is not None:
            return isinstance(module, Linear | Parameter) and module.layout is not None
        return (
            self.plan.quantized
            and isinstance(module, Linear)
            and not module.last
            and not (self.shape.head is not None and name.endswith(self.shape.head.name))
        )

    def of_layers(self) -> Iterator[WeightBlock]:
        """The tensors of the layers."""
        prefix, layers = self.shape.layer_prefix, self.shape.layers[: self.shape.own_layers]
        kinds = range(len(layers)) if self.adapters.by_layer else kinds_of(layers)
        alike: dict[int, list[int]] = {}
        for index, kind in enumerate(kinds):
            alike.setdefault(kind, []).append(index)
        for indices in alike.values():
            layer, first = layers[indices[0]], f"{prefix}.{indices[0]}"
            tensors = [
                tensor
                for module in modules_of_layer(layer)
                for tensor in self._module(f"{first}.{module.name}", module)
            ]
            yield WeightBlock(
                tuple(f"{prefix}.{index}" for index in indices),
                tuple(t._replace(name=t.name.removeprefix(f"{first}.")) for t in tensors),
            )

    def outside(self) -> Iterator[StoredTensor]:
        """The tensors outside the layers, those of an encoder of images first."""
        tower = self.shape.tower
        for module in tower.modules if tower else ():
            for tensor in self._module(module.name, module):
                if tensor.loaded is not None:  # no adapter
                    yield tensor._replace(requires_grad=False)
        for name, module in named_modules(replace(self.shape, layers=())):
            yield from self._module(name, module)
        if self.shape.head is not None and self.shape.tied:
            yield from self._adapter(self.shape.head.name, self.shape.head)
        for index, nbytes in enumerate(self.shape.buffers + (tower.buffers if tower else ())):
            yield _fixed(f"buffer.{index}", (nbytes,), "uint8", Component.BUFFERS, "buffer")
        nested = self.plan.quant is not None and self.plan.quant.endswith("-dq")
        if nested and any(self.is_quantized(*named) for named in named_modules(self.shape)):
            # The single table from which every nested state copies its table (name2qmap).
            yield _fixed("bitsandbytes.dynamic_map", (256,), "fp32")

    def _module(self, name: str, module: Module) -> Iterator[StoredTensor]:
        quantized = self.is_quantized(name, module)
        for suffix, sizes in parameters_of(module):
            full = full_name(name, module, suffix)
            if quantized and suffix != "bias" and self.plan.quant == STORED:
                assert isinstance(module, Linear | Parameter)
                assert module.layout is not None
                dtype = self.plan.dtype
                assert dtype is not None
                yield from from_checkpoint(name if suffix else full, module.layout, sizes, dtype)
            elif quantized and suffix == "weight":
                assert isinstance(module, Linear)
                sizes = (module.outputs, module.inputs)
                quant, storage = self.plan.quant, self.plan.quant_storage
                assert quant is not None
                packing = quant if self.packing is not None else ""
                weight, *constants = packed(full, sizes, quant, storage, packing)
                yield weight._replace(transposed=module.transposed)
                yield from constants
            else:
                yield self._parameter(full, sizes, module, quantized)
        yield from self._adapter(name, module)

    def _parameter(
        self, name: str, sizes: tuple[int, ...], module: Module, quantized: bool
    ) -> StoredTensor:
        """A parameter in a floating-point type. `quantized`: it is the bias of a quantized
        weight. Biases of experts in MXFP4 are float32 (Mxfp4GptOssExperts)."""
        assert self.plan.dtype is not None
        served = self.packing is not None and self.packing.method == "mxfp4"
        loaded = "fp32" if served and name.endswith("_proj_bias") else self.plan.dtype
        kind = _KINDS[type(module)]
        raised = self.plan.kbit_prep == "all" or (self.plan.kbit_prep == "norms" and kind == "norm")
        steps = prepared = "fp32" if raised else loaded
        if quantized:
            # The layer casts its bias to the type of its input, which 4-bit layers first cast to
            # their compute dtype (bitsandbytes nn/modules.py, forward of Linear4bit and
            # Linear8bitLt). Norms in float32 make inputs float32.
            wide = self.plan.quant == "int8" and self.plan.kbit_prep != "none"
            steps = "fp32" if wide else loaded
        return StoredTensor(
            name,
            sizes,
            steps,
            Component.WEIGHTS,
            kind,
            # Fast_RMS_Layernorm gives its weight no gradient, so that the optimizer skips it.
            requires_grad=self.plan.method == "full"
            and not (kind == "norm" and self.plan.kernels == "fused"),
            loaded=loaded,
            prepared=prepared,
        )

    def _adapter(self, name: str, module: Module) -> Iterator[StoredTensor]:
        """The two matrices over the module with this full name, or none if it gets no adapter, in
        the adapter's dtype: float32 by default (peft, cast_adapter_dtype).

        Over a linear layer A is `[rank, inputs]` and B `[outputs, rank]`; over an embedding `[rank,
        rows]` and `[columns, rank]`; over stacked experts `[experts, outputs, inputs]` they are
        `[experts × rank, inputs]` and `[outputs, experts × rank]` (peft tuners/lora/layer.py). The
        names of the last are those of the parameter; peft's wrappers have none for it.
        """
        rank = self.adapters.rank_on(name, module)
        if not rank:
            return
        first, second = f"lora_A.{ADAPTER}.weight", f"lora_B.{ADAPTER}.weight"
        match module:
            case Linear():
                inputs, outputs = module.inputs, module.outputs
            case Embedding():
                first, second = f"lora_embedding_A.{ADAPTER}", f"lora_embedding_B.{ADAPTER}"
                inputs, outputs = module.rows, module.columns
            case Parameter():
                *experts, outputs, inputs = module.shape
                rank *= experts[0] if experts else 1
        dtype = self.plan.adapter_dtype or "fp32"
        asks = not (isinstance(module, Linear) and module.clipped)
        for suffix, sizes in ((first, (rank, inputs)), (second, (outputs, rank))):
            yield StoredTensor(
                f"{name}.{suffix}", sizes, dtype, Component.ADAPTERS, "adapter", asks, None, dtype
            )
