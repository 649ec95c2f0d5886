"""Recipes of low precision by name: what is trained in few bits, by whose code, and which recipe to
use instead where it is worse.

Libraries do what they can on this machine. The rest is emulated: codes are multiplied in float32 as
the numbers they stand for, which says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal
from unittest.mock import patch

import torch
from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.extras import importing
from qtui_core.lab.numerics.products import (
    SCHEMES,
    Products,
    emulate,
    inner_linears,
    is_head,
    linears,
)
from qtui_core.lab.training.tasks import TASKS
from qtui_core.lab.training.twins import Recipe

#: Which layers a recipe converts: the linear layers except the head, those of feed-forward parts,
#: or all.
Part = Literal["body", "feed-forward", "all"]
#: Changes the layers of these names in a model; random rounding has this seed.
Prepare = Callable[[nn.Module, Collection[str], int], None]
#: Parts of the names of feed-forward layers in the families of transformers.
_FEED_FORWARD: Final = ("mlp", "feed_forward", "ffn", "fc1", "fc2", "w1", "w2", "w3")


def _bf16() -> AbstractContextManager[Any]:
    """Weights, optimizer states and losses stay float32."""
    return torch.autocast("cpu", torch.bfloat16)


@dataclass(frozen=True)
class LowBitRecipe:
    """A row of the table of recipes.

    Attributes:
        by: whose code computes: "torch", "torchao", or "emulated".
        prepare: converts the layers.
        part: what is converted.
        drawn: whether it rounds at random.
        cure: the recipe to use instead where this one is worse than float32.
        context, around, optimizer: as of a Recipe.
    """

    by: str
    prepare: Prepare
    part: Part = "body"
    drawn: bool = False
    cure: str = ""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    optimizer: Callable[[Any, float], Any] | None = None

    @property
    def timed(self) -> bool:
        """Whether its seconds mean anything, which those of an emulation do not."""
        return "emulated" not in self.by


def recipe_named(name: str, seed: int) -> Recipe:
    """The recipe of that name, whose random rounding is seeded with `seed`. The notes of its run
    say which linear layers it converts and which it leaves.

    Preparing raises ModelError for a model of which it converts nothing, MissingLibrary if a
    library lacks something, UsageError for layers of sizes that the library does not accept.
    """
    row, notes = RECIPES[name], []

    def prepare(model: nn.Module) -> None:
        every = list(linears(model))
        chosen = [layer for layer in every if _belongs(layer, row.part)]
        if not chosen:
            raise ModelError(f"The model has no linear layer that {name} converts ({row.part}).")
        left = [layer for layer in every if layer not in set(chosen)]
        notes.append(f"{len(chosen)} of {len(every)} linear layers converted: {patterns(chosen)}")
        notes.append(f"left as they are: {patterns(left) or 'none'}")
        row.prepare(model, chosen, seed)

    return Recipe(
        prepare,
        row.optimizer,
        context=row.context,
        around=row.around,
        ended=lambda model, optimizer, run: replace(run, notes=tuple(notes)),
    )


def _belongs(name: str, part: Part) -> bool:
    if part == "feed-forward":
        return any(word in name.split(".") for word in _FEED_FORWARD)
    return part == "all" or not is_head(name)


def patterns(names: Iterable[str]) -> str:
    """The names of layers in one line, with one pattern for names that differ only in a number:
    "layers.*.mlp.up_proj (6)"."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        counts[pattern] = counts.get(pattern, 0) + 1
    return ", ".join(f"{p} ({count})" if "*" in p else p for p, count in counts.items())


def _emulated(products: Products, model: nn.Module, names: Collection[str], seed: int) -> None:
    emulate(model, dict.fromkeys(names, products), torch.Generator().manual_seed(seed))


def _quantized_training(
    config: str, model: nn.Module, names: Collection[str], seed: int, **options: Any
) -> None:
    """With a config of torchao.prototype.quantized_training."""
    with importing("This recipe", "torchao"):
        from torchao.prototype import quantized_training
        from torchao.quantization import quantize_
    made = getattr(quantized_training, config)(**options)
    quantize_(model, made, filter_fn=lambda module, name: name in names)
    torch.manual_seed(seed)  # it draws from torch's global generator


def _weight_only(model: nn.Module, lr: float) -> Any:
    """torchao's AdamW, the only one that its integer weights can be trained with: its arithmetic is
    float32, and it rounds once."""
    with importing("Training of integer weights", "torchao"):
        from torchao.optim import _AdamW
    trained = [p for p in model.parameters() if p.requires_grad]
    return _AdamW(trained, lr=lr, betas=TASKS["prose"].betas, eps=1e-8, weight_decay=0.0)


def eagerly() -> AbstractContextManager[Any]:
    """A context in which torch compiles nothing. torchao's optimizers would otherwise need many
    seconds for each shape of parameters, and a C++ compiler."""
    return torch.compiler.set_stance("force_eager")


