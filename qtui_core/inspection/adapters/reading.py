"""A LoRA as peft stores it, read without trusting it: its settings, and which module of the base
each of its tensors belongs to.

peft writes, for the module M of the base, `base_model.model.M.lora_A.weight` [r, in] and
`lora_B.weight` [out, r]; with DoRA `lora_magnitude_vector` [out]. Tensors under names of the base
(modules_to_save, bias) replace those of the base. Everything else is left to peft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.inspection.sentences import not_finite
from qtui_core.models import ModelSource, TensorInfo
from qtui_core.models.files.arrays import Float32, read_float32
from qtui_core.models.opening import AdapterSource
from qtui_core.models.quoting import quoted
from qtui_core.models.recognise import takes_forever

#: peft's defaults (`LoraConfig`, peft 0.21).
_RANK, _ALPHA = 8, 8
#: Keys that make the update another one than B·A, or the base another one than is stored.
_OTHER_KINDS: Final = (
    "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config",
    "alora_invocation_tokens", "layer_replication", "target_parameters",
    "trainable_token_indices", "megatron_config", "lora_bias",
)  # fmt: skip
#: Initialisations that change the base too: the update is not to the base as stored.
_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
#: The most characters of a module's name.
LONGEST_NAME = 300
_PREFIX = "base_model.model."
_A, _B, _MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"
_PARTS = re.compile(
    rf"(?P<module>.+)\.(?P<part>{re.escape(_A)}|{re.escape(_B)}|{_MAGNITUDE})"
    r"(?:(?<=vector)\.weight)?"
)
#: Names between a module and its own tensors where peft wraps it.
_WRAPPED = re.compile(r"\.(base_layer|modules_to_save)(?=\.)")
#: What belongs to an adapter and is not read here.
_UNKNOWN = re.compile(r"lora_|token_adapter|trainable_tokens")
_FLOATS = ("F32", "F16", "BF16", "F64")

#: (pattern, number) in the order of the file. A pattern matches the whole name of a module, or its
#: end after a dot; the first that matches counts.
Patterns = tuple[tuple[re.Pattern[str], float], ...]


@dataclass(frozen=True)
class LoraSettings:
    """How a LoRA is scaled.

    Attributes:
        rank, alpha: of modules that no pattern matches.
        rslora: whether the scale is alpha / sqrt(r) and not alpha / r.
        dora: whether the rows of the sum are scaled to trained magnitudes.
        fan_in_fan_out: whether weights are stored as [in, out], as by GPT-2's Conv1D; asked only
            for square weights.
    """

    rank: int
    alpha: float
    ranks: Patterns
    alphas: Patterns
    rslora: bool
    dora: bool
    fan_in_fan_out: bool

    def rank_of(self, module: str) -> int:
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """What B·A of a module is multiplied by: alpha / r, or alpha / sqrt(r) with rsLoRA
        (`LoraLayer.update_layer`)."""
        rank = self.rank_of(module)
        alpha = _matching(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    @property
    def words(self) -> str:
        """`LoRA, rank 8, alpha 16`."""
        form = f"{' and others' * bool(self.ranks or self.alphas)}{', rsLoRA' * self.rslora}"
        return f"{'DoRA' if self.dora else 'LoRA'}, rank {self.rank}, alpha {self.alpha:g}{form}"


@dataclass(frozen=True, eq=False)
class LoraModule:
    """The update of the module of that name in the base, `scale` b @ a: a is float32 `[r, in]`, b
    `[out, r]`, and the magnitude of DoRA `[out]`, None without."""

    name: str
    a: Float32
    b: Float32
    scale: float
    magnitude: Float32 | None


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter with its values: its modules by name, and what replaces tensors of the base, by
    their names the stored tensor that takes their place."""

    source: ModelSource
    settings: LoraSettings
    modules: Mapping[str, LoraModule]
    replaced: Mapping[str, str]


def fault(adapter: ModelSource, words: str) -> ModelError:
    """What is wrong with an adapter: "has no tensors"."""
    return ModelError(f"The adapter {quoted(adapter.id)} {words}.")


def left_to_peft(adapter: ModelSource, what: str) -> ModelError:
    """That qtui does not merge something, and what does: "has lora_bias set"."""
    words = "which qtui does not merge: merge it with peft and compare the result with --against"
    return fault(adapter, f"{what}, {words}")


