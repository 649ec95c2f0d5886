"""What adapter_config.json says of a LoRA, read without trusting it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError
from qtui_core.models.patterns import takes_forever
from qtui_core.models.quoting import quoted

#: peft's defaults (`LoraConfig`, peft 0.21).
_RANK, _ALPHA = 8, 8
#: Keys that make the update another one than B·A, or the base another one than is stored: what they
#: stand for.
_OTHER_KINDS = {
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "alora_invocation_tokens": "an activated LoRA, which cannot be merged",
    "layer_replication": "replicated layers",
    "target_parameters": "parameters that are no module's weight",
    "trainable_token_indices": "trained tokens",
    "megatron_config": "Megatron",
}
#: Initialisations that change the base too: the update is not to the base as stored.
_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
#: The most characters of a module's name.
LONGEST_NAME = 300


@dataclass(frozen=True)
class LoraSettings:
    """How a LoRA is scaled.

    Attributes:
        rank, alpha: of modules that no pattern matches.
        ranks, alphas: (pattern, number) in the order of the file. A pattern matches the whole name
            of a module, or its end after a dot; the first that matches counts.
        rslora: whether the scale is alpha / sqrt(r) and not alpha / r.
        dora: whether the columns of the sum are scaled to trained magnitudes.
        fan_in_fan_out: whether weights are stored as [in, out], as by GPT-2's Conv1D. peft sets it
            for each layer by its class; it is asked only for square weights.
    """

    rank: int
    alpha: float
    ranks: tuple[tuple[re.Pattern[str], float], ...]
    alphas: tuple[tuple[re.Pattern[str], float], ...]
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
        kind = "DoRA" if self.dora else "LoRA"
        many = " and others" if self.ranks or self.alphas else ""
        form = ", rsLoRA's scale" if self.rslora else ""
        return f"{kind}, rank {self.rank}, alpha {self.alpha:g}{many}{form}"


def read_settings(config: Mapping[str, Any], where: str) -> LoraSettings:
    """The settings of an adapter_config.json; `where` names the adapter.

    Raises ModelError for another method than LoRA, for a kind of LoRA whose merged weight is not
    W + s·B·A (DoRA aside), and for values of a wrong type.
    """
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"The adapter {where} is {quoted(kind)}, and qtui merges only LORA (peft_type in "
            f"adapter_config.json)."
        )
    for key, words in _OTHER_KINDS.items():
        if config.get(key):
            raise ModelError(
                f"The adapter {where} has {key} set ({words}), which qtui does not merge: merge it "
                f"with peft and compare the result with --against."
            )
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_CHANGING_BASE):
        raise ModelError(
            f"The adapter {where} was initialised with {quoted(start)}, which changes the base "
            f"too: save it with peft's path_initial_model_for_weight_conversion, which makes a "
            f"LoRA for the base as stored."
        )
    return LoraSettings(
        rank=int(_number(config.get("r", _RANK), "r", where, whole=True)),
        alpha=_number(config.get("lora_alpha", _ALPHA), "lora_alpha", where),
        ranks=_patterns(config, "rank_pattern", where, whole=True),
        alphas=_patterns(config, "alpha_pattern", where),
        rslora=_flag(config, "use_rslora", where),
        dora=_flag(config, "use_dora", where),
        fan_in_fan_out=_flag(config, "fan_in_fan_out", where),
    )


def _matching(
    patterns: tuple[tuple[re.Pattern[str], float], ...], module: str, usual: float
) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), usual)


def _number(value: Any, key: str, where: str, *, whole: bool = False) -> float:
    fits = type(value) is int or (type(value) is float and not whole)
    if not fits or not 0 < value < 1e9:
        what = "a whole number" if whole else "a number"
        raise ModelError(
            f"The adapter {where} has {key} = {quoted(value)}, where {what} above 0 belongs."
        )
    return float(value)


def _flag(config: Mapping[str, Any], key: str, where: str) -> bool:
    value = config.get(key) or False
    if value is not True and value is not False:
        raise ModelError(
            f"The adapter {where} has {key} = {quoted(value)}, where true or false belongs."
        )
    return value


def _patterns(
    config: Mapping[str, Any], key: str, where: str, *, whole: bool = False
) -> tuple[tuple[re.Pattern[str], float], ...]:
    """The patterns of a key, compiled as peft's `get_pattern_key` matches them."""
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise ModelError(f"The adapter {where} has a {key} that is no object of names and numbers.")
    return tuple(
        (_pattern(text, key, where), _number(value, f"{key}[{quoted(text)}]", where, whole=whole))
        for text, value in found.items()
    )


def _pattern(text: str, key: str, where: str) -> re.Pattern[str]:
    if takes_forever(f".*{text}", LONGEST_NAME):
        raise ModelError(
            f"The adapter {where} has the pattern {quoted(text)} in {key}, which may take forever "
            f"to match: write one with fewer repetitions, and none of a group."
        )
    try:
        return re.compile(rf"(.*\.)?({text})$")
    except (re.error, OverflowError, RecursionError) as error:
        raise ModelError(
            f"The adapter {where} has {quoted(text)} in {key}, which is no regular expression."
        ) from error
