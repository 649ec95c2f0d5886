"""How checkpoints store quantized layers, and what that means for a run.

A `Packing` is what the quantization_config of a config.json says: which modules are packed, and in
which layout. Layouts are those of the loaded modules: transformers 5.23
(integrations/finegrained_fp8.py, fbgemm_fp8.py), gptqmodel 7.3 (nn_modules/qlinear),
compressed-tensors 0.20 (compressors), hqq (core/quantize.py), ModelOpt's export for vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.models.patterns import matches

#: The value in a plan for "as the checkpoint stores them", for methods other than bitsandbytes.
STORED: Final = "stored"
#: The kind of a layout that only the files show.
HELD: Final = "held"

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
        kind: a row of `LAYOUTS`, or for bitsandbytes a way to store weights (option.QUANTS).
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
        fp8, modelopt and mxfp4 stack experts, `[experts, outputs, inputs]`."""
        if self.held:
            yield from self.held
            return
        *stacked, outputs, inputs = weight
        tiles: Sizes = ()
        if all(self.block):
            tiles = tuple(-(-n // by) for n, by in zip((outputs, inputs), self.block, strict=False))
        name = "" if stacked else "weight"
        of = _Weight(tuple(stacked), outputs, inputs, dtype, name, self.groups(inputs), tiles)
        yield from (*LAYOUTS[self.kind](self, of), *self.extra)


class _Weight(NamedTuple):
    """A weight `[*stacked, outputs, inputs]` that a layout packs in a model of `dtype`; stacked
    experts have no `name`. `groups`: those of a row; `tiles`: rows and columns of tiles, if any."""

    stacked: Sizes
    outputs: int
    inputs: int
    dtype: str
    name: str
    groups: int
    tiles: Sizes


def _zeros_width(layout: Layout, inputs: int) -> int:
    """Words for the zero points of a row (calculate_zeros_width of gptqmodel/utils/gemv.py)."""
    step = {32: 4, 64: 2}.get(layout.group, 1)
    words = -(-(inputs // (layout.group or inputs)) // 8)
    return -(-words // step) * step


def _words(layout: Layout, count: int) -> int:
    """32-bit words for the codes of `count` weights."""
    return -(-count * layout.bits // 32)


def _modelopt(layout: Layout, of: _Weight) -> tuple[PackedTensor, ...]:
    """ModelOpt's NVFP4, and its FP8 with one scale; of stacked experts the same for each."""
    one = PackedTensor(f"{of.name}_scale", of.stacked, "fp32")
    inputs = PackedTensor("_input_scale" if of.stacked else "input_scale", of.stacked, "fp32")
    if layout.bits == 8:
        weight = PackedTensor(of.name, (*of.stacked, of.outputs, of.inputs), "fp8")
        return weight, one, inputs
    weight = PackedTensor(of.name, (*of.stacked, of.outputs, of.inputs // 2), "uint8")
    scales = PackedTensor(f"{of.name}_scale", (*of.stacked, of.outputs, of.groups), "fp8")
    return weight, scales, one._replace(name=f"{of.name}_scale_2"), inputs


def _hqq(layout: Layout, of: _Weight) -> tuple[PackedTensor, ...]:
    """HQQLinear: codes of 1, 2, 4 and 8 bits in bytes, of 3 bits ten in a word; scales and zero
    points in the dtype of the model."""
    count = of.outputs * of.inputs
    size = layout.group or (of.outputs, of.inputs)[layout.axis]
    groups = count // size
    codes = PackedTensor("W_q", (count * layout.bits // 8,), "uint8")
    if layout.bits == 3:
        rows, columns = (groups, size) if layout.axis else (size, groups)
        codes = PackedTensor("W_q", (-(-rows // 10), columns), "int32")
    scale, zero = (PackedTensor(name, (groups, 1), of.dtype) for name in ("scale", "zero"))
    return codes, scale, zero


def _scaled(layout: Layout, of: _Weight) -> tuple[PackedTensor, ...]:
    """The naive compressor of compressed-tensors: one byte for each weight, with scales for all,
    each output, each group or each tile."""
    sizes = (1,) if layout.block == (0, 0) else of.tiles or (of.outputs, of.groups)
    code = "int8" if layout.kind == "int-quantized" else "fp8"
    parts = (
        PackedTensor("weight", (of.outputs, of.inputs), code),
        PackedTensor("weight_scale", sizes, layout.scales or of.dtype),
    )
    zeros = PackedTensor("weight_zero_point", sizes, "int8")
    return (*parts, zeros) if layout.asymmetric else parts


_T = PackedTensor
#: Kind -> the tensors that replace a weight.
LAYOUTS: Final[Mapping[str, Callable[[Layout, _Weight], tuple[PackedTensor, ...]]]] = {
    # GPTQQuantLinear: codes packed down the columns in words, zero points along the rows.
    "gptq": lambda layout, of: (
        _T("qweight", (_words(layout, of.inputs), of.outputs), "int32"),
        _T("qzeros", (of.groups, _words(layout, of.outputs)), "int32"),
        _T("scales", (of.groups, of.outputs), "fp16"),
        _T("g_idx", (of.inputs,), "int32"),
    ),
    # AWQuantLinear: codes packed along the rows, always with zero points.
    "awq": lambda layout, of: (
        _T("qweight", (of.inputs, of.outputs * layout.bits // 32), "int32"),
        _T("qzeros", (of.groups, of.outputs * layout.bits // 32), "int32"),
        _T("scales", (of.groups, of.outputs), "fp16"),
    ),
    "awq-gemv": lambda layout, of: (
        _T("qweight", (of.outputs, of.inputs * layout.bits // 32), "int32"),
        _T("qzeros", (of.outputs, _zeros_width(layout, of.inputs)), "int32"),
        _T("scales", (of.outputs, _zeros_width(layout, of.inputs) * 8), "fp16"),
    ),
    "awq-gemv-fast": lambda layout, of: (
        _T("qweight", (of.outputs // 4, of.inputs * layout.bits // 16 * 4), "int16"),
        _T("qzeros", (_zeros_width(layout, of.inputs) * 8, of.outputs), "fp16"),
        _T("scales", (_zeros_width(layout, of.inputs) * 8, of.outputs), "fp16"),
    ),
    # FP8Linear and FP8Experts: one byte for each weight, a scale for each tile, or one for all.
    "fp8": lambda layout, of: (
        _T(of.name, (*of.stacked, of.outputs, of.inputs), "fp8"),
        _T(
            f"{of.name}_scale_inv",
            (*of.stacked, *(of.tiles or ((1, 1) if of.stacked else ()))),
            layout.scales or "fp32",
        ),
    ),
    # FbgemmFp8Linear: a scale for each output.
    "fbgemm": lambda layout, of: (
        _T("weight", (of.outputs, of.inputs), "fp8"),
        _T("weight_scale", (of.outputs, 1), "fp32"),
        _T("input_scale_ub", (1,), "fp32"),
    ),
    "int-quantized": _scaled,
    "float-quantized": _scaled,
    "mxfp8-quantized": _scaled,
    # PackedQuantizationCompressor: codes packed along the rows in words, and a tensor with the
    # shape; zero points are packed in the same way, down the rows.
    "pack-quantized": lambda layout, of: (
        _T("weight_packed", (of.outputs, _words(layout, of.inputs)), "int32"),
        _T("weight_shape", (2,), "int64"),
        _T("weight_scale", (of.outputs, of.groups), of.dtype),
        _T("weight_zero_point", (_words(layout, of.outputs), of.groups), "int32"),
    )[: 4 if layout.asymmetric else 3],
    # NVFP4PackedCompressor and MXFP4PackedCompressor: two codes per byte.
    "nvfp4-pack-quantized": lambda layout, of: (
        _T("weight_packed", (of.outputs, of.inputs // 2), "uint8"),
        _T("weight_scale", (of.outputs, of.groups), layout.scales),
        _T("weight_global_scale", (1,), "fp32"),
    ),
    "mxfp4-pack-quantized": lambda layout, of: (
        _T("weight_packed", (of.outputs, of.inputs // 2), "uint8"),
        _T("weight_scale", (of.outputs, of.groups), layout.scales),
    ),
    "modelopt": _modelopt,
    # Mxfp4GptOssExperts: two codes per byte, and exponents as scales.
    "mxfp4": lambda layout, of: (
        _T(of.name, (*of.stacked, of.outputs, of.inputs // 2), "uint8"),
        _T(f"{of.name}_scale", (*of.stacked, of.outputs, of.groups), "uint8"),
    ),
    "hqq": _hqq,
    # The tensors in the files, for an unknown method.
    HELD: lambda layout, of: layout.held,
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
    numbers, "model" and "layers" (hqq).
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
        experts: whether stacked experts are "packed" like linear layers, "plain", or it is
            "unknown".
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
        """Whether the settings or the files say how modules are stored."""
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