def read_adapter(opened: AdapterSource) -> Adapter:
    """Reads an adapter: all of its values, but those that replace tensors of the base.

    Raises ModelError if it is no LoRA whose merged weight is W + s·B·A (DoRA aside), or if its
    tensors contradict each other or its configuration.
    """
    source = opened.weights
    settings = _settings(source, opened.config)
    parts: dict[str, dict[str, TensorInfo]] = {}
    replaced: dict[str, str] = {}
    for stored, info in source.tensors.items():
        name = stored.removeprefix(_PREFIX)
        if len(name) > LONGEST_NAME:
            raise fault(source, f"has a tensor whose name is too long to be real: {quoted(stored)}")
        if match := _PARTS.fullmatch(name):
            parts.setdefault(match["module"], {})[match["part"]] = info
            continue
        plain = _WRAPPED.sub("", name)
        if _UNKNOWN.search(plain) or plain in replaced:
            raise left_to_peft(source, f"has the tensor {quoted(stored)}")
        replaced[plain] = stored
    if not parts and not replaced:
        raise fault(source, "has no tensors: there is nothing to merge")
    modules = {name: _module(source, settings, name, own) for name, own in parts.items()}
    return Adapter(source, settings, modules, replaced)


def _settings(adapter: ModelSource, config: Mapping[str, Any]) -> LoraSettings:
    """What adapter_config.json says. Raises ModelError for values of a wrong type."""
    if (kind := config.get("peft_type")) != "LORA":
        raise left_to_peft(adapter, f"is {quoted(kind)} (peft_type in adapter_config.json)")
    if other := next(filter(config.get, _OTHER_KINDS), None):
        raise left_to_peft(adapter, f"has {other} set")
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGING_BASE):
        raise fault(
            adapter,
            f"was initialised with {quoted(start)}, which changes the base too: save it with "
            f"peft's path_initial_model_for_weight_conversion",
        )

    def checked(key: str, value: Any, fits: bool, what: str) -> Any:
        if not fits:
            raise fault(adapter, f"has {key} = {quoted(value)}, where {what} belongs")
        return value

    def number(key: str, value: Any, *kinds: type) -> Any:
        what = "a number above 0" if float in kinds else "a whole number above 0"
        return checked(key, value, type(value) in kinds and 0 < value < 1e9, what)

    def flag(key: str) -> bool:
        value = config.get(key) or False
        return bool(checked(key, value, isinstance(value, bool), "true or false"))

    def patterns(key: str, *kinds: type) -> Patterns:
        given = config.get(key) or {}
        checked(key, given, isinstance(given, dict), "an object of names and numbers")
        return tuple((pattern(key, text), number(key, n, *kinds)) for text, n in given.items())

    def pattern(key: str, text: str) -> re.Pattern[str]:
        forever = takes_forever(f".*{text}", LONGEST_NAME)
        checked(key, text, not forever, "a pattern with fewer repetitions")
        try:
            return re.compile(rf"(.*\.)?({text})$")  # as peft's `get_pattern_key` matches them
        except (re.error, OverflowError, RecursionError) as error:
            wrong = f"has {quoted(text)} in {key}, which is no regular expression"
            raise fault(adapter, wrong) from error

    return LoraSettings(
        rank=number("r", config.get("r", _RANK), int),
        alpha=number("lora_alpha", config.get("lora_alpha", _ALPHA), int, float),
        ranks=patterns("rank_pattern", int),
        alphas=patterns("alpha_pattern", int, float),
        rslora=flag("use_rslora"),
        dora=flag("use_dora"),
        fan_in_fan_out=flag("fan_in_fan_out"),
    )


def _matching(patterns: Patterns, module: str, usual: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), usual)


def _module(
    source: ModelSource, settings: LoraSettings, name: str, parts: Mapping[str, TensorInfo]
) -> LoraModule:
    values = {part: _values(source, info) for part, info in parts.items()}
    shapes = ", ".join(f"{part} {list(of.shape)}" for part, of in values.items())
    a, b, magnitude = (values.get(part) for part in (_A, _B, _MAGNITUDE))
    rank = settings.rank_of(name)
    if a is None or b is None or settings.dora != (magnitude is not None):
        wanted = f"{_A}, {_B}{f' and {_MAGNITUDE}' * settings.dora}"
        raise fault(source, f"at {quoted(name)} has {shapes}, where {wanted} belong")
    if a.ndim != 2 or b.ndim != 2:
        raise left_to_peft(source, f"has tensors of a convolution at {quoted(name)}")
    lengths = None if magnitude is None else magnitude.reshape(-1)
    if not (len(a) == b.shape[1] == rank and (lengths is None or lengths.size == len(b))):
        raise fault(source, f"at {quoted(name)} has {shapes}, where the rank is {rank}")
    return LoraModule(name, a, b, settings.scale_of(name), lengths)


def _values(source: ModelSource, info: TensorInfo) -> Float32:
    """A tensor of the adapter in its own shape. peft too loads adapters as float32."""
    name = quoted(info.name)
    if info.dtype not in _FLOATS:
        wrong = f"stores {name} as {info.dtype}, where floating-point numbers of 16 bits belong"
        raise fault(source, wrong)
    if not info.elements:
        raise fault(source, f"has {name} without values")
    values = read_float32(source, info.name).reshape(info.shape)
    if broken := int(np.count_nonzero(~np.isfinite(values))):
        raise ModelError(f"{not_finite(broken, f'in {name} of {quoted(source.id)}')}.")
    return values
