"""Recipes of low precision by name: what is trained in few bits, by whose code, and which recipe to
use instead where it is worse.

Libraries do what they can on this machine. The rest is emulated: codes are multiplied in float32 as
the numbers they stand for, which says nothing about speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Literal

import torch
from torch import nn

from qtui_core.dataclass import dataclass
from qtui_core.errors import ModelError, UsageError
from qtui_core.extras import importing
from qtui_core.lab.numerics.products import (
    SCHEMES,
    QuantizedLinear,
    convert,
    inner_linears,
    is_head,
    linears,
)
from qtui_core.lab.training.optimizers import eagerly
from qtui_core.lab.training.tasks import TASKS
from qtui_core.lab.training.twins import Recipe

#: Which layers a recipe converts: the linear layers except the head, those of feed-forward parts,
#: or all.
Part = Literal["body", "feed-forward", "all"]
#: Names the layers of a model that a recipe converts.
Names = Callable[[nn.Module], Sequence[str]]
#: Parts of the names of feed-forward layers in the families of transformers.
_FEED_FORWARD: Final = ("mlp", "feed_forward", "ffn", "fc1", "fc2", "w1", "w2", "w3")


@dataclass(frozen=True)
class LowBitRecipe:
    """A row of the table of recipes.

    Attributes:
        by: whose code computes: "torch", "torchao", or "emulated".
        build: makes the recipe from what names its layers and the seed for random rounding.
        part: what is converted.
        drawn: whether it rounds at random.
        cure: the recipe to use instead where this one is worse than float32.
    """

    by: str
    build: Callable[[Names, int], Recipe]
    part: Part = "body"
    drawn: bool = False
    cure: str = ""

    @property
    def timed(self) -> bool:
        """Whether its seconds mean anything, which those of an emulation do not."""
        return "emulated" not in self.by


def recipe_named(name: str, seed: int, told: list[str]) -> Recipe:
    """The recipe of that name, whose random rounding is seeded with `seed`. When it prepares its
    model, it appends to `told` which linear layers it converts and which it leaves.

    Preparing raises ModelError for a model of which it converts nothing, MissingLibrary if a
    library lacks something, UsageError for layers of sizes that the library does not accept.
    """
    row = RECIPES[name]

    def names(model: nn.Module) -> list[str]:
        every = list(linears(model))
        chosen = [name for name in every if _belongs(name, row.part)]
        if not chosen:
            raise ModelError(f"The model has no linear layer that {name} converts ({row.part}).")
        left = [name for name in every if name not in set(chosen)]
        told.append(f"{len(chosen)} of {len(every)} linear layers converted: {patterns(chosen)}")
        told.append(f"left as they are: {patterns(left) or 'none'}")
        return chosen

    return row.build(names, seed)


def _belongs(name: str, part: Part) -> bool:
    if part == "all":
        return True
    if part == "body":
        return not is_head(name)
    return any(each in name.split(".") for each in _FEED_FORWARD)


def patterns(names: Iterable[str]) -> str:
    """The names of layers in one line, with one pattern for names that differ only in a number:
    "layers.*.mlp.up_proj (6)"."""
    counts: dict[str, int] = {}
    for name in names:
        pattern = ".".join("*" if part.isdigit() else part for part in name.split("."))
        counts[pattern] = counts.get(pattern, 0) + 1
    return ", ".join(f"{p} ({count})" if "*" in p else p for p, count in counts.items())


def _products(scheme: str, *, half: str = "", autocast: bool = False) -> Any:
    """A recipe with emulated products. `half` quantizes only the "forward" or only the "backward"
    products. With `autocast` everything else runs in BF16."""

    def build(names: Names, seed: int) -> Recipe:
        products = SCHEMES[scheme]
        if half:
            products = products.only(forward=half == "forward")
        random = torch.Generator().manual_seed(seed)

        def prepare(model: nn.Module) -> None:
            chosen: dict[str, Any] = {name: model.get_submodule(name) for name in names(model)}
            layers = {n: QuantizedLinear(one, products, random) for n, one in chosen.items()}
            convert(model, layers)

        return Recipe(prepare, context=_autocast if autocast else nullcontext)

    return build


def _autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def _bf16(names: Names, seed: int) -> Recipe:
    """A recipe that runs in BF16 what autocast does; weights, optimizer states and losses stay
    float32."""
    return Recipe(lambda model: names(model) and None, context=_autocast)


def _quantized_training(
    config: str, optimizer: Any = None, around: Any = nullcontext, **options: Any
) -> Any:
    """A recipe that converts the layers with a config of torchao.prototype.quantized_training."""

    def build(names: Names, seed: int) -> Recipe:
        def prepare(model: nn.Module) -> None:
            with importing("This recipe", "torchao"):
                from torchao.prototype import quantized_training
                from torchao.quantization import quantize_
            make = getattr(quantized_training, config, None)
            if make is None:
                raise UsageError(f"This version of torchao has no {config}, so this cannot run.")
            chosen = set(names(model))
            before = _output_of(model, chosen)
            quantize_(model, make(**options), filter_fn=lambda module, name: name in chosen)
            if torch.equal(_output_of(model, chosen), before):
                raise UsageError(f"With this version of torchao {config} changes no product.")
            torch.manual_seed(seed)  # it draws from torch's global generator

        return Recipe(prepare, optimizer, around=around)

    return build


@torch.no_grad()
def _output_of(model: nn.Module, names: Iterable[str]) -> torch.Tensor:
    """The output of one of the named layers for a fixed input of 32 tokens."""
    layer: Any = model.get_submodule(next(iter(names)))
    made: torch.Tensor = layer(torch.linspace(-1, 1, 32 * layer.in_features).view(32, -1))
    return made


def _weight_only(model: nn.Module, lr: float) -> Any:
    """torchao's AdamW, the only one that its integer weights can be trained with: its arithmetic is
    float32, and it rounds once."""
    with importing("Training of integer weights", "torchao"):
        from torchao.optim import _AdamW
    trained = [p for p in model.parameters() if p.requires_grad]
    return _AdamW(trained, lr=lr, betas=TASKS["prose"].betas, eps=1e-8, weight_decay=0.0)


@contextmanager
def to_nearest() -> Iterator[None]:
    """A context in which torchao compiles nothing and its integer weights round to nearest. They
    always round stochastically, so torchao's function is replaced for that time."""
    from torchao.prototype.quantized_training import int8

    theirs = int8.quantize_int8_rowwise
    int8.quantize_int8_rowwise = lambda tensor, stochastic_rounding=False, **more: theirs(
        tensor, False, **more
    )
    try:
        with eagerly():
            yield
    finally:
        int8.quantize_int8_rowwise = theirs


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


