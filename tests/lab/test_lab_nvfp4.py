"""The NVFP4 recipe by parts: what each does to a product, and the sentences about them."""

from __future__ import annotations

import itertools

import pytest
from every import every
from lab_runs import fits, trained
from lazy_imports import LazyImport

from qtui_core.errors import UsageError
from qtui_core.lab.catalog import NVFP4_RECIPES, experiment_named

torch = LazyImport("torch")
matmul = LazyImport("qtui_core.lab.experiments.matmul")
nvfp4 = LazyImport("qtui_core.lab.experiments.nvfp4")
operands = LazyImport("qtui_core.lab.numerics.operands")

LAYERS = [f"model.layers.{n}.{kind}" for n in range(7) for kind in ("q_proj", "down_proj")]


def test_the_catalogue_has_the_recipes():
    assert tuple(nvfp4.RECIPES) == NVFP4_RECIPES


def test_tiles_make_a_weight_and_its_transpose_one_tensor_and_rows_do_not():
    w = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    tiled, by_rows = operands.Operand("e2m1", "nv-tile"), operands.Operand("e2m1", "nv")
    assert torch.equal(tiled(w), tiled(w.T.contiguous()).T)
    assert not torch.equal(by_rows(w), by_rows(w.T.contiguous()).T)


def test_a_stochastic_gradient_makes_one_product_worse_and_the_mean_better():
    generator = torch.Generator().manual_seed(0)
    x, g = torch.randn(64, 32, generator=generator), torch.randn(64, 48, generator=generator)
    exact = g.double().T @ x.double()

    def errors(name):
        kind, random = nvfp4.products_of(name), torch.Generator().manual_seed(1)
        made = [kind.dw(g, x, random).double() for _ in range(32)]
        return matmul.relative(made[0], exact), matmul.relative(sum(made) / len(made), exact)

    one, mean = errors("nearest")
    assert one == pytest.approx(mean)
    drawn, averaged = errors("+stochastic")
    assert drawn > 1.2 * one
    # The remaining error is that of x, which is rounded to nearest: half of the squares.
    assert averaged < 0.85 * one
    # With signs drawn for each product, the error of x averages out, too.
    _, fixed = errors("full")
    _, signs = errors("full+signs")
    assert signs < 0.5 * fixed


def test_a_recipe_quantizes_the_pass_and_the_blocks_that_it_names():
    assert nvfp4.quantized_layers("full", LAYERS) == LAYERS
    left = [name for name in LAYERS if name not in nvfp4.quantized_layers("full+high", LAYERS)]
    assert left == LAYERS[-4:]  # 15 % of seven blocks are more than one
    assert nvfp4.quantized_layers("full+high", ["linear"]) == ["linear"]
    exact = operands.EXACT
    forward, backward = (nvfp4.products_of(name) for name in ("forward", "backward"))
    assert (forward.g_dx, forward.x_dw, backward.x, backward.w) == (exact,) * 4
    assert exact not in (forward.x, forward.w, backward.g_dw, backward.w_dx)


def test_the_layer_is_the_middle_one_or_that_of_the_name():
    assert nvfp4.layer_chosen(LAYERS, None) == "model.layers.3.down_proj"
    assert nvfp4.layer_chosen(LAYERS, "1.q_proj") == "model.layers.1.q_proj"
    assert nvfp4.layer_chosen(["a", "b", "c"], None) == "b"
    with pytest.raises(UsageError, match=r"no linear layer 'r_proj'; its last is"):
        nvfp4.layer_chosen(LAYERS, "r_proj")


def outcomes(forward=0.01, backward=0.0):
    """An outcome of each kind, as jobs return them."""

    def part(dw, dw_mean):
        return nvfp4.PartErrors(0.06, 0.09, dw, dw_mean, dw, dw_mean)

    errors = {name: part(0.13, 0.02) for name in tuple(nvfp4.RECIPES)[:9]}
    errors["nearest"], errors["+tiles"] = part(0.09, 0.09), part(0.089, 0.089)
    whole = nvfp4.WholeErrors(dict.fromkeys(nvfp4.RECIPES, 0.3), 0.17)
    return {
        "products": nvfp4.LabParts("3.down_proj", 64, errors),
        "gradients": whole,
        "fp32 0": trained(0),
        "null 0": trained(1e-5),
        "full 0": trained(forward),
        "forward 0": trained(forward),
        "backward 0": trained(backward),
    }


