"""The arithmetic of the lab, compared with PyTorch's casts, torchao, exact formulas and
autograd."""

from __future__ import annotations

import pytest
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.job import IDLE
from qtui_core.lab.catalog import EXPERIMENTS, experiment_named

torch = LazyImport("torch")
products = LazyImport("qtui_core.lab.numerics.products")
rounding = LazyImport("qtui_core.lab.numerics.rounding")
state_maps = LazyImport("qtui_core.lab.numerics.state_maps")
underflow = LazyImport("qtui_core.lab.experiments.underflow")
walks = LazyImport("qtui_core.lab.numerics.walks")


def numbers(count: int = 20_000):
    """float32 numbers over many decades, including subnormal ones and numbers beyond every
    format."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-26, 20, (count,), generator=generator).float()
    return torch.randn(count, generator=generator) * torch.exp2(exponents)


def test_arithmetic_rounds_as_the_casts_of_torch():
    x = numbers()

    for name in ["bf16", "fp16", "e4m3", "e5m2"]:
        storage = rounding.STORAGES[name].unscaled
        made = storage.by_arithmetic(x, None, torch.round)
        assert torch.equal(storage.nearest(x), made)


def test_stochastic_rounding_is_right_on_average():
    """The mean is right within five standard errors, and the squared error of N(0, 1) is twice that
    of rounding to nearest."""
    values = torch.tensor([0.3, 1.01, -1.7, 0.0123, 3.3])

    for name in ["bf16", "e4m3", "e5m2", "e2m1", "int8"]:
        storage = rounding.STORAGES[name]
        generator = torch.Generator().manual_seed(1)
        scale = storage.scale_of(values)
        copies = values.repeat(20_000, 1)
        drawn = storage.stochastic(copies, generator, scale)
        error = (drawn.double().mean(0) - values.double()).abs()
        rounded = values.double().abs() * 2**-22  # by the scale, in float32
        assert (error <= 5 * drawn.double().std(0) / 20_000**0.5 + rounded).all()
        x = torch.randn(200_000, generator=generator)
        near, far = storage.nearest(x), storage.stochastic(x, generator)
        ratio = float(((far - x) ** 2).mean() / ((near - x) ** 2).mean())
        assert 1.97 < ratio < 2.05, ratio


def test_thresholds_are_where_a_weight_of_one_begins_to_move():
    for name, up in [("bf16", -7), ("fp16", -10), ("e4m3", -3), ("e5m2", -2)]:
        storage = rounding.STORAGES[name].unscaled
        one = torch.ones(1)
        assert storage.nearest(one + 2.0**up) > 1
        assert storage.nearest(one + 2.0 ** (up - 1)) == 1  # a tie, to the even one
        assert underflow.threshold(storage, 1.0) == 2.0 ** (up - 1)


def test_a_product_under_the_threshold_never_acts_and_over_it_always():
    x = 1 + torch.arange(4096) / 4096

    for name in ["bf16", "fp16", "e4m3"]:
        storage = rounding.STORAGES[name].unscaled
        least, most = walks.thresholds(storage.mantissa_bits)
        x_on_grid = storage.nearest(x)
        assert torch.equal(storage.nearest(x_on_grid * (1 - least * 0.99)), x_on_grid)
        assert (storage.nearest(x_on_grid * (1 - most * 1.01)) < x_on_grid).all()


def test_the_products_without_quantization_are_those_of_autograd():
    from qtui_core.lab.numerics.products import _Linear

    generator = torch.Generator().manual_seed(0)
    linear = torch.nn.Linear(7, 5).double()
    exact = products.QuantizedLinear(linear, products.Products())
    x = torch.randn(2, 3, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(exact, (x,))
    assert torch.autograd.gradcheck(
        lambda w: _Linear.apply(x.detach(), w, linear.bias, products.Products(), None),
        (linear.weight,),
    )


def test_operands_that_are_turned_alike_have_the_same_product():
    a, b = torch.randn(5, 40), torch.randn(3, 40)
    matrix = rounding.rotation(16, torch.Generator().manual_seed(3))
    turned = rounding.rotated(a, matrix) @ rounding.rotated(b, matrix).T
    assert torch.allclose(turned, a @ b.T, atol=1e-5)
    assert torch.allclose(matrix @ matrix.T, torch.eye(16), atol=1e-6)


@pytest.mark.slow
def test_microscaling_operands_are_those_of_torchao():
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    x = torch.randn(64, 128).bfloat16()
    kept = MXTensor.to_mx(x, torch.float8_e4m3fn, 32).dequantize(torch.float32)
    assert torch.equal(rounding.Operand("e4m3", "mx")(x.float()), kept)


@pytest.mark.slow
def test_codes_of_states_are_those_of_torchao():
    from torchao.optim.quant_utils import create_dynamic_map

    for signed in (True, False):
        theirs = torch.tensor(create_dynamic_map(signed))
        assert torch.allclose(state_maps.dynamic_codes(signed), theirs, rtol=1e-6, atol=1e-12)


def test_settings_are_checked_in_a_sentence():
    for name, given, says in [
        ("underflow", {"lr": -1.0}, ""), ("underflow", {"lr": float("nan")}, ""),
        ("underflow", {"lr": "1e-4"}, ""), ("underflow", {"steps": 0}, ""),
        ("underflow", {"steps": 1.5}, ""), ("underflow", {"steps": True}, ""),
        ("underflow", {"store": "int3"}, ""), ("underflow", {"seeds": ()}, ""),
        ("underflow", {"seeds": (1, 1)}, ""), ("underflow", {"colour": "red"}, ""),
        ("underflow", {"accumulation": 10**400}, "65536; a number of that size is not"),
        ("underflow", {"lr": 1.0, "decay": 2.0}, "more than the whole weight"),
        ("optimizers", {"beta2": 1.0}, ""), ("survive", {"beta1": 1.0}, ""),
        ("lowbit", {"task": "nano", "text": "a"}, "--task nano makes its own model and text"),
        ("range-test", {"task": "nano", "text": "a"}, "--task nano makes its own model and text"),
    ]:  # fmt: skip
        found = experiment_named(name)
        with pytest.raises(UsageError, match=rf"{says}.*\.$"):
            found.module().jobs(found.settle(given), "demo")
    with pytest.raises(UsageError, match="--task nano makes its own model and text"):
        found.module().jobs(found.settle({"task": "nano"}), "mine")
    with pytest.raises(UsageError, match="there are underflow, survive"):
        experiment_named("alchemy")
    for each in EXPERIMENTS:
        for row in each.settings:
            if row.default is not None:
                assert row.read(row.written(row.default)) == row.default


TERMS = {
    "store": "bf16", "lr": 1e-4, "decay": 0.1, "beta2": 0.999, "ema": 0.999, "accumulation": 32,
}  # fmt: skip


def acting(**given):
    """(judgements of the four terms, how far each came, the sentence)."""
    found = walks.terms(TERMS | given, IDLE)
    return [r["judged"] for r in found.rows], [r["kept"] for r in found.rows], "".join(found.notes)


def test_terms_that_do_nothing_are_told_with_the_cure_and_its_bytes():
    judged, kept, told = acting()
    assert judged == ["dead", "dead", "biased", "fine"]
    assert kept[:3] == pytest.approx([0, 0, 0.25], abs=1e-5)
    assert told == (
        "Keep weights, second moment and average in fp32 (+6 bytes a parameter): in BF16 weight "
        "decay and second moment under 0.002 a step do nothing and average comes 25% of the way."
    )
    assert acting(decay=0.0, beta2=0.95, ema=0.0, accumulation=1)[2] == ""


def test_fp32_is_a_cure_of_a_dead_term_only_where_it_holds_the_term():
    """A decay of 1e-8 a step is rounded away in fp32 too, whose threshold is 2^-25."""
    given = {"beta2": 0.95, "ema": 0.99, "accumulation": 1}
    assert acting(decay=0.1, **given)[2].startswith("Keep weights and average in fp32 (+4 bytes")
    assert acting(decay=1e-4, **given)[2].startswith("Keep average in fp32 (+2 bytes")


def test_tiles_make_a_weight_and_its_transpose_one_tensor_and_rows_do_not():
    w = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    tiled, by_rows = rounding.Operand("e2m1", "nv-tile"), rounding.Operand("e2m1", "nv")
    assert torch.equal(tiled(w), tiled(w.T.contiguous()).T)
    assert not torch.equal(by_rows(w), by_rows(w.T.contiguous()).T)


# --- numbers that are changed a little many times


def test_a_weight_arrives_where_the_exact_sum_says_or_stays():
    lines = {line.name: line for line in walks.one_weight(IDLE).pictures[0].lines}
    for name in ("bf16", "e4m3", "int8"):
        assert lines[name].y == (1.0,) * 51
        drawn = lines[f"{name} stochastic"]
        std = drawn.high[-1] - drawn.y[-1]
        assert drawn.y[-1] == pytest.approx(2, abs=5 * std / 2000**0.5)
        assert std > 0.05
    assert lines["fp16"].y[-1] == pytest.approx(1.977, abs=2e-3)
    assert lines["bf16 Kahan"].y[-1] == pytest.approx(2, abs=2**-7)


def test_nothing_is_lost_where_nothing_is_to_move():
    settings = experiment_named("underflow").settle({"lr": 0.0})
    zero = underflow.Updates((underflow.Reach("bf16", 0.0, "all", 0.0, 0.0, 0),), ((0,),))
    assert "At lr 0 no weight changes" in underflow.conclude(settings, {"updates": zero}).verdict
