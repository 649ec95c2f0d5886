"""The experiments: their questions, costs and settings. Standard library only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Final

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.lab.settings import Setting, Value, settle

STEPS: Final = Setting("steps", "whole", 40, "Steps of each run.", 1, 100_000, steps=(20, 40, 80))
LR: Final = Setting(
    "lr", "number", 3e-4, "The learning rate.", 0, 1, steps=(1e-5, 1e-4, 3e-4, 1e-3)
)
SEEDS: Final = Setting(
    "seeds", "wholes", (0,), "Seeds, with commas between; each is a run more.", 0, 2**31 - 1
)
#: Of every experiment on a model.
_ON_MODEL: Final = (
    Setting("text", "text", None, "A text file to learn from.  [default: a built-in text]"),
    Setting("device", "choice", "cpu", "Where the model runs.", allowed=("cpu", "cuda")),
)
#: The names of `qtui_core.lab.numerics.products.SCHEMES`, in the order of the table.
PRODUCT_SCHEMES: Final = (
    "bf16", "int8 row", "int8 tensor", "int8 tile", "int4 row", "fp8 unscaled", "fp8 tensor e5m2",
    "fp8 tensor", "fp8 row", "fp8 blocks", "mxfp8", "mxfp4", "nvfp4", "nvfp4 stochastic",
    "nvfp4 full",
)  # fmt: skip
#: Names of recipes in `qtui_core.lab.training.recipes`, in the order of the table.
LOWBIT_RECIPES: Final = (
    "bf16", "int8 mixed", "int8 weights", "int8 weights nearest", "int8 tiles", "fp8 flow",
    "fp8 flow scaled", "float8 tensor", "float8 row", "mxfp8", "mxfp4", "nvfp4", "nvfp4 full",
    "nvfp4 forward", "nvfp4 backward", "int4 rows", "bitnet",
)  # fmt: skip
#: Names of optimizers in `qtui_core.lab.experiments.optimizers`.
OPTIMIZERS: Final = (
    "bf16", "bitsandbytes 8-bit", "torchao 8-bit", "torchao fp8", "torchao 4-bit",
)  # fmt: skip
STORED: Final = ("bf16", "fp16", "e4m3", "int8")
#: Floating-point formats in which a term can be stored without a scale.
FLOATS: Final = ("bf16", "fp16", "e4m3")
_STORE: Final = Setting("store", "choice", "bf16", "The format it is about.", allowed=FLOATS)
_DECAY: Final = Setting("decay", "number", 0.1, "Weight decay.", 0, 10, steps=(0.0, 0.01, 0.1))
#: With a beta of 1 a moment never moves, and its bias correction divides by zero.
_UNDER_1: Final = 1 - 2.0**-24
_BETA2: Final = Setting(
    "beta2", "number", 0.999, "Of the second moment.", 0, _UNDER_1, steps=(0.95, 0.99, 0.999)
)
_TASK: Final = Setting(
    "task", "choice", None, "The task; without one what the experiment is for.",
    allowed=("prose", "code", "nano"),
)  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A row of the catalogue: its name as it is typed, the question that it answers, and about how
    many seconds its default run takes on two idle cores."""

    name: str
    question: str
    seconds: int
    settings: tuple[Setting, ...]

    def settle(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """All settings with their values. Raises UsageError for unknown names and invalid
        values."""
        return settle(self.settings, given)

    def module(self) -> Any:
        """The module of the experiment, with its functions `jobs` and `conclude`. Imports torch."""
        return importlib.import_module(f"qtui_core.lab.experiments.{self.name.replace('-', '_')}")


EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    Experiment("underflow", "Does the update reach the weight?", 50, (
        LR.but(1e-5), _STORE.but("bf16", allowed=STORED), STEPS, SEEDS, _DECAY, _BETA2,
        Setting("ema", "number", 0.999, "Of an average of the weights.", 0, 1,
                steps=(0.99, 0.999, 0.9999)),
        Setting("accumulation", "whole", 32, "Micro batches of a gradient.", 1, 65_536,
                steps=(8, 32, 256)),
        *_ON_MODEL,
    )),
    Experiment("survive", "Does this run survive weights of low precision?", 10, (
        LR.but(2e-5), _STORE, _DECAY.but(0.0),
        Setting("beta1", "number", 0.9, "Of AdamW's first moment.", 0, _UNDER_1), _BETA2,
        Setting("batch", "whole", 4, "Sequences of a step.", 1, 1024),
        Setting("sequence", "whole", 128, "Tokens of a sequence.", 2, 65_536),
        *_ON_MODEL,
    )),
    Experiment("matmul", "What does low precision do to the three products of a layer?", 25, (
        Setting("schemes", "several", PRODUCT_SCHEMES[:-1], "Schemes to compare.",
                allowed=PRODUCT_SCHEMES),
        Setting("scheme", "choice", "int8 row", "What layers are in one by one.",
                allowed=PRODUCT_SCHEMES),
        *_ON_MODEL,
    )),
    Experiment("lossscale", "Which loss scale do gradients need, and why does a scale fall?", 30, (
        _STORE.but("fp16", allowed=("fp16", "e5m2", "e4m3")),
        Setting("starts", "numbers", (1.0, 65536.0, 16777216.0),
                "Scales that GradScaler starts from.", 2.0**-20, 2.0**60),
        Setting("interval", "whole", 10, "Steps after which it doubles its scale.", 1, 100_000),
        STEPS, LR.but(1e-3), *_ON_MODEL,
    )),
    Experiment("lowbit", "Which recipe of low precision trains as float32 does?", 70, (
        Setting("recipes", "several", (*LOWBIT_RECIPES[:4], "fp8 flow", "fp8 flow scaled", "nvfp4"),
                "Recipes to compare.", allowed=LOWBIT_RECIPES),
        LR, STEPS.but(20), SEEDS, _TASK, *_ON_MODEL,
    )),
    Experiment("qat", "Is training with quantized weights better than quantizing afterwards?", 65, (
        Setting("bits", "wholes", (2, 3, 4), "Widths of the weights.", 2, 8),
        Setting("group", "whole", 64, "Weights that share a scale.", 8, 4096, steps=(32, 64, 128)),
        STEPS.but(16), LR.but(None, help="The learning rate; without one that of each width."),
        SEEDS, *_ON_MODEL,
    )),
    Experiment("range-test", "How many bits do weights and activations need to learn?", 50, (
        Setting("bits", "wholes", (2, 3, 4, 5, 6, 8), "Widths to try.", 2, 8),
        Setting("threshold", "number", 0.5, "Of fp32's improvement, to count as learning.", 0, 1),
        Setting("tolerance", "number", 0.03, "Nats behind fp32 that count as even.", 0, 10),
        STEPS.but(80), LR.but(1e-3), SEEDS, _TASK, *_ON_MODEL,
    )),
    Experiment("optimizers", "What do optimizer states of few bits do to learning?", 45, (
        Setting("optimizers", "several", OPTIMIZERS, "Optimizers to run.", allowed=OPTIMIZERS),
        STEPS.but(20), LR, SEEDS,
        _BETA2.but(0.999, help="Of second moments that fall quiet; runs have 0.95."), *_ON_MODEL,
    )),
)  # fmt: skip


def experiment_named(name: str) -> Experiment:
    """The experiment of that name. Raises UsageError, with the known names, if there is none."""
    for row in EXPERIMENTS:
        if row.name == name:
            return row
    names = ", ".join(row.name for row in EXPERIMENTS)
    raise UsageError(f"There is no experiment {name!r}; there are {names}.")


def cost_text(seconds: float) -> str:
    """How long a run takes: so many seconds on idle cores, and four times that was measured on
    cores that others used."""
    return f"{seconds:.0f} to {4 * seconds:.0f} s"