def test_what_is_said_holds_whatever_is_done_so_far():
    settings = experiment_named("nvfp4").settle({"runs": ("full", "forward", "backward")})
    whole = outcomes()

    def check(*keys):
        found = nvfp4.conclude(settings, {key: whole[key] for key in keys})
        assert found.verdict == "" or found.verdict.endswith(".")
        assert ("Leave the forward pass in high" in found.verdict) == (
            {"fp32 0", "null 0", "forward 0", "backward 0"} <= {*keys}
        )
        assert ("Rotation" in " ".join(found.notes)) == ("products" in keys)
        assert "full 0" in keys or fits(found.verdict, "")

    subsets = [c for n in range(len(whole) + 1) for c in itertools.combinations(whole, n)]
    every([(*keys,) for keys in subsets], check)


def test_passes_are_told_apart_only_where_the_runs_can():
    settings = experiment_named("nvfp4").settle({"runs": ("full", "forward", "backward")})

    def said(**runs):
        return nvfp4.conclude(settings, outcomes(**runs)).verdict

    assert "Leave the backward pass in high" in said(forward=1e-5, backward=0.02)
    neither = said(forward=1e-5, backward=-2e-5)
    assert "in high precision" not in neither
    assert neither.count("no visible difference") == 3  # "full", and each pass
    assert "in high precision" not in said(forward=0.01, backward=0.02)
    assert "forward pass quantized the run diverged, step 3: a.weight" in said(forward=None)


def test_what_rounds_at_random_is_run_again_for_a_floor_of_its_own():
    settings = experiment_named("nvfp4").settle({"runs": ("nearest", "forward", "backward")})
    names = [job.key for job in nvfp4.jobs(settings, "demo")]
    assert names[2:] == [
        *("fp32 0", "null 0", "nearest 0", "forward 0", "backward 0", "backward again 0"),
    ]
    own = outcomes(backward=-0.0005) | {"backward again 0": trained(0.0005)}
    assert nvfp4.conclude(settings, own).verdict.startswith(
        "Leave the forward pass in high precision (1.44 bytes more a number in BF16): quantized "
        "alone it shows +0.0100 nats, the backward pass no visible difference."
    )
    seen = {row["recipe"]: row.get("seen") for row in nvfp4.conclude(settings, own).rows}
    assert (seen["backward"], seen["forward"]) == ("no difference", "worse")


@pytest.mark.slow
def test_every_part_makes_one_product_worse_and_random_rounding_the_mean_right(monkeypatch):
    """With a quarter of the batch."""
    from dataclasses import replace

    from lab_runs import conducted

    from qtui_core.lab.training import tasks

    monkeypatch.setitem(tasks.TASKS, "prose", replace(tasks.TASKS["prose"], batch=1))
    _, result = conducted("nvfp4", steps=0)
    rows = {row["recipe"]: row for row in result.findings.rows}
    plain, drawn, full = rows["nearest"], rows["+stochastic"], rows["full"]
    assert drawn["dw"] > 1.2 * plain["dw"]
    assert rows["+rotation"]["dw"] > plain["dw"]
    assert (drawn["g"] > plain["g"], plain["g"] == plain["g_mean"]) == (True, True)
    assert drawn["g_mean"] < 0.3 * plain["g_mean"]
    assert full["g_mean"] < 0.3 * plain["g_mean"]
    assert rows["full-stochastic"]["g_mean"] > 2 * full["g_mean"]
    assert rows["full+signs"]["dw_mean"] < 0.5 * full["dw_mean"]
    assert rows["full+high"]["gradient"] < full["gradient"]
    assert any("--steps" in note for note in result.findings.notes)
