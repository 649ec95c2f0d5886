"""How checkpoints store quantized layers, and what that means for a run.

A `Packing` is what the quantization_config of a config.json says: which modules are packed, and in
which layout. Layouts are those of the loaded modules: transformers 5.23
(integrations/finegrained_fp8.py, fbgemm_fp8.py), gptqmodel 7.3 (nn_modules/qlinear),
compressed-tensors 0.20 (compressors), hqq (core/quantize.py), ModelOpt's export for vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from math import prod
from typing import Final, Literal, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.models.patterns import matches

#: The value in a plan for "as the checkpoint stores them", for methods other than bitsandbytes.
STORED: Final = "stored"
#: The kind of a layout that only the files show.
HELD: Final = "held"

#: Linear layers that quantizers leave as they are, by family and ending of the name: classes
#: derived from nn.Linear are not replaced (transformers/integrations/bitsandbytes.py tests for the
#: exact type), nor is what a class keeps in float32 (_keep_in_fp32_modules).
NOT_REPLACED: Final = {
    "falcon": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "t5": ("wo",),
}

Sizes = tuple[int, ...]


class PackedTensor(NamedTuple):
    """A tensor of a packed module: its name in the module, sizes, and dtype. The first of a module
    holds the codes."""

    name: str
    sizes: Sizes
    dtype: str


@dataclass(frozen=True)
class Layout:
    """How one weight is packed.

    Attributes:
        kind: a row of `LAYOUTS`, or for bitsandbytes a way to store weights (plan_choices.QUANTS).
        bits: of a code.
        group: weights along the inputs that share a scale; 0 is the whole row.
        block: rows and columns of a tile that shares a scale; empty if there are no tiles.
        asymmetric: whether zero points are stored.
        scales: the dtype of the scales; empty is that of the model.
        axis: of hqq's groups: 1 within a row, 0 across rows.
        extra: other tensors of the module, such as a scale of its input.
        held: all tensors of the module, if the files differ from the configuration.
    """

    kind: str
    bits: int = 4
    group: int = 0
    block: tuple[int, int] | tuple[()] = ()
    asymmetric: bool = False
    scales: str = ""
    axis: int = 1
    extra: tuple[PackedTensor, ...] = ()
    held: tuple[PackedTensor, ...] = ()

    def groups(self, inputs: int) -> int:
        """Groups of a row."""
        return -(-inputs // self.group) if self.group else 1

    def parts(self, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
        """The tensors that replace a weight `[..., outputs, inputs]` in a model of `dtype`. Only
        fp8 stacks experts, `[experts, outputs, inputs]`."""
        if self.held:
            yield from self.held
            return
        yield from LAYOUTS[self.kind](self, weight, dtype)
        yield from self.extra


def _gptq(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """GPTQQuantLinear: codes packed down the columns in 32-bit words, zero points along the
    rows."""
    outputs, inputs = weight
    groups = layout.groups(inputs)
    yield PackedTensor("qweight", (-(-inputs * layout.bits // 32), outputs), "int32")
    yield PackedTensor("qzeros", (groups, -(-outputs * layout.bits // 32)), "int32")
    yield PackedTensor("scales", (groups, outputs), "fp16")
    yield PackedTensor("g_idx", (inputs,), "int32")


def _awq(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """AWQuantLinear: codes packed along the rows, always with zero points."""
    outputs, inputs = weight
    groups, words = layout.groups(inputs), outputs * layout.bits // 32
    yield PackedTensor("qweight", (inputs, words), "int32")
    yield PackedTensor("qzeros", (groups, words), "int32")
    yield PackedTensor("scales", (groups, outputs), "fp16")


def _zeros_width(layout: Layout, inputs: int) -> int:
    """Words for the zero points of a row (calculate_zeros_width of gptqmodel/utils/gemv.py)."""
    step = {32: 4, 64: 2}.get(layout.group, 1)
    words = -(-(inputs // (layout.group or inputs)) // 8)
    return -(-words // step) * step


def _awq_gemv(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    outputs, inputs = weight
    width = _zeros_width(layout, inputs)
    yield PackedTensor("qweight", (outputs, inputs * layout.bits // 32), "int32")
    yield PackedTensor("qzeros", (outputs, width), "int32")
    yield PackedTensor("scales", (outputs, width * 8), "fp16")


def _awq_gemv_fast(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    outputs, inputs = weight
    width = _zeros_width(layout, inputs) * 8
    yield PackedTensor("qweight", (outputs // 4, inputs * layout.bits // 16 * 4), "int16")
    yield PackedTensor("qzeros", (width, outputs), "fp16")
    yield PackedTensor("scales", (width, outputs), "fp16")


def _fp8(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """FP8Linear and FP8Experts: one byte for each weight, a scale for each tile, or one for all."""
    *stacked, outputs, inputs = weight
    name = "" if stacked else "weight"
    yield PackedTensor(name, weight, "fp8")
    tiles: Sizes = ()
    if layout.block:
        rows, columns = layout.block
        tiles = (-(-outputs // rows), -(-inputs // columns))
    elif stacked:
        tiles = (1, 1)
    yield PackedTensor(f"{name}_scale_inv", (*stacked, *tiles), layout.scales or "fp32")


def _fbgemm(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """FbgemmFp8Linear: a scale for each output."""
    yield PackedTensor("weight", weight, "fp8")
    yield PackedTensor("weight_scale", (weight[0], 1), "fp32")
    yield PackedTensor("input_scale_ub", (1,), "fp32")


def _scaled(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """The naive compressor of compressed-tensors: one byte for each weight, with scales for all,
    each output, each group or each tile."""
    yield PackedTensor("weight", weight, "int8" if layout.kind == "int-quantized" else "fp8")
    yield from _scales(layout, weight, dtype, layout.asymmetric and "int8")


def _words(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """PackedQuantizationCompressor: codes packed along the rows in 32-bit words, and a tensor with
    the shape; zero points are packed in the same way, down the rows."""
    outputs, inputs = weight
    yield PackedTensor("weight_packed", (outputs, -(-inputs * layout.bits // 32)), "int32")
    yield PackedTensor("weight_shape", (2,), "int64")
    yield PackedTensor("weight_scale", (outputs, layout.groups(inputs)), dtype)
    if layout.asymmetric:
        words = -(-outputs * layout.bits // 32)
        yield PackedTensor("weight_zero_point", (words, layout.groups(inputs)), "int32")


def _halves(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """NVFP4PackedCompressor and MXFP4PackedCompressor: two codes per byte."""
    outputs, inputs = weight
    yield PackedTensor("weight_packed", (outputs, inputs // 2), "uint8")
    yield PackedTensor("weight_scale", (outputs, layout.groups(inputs)), layout.scales)
    if layout.kind == "nvfp4-pack-quantized":
        yield PackedTensor("weight_global_scale", (1,), "fp32")


def _modelopt(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """ModelOpt's NVFP4, and its FP8 with one scale."""
    outputs, inputs = weight
    if layout.bits == 8:
        yield PackedTensor("weight", weight, "fp8")
        yield PackedTensor("weight_scale", (), "fp32")
    else:
        yield PackedTensor("weight", (outputs, inputs // 2), "uint8")
        yield PackedTensor("weight_scale", (outputs, layout.groups(inputs)), "fp8")
        yield PackedTensor("weight_scale_2", (), "fp32")
    yield PackedTensor("input_scale", (), "fp32")


def _hqq(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """HQQLinear: codes of 1, 2, 4 and 8 bits in bytes, of 3 bits ten in a word; scales and zero
    points in the dtype of the model."""
    count = prod(weight)
    size = layout.group or weight[layout.axis]
    groups = count // size
    if layout.bits == 3:
        rows, columns = (groups, size) if layout.axis else (size, groups)
        yield PackedTensor("W_q", (-(-rows // 10), columns), "int32")
    else:
        yield PackedTensor("W_q", (count * layout.bits // 8,), "uint8")
    yield PackedTensor("scale", (groups, 1), dtype)
    yield PackedTensor("zero", (groups, 1), dtype)


def _scales(
    layout: Layout, weight: Sizes, dtype: str, zeros: str | Literal[False]
) -> Iterator[PackedTensor]:
    outputs, inputs = weight
    sizes: Sizes = (outputs, layout.groups(inputs))
    if layout.block == (0, 0):  # one scale for all
        sizes = (1,)
    elif layout.block:
        rows, columns = layout.block
        sizes = (-(-outputs // rows), -(-inputs // columns))
    yield PackedTensor("weight_scale", sizes, layout.scales or dtype)
    if zeros:
        yield PackedTensor("weight_zero_point", sizes, zeros)


def _held(layout: Layout, weight: Sizes, dtype: str) -> Iterator[PackedTensor]:
    """The tensors in the files (`Layout.held`), for an unknown method."""
    yield from layout.held


#: Kind -> the tensors that replace a weight.
LAYOUTS: Final[Mapping[str, Callable[[Layout, Sizes, str], Iterator[PackedTensor]]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "awq-gemv": _awq_gemv,
    "awq-gemv-fast": _awq_gemv_fast,
    "fp8": _fp8,
    "fbgemm": _fbgemm,
    "int-quantized": _scaled,
    "float-quantized": _scaled,
    "pack-quantized": _words,
    "nvfp4-pack-quantized": _halves,
    "mxfp4-pack-quantized": _halves,
    "mxfp8-quantized": _scaled,
    "modelopt": _modelopt,
    "hqq": _hqq,
    HELD: _held,
}

#: Kinds of compressed-tensors that the first forward pass unpacks permanently (ct_decompress_hook)
#: -> the dtype of their scales; empty is that of the model.
UNPACKED_BY_FORWARD: Final[Mapping[str, str]] = {
    "int-quantized": "",
    "float-quantized": "",
    "pack-quantized": "",
    "nvfp4-pack-quantized": "fp8",
    "mxfp4-pack-quantized": "uint8",
    "mxfp8-quantized": "uint8",
}


@dataclass(frozen=True)
class Rule:
    """Modules by their names, and how they are stored: None means unpacked.

    `match` says what `names` are: "module" as in transformers' should_convert_module; "full" the
    name itself or a regular expression for its beginning; "glob" with stars; "tag" the name without
    numbers; "model" and "layers" (hqq).
    """

    names: tuple[str, ...]
    match: Literal["module", "full", "glob", "tag"]
    layout: Layout | None = None

    def takes(self, name: str) -> bool:
        return any(_MATCHES[self.match](each, name) for each in self.names)


def _as_module(pattern: str, name: str) -> bool:
    return name.endswith(pattern) or matches(pattern, name, r"(?:(?<=\.)|(?=\.|$))")


def _as_full(pattern: str, name: str) -> bool:
    expression = pattern.startswith("re:")
    return matches(pattern.removeprefix("re:"), name) if expression else pattern == name


def _as_tag(tag: str, name: str) -> bool:
    return tag == ".".join(
        part for part in name.split(".") if part not in ("model", "layers") and not part.isnumeric()
    )


_MATCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "module": _as_module,
    "full": _as_full,
    "glob": lambda pattern, name: fnmatchcase(name, pattern),
    "tag": _as_tag,
}


@dataclass(frozen=True)
class Packing:
    """What the quantization_config of a checkpoint says.

    Attributes:
        method: quant_method.
        title: for people, "GPTQ, 4 bits in groups of 128".
        layout: of modules that no rule matches; None if only rules pack anything, or it is unknown.
        rules: the first that matches a name counts.
        head: whether the output layer is packed if no rule matches it.
        outside: whether linear layers outside the rows of layers are packed, except the head.
        transposed: whether GPT-2's Conv1D is packed too.
        experts: whether stacked experts are "packed" like linear layers, "plain", or it is not
            "told".
        untrained: why no adapters can be trained over it; empty if they can.
        dequantizes: whether transformers can load it unpacked.
        note: for the reader of an estimate.
        held: whether the files show how modules are stored.
    """

    method: str
    title: str
    layout: Layout | None = None
    rules: tuple[Rule, ...] = ()
    head: bool = False
    outside: bool = True
    transposed: bool = False
    experts: Literal["packed", "plain", "unknown"] = "unknown"
    untrained: str = ""
    dequantizes: bool = False
    note: str = ""
    held: bool = False

    @property
    def layout_known(self) -> bool:
        """Whether the layout is known."""
        return (
            self.held
            or self.layout is not None
            or any(rule.layout is not None for rule in self.rules)
        )

    @property
    def quant(self) -> str:
        """The `quant` of a plan that keeps it as it is: that of bitsandbytes, or "stored"."""
        kind = "" if self.layout is None else self.layout.kind
        return STORED if kind in LAYOUTS or not kind else kind

    def of(self, name: str) -> Layout | None:
        """How the module with this full name is stored; None if it is not packed."""
        for rule in self.rules:
            if rule.takes(name):
                return rule.layout
        return self.layout
