"""The tensors of a model that stay for a whole run: weights, constants, adapters and buffers, with
dtype and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.plan.targets import adapters_of
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.model_shape import (
    Embedding,
    Layer,
    Linear,
    ModelShape,
    Module,
    Norm,
    Parameter,
)
from qtui_core.memory.shape.modules import modules_of_layer, named_modules, parameters_of
from qtui_core.memory.shape.packings import NOT_REPLACED, STORED
from qtui_core.memory.shape.storage import Kind, StoredTensor, constant, from_checkpoint, packed

#: What is loaded in float32 if float16 is requested (_keep_in_fp32_modules).
_KEPT_FROM_FP16: Final = {"t5": ("wo",)}
_KINDS: Final[dict[type, Kind]] = {
    Linear: "linear",
    Norm: "norm",
    Embedding: "embedding",
    Parameter: "parameter",
}
#: peft's name for the only adapter of a model.
_ADAPTER: Final = "default"


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
    return storage.blocks()


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
        self.adapters = adapters_of(shape, plan)

    def blocks(self) -> tuple[WeightBlock, ...]:
        """All tensors, those outside the layers first."""
        shape = self.shape
        return (
            WeightBlock(("",), tuple(self._outside())),
            *self._of_layers(shape.encoder_prefix, shape.encoder),
            *self._of_layers(shape.layer_prefix, shape.layers),
        )

    def is_quantized(self, name: str, module: Module) -> bool:
        """Whether the weight of a module with this full name is packed.

        bitsandbytes packs linear layers and Conv1D, except the output layer, what is tied to the
        embedding, and the exceptions of the family (transformers/quantizers/base.py,
        get_keys_to_not_convert). Stacked experts are not linear layers. For a quantized checkpoint
        its own settings decide.
        """
        if self.shape.packing is not None and self.plan.quantized:
            return isinstance(module, Linear | Parameter) and module.layout is not None
        return (
            self.plan.quantized
            and isinstance(module, Linear)
            and not (self.shape.head is not None and name.endswith(self.shape.head.name))
            and not name.endswith(NOT_REPLACED.get(self.shape.family, ()))
        )

    def _of_layers(self, prefix: str, layers: tuple[Layer, ...]) -> Iterator[WeightBlock]:
        alike: list[tuple[Layer, list[str]]] = []
        places: dict[int, list[str]] = {}
        for index, layer in enumerate(layers):
            if id(layer) not in places or self.adapters.by_layer:
                for other, others in alike:
                    if other == layer and not self.adapters.by_layer:
                        places[id(layer)] = others
                        break
                else:
                    places[id(layer)] = []
                    alike.append((layer, places[id(layer)]))
            places[id(layer)].append(f"{prefix}.{index}")
        for layer, prefixes in alike:
            first = prefixes[0]
            tensors = [
                tensor
                for module in modules_of_layer(layer)
                for tensor in self._module(f"{first}.{module.name}", module)
            ]
            yield WeightBlock(
                tuple(prefixes),
                tuple(t._replace(name=t.name.removeprefix(f"{first}.")) for t in tensors),
            )

    def _outside(self) -> Iterator[StoredTensor]:
        for name, module in named_modules(replace(self.shape, layers=(), encoder=())):
            yield from self._module(name, module)
        if self.shape.head is not None and self.shape.tied:
            yield from self._adapter(self.shape.head.name, self.shape.head)
        for index, nbytes in enumerate(self.shape.buffers):
            yield StoredTensor(
                f"buffer.{index}",
                (nbytes,),
                "uint8",
                Component.BUFFERS,
                "buffer",
                requires_grad=False,
                loaded="uint8",
                prepared="uint8",
            )
        nested = self.plan.quant is not None and self.plan.quant.endswith("-dq")
        if nested and any(self.is_quantized(*named) for named in named_modules(self.shape)):
            # The single table from which every nested state copies its table (name2qmap).
            yield constant("bitsandbytes.dynamic_map", (256,), "fp32")

    def _module(self, name: str, module: Module) -> Iterator[StoredTensor]:
        quantized = self.is_quantized(name, module)
        for suffix, sizes in parameters_of(module):
            full = f"{name}.{suffix}" if suffix else _bare(name, module)
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
                packing = quant if self.shape.packing is not None else ""
                yield from packed(full, sizes, quant, storage, packing)
            else:
                yield self._parameter(full, sizes, module, quantized)
        yield from self._adapter(name, module)

    def _parameter(
        self,
        name: str,
        sizes: tuple[int, ...],
        module: Module,
        quantized: bool,
    ) -> StoredTensor:
        """A parameter in a floating-point type. `quantized`: it is the bias of a quantized
        weight."""
        assert self.plan.dtype is not None
        kept = name.removesuffix(".weight").endswith(_KEPT_FROM_FP16.get(self.shape.family, ()))
        loaded = "fp32" if kept and self.plan.dtype == "fp16" else self.plan.dtype
        kind = _KINDS[type(module)]
        raised = self.plan.kbit_prep == "all" or (self.plan.kbit_prep == "norms" and kind == "norm")
        prepared = "fp32" if raised else loaded
        return StoredTensor(
            name,
            sizes,
            self._bias_in_steps(loaded) if quantized else prepared,
            Component.WEIGHTS,
            kind,
            requires_grad=self.plan.method == "full" and not self._untrained(kind),
            loaded=loaded,
            prepared=prepared,
        )

    def _untrained(self, kind: Kind) -> bool:
        """Whether a parameter gets no gradient in full fine-tuning: weights of norms under fused
        kernels (backward of Fast_RMS_Layernorm), which the optimizer then skips."""
        return kind == "norm" and self.plan.kernels == "fused"

    def _bias_in_steps(self, loaded: str) -> str:
        """Dtype of a bias from the first forward pass on: that of the layer's input, which a 4-bit
        layer first casts to its compute dtype (bitsandbytes nn/modules.py, Linear4bit.forward and
        Linear8bitLt.forward). Norms in float32 make inputs float32."""
        if self.plan.quant == "int8" and self.plan.kbit_prep != "none":
            return "fp32"
        return loaded

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
        first, second = f"lora_A.{_ADAPTER}.weight", f"lora_B.{_ADAPTER}.weight"
        match module:
            case Linear():
                inputs, outputs = module.inputs, module.outputs
            case Embedding():
                first, second = f"lora_embedding_A.{_ADAPTER}", f"lora_embedding_B.{_ADAPTER}"
                inputs, outputs = module.rows, module.columns
            case Parameter():
                *experts, outputs, inputs = module.shape
                rank *= experts[0] if experts else 1
        yield self._matrix(f"{name}.{first}", (rank, inputs))
        yield self._matrix(f"{name}.{second}", (outputs, rank))

    def _matrix(self, name: str, shape: tuple[int, int]) -> StoredTensor:
        dtype = self.plan.adapter_dtype or "fp32"
        return StoredTensor(
            name,
            shape,
            dtype,
            Component.ADAPTERS,
            "adapter",
            requires_grad=True,
            loaded=None,
            prepared=dtype,
        )


def _bare(name: str, module: Module) -> str:
    """Name of a parameter without a module, which `named_modules` lists under another name if it is
    the bias of a tied head."""
    return name if name.endswith(module.name) else module.name
