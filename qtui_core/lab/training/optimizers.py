"""Optimizers that keep their states in few bits, made by their own libraries; and what is read off
them after a run: bytes, the use of codes, and whether they move parameters without a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import torch

from qtui_core.errors import UsageError
from qtui_core.extras import MissingLibrary, importing
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.training.model.optimizers import optimizer_tensors, shared_tables

Named = Iterable[tuple[str, torch.nn.Parameter]]
#: Whether Muon takes a parameter, by its name.
Takes = Callable[[str, torch.nn.Parameter], bool]
_EPSILON: Final = 1e-8
#: The test for drift: elements whose gradient is zero, elements whose gradient is not, steps, and
#: the learning rate.
_UNTOUCHED: Final = 8192
_STEPS: Final = 100
_RATE: Final = 1e-3


class BothOptimizers:
    """Two optimizers as one. Each steps over its own parameters."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts
        self.param_groups = [group for part in parts for group in part.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        return dict(chain.from_iterable(part.state.items() for part in self._parts))

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none)


def make(name: str, named: Named, lr: float, betas: tuple[float, float], takes: Takes) -> Any:
    """The optimizer of that name over named parameters, without weight decay. Raises MissingLibrary
    if its library is not installed or no longer has it."""
    listed = [(each, p) for each, p in named if p.requires_grad]
    trained = [p for _, p in listed]
    settings: dict[str, Any] = {"lr": lr, "betas": betas, "eps": _EPSILON, "weight_decay": 0.0}
    match name:
        case "fp32" | "bf16":
            optimizer = torch.optim.AdamW(trained, **settings)
            if name == "bf16":
                optimizer.register_step_post_hook(_round_states)
            return optimizer
        case "bitsandbytes 8-bit":
            with importing("AdamW8bit", "bitsandbytes"):
                from bitsandbytes.optim import AdamW8bit
            return AdamW8bit(trained, **settings)
        case "torchao 8-bit" | "torchao fp8" | "torchao 4-bit":
            with importing("An optimizer of low-bit states", "torchao"):
                from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
            kinds = {"8-bit": AdamW8bit, "fp8": AdamWFp8, "4-bit": AdamW4bit}
            return kinds[name.removeprefix("torchao ")](trained, **settings)
        case "muon":
            if not hasattr(torch.optim, "Muon"):
                raise MissingLibrary(
                    f"Muon came with PyTorch 2.9 and this is {torch.__version__}: "
                    f"pip install -U torch."
                )
            matrices = [p for each, p in listed if p.dim() == 2 and takes(each, p)]
            if not matrices:
                raise UsageError("Muon takes matrices alone, and the model has none.")
            chosen = set(map(id, matrices))
            muon = torch.optim.Muon(
                matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"
            )
            rest = [p for p in trained if id(p) not in chosen]
            return BothOptimizers(muon, torch.optim.AdamW(rest, **settings)) if rest else muon
    raise UsageError(f"There is no optimizer {name!r}.")


def _round_states(optimizer: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
    """Rounds the moments to BF16 after a step; they remain float32 tensors."""
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key].copy_(STORAGES["bf16"].nearest(state[key]))


@contextmanager
def eagerly() -> Iterator[None]:
    """A context in which torch compiles nothing. torchao's optimizers would otherwise need many
    seconds for each shape of parameters, and a C++ compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield


def state_bytes(name: str, optimizer: Any, named: Named) -> int:
    """The bytes of the states, without the tables of levels: codes and scales, or numbers of four
    bytes. Where BF16 is emulated in float32, two bytes are counted."""
    tables = {each for each, _ in shared_tables(optimizer)}
    found = sum(
        tensor.numel() * tensor.element_size()
        for each, tensor in optimizer_tensors(optimizer, named)
        if each not in tables and not each.endswith(".qmap")
    )
    return found // 2 if name == "bf16" else found


def codes_of(optimizer: Any) -> dict[str, torch.Tensor]:
    """How often each code occurs in "m" and "v": int64 counts `[2^bits]`. Empty for states that are
    not codes."""
    found: dict[str, list[torch.Tensor]] = {}
    bits = 8
    for state in optimizer.state.values():
        for moment, keys in (("m", ("exp_avg", "state1")), ("v", ("exp_avg_sq", "state2"))):
            held = next((state[key] for key in keys if key in state), None)
            codes: Any = getattr(held, "codes", held)
            if held is None or codes.element_size() != 1:
                continue
            flat = codes.view(torch.uint8).reshape(-1)
            if codes.numel() * 2 == held.numel():  # two 4-bit codes in a byte
                flat, bits = torch.cat([flat >> 4, flat & 15]), 4
            found.setdefault(moment, []).append(torch.bincount(flat, minlength=2**bits))
    return {moment: torch.stack(counts).sum(0) for moment, counts in found.items()}


def entropy(counts: torch.Tensor) -> float:
    """The entropy of codes with these counts, in bits."""
    share = counts[counts > 0].double() / counts.sum()
    return float(-(share * share.log2()).sum())


def drift(name: str) -> tuple[float, float]:
    """The share of parameters that moved in a hundred steps at a rate of 0.001 although their
    gradient was always zero, and how far the farthest one moved. Each of them shares a block with
    parameters that have a gradient."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2 * _UNTOUCHED // 128, 128, generator=generator) * 0.02
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make(name, [("matrix", parameter)], _RATE, (0.9, 0.95), lambda name, p: True)
    touched = torch.arange(start.numel()).view_as(start) % 2 == 1
    for _ in range(_STEPS):
        noise = torch.randn(start.shape, generator=generator) * 1e-3
        parameter.grad = noise * touched
        optimizer.step()
    moved = (parameter.detach() - start)[~touched].abs()
    most = float(moved.max())
    return (float((moved > 0).double().mean()), most) if math.isfinite(most) else (1.0, math.inf)
