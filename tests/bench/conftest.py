"""Races between contenders on the same bytes, and the table of their times.

Contenders take turns, so that whatever else the machine does affects all of them; the median of
the rounds of each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pytest
from racing import race

SHAPES = ((4096, 4096), (4096, 14336))


@dataclass(frozen=True)
class Weights:
    """The same values as a float32 array, and as a torch tensor of the dtype under test."""

    name: str
    array: np.ndarray
    tensor: object
    nbytes: int


@dataclass
class Table:
    """The measurements, printed once at the end."""

    title: str
    nbytes: int
    copy_seconds: float
    rows: list[tuple[str, float, str]] = field(default_factory=list)

    def race(
        self, contenders: dict[str, Callable[[], object]], against: str, rounds: int = 15
    ) -> dict[str, float]:
        """How many times faster than `against` each contender is."""
        found = race(contenders, rounds, median)
        ratios = {name: found[against] / seconds for name, seconds in found.items()}
        for name, seconds in found.items():
            self.rows.append((name, seconds, f"{ratios[name]:.2f}x {against}"))
        return ratios

    def print(self) -> None:
        print(f"\n\n{self.title:50} {'ms':>8} {'GB/s':>7} {'of copy':>8}  ratio")
        for name, seconds, ratio in self.rows:
            rate = self.nbytes / seconds / 1e9
            share = self.copy_seconds / seconds
            print(f"{name:50} {1e3 * seconds:8.1f} {rate:7.2f} {share:8.1%}  {ratio}")


@pytest.fixture(
    scope="module",
    params=[(shape, dtype) for shape in SHAPES for dtype in ("float32", "bfloat16")],
    ids=lambda p: f"{p[0][0]}x{p[0][1]}-{p[1]}",
)
def weights(request: pytest.FixtureRequest) -> Weights:
    torch = pytest.importorskip("torch")
    shape, dtype = request.param
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    tensor = torch.from_numpy(x).to(getattr(torch, dtype))
    return Weights(
        f"{shape[0]} x {shape[1]} {dtype}", tensor.float().numpy(), tensor, tensor.nbytes
    )


@pytest.fixture(scope="module")
def table(weights: Weights) -> Iterator[Table]:
    out = np.empty_like(weights.array)
    seconds = race({"copy": lambda: np.copyto(out, weights.array)})["copy"]
    # Rates count float32 bytes, as the arithmetic is done in float32, whatever is stored.
    made = Table(weights.name, weights.array.nbytes, seconds)
    made.rows.append(("copy of the float32 values", seconds, "into a preallocated array"))
    yield made
    made.print()