@contextmanager
def to_nearest() -> Iterator[None]:
    """A context in which torchao compiles nothing and its integer weights round to nearest. They
    always round stochastically, so torchao's function is replaced for that time."""
    from torchao.prototype.quantized_training import int8

    theirs = int8.quantize_int8_rowwise

    def nearest(tensor: Any, stochastic_rounding: bool = False, **more: Any) -> Any:
        return theirs(tensor, False, **more)

    with patch.object(int8, "quantize_int8_rowwise", nearest), eagerly():
        yield


def grouped_linears(model: nn.Module, group: int) -> list[str]:
    """The linear layers but the head. Raises ModelError without any, UsageError if `group` does not
    divide the inputs of one."""
    layers = inner_linears(model)
    for name, layer in layers.items():
        if layer.in_features % group:
            raise UsageError(
                f"--group {group} does not divide the {layer.in_features} inputs of {name}."
            )
    return list(layers)


def fake_quantized(model: nn.Module, bits: int, group: int) -> nn.Module:
    """Changes the model: its layers multiply by weights of `bits` bits, which they keep in float32.
    The gradient is that of the rounded weight, and 0 if the weight was clipped.

    Raises ModelError without such layers, MissingLibrary without torchao, UsageError if `group`
    does not divide the inputs of a layer.
    """
    chosen = set(grouped_linears(model, group))
    with importing("QAT", "torchao"):
        from torchao.quantization import quantize_
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
    weights = IntxFakeQuantizeConfig(
        getattr(torch, f"int{bits}"), group_size=group, is_symmetric=True
    )
    config = QATConfig(weight_config=weights, step="prepare")
    quantize_(model, config, filter_fn=lambda module, name: name in chosen)
    return model


def _float8(recipe: str, model: nn.Module, names: Collection[str], seed: int) -> None:
    """With torchao.float8 and the CPU's `_scaled_mm`, which takes only layers of some sizes."""
    with importing("This recipe", "torchao"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    for name in names:
        outputs, inputs = model.get_parameter(f"{name}.weight").shape
        if inputs % 16 or outputs % 16:
            raise UsageError(
                f"torchao takes layers whose sizes are multiples of 16; {name} has {inputs} inputs "
                f"and {outputs} outputs."
            )
    config = Float8LinearConfig.from_recipe_name(recipe)
    convert_to_float8_training(
        model, module_filter_fn=lambda module, name: name in names, config=config
    )


def _row(scheme: str, cure: str, drawn: bool = False) -> LowBitRecipe:
    return LowBitRecipe("emulated", partial(_emulated, SCHEMES[scheme]), drawn=drawn, cure=cure)


def _flow(scheme: str, cure: str) -> LowBitRecipe:
    """FP8 products in feed-forward parts; everything else runs in BF16."""
    emulated, by = partial(_emulated, SCHEMES[scheme]), "torch, fp8 emulated"
    return LowBitRecipe(by, emulated, "feed-forward", cure=cure, context=_bf16)


_INT8: Final = partial(_quantized_training, "int8_weight_only_quantized_training")
_FULL: Final = SCHEMES["nvfp4 full"]
#: Every recipe, in the order of the table. The nvfp4 recipe "full" has stochastic gradients, a
#: rotation before dW, and weights in tiles; "forward" and "backward" are the same with only these
#: products quantized. torchao has two ways of mixed precision; torch 2.13 does not call the one
#: with a tensor subclass.
RECIPES: Final[dict[str, LowBitRecipe]] = {
    "bf16": LowBitRecipe("torch", lambda *_: None, "all", context=_bf16),
    "int8 mixed": LowBitRecipe(
        "torchao",
        partial(_quantized_training, "Int8MixedPrecisionTrainingConfig", module_swap=True),
        cure="bf16",
    ),
    "int8 weights": LowBitRecipe(
        "torchao", _INT8, drawn=True, cure="int8 mixed", around=eagerly, optimizer=_weight_only
    ),
    "int8 weights nearest": LowBitRecipe(
        "torchao", _INT8, cure="int8 weights", around=to_nearest, optimizer=_weight_only
    ),
    "int8 tiles": _row("int8 tile", "int8 mixed"),
    "fp8 flow": _flow("fp8 unscaled", "fp8 flow scaled"),
    "fp8 flow scaled": _flow("fp8 tensor e5m2", "bf16"),
    "float8 tensor": LowBitRecipe("torchao", partial(_float8, "tensorwise"), cure="bf16"),
    "float8 row": LowBitRecipe("torchao", partial(_float8, "rowwise"), cure="bf16"),
    "mxfp8": _row("mxfp8", "bf16"),
    "mxfp4": _row("mxfp4", "nvfp4 backward"),
    "nvfp4": _row("nvfp4", "nvfp4 backward"),
    "nvfp4 full": _row("nvfp4 full", "nvfp4 backward", drawn=True),
    "nvfp4 forward": LowBitRecipe(
        "emulated", partial(_emulated, _FULL.only(forward=True)), cure="nvfp4 backward"
    ),
    "nvfp4 backward": LowBitRecipe(
        "emulated", partial(_emulated, _FULL.only(forward=False)), drawn=True, cure="bf16"
    ),
    "int4 rows": _row("int4 row", "int8 mixed"),
    "bitnet": LowBitRecipe("torchao", partial(_quantized_training, "bitnet_training")),
}
