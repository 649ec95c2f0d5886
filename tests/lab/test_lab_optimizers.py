"""Optimizer states: their bytes, compared with formulas and libraries, and the sentences about
them."""

import itertools

import pytest
from every import every
from lab_runs import fits, trained
from lazy_imports import LazyImport

from qtui_core.extras import MissingLibrary
from qtui_core.lab.catalog import OPTIMIZERS, experiment_named
from qtui_core.lab.results import Heat

torch = LazyImport("torch")
eagerly = LazyImport("qtui_core.lab.training.recipes", "eagerly")
libraries = LazyImport("qtui_core.lab.experiments.optimizers")
optimizers = LazyImport("qtui_core.lab.experiments.optimizers")
state_maps = LazyImport("qtui_core.lab.numerics.state_maps")


def stepped(name, *shapes):
    """(parameters, an optimizer that took a step over them)."""
    generator = torch.Generator().manual_seed(0)
    named = [(f"p{i}", torch.nn.Parameter(torch.randn(shape))) for i, shape in enumerate(shapes)]
    found = libraries.make(name, [p for _, p in named], 1e-3, (0.9, 0.95))
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    with eagerly():
        found.step()
    return named, found


def bytes_of(name, *sizes):
    """The formula: tensors of fewer than 4096 elements, and tensors that blocks do not divide, stay
    in float32."""
    each = {"fp32": 8, "bf16": 4}.get(name)
    if each is not None:
        return each * sum(sizes)
    block = 128 if name.endswith("4-bit") else 256
    code = 0.5 if name.endswith("4-bit") else 1
    small = [n for n in sizes if n < 4096]
    return 8 * sum(small) + sum(2 * n * (code + 4 / block) for n in sizes if n >= 4096)


def test_states_take_the_bytes_of_the_formulas():
    """The states of the libraries themselves, for a matrix of each size and for a norm."""

    for name in ["fp32", *OPTIMIZERS]:
        named, found = stepped(name, (64, 128), (256,), (40, 512))
        assert libraries.state_bytes(name, found, named) == bytes_of(name, 8192, 256, 20480)


def test_the_update_of_one_pass_is_that_of_the_library():
    """The next step of torch's AdamW from moments that passed through a map, compared with the
    formula for the error; and the count of zeros."""
    from types import SimpleNamespace

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(64, 128)
            self.lm_head = torch.nn.Linear(128, 64, bias=False)

        def forward(self, input_ids):
            return SimpleNamespace(logits=self.lm_head(self.embed_tokens(input_ids)))

    torch.manual_seed(0)
    net, betas, rate = Tiny(), (0.9, 0.95), 1e-3
    ids = torch.randint(0, 64, (4, 33))
    loss_of = LazyImport("qtui_core.lab.training.tasks", "loss_of")
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, betas=betas, weight_decay=0.0)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(net, ids).backward()
        optimizer.step()
    optimizer.zero_grad()
    state = {p: dict(optimizer.state[p]) for p in net.parameters()}
    found = optimizers.one_pass(net, optimizer, ids, betas)

    def moved(change):
        """The next step of the optimizer itself over the head, divided by the learning rate."""
        weight = net.lm_head.weight
        for key, one in zip(("exp_avg", "exp_avg_sq"), (0, 1), strict=True):
            exact = [state[weight][k].reshape(-1) for k in ("exp_avg", "exp_avg_sq")]
            optimizer.state[weight][key] = change(*exact)[one].view(weight.shape).clone()
        optimizer.state[weight]["step"] = torch.tensor(3.0)
        before = weight.detach().clone()
        optimizer.step()
        after = weight.detach().clone()
        with torch.no_grad():
            weight.copy_(before)
        return (before.double() - after.double()) / rate

    exact = moved(lambda m, v: (m, v))

    def check(kind):
        made = moved(lambda m, v: optimizers.through(kind, m, v))
        off = float((made - exact).norm() / exact.norm())
        assert found[f"pass {kind} output"] == pytest.approx(off, rel=0.02, abs=2e-4)

    every(["bf16", "8-bit", "fp8", "4-bit"], check)
    assert found["zero 4-bit all"] == found["zero bf16 all"] == 0  # neither has a zero


