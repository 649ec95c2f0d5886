"""The weights of a layer, or those outside the layers, as tensors on the tape."""

from __future__ import annotations

from typing import Final

from qtui_core.dataclass import dataclass
from qtui_core.memory.devices.device import parse_version
from qtui_core.memory.dtypes import FLOATING
from qtui_core.memory.plan.options import UNPACKED
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import Component, Label
from qtui_core.memory.shape.model_shape import Embedding, Linear, Parameter
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.shape.weights import ADAPTER, BLOCK, StoredTensor
from qtui_core.memory.tape.tape import Tape
from qtui_core.memory.tape.tensors import Tensor

SOURCE: Final = Label("weight before it is quantized")
#: From the torch version current with bitsandbytes 0.46 on, the maxima less their mean are a copy.
_COPIES_SINCE: Final = (2, 7)


@dataclass
class LinearWeights:
    """The tensors of one linear layer.

    Attributes:
        plan: of the run; every option has a value.
        weight: as stored: packed if it is quantized.
        bias: if any.
        quant: how the weight is stored: by bitsandbytes (choices.QUANTS), or the kind of a
            checkpoint's layout; None if it is in a floating-point type.
        down, up: the two matrices of the adapter (lora_A, lora_B), None without one.
    """

    plan: RunPlan
    weight: Tensor
    bias: Tensor | None = None
    quant: str | None = None
    down: Tensor | None = None
    up: Tensor | None = None


