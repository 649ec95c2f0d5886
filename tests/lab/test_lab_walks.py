"""Numbers that are changed a little many times, compared with arithmetic and with torchao's own
weights."""

from __future__ import annotations

import pytest
from lab_runs import unseen
from lazy_imports import LazyImport

from qtui_core.lab.catalog import experiment_named

torch = LazyImport("torch")
state_maps = LazyImport("qtui_core.lab.numerics.state_maps")
underflow = LazyImport("qtui_core.lab.experiments.underflow")
walks = LazyImport("qtui_core.lab.numerics.walks")


def courses(found):
    """The last chart's lines by name."""
    return {line.name: line.y for line in found.pictures[-1].lines}


def test_scales_of_bf16_lose_a_slow_growth_and_those_of_fp32_do_not():
    factor, times = walks.GROWN
    found = walks.grown_scales("int8", unseen)
    assert courses(found)["scales in fp32"][-1] == pytest.approx(factor**times, rel=1e-3)
    assert courses(found)["scales in bf16"][-1] == pytest.approx(1, abs=2e-3)
    assert [row["kept"] for row in found.rows] == pytest.approx([0.99, 0.02], abs=0.025)
    # Once, a BF16 scale is updated by less than half of the distance to the next number.
    assert factor - 1 < 2.0**-9
    once, after = walks.reread(unseen)
    assert 0.01 < once < 0.1 < 0.5 < after
    assert f"{once:.1%} other codes, after 100 times {after:.0%}" in found.notes[0]
    assert "scales in BF16 keep 0%, scales in fp32 (2 more bytes a row) 100%" in found.verdict
    assert walks.grown_scales("bf16", unseen).verdict == ""


@pytest.mark.slow
def test_weights_of_torchao_lose_a_slow_growth_as_the_emulation_says():
    from torchao.prototype.quantized_training.int8 import Int8QuantizedTrainingLinearWeight

    factor, times = walks.GROWN
    torch.manual_seed(0)
    start = torch.randn(256, 256) * 0.02

    def grown(dtype):
        weight = Int8QuantizedTrainingLinearWeight.from_float(start.to(dtype))
        first = weight.dequantize().float().norm()
        for _ in range(times):
            exact = weight.int_data.float() * weight.scale.float().view(-1, 1)
            weight.copy_(exact * factor)  # in float32, as torchao's _AdamW gives it
        return float(weight.dequantize().float().norm() / first)

    found = courses(walks.grown_scales("int8", unseen))
    assert grown(torch.float32) == pytest.approx(found["scales in fp32"][-1], abs=3e-3)
    assert grown(torch.bfloat16) == pytest.approx(found["scales in bf16"][-1], abs=5e-3)


def test_a_weight_arrives_where_the_exact_sum_says_or_stays():
    lines = {line.name: line for line in walks.one_weight(unseen).pictures[0].lines}
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


def test_a_block_of_a_narrow_range_is_kept_better_when_it_is_expanded():
    """Second moments within a factor of four, for which E4M3 alone has few codes."""
    generator = torch.Generator().manual_seed(0)
    x = 1 + 3 * torch.rand(4096, generator=generator)
    x[:256] = 0
    plain, expanded = (state_maps.map_named(name, True) for name in ("fp8", "fp8 expanded"))
    off = [float((keep(x) - x).norm() / x.norm()) for keep in (plain, expanded)]
    assert off[1] < 0.3 * off[0]
    assert (expanded(x)[:256] == 0).all()
    signed = x * torch.where(torch.arange(4096) % 3 == 0, -1.0, 1.0)
    assert torch.equal(expanded(signed).sign(), signed.sign())
    assert torch.equal(expanded(torch.full((256,), 0.3)), torch.full((256,), 0.3))