def test_maps_of_one_pass_are_those_of_torchao():
    """A moment that passed through torchao's own state, and through the emulation."""
    from torchao.optim.subclass_4bit import OptimState4bit
    from torchao.optim.subclass_8bit import OptimState8bit
    from torchao.optim.subclass_fp8 import OptimStateFp8

    x = torch.randn(8192, generator=torch.Generator().manual_seed(0)) ** 3

    shape = (8192,)
    for kind, signed, theirs in [
        ("8-bit", True, OptimState8bit.zeros(shape, True, 256)),
        ("8-bit", False, OptimState8bit.zeros(shape, False, 256)),
        ("4-bit", True, OptimState4bit.zeros(shape, True, 128)),
        ("4-bit", False, OptimState4bit.zeros(shape, False, 128)),
        ("fp8", True, OptimStateFp8.zeros(shape, 256)),
    ]:
        moment = x if signed else x.abs()
        theirs.copy_(moment)
        mine = optimizers.through(kind, moment, moment.abs())[0 if signed else 1]
        read = theirs.dequantize()
        # torchao's binary search and a search by midpoints differ for values in the middle.
        off = (mine != read.view(-1)) & ((mine - read.view(-1)).abs() > 1e-6 * moment.abs())
        assert float(off.double().mean()) < 1e-3, (kind, signed)


def test_maps_have_the_blocks_of_torchao():
    from inspect import signature

    from torchao import optim

    for kind, name in (("8-bit", "AdamW8bit"), ("fp8", "AdamWFp8"), ("4-bit", "AdamW4bit")):
        block = signature(getattr(optim, name)).parameters["block_size"].default
        assert state_maps.BLOCKS[kind] == block


def test_a_library_that_is_not_there_is_a_sentence(monkeypatch):
    parameter = [torch.nn.Parameter(torch.zeros(4, 4))]

    def sentence(name):
        with pytest.raises(MissingLibrary) as refused:
            libraries.make(name, parameter, 1e-3, (0.9, 0.95))
        assert str(refused.value).endswith(".")
        assert "pip install" in str(refused.value)

    monkeypatch.setitem(__import__("sys").modules, "torchao.optim", None)
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes.optim", None)
    every(["torchao 4-bit", "bitsandbytes 8-bit"], sentence)


PASSED = {"pass 8-bit all": 0.1, "pass 8-bit matrices": 0.02, "pass 8-bit embedding": 1.2}


def outcomes(eight=0.0, four=0.002):
    def run(off, nbytes, **facts):
        read = {"each": nbytes / 100} | facts
        return trained(off, nbytes={"states": nbytes}, facts=read)

    return {
        "fp32 0": run(0, 800, **PASSED),
        "null 0": trained(1e-5),
        "torchao 8-bit 0": run(eight, 204),
        "torchao 4-bit 0": run(four, 107),
        "bitsandbytes 8-bit 0": run(0.0, 204),
    }


def test_what_is_said_holds_whatever_is_done_so_far():
    settings = experiment_named("optimizers").settle({})
    whole = outcomes()

    subsets = [c for n in range(len(whole) + 1) for c in itertools.combinations(whole, n)]
    for keys in [(*keys,) for keys in subsets]:
        found = optimizers.conclude(settings, {key: whole[key] for key in keys})
        assert found.verdict == "" or found.verdict.endswith(".")
        twins = {"fp32 0", "null 0"} <= {*keys}
        assert ("torchao 4-bit (+0.0020 nats)" in found.verdict) == (
            twins and "torchao 4-bit 0" in keys
        )
        assert len(found.rows) == len({*keys} - {"null 0"})
        heats = [p for p in found.pictures if isinstance(p, Heat)]
        assert [(h.rows, h.values[0][:2]) for h in heats] == [
            (("8-bit",), (0.1, 1.2)) for key in keys if key == "fp32 0"
        ]


def test_the_fewest_bytes_without_a_difference_are_named():
    settings = experiment_named("optimizers").settle({})

    def said(**runs):
        return optimizers.conclude(settings, outcomes(**runs)).verdict

    assert said().startswith(
        "bitsandbytes 8-bit takes 2.04 bytes a parameter instead of 8.00, with no visible "
        "difference (20 steps, one seed, lr 0.0003); torchao 4-bit (+0.0020 nats) differs"
    )
    assert "torchao 4-bit takes 1.07 bytes" in said(four=1e-5)
    assert fits(said(four=1e-5), "with no visible difference")
    assert "torchao 8-bit diverged, step 3: a.weight" in said(eight=None)
    chaotic = outcomes() | {"null 0": trained(0.1)}
    broken = outcomes() | {"fp32 0": trained(None)}
    assert "itself diverged at step 3" in optimizers.conclude(settings, broken).verdict
    still = experiment_named("optimizers").settle({"lr": 0.0})
    assert "At lr 0 nothing" in optimizers.conclude(still, outcomes()).verdict
    assert "chaotic" in optimizers.conclude(settings, chaotic).verdict