class Weights:
    """Tensors by their names inside a layer, or by their full names outside of layers.

    Attributes:
        plan: of the run; every option has a value.
        stored: the description of each tensor, in the order in which they are made.
        tensors: those that exist.
    """

    def __init__(self, plan: RunPlan, stored: tuple[StoredTensor, ...]) -> None:
        self.plan = plan
        self.stored = stored
        self.tensors: dict[str, Tensor] = {}
        self._linears: dict[str, LinearWeights] = {}
        # Codes that stay packed in the steps, by the name of their module.
        self._codes = {
            each.name.rpartition(".")[0]: each
            for each in stored
            if each.packing and each.loaded_shape is None
        }

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def operand(self, name: str) -> Tensor:
        """A stacked weight as the operand of a product: kernels for packed ones take them as they
        are stored."""
        weight = self.tensors[name]
        if weight.dtype in FLOATING:
            return weight
        assert self.plan.dtype is not None
        return Tensor(weight.elements, self.plan.dtype, weight.buffer)

    def find(self, name: str) -> Tensor | None:
        """The tensor of that name, None if there is none."""
        return self.tensors.get(name)

    def load(self, tape: Tape, layers: str = "", *, after: bool = False) -> None:
        """from_pretrained: every tensor of the checkpoint in the dtype in which it is loaded, in
        the order of the modules. If some are quantized, all are read to the GPU in the order of
        their names (transformers core_model_loading.py, convert_and_load_state_dict_in_model), and
        each is quantized before the next is read. Outside the layers, whose name is `layers`, only
        the names before that are read, or those `after` it."""
        loaded = [stored for stored in self.stored if stored.loaded is not None]
        if self.plan.quant in (None, UNPACKED, STORED):
            for stored in () if after else loaded:
                assert stored.loaded is not None
                self._make(tape, stored, stored.loaded, stored.loaded_elements)
            return
        place = _by_name(layers)
        groups = _with_constants(loaded)
        for weight, *constants in sorted(groups, key=lambda group: _by_name(group[0].name)):
            if not layers or (_by_name(weight.name) > place) is after:
                self._read(tape, weight, constants)

    def raise_types(self, tape: Tape) -> None:
        """k-bit preparation, one tensor at a time."""
        for stored in self.stored:
            if stored.loaded is not None and stored.prepared != stored.loaded:
                self._make(tape, stored, stored.prepared)

    def unpack(self, tape: Tape) -> None:
        """What the first forward pass unpacks permanently, tensor by tensor: the codes one by one,
        then the weight, before the packed tensors are freed (decompress of compressed-tensors)."""
        for stored in self.stored:
            if stored.loaded_shape is not None:
                size = stored.elements
                codes = tape.new(size, "int8", "unpack_from_int32") if stored.packing else None
                self._make(tape, stored, stored.dtype)
                del codes

    def adapt(self, tape: Tape) -> None:
        """Creates the adapters."""
        for stored in self.stored:
            if stored.loaded is None:
                self._make(tape, stored, stored.prepared)

    def linear(self, spec: Linear, weight: str = "", bias: str = "") -> LinearWeights:
        """The tensors of a linear layer, by its name; `weight` and `bias` are the names of its
        parameters if they belong to another module (a tied head)."""
        name = spec.name
        found = self._linears.get(name)
        if found is None:
            codes = self._codes.get(name)
            usual = f"{name}.weight" if codes is None else codes.name
            stored = self.tensors[weight or usual]
            quant = self.plan.quant if stored.dtype in ("uint8", "int8") else None
            found = self._linears[name] = LinearWeights(
                plan=self.plan,
                weight=stored,
                bias=self.find(bias or f"{name}.bias"),
                quant=quant if codes is None else codes.packing,
                down=self.find(f"{name}.lora_A.{ADAPTER}.weight"),
                up=self.find(f"{name}.lora_B.{ADAPTER}.weight"),
            )
        return found

    def adapter(self, spec: Parameter | Embedding) -> tuple[Tensor, Tensor] | None:
        """The two matrices A and B of the adapter over a parameter or an embedding; None without
        one."""
        of = isinstance(spec, Embedding)
        kind, ending = ("lora_embedding", "") if of else ("lora", ".weight")
        down, up = (self.find(f"{spec.name}.{kind}_{x}.{ADAPTER}{ending}") for x in "AB")
        return None if down is None or up is None else (down, up)

    def trained(self) -> list[tuple[StoredTensor, Tensor]]:
        """The tensors that require a gradient, in order."""
        return [(s, self.tensors[s.name]) for s in self.stored if s.requires_grad]

    def _read(self, tape: Tape, weight: StoredTensor, constants: list[StoredTensor]) -> None:
        """Makes a tensor in its own dtype, or quantized from one that is freed afterwards
        (quantize_4bit of bitsandbytes, int8_vectorwise_quant): first its absmaxes, then its codes,
        then other constants. For 4 bits a transposed weight is copied first (Params4bit._quantize);
        LLM.int8 copies it on the host (Bnb8bitQuantize of transformers)."""
        assert weight.loaded is not None
        assert self.plan.dtype is not None
        if not constants or weight.packing:
            for stored in (weight, *constants):  # as stored in the checkpoint
                assert stored.loaded is not None
                self._make(tape, stored, stored.loaded)
            return
        halves = 1 if weight.loaded == "int8" else 2
        source = tape.new(weight.elements * halves, self.plan.dtype, SOURCE)
        copies = weight.transposed and halves == 2
        copy = tape.new(source.elements, self.plan.dtype, SOURCE) if copies else None
        order, maxima = [constants[0], weight, *constants[1:]], []
        if len(constants) > 2:  # nested: the absmaxes are quantized themselves, less their mean
            absmax, nested, nested_map, offset, quant_map = constants
            order = [weight, quant_map, offset, nested, absmax, nested_map]
            maxima.append(tape.new(source.elements // BLOCK, "fp32", SOURCE))
        for stored in order:
            if maxima and stored is nested and parse_version(self.plan.torch) >= _COPIES_SINCE:
                maxima.append(tape.new(source.elements // BLOCK, "fp32", SOURCE))
            self._make(tape, stored, stored.prepared)
        del source, maxima, copy

    def _make(
        self, tape: Tape, stored: StoredTensor, dtype: str, elements: int | None = None
    ) -> None:
        label = Label(stored.name, stored.component)
        # Nothing freezes the parameters of a model for inference: they require a gradient, which is
        # not computed, but because of which autocast caches their casts.
        asks = stored.requires_grad or (not self.plan.trains and dtype == "fp32")
        size = stored.elements if elements is None else elements
        self.tensors[stored.name] = tape.leaf(size, dtype, label, trained=asks)


def _with_constants(loaded: list[StoredTensor]) -> list[list[StoredTensor]]:
    """Each tensor with the constants of its quantization, which follow it."""
    groups: list[list[StoredTensor]] = []
    for stored in loaded:
        constant = stored.component is Component.QUANTIZATION
        if constant and groups and groups[-1][0].dtype in ("uint8", "int8"):
            module = groups[-1][0].name.removesuffix("weight")
            if stored.name.startswith(module):
                groups[-1].append(stored)
                continue
        groups.append([stored])
    return groups


def _by_name(name: str) -> list[tuple[int, str]]:
    """A sort key like dot_natural_key of transformers: numbers before words, compared as
    numbers."""
    return [(int(part), "") if part.isdigit() else (1 << 62, part) for part in name.split(".")]


def retype(x: Tensor, dtype: str, label: Label) -> None:
    """`parameter.data = parameter.data.to(dtype)`: the same leaf with new bytes."""
    if x.dtype != dtype:
        x.buffer = x.tape.new(x.elements, dtype, label).buffer
        x.dtype = dtype
