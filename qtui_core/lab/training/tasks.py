"""Tasks: a model, a text and how to train. Named tasks are reproducible; others use the model and
text of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import cache, lru_cache, partial
from typing import Any, Final, Literal

import numpy as np
import torch

from qtui_core.dataclass import dataclass
from qtui_core.errors import UsageError
from qtui_core.loading.text import HELD_BACK_PROSE, PROSE, read_text
from qtui_core.loading.tokens import Ids, cut
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models.demo import HELD_BACK_TEXT, training_bytes
from qtui_core.models.opening import DEMO, open_model
from qtui_core.models.source import ModelSource
from qtui_core.training.model.weights import load_weights, settle
from qtui_core.training.run.data import encode

#: How many bytes of Python source `code` and `nano` draw their batches from.
_CODE_BYTES: Final = 1 << 20
#: The number of held-out tokens on which a loss is measured, and the tokens of a window.
HELD_OUT: Final = 16_384
WINDOW: Final = 128
#: The share of a user's text, at its end, that is held out.
_HELD_SHARE: Final = 8
#: The fewest tokens of a text of which that share fills a window.
_LEAST: Final = _HELD_SHARE * WINDOW


@dataclass(frozen=True)
class LabTask:
    """How a task is trained.

    Attributes:
        batch, sequence: sequences of a step, and tokens of a sequence.
        clip: the norm that gradients are clipped to; None for no clipping.
        decays: whether the learning rate falls linearly to 0; otherwise it is constant after its
            ramp.
        betas: of AdamW.
        ramp: the number of steps over which the learning rate rises.
    """

    name: Literal["prose", "code", "nano"]
    batch: int
    sequence: int
    clip: float | None
    decays: bool
    betas: tuple[float, float] = (0.9, 0.95)
    ramp: int = 10

    def rate(self, step: int, steps: int, lr: float) -> float:
        """The learning rate of a step; steps count from 0."""
        risen = min(1.0, (step + 1) / self.ramp) if self.ramp else 1.0
        return lr * risen * ((1 - step / steps) if self.decays else 1.0)


TASKS: Final[dict[str, LabTask]] = {
    "prose": LabTask("prose", 4, 128, None, False),
    "code": LabTask("code", 4, 128, 1.0, True),
    "nano": LabTask("nano", 8, 128, 1.0, False, ramp=0),
}


_device = "cpu"


def use_device(name: str) -> None:
    """Makes the subjects of this process run on a device, "cpu" or "cuda". Raises UsageError if
    PyTorch finds no such device."""
    global _device
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch finds no CUDA device here; take --device cpu.")
    if name != _device:
        subject_of.cache_clear()
    _device = name


class LabSubject:
    """A model and a text, from which runs start identically, on the device of `use_device`.

    Attributes:
        task: how it is trained.
        held_out: int64 `[windows, WINDOW]`.
        dtype: of the weights and the gradients, "fp32" or "bf16".
    """

    def __init__(
        self, task: LabTask, model: str = DEMO, text: str | None = None, as_stored: bool = False
    ) -> None:
        """`as_stored` leaves BF16 weights in BF16; without it all are float32. Raises ModelError
        for a model that cannot be trained here, UsageError for a text that is too short."""
        self.task = task
        self.dtype = "fp32"
        self._net: Any = None
        ids_of: Callable[[bytes], Ids] = _ids_of_bytes
        if task.name != "nano":
            source = open_model(model)
            if as_stored and {t.dtype for t in source.tensors.values()} == {"BF16"}:
                self.dtype = "bf16"
            plan = resolve(RunPlan(method="full", dtype=self.dtype), None)
            built = load_weights(source, plan)
            settle(built.model, _device)
            self._net = built.model.eval()  # two runs, and two gradients, drop the same: nothing
            self._net.config.use_cache = False
            if model != DEMO or text is not None:
                ids_of = partial(_ids_of_text, source, self._net)
        if text is None:
            self._train, held = map(ids_of, _texts(task))
        else:
            ids = ids_of(read_text(text, "training").content.encode())
            self._train, held = np.split(ids, [ids.size - ids.size // _HELD_SHARE])
        windows = cut(held[:HELD_OUT], WINDOW)
        if not len(windows) or self._train.size <= task.sequence:
            least = max(_LEAST, _HELD_SHARE * -(-(task.sequence + 1) // (_HELD_SHARE - 1)))
            raise UsageError(
                f"The text has {self._train.size + held.size:,} tokens; with sequences of "
                f"{task.sequence:,} an experiment needs {least:,} or more, of which the last "
                f"eighth is held out."
            )
        self.held_out = torch.from_numpy(windows).to(_device)

    def fresh(self, seed: int) -> Any:
        """A model as every run starts with it: float32, without dropout, which would be taken for
        an error of a format. `nano` is initialised from the seed; others are copies of the loaded
        model."""
        return nano(seed).to(_device) if self._net is None else deepcopy(self._net)

    def start(self) -> Any:
        """The loaded model itself, for callers that do not change its weights."""
        return nano(0).to(_device) if self._net is None else self._net

    def batches(self, seed: int) -> Iterator[torch.Tensor]:
        """Endless batches int64 `[batch, sequence + 1]`, the same for the same seed."""
        random = np.random.default_rng(seed)
        length = self.task.sequence + 1
        while True:
            starts = random.integers(0, self._train.size - length + 1, self.task.batch)
            rows = np.stack([self._train[at : at + length] for at in starts])
            yield torch.from_numpy(rows).to(_device)


def chosen_task(settings: Mapping[str, Any], model: str, usual: str) -> LabTask:
    """The task of some settings. Raises UsageError for `nano`, which makes its own model, with
    another model or text."""
    task = settings["task"] or usual
    if task == "nano" and (model != DEMO or settings["text"] is not None):
        raise UsageError(
            "--task nano makes its own model and text: leave MODEL and --text out, or take --task "
            "prose or code."
        )
    return TASKS[task]


def check_subject(model: str, text: str | None) -> None:
    """Opens the model and the text of a subject without reading weights. Raises ModelError for a
    model that does not exist, UsageError for a text that cannot be read."""
    open_model(model)
    if text is not None:
        read_text(text, "training")


@lru_cache(maxsize=1)
def subject_of(
    task: LabTask, model: str = DEMO, text: str | None = None, as_stored: bool = False
) -> LabSubject:
    """The subject for a task, model and text. The last one is kept, as the jobs of an experiment
    share it. Raises what LabSubject raises."""
    return LabSubject(task, model, text, as_stored)


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next token in float32, nats, over int64 `[batch, length]`."""
    logits = model(input_ids=ids[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Any, windows: torch.Tensor, rows: int = 32) -> float:
    """Mean cross entropy over windows `[windows, length]`, nats per token."""
    total = sum(float(loss_of(model, part)) * len(part) for part in windows.split(rows))
    return total / len(windows)


def nano(seed: int) -> Any:
    """A byte-level Llama with 2 layers of width 128 and 434,816 parameters, initialised from the
    seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, max_position_embeddings=256,
        tie_word_embeddings=False, use_cache=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).train()


@cache
def _texts(task: LabTask) -> tuple[bytes, bytes]:
    if task.name == "prose":
        return PROSE.read_bytes(), HELD_BACK_PROSE.read_bytes()
    return training_bytes(_CODE_BYTES), HELD_BACK_TEXT.read_bytes()


def _ids_of_bytes(text: bytes) -> Ids:
    return np.frombuffer(text, np.uint8).astype(np.int64)


def _ids_of_text(source: ModelSource, net: Any, text: bytes) -> Ids:
    return encode(text.decode(errors="replace"), source, net).ids