def _float8(recipe: str) -> Any:
    """A recipe of torchao.float8, with the CPU's `_scaled_mm`."""

    def build(names: Names, seed: int) -> Recipe:
        def prepare(model: nn.Module) -> None:
            with importing("This recipe", "torchao"):
                from torchao.float8 import Float8LinearConfig, convert_to_float8_training
            chosen = set(names(model))
            _sized(model, chosen, 16)
            convert_to_float8_training(
                model,
                module_filter_fn=lambda module, name: name in chosen,
                config=Float8LinearConfig.from_recipe_name(recipe),
            )

        return Recipe(prepare)

    return build


def _sized(model: nn.Module, names: Iterable[str], multiple: int) -> None:
    """Raises UsageError for a layer of a size that the library does not accept."""
    for name in names:
        layer: Any = model.get_submodule(name)
        if layer.in_features % multiple or layer.out_features % multiple:
            raise UsageError(
                f"torchao takes layers whose sizes are multiples of {multiple}; {name} has "
                f"{layer.in_features} inputs and {layer.out_features} outputs."
            )


#: Every recipe, in the order of the table. The nvfp4 recipe "full" has stochastic gradients, a
#: rotation before dW, and weights in tiles; "forward" and "backward" are the same with only these
#: products quantized.
RECIPES: Final[dict[str, LowBitRecipe]] = {
    "bf16": LowBitRecipe("torch", _bf16, "all"),
    "int8 mixed": LowBitRecipe(
        "torchao",  # torchao has two ways; torch 2.13 does not call the one with a tensor subclass.
        _quantized_training("Int8MixedPrecisionTrainingConfig", module_swap=True),
        cure="bf16",
    ),
    "int8 weights": LowBitRecipe(
        "torchao",
        _quantized_training("int8_weight_only_quantized_training", _weight_only, eagerly),
        drawn=True,
        cure="int8 mixed",
    ),
    "int8 weights nearest": LowBitRecipe(
        "torchao",
        _quantized_training("int8_weight_only_quantized_training", _weight_only, to_nearest),
        cure="int8 weights",
    ),
    "int8 tiles": LowBitRecipe("emulated", _products("int8 tile"), cure="int8 mixed"),
    "fp8 flow": LowBitRecipe(
        "torch, fp8 emulated",
        _products("fp8 unscaled", autocast=True),
        "feed-forward",
        cure="fp8 flow scaled",
    ),
    "fp8 flow scaled": LowBitRecipe(
        "torch, fp8 emulated",
        _products("fp8 tensor e5m2", autocast=True),
        "feed-forward",
        cure="bf16",
    ),
    "float8 tensor": LowBitRecipe("torchao", _float8("tensorwise"), cure="bf16"),
    "float8 row": LowBitRecipe("torchao", _float8("rowwise"), cure="bf16"),
    "mxfp8": LowBitRecipe("emulated", _products("mxfp8"), cure="bf16"),
    "mxfp4": LowBitRecipe("emulated", _products("mxfp4"), cure="nvfp4 backward"),
    "nvfp4": LowBitRecipe("emulated", _products("nvfp4"), cure="nvfp4 backward"),
    "nvfp4 full": LowBitRecipe(
        "emulated", _products("nvfp4 full"), drawn=True, cure="nvfp4 backward"
    ),
    "nvfp4 forward": LowBitRecipe(
        "emulated", _products("nvfp4 full", half="forward"), cure="nvfp4 backward"
    ),
    "nvfp4 backward": LowBitRecipe(
        "emulated", _products("nvfp4 full", half="backward"), drawn=True, cure="bf16"
    ),
    "int4 rows": LowBitRecipe("emulated", _products("int4 row"), cure="int8 mixed"),
    "bitnet": LowBitRecipe("torchao", _quantized_training("bitnet_training")),
}
