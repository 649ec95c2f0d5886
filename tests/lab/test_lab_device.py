"""Experiments on a GPU: every tensor of a quantized product is on the device of its operands.

No GPU is needed: PyTorch's fake tensors have a device, refuse to mix two, and compute nothing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.lab.catalog import EXPERIMENTS

tasks = LazyImport("qtui_core.lab.training.tasks")

#: In a process of its own, because the fake GPU replaces operations of PyTorch.
PROGRAM = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from qtui_core.lab.numerics import state_maps
from qtui_core.lab.numerics.products import SCHEMES
from qtui_core.lab.numerics.rounding import STORAGES
from qtui_core.lab.training.twins import null
from qtui_core.training.tracing import fake_guard

fake_guard.install()
drawn = torch.Generator().manual_seed(0)
tables = state_maps.dynamic_codes(False), state_maps.linear_codes()
with FakeTensorMode(allow_non_fake_inputs=True):
    x, w, g = (torch.empty(*shape, device="cuda") for shape in ((64, 256), (128, 256), (64, 128)))
    for name, kind in SCHEMES.items():
        for made in (kind.y(x, w, drawn), kind.dx(g, w, drawn), kind.dw(g, x, drawn)):
            assert made.device.type == "cuda", name
    moments = torch.empty(512, device="cuda")
    for codes in tables:
        assert state_maps.nearest_code(codes, 256, moments).device.type == "cuda"
    assert STORAGES["bf16"].stochastic(moments, drawn).device.type == "cuda"
    null().prepare(torch.nn.Linear(256, 128, device="cuda"))
print("fine")
"""


@pytest.mark.slow
def test_products_roundings_and_states_stay_on_the_device_of_their_operands():
    told = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert told.stdout == "fine\n", told.stderr


def test_a_device_that_is_not_here_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA device here"):
        tasks.use_device("cuda")
    tasks.use_device("cpu")


def test_every_experiment_can_be_told_its_device():
    told = {row.name for row in EXPERIMENTS if "device" in {s.name for s in row.settings}}
    assert told == {row.name for row in EXPERIMENTS}
