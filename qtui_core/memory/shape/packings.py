"""How a checkpoint stores quantized layers, as its quantization_config says it: a `Packing`, which
has the modules that are packed, what can be done with them, and a `Layout` for each.

Which modules are packed follows the quantizers of transformers 5.23 (quantizers/quantizer_*.py),
optimum for GPTQ, and the matching rules of compressed-tensors. If a setting cannot be read or a
method is unknown, the packing says so and has no layout. What a module takes is read from the
headers of its files (packed.py); without any it follows from one rule, and is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Final, Literal, NamedTuple

from qtui_core.dataclass import dataclass
from qtui_core.memory.shape.config_reader import written
from qtui_core.models.quoting import printable
from qtui_core.models.recognise import declared_method, matches, quantization_config

Settings = Mapping[str, Any]

#: The value in a plan for "as the checkpoint stores them", for methods other than bitsandbytes.
STORED: Final = "stored"


class PackedTensor(NamedTuple):
    """A tensor of a packed module: its name in the module, elements, and dtype, empty for that of
    the model. The first of a module holds the codes."""

    name: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Layout:
    """How one weight is packed.

    Attributes:
        kind: of the layer that computes with it: a method, a format of compressed-tensors, for
            bitsandbytes a way to store weights (options.QUANTS); "held" of an unknown method.
        bits: of a code.
        group: weights that share a scale; 0 is a row.
        scales: the dtype of what is stored for each group; empty is that of the model.
        held: all tensors of the module, by the headers of the files.
    """

    kind: str
    bits: int = 4
    group: int = 0
    scales: str = ""
    held: tuple[PackedTensor, ...] = ()

    def parts(self, weight: tuple[int, ...], dtype: str) -> Iterator[PackedTensor]:
        """The tensors that replace a weight `[..., outputs, inputs]` in a model of `dtype`: those
        of the files, or else the codes, and a scale for each group. Stacked experts are parameters,
        whose codes have no name of their own."""
        name, count = "" if len(weight) > 2 else "weight", prod(weight)
        derived = (
            PackedTensor(name, -(-count * self.bits // 8), "uint8"),
            PackedTensor(f"{name}_scale", -(-count // (self.group or weight[-1])), self.scales),
        )
        for part in self.held or derived:
            yield part._replace(dtype=part.dtype or dtype)


#: Kinds of compressed-tensors that the first forward pass unpacks permanently (ct_decompress_hook)
#: -> the dtype of their scales; empty is that of the model.
UNPACKED_BY_FORWARD: Final[Mapping[str, str]] = {
    "int-quantized": "", "float-quantized": "", "pack-quantized": "",
    "nvfp4-pack-quantized": "fp8", "mxfp4-pack-quantized": "uint8", "mxfp8-quantized": "uint8",
}  # fmt: skip


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


def _as_tag(tag: str, name: str) -> bool:
    return tag == ".".join(
        part for part in name.split(".") if part not in ("model", "layers") and not part.isnumeric()
    )


_MATCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "module": _as_module, "glob": lambda pattern, name: fnmatchcase(name, pattern), "tag": _as_tag,
    "full": lambda pattern, name: (
        matches(pattern[3:], name) if pattern.startswith("re:") else pattern == name
    ),
}  # fmt: skip


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
        held: whether the headers of the files show how every packed module is stored.
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
        known = (self.layout, *(rule.layout for rule in self.rules))
        return self.held or any(layout is not None for layout in known)

    @property
    def quant(self) -> str:
        """The `quant` of a plan that keeps it as it is: that of bitsandbytes, or "stored"."""
        own = self.layout if self.method == "bitsandbytes" else None
        return STORED if own is None else own.kind

    def of(self, name: str) -> Layout | None:
        """How the module with this full name is stored; None if it is not packed."""
        return next((rule.layout for rule in self.rules if rule.takes(name)), self.layout)


class _Unreadable(Exception):
    """A setting that is missing or invalid. Its message is the end of a sentence."""


def packing_of(config: Settings) -> Packing | None:
    """How the checkpoint of a parsed config.json is stored; None if it is not quantized."""
    settings = quantization_config(config)
    if settings is None:
        return None
    declared = declared_method(settings) or ""
    method = "bitsandbytes" if declared.startswith("bitsandbytes") else declared
    if method not in _METHODS:
        what = f"as {method!r}" if method else "by a method that quantization_config does not name"
        return _unknown_layout(method or "unnamed", f"{what}, of which no layout is built in")
    packing, read = _METHODS[method]
    try:
        packing = replace(packing, **read(settings))
    except _Unreadable as error:
        return _unknown_layout(method, f"as {method}, but {error}")
    note = f"The checkpoint is stored quantized ({packing.title}). {packing.note}"
    return replace(packing, note=note.strip())


def packing_of_files(method: str) -> Packing:
    """How a checkpoint is stored of which only the files say that it is quantized, in the words of
    `QuantizationInfo.method`."""
    found = _unknown_layout(method, f"as {method}, which config.json does not say")
    if method != "gguf":
        return found
    loads = "transformers unpacks it as it is loaded; llama.cpp keeps it packed"
    return replace(found, title="GGUF", dequantizes=True, experts="packed", untrained=loads)


def as_served(packing: Packing) -> Packing:
    """The same as engines keep it that never unpack it (vLLM), experts too: codes of 4 or 8
    bits."""

    def served(layout: Layout | None) -> Layout | None:
        if layout is None or layout.kind not in UNPACKED_BY_FORWARD:
            return layout
        return replace(layout, kind="modelopt", bits=8 if layout.bits > 4 else 4)

    rules = tuple(replace(rule, layout=served(rule.layout)) for rule in packing.rules)
    return replace(packing, layout=served(packing.layout), rules=rules, experts="packed")


def _unknown_layout(method: str, stored: str) -> Packing:
    return Packing(
        method,
        printable(method),
        untrained="what its layers compute with is not known",
        note=f"The checkpoint is stored quantized {printable(stored)}. config.json does not say "
        "how many bytes its weights take: they are counted as if they were unpacked, which is an "
        "upper bound, and no figure that rests on it is exact.",
    )


#: What a method's settings change of its row in `_METHODS`: fields of `Packing`.
Changes = dict[str, Any]


def _gptq(settings: Settings) -> Changes:
    """The linear layers inside the rows of layers (optimum's convert_model), or those in a list of
    names; GPTQModel's `dynamic` adds others and removes those after a minus."""
    layout = _grouped(settings, "gptq", (2, 3, 4, 8))
    rules = []
    dynamic = settings.get("dynamic")
    for pattern, changes in dynamic.items() if isinstance(dynamic, dict) else ():
        named = (f"re:{str(pattern).removeprefix('-:').removeprefix('+:')}",)
        if str(pattern).startswith("-:"):
            rules.append(Rule(named, "full"))
        elif isinstance(changes, dict):
            other = _grouped({**settings, **changes}, "gptq", (2, 3, 4, 8))
            rules.append(Rule(named, "full", other))
    within = settings.get("modules_in_block_to_quantize")
    if isinstance(within, list) and within:
        flat = [name for each in within for name in (*_names([each]), *_names(each))]
        rules += [Rule(tuple(f"*{name}" for name in flat), "glob", layout), Rule(("*",), "glob")]
    return {"layout": layout, "rules": tuple(rules), "head": settings.get("lm_head") is True,
            "title": _title("GPTQ", layout)}  # fmt: skip


def _awq(settings: Settings) -> Changes:
    form = settings.get("version", settings.get("format", "gemm"))
    if not isinstance(form, str) or form.lower() not in ("gemm", "gemv", "gemv_fast"):
        raise _Unreadable(f"its packing is {written(form)}, of which no layout is built in")
    layout = _grouped(settings, "awq", (4,), 4)
    return {"layout": layout, "rules": _skipped(settings)["rules"], "title": _title("AWQ", layout)}


def _fp8(settings: Settings) -> Changes:
    found = settings.get("weight_block_size", (128, 128))
    rows, columns = (0, 0) if found is None else _tile(found, "weight_block_size")
    scales = "uint8" if settings.get("scale_fmt") == "ue8m0" else "fp32"
    return {
        "title": f"FP8 in tiles of {rows} x {columns}" if rows else "FP8, a scale a tensor",
        "layout": Layout("fp8", 8, rows * columns, scales),
        **_skipped(settings),
    }


def _bitsandbytes(settings: Settings) -> Changes:
    eight = settings.get("load_in_8bit") is True
    kind = "nf4" if settings.get("bnb_4bit_quant_type") == "nf4" else "fp4"
    kind += "-dq" * (settings.get("bnb_4bit_use_double_quant") is True)
    layout = Layout("int8", 8) if eight else Layout(kind)
    title = f"bitsandbytes {'LLM.int8' if eight else kind}"
    return {"title": title, "layout": layout, **_skipped(settings)}


def _hqq(settings: Settings) -> Changes:
    found = settings.get("quant_config")
    if not isinstance(found, dict):
        found = {"weight_quant_params": settings}  # the arguments of HqqConfig
    rules = [Rule(_names(settings.get("skip_modules", ["lm_head"])), "tag")]
    whole = "weight_quant_params" in found
    tags = {"": found} if whole else found
    layouts = {tag: _hqq_layout(each) for tag, each in tags.items() if isinstance(each, dict)}
    if not layouts:
        raise _Unreadable("its quant_config names no settings")
    if not whole:
        rules += [Rule((tag,), "tag", layout) for tag, layout in layouts.items()]
        rules.append(Rule(("*",), "glob"))
    first = next(iter(layouts.values()))
    return {"title": _title("HQQ", first), "layout": first, "rules": tuple(rules)}


def _hqq_layout(found: Settings) -> Layout:
    """A scale and a zero point of 16 bits for each group."""
    weights = found.get("weight_quant_params")
    if not isinstance(weights, Mapping):
        raise _Unreadable("its quant_config has no weight_quant_params")
    if found.get("scale_quant_params") or found.get("zero_quant_params"):
        raise _Unreadable("its scales or zero points are quantized again, which hqq has given up")
    layout = _grouped(weights, "hqq", (1, 2, 3, 4, 5, 6, 8), 4, 64)
    return replace(layout, bits=8 if layout.bits in (5, 6) else layout.bits, scales="fp32")


def _compressed(settings: Settings) -> Changes:
    listed = settings.get("config_groups")
    groups = [
        group
        for group in (listed.values() if isinstance(listed, dict) else ())
        if isinstance(group, dict) and isinstance(group.get("weights"), dict)
    ]
    if not groups:
        raise _Unreadable("it has no config_groups that say something of weights")
    rules = [Rule(_names(settings.get("ignore")), "full")]
    for group in groups:
        rules.append(
            Rule(_names(group.get("targets")), "full", _compressed_layout(settings, group))
        )
    if not any(rule.names for rule in rules[1:]):
        raise _Unreadable("none of its config_groups names a module")
    layout = next((rule.layout for rule in rules[1:] if "Linear" in rule.names), None)
    titles = dict.fromkeys(rule.layout.kind for rule in rules if rule.layout is not None)
    note, untrained = _METHODS["compressed-tensors"][0].note, ""
    if any(group.get("input_activations") for group in groups):
        note += " Inputs are rounded as quantized ones would be, and what that takes is not "
        note += "counted."
    if any(title.endswith("pack-quantized") for title in titles):
        untrained = "its layers have no weight that peft could put adapters over until the first "
        untrained += "forward pass has unpacked them"
    return {
        "title": f"compressed-tensors, {' and '.join(titles)}",
        "layout": layout,
        "rules": tuple(rules),
        "untrained": untrained,
        "note": note,
    }


def _compressed_layout(settings: Settings, group: Settings) -> Layout:
    """The format is that of the group or of all, or follows from the codes (infer_module_format of
    compressed-tensors)."""
    weights = group["weights"]
    kind = group.get("format") or settings.get("format")
    if kind in (None, "mixed-precision", "naive-quantized", "dense"):
        kind = "int-quantized" if group.get("input_activations") else "pack-quantized"
        if weights.get("type") == "float":
            small = f"{'nv' if weights.get('group_size') == 16 else 'mx'}fp4-pack-quantized"
            kind = small if weights.get("num_bits") == 4 else "float-quantized"
    if not isinstance(kind, str) or kind not in UNPACKED_BY_FORWARD:
        raise _Unreadable(f"its format is {written(kind)}, of which no layout is built in")
    layout = _grouped(weights, kind, tuple(range(1, 9)), group=-1)
    bits, size = layout.bits if kind.endswith("pack-quantized") else 8, layout.group
    if weights.get("strategy") == "block":
        size = prod(_tile(weights.get("block_structure"), "block_structure"))
    return Layout(kind, bits, size, UNPACKED_BY_FORWARD[kind])


def _modelopt(settings: Settings) -> Changes:
    algorithm = settings.get("quant_algo")
    names = _names(settings.get("ignore") or settings.get("exclude_modules"))
    rules = [Rule(names, "glob")] if names else []
    layout = None
    if algorithm == "MIXED_PRECISION":
        rules += _by_part(settings.get("quantized_layers"))
    elif isinstance(algorithm, str):
        layout = _OF_MODELOPT.get(algorithm)
    if layout is None and not any(rule.layout for rule in rules):
        raise _Unreadable(f"its quant_algo is {written(algorithm)}, of which no layout is built in")
    return {"title": f"ModelOpt {algorithm}", "layout": layout, "rules": tuple(rules)}


def _by_part(listed: object) -> Iterator[Rule]:
    """A rule for each part of a layer in ModelOpt's list of modules: those of a part are alike."""
    for part in ("attn", "mlp", "lm_head"):
        for name, how in listed.items() if isinstance(listed, Mapping) else ():
            algorithm = how.get("quant_algo") if isinstance(how, Mapping) else None
            if part in name and isinstance(algorithm, str) and algorithm in _OF_MODELOPT:
                yield Rule((f"*{part}*",), "glob", _OF_MODELOPT[algorithm])
                break


_NVFP4: Final = Layout("modelopt", 4, 16, "fp8")
_OF_MODELOPT: Final = {
    "NVFP4": _NVFP4, "W4A16_NVFP4": _NVFP4, "FP8": Layout("modelopt", 8, 0, "fp32"),
}  # fmt: skip


def _mxfp4(settings: Settings) -> Changes:
    """Halves of bytes and a scale for 32 of them, of experts alone (integrations/mxfp4.py of
    transformers)."""
    experts = Rule(("*.experts",), "glob", Layout("mxfp4", 4, 32, "uint8"))
    return {"rules": (*_skipped(settings)["rules"], experts)}


def _skipped(settings: Settings) -> Changes:
    """What is not packed; of a list that does not name it, the output layer is."""
    keys = ("modules_to_not_convert", "ignored_layers", "llm_int8_skip_modules")
    found = next((settings[key] for key in keys if settings.get(key) is not None), None)
    names = _names(found)
    return {"rules": (Rule(names, "module"),) if names else (), "head": isinstance(found, list)}


def _names(found: object) -> tuple[str, ...]:
    """The names in a list; none if it is not a list."""
    listed = found if isinstance(found, list | tuple) else ()
    return tuple(name for name in listed if isinstance(name, str) and name)


def _grouped(
    settings: Settings, kind: str, allowed: tuple[int, ...], bits: int | None = None,
    group: int = 128,
) -> Layout:  # fmt: skip
    """Bits a weight and weights a scale, under the name that a method has for them."""
    names = ("bits", "w_bit", "nbits", "num_bits")
    name = next((name for name in names if name in settings), "bits")
    found = settings.get(name, bits)
    if type(found) is not int or found not in allowed:
        raise _Unreadable(f"its {name} is {written(found)}")
    size = settings.get("group_size", settings.get("q_group_size", group))
    if size in (-1, None):
        return Layout(kind, found)
    if not _positive(size):
        raise _Unreadable(f"its group_size is {written(size)}")
    return Layout(kind, found, size)


def _positive(value: object) -> bool:
    return type(value) is int and value > 0


def _tile(found: object, key: str) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if isinstance(found, list | tuple) and len(found) == 2 and all(map(_positive, found)):
        return found[0], found[1]
    raise _Unreadable(f"its {key} is {written(found)}")


def _title(name: str, layout: Layout) -> str:
    groups = f"in groups of {layout.group}" if layout.group else "with a scale an output"
    return f"{name}, {layout.bits} bits {groups}"


_KERNELS: Final = (
    "Its kernels unpack each weight to 16 bits for a product, which is counted; those that unpack "
    "as they multiply (Marlin, taken for inference on Ampere and later) need less."
)
_NO_LOADER: Final = "the installed transformers (5.23) does not load it"
#: quant_method -> what is true of every checkpoint of it, and what its settings say.
_METHODS: Final[Mapping[str, tuple[Packing, Callable[[Settings], Changes]]]] = {
    "gptq": (Packing(
        "gptq", "GPTQ", outside=False, transposed=True,
        note=f"{_KERNELS} In training what is unpacked is kept for the backward pass, but where "
        "layers are checkpointed.",
    ), _gptq),
    "awq": (Packing("awq", "AWQ", note=_KERNELS), _awq),
    "fp8": (Packing(
        "fp8", "FP8", experts="packed", dequantizes=True,
        note="Its kernels need a GPU of compute capability 8.9; on an older one transformers loads "
        "it unpacked.",
    ), _fp8),
    "fbgemm_fp8": (Packing(
        "fbgemm_fp8", "FP8 of FBGEMM, a scale an output", Layout("fbgemm", 8, 0, "fp32"),
        untrained="transformers trains nothing over weights of FBGEMM",
    ), _skipped),
    "bitsandbytes": (Packing(
        "bitsandbytes", "bitsandbytes", transposed=True, experts="plain",
    ), _bitsandbytes),
    "hqq": (Packing(
        "hqq", "HQQ", head=True,
        note=f"{_NO_LOADER.capitalize()}; counted are the layers of the package hqq, which unpack "
        "each weight for a product.",
    ), _hqq),
    "compressed-tensors": (Packing(
        "compressed-tensors", "compressed-tensors", head=True, experts="plain", dequantizes=True,
        note="transformers keeps it packed only until the first forward pass, which unpacks every "
        "layer for good (compressed-tensors' hook); vLLM and others keep it packed.",
    ), _compressed),
    "modelopt": (Packing(
        "modelopt", "ModelOpt", head=True, experts="packed", untrained=_NO_LOADER,
        note=f"{_NO_LOADER.capitalize()}; vLLM and TensorRT-LLM do. What their kernels take beside "
        "the weights is not counted.",
    ), _modelopt),
    "mxfp4": (Packing(
        "mxfp4", "MXFP4", experts="packed", dequantizes=True,
        untrained="transformers unpacks it to train",
        note="Its kernels need a GPU of compute capability 7.5 and triton; else transformers loads "
        "it unpacked. Beside the weights what the class makes is counted; they make less.",
    ), _mxfp4),
}  # fmt: skip
