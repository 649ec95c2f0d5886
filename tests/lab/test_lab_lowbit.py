"""Recipes of low precision: what they convert and store, how they learn, and the sentences about
them."""

import inspect

import pytest
from lab_runs import little_held_out, made_run, outcomes_of, small_subject
from lazy_imports import LazyImport

from qtui_core.errors import ModelError, UsageError
from qtui_core.job import IDLE
from qtui_core.lab.catalog import LOWBIT_RECIPES, experiment_named

torch = LazyImport("torch")
gradients = LazyImport("qtui_core.lab.numerics.products")
lowbit = LazyImport("qtui_core.lab.experiments.lowbit")
operands = LazyImport("qtui_core.lab.numerics.rounding")
products = LazyImport("qtui_core.lab.numerics.products")
recipes = LazyImport("qtui_core.lab.training.recipes")
tasks = LazyImport("qtui_core.lab.training.tasks")
twins = LazyImport("qtui_core.lab.training.twins")

STEPS = 6


def settled(**given):
    return experiment_named("lowbit").settle({"steps": STEPS, **given})


def said(outcomes, **given):
    return lowbit.conclude(settled(**given), outcomes)


def twin(**runs):
    """Outcomes of seed 0: fp32, a floor of 1e-5, and the given differences to fp32."""
    exact = [3.0 - step / 10 for step in range(STEPS)]
    found = {"fp32 0": made_run(*exact), "null 0": made_run(*(loss + 1e-5 for loss in exact))}
    for name, d in runs.items():
        found[f"{name.replace('_', ' ')} 0"] = made_run(*(loss + d for loss in exact))
    return found


#: One recipe of each way to build them; the slow suite has the others.
BUILT = ("bf16", "int8 mixed", "int8 weights", "fp8 flow", "float8 row", "mxfp8", "nvfp4 backward")


def trains(names):
    """One step of a recipe: the result differs from fp32, the head is unchanged, and the bytes are
    those of the formulas."""
    subject = small_subject()
    seeing = {"seed": 0, "steps": 1, "lr": 1e-3, "job": IDLE}
    exact = twins.train(subject, twins.Recipe(), **seeing)
    count = sum(p.numel() for p in subject.fresh(0).parameters())
    body = [m.weight.shape for n, m in products.linears(subject.fresh(0)).items() if n != "lm_head"]

    for name in names:
        run = twins.train(subject, recipes.recipe_named(name, 1), **seeing)
        assert not run.diverged
        assert run.held_after != exact.held_after
        assert abs(run.losses[0] - exact.losses[0]) < 0.5
        row = recipes.RECIPES[name]
        left = {"all": "none", "body": "lm_head", "feed-forward": "self_attn.q_proj (2)"}[row.part]
        assert run.notes[1].startswith("left as they are:")
        assert left in run.notes[1]
        stored = 4 * count
        if name.startswith("int8 weights"):  # a byte each and a scale per row, not four bytes
            stored -= sum(3 * rows * columns - 4 * rows for rows, columns in body)
        assert run.nbytes["weights"] == stored
        assert (run.nbytes["gradients"], run.nbytes["states"]) == (4 * count, 8 * count)


def test_each_kind_of_recipe_trains_and_says_what_it_converted():
    assert tuple(recipes.RECIPES) == LOWBIT_RECIPES
    trains(BUILT)


@pytest.mark.slow
def test_every_recipe_trains_and_says_what_it_converted():
    trains([name for name in LOWBIT_RECIPES if name not in BUILT])


def test_integer_weights_are_rounded_to_nearest_only_while_it_is_asked_for():
    from torchao.prototype.quantized_training import int8

    theirs = int8.quantize_int8_rowwise
    x = torch.linspace(-1, 1, 4096).view(8, 512)

    def within():
        with recipes.to_nearest():
            codes, _ = int8.quantize_int8_rowwise(x, stochastic_rounding=True)
            assert torch.equal(codes, theirs(x)[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within()
    assert int8.quantize_int8_rowwise is theirs


def test_an_emulated_layer_computes_under_autocast_what_it_does_without():
    linear = torch.nn.Linear(64, 48)
    layer = products.QuantizedLinear(linear, products.SCHEMES["fp8 unscaled"])
    x = torch.randn(5, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        made = layer(x)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, layer(x.float()).bfloat16())


def test_without_scales_gradients_vanish_and_the_backward_pass_leaves_the_loss():
    """The fast form of what training shows: gradients of the size of the demo's, and one batch of a
    small model."""
    random = torch.Generator().manual_seed(0)
    x, g = torch.randn(128, 64, generator=random), torch.randn(128, 32, generator=random) * 2**-18.7
    exact = g.T @ x

    def off(scheme):
        return float((products.SCHEMES[scheme].dw(g, x) - exact).norm() / exact.norm())

    assert off("fp8 unscaled") > 4 * off("fp8 tensor e5m2")
    subject = small_subject()
    net, ids = subject.start(), next(subject.batches(0))
    body = [name for name in products.linears(net) if name != "lm_head"]

    def loss(half):
        only = products.SCHEMES["nvfp4 full"].only(forward=half == "forward")
        with gradients.quantized(net, dict.fromkeys(body, only), random), torch.no_grad():
            return float(tasks.loss_of(net, ids))

    with torch.no_grad():
        exact = float(tasks.loss_of(net, ids))
    assert loss("backward") == exact
    assert loss("forward") != exact


def test_what_cannot_run_is_a_sentence():
    names = ["0"]
    net = torch.nn.Sequential(torch.nn.Linear(24, 24))

    for name, error, words in [
        ("fp8 flow", ModelError, "no linear layer that fp8 flow converts"),
        ("float8 row", UsageError, "multiples of 16; 0 has 24 inputs"),
    ]:
        with pytest.raises(error, match=words) as refused:
            recipes.recipe_named(name, 0).prepare(net)
        assert str(refused.value).endswith(".")
    assert recipes.patterns(names) == "* (1)"


def mx_product(x, w):
    """torchao's MXFP8 product, emulated, with scales that are rounded down."""
    from torchao.prototype.moe_training.mxfp8_linear import mx_mm
    from torchao.prototype.mx_formats import config
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    given = {
        "block_size": 32,
        "kernel_preference": KernelPreference.EMULATED,
        "mxfp8_dim0_cast_kernel_choice": config.MXFP8Dim0CastKernelChoice.TORCH,
        "mxfp8_dim1_cast_kernel_choice": config.MXFP8Dim1CastKernelChoice.TORCH,
        "scale_calculation_mode": config.ScaleCalculationMode.FLOOR,
        "wgrad_with_hp": False,
    }
    takes = tuple(inspect.signature(mx_mm.forward).parameters)[3:]
    return mx_mm.apply(x, w, *(given.get(name, torch.float8_e4m3fn) for name in takes))


def test_what_is_emulated_is_what_the_libraries_compute():
    """The three products of one layer, for BF16 numbers, which are often ties; and the codes of
    NVFP4 and MXFP4. torchao multiplies integers by the reciprocal of their scale."""
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    random = torch.Generator().manual_seed(0)
    x, g, w = (
        torch.randn(shape, generator=random).bfloat16().float()
        for shape in ((64, 96), (64, 32), (32, 96))
    )

    for recipe, scheme, apart in [
        ("mxfp8", "mxfp8", 0),
        ("int8 mixed", "int8 row", 2e-3),
        ("float8 tensor", "fp8 tensor e5m2", 1e-6),
    ]:
        net = torch.nn.Sequential(torch.nn.Linear(96, 32, bias=False))
        net[0].weight.data.copy_(w)
        if recipe != "mxfp8":
            net = recipes.recipe_named(recipe, 0).prepare(net) or net
        inputs = x.clone().requires_grad_()
        y = mx_product(inputs, net[0].weight) if recipe == "mxfp8" else net(inputs)
        y.backward(g)
        made = products.SCHEMES[scheme]
        ours = made.y(x, w), made.dx(g, w), made.dw(g, x)
        for one, other in zip(ours, (y.detach(), inputs.grad, net[0].weight.grad), strict=True):
            assert float((one - other).norm() / other.norm()) <= apart
    wide = torch.randn(64, 128, generator=random).bfloat16()
    whole = nvfp4_tensor.per_tensor_amax_to_scale(wide.abs().amax())
    kept = nvfp4_tensor.NVFP4Tensor.to_nvfp4(wide, per_tensor_scale=whole)
    assert torch.equal(operands.Operand("e2m1", "nv")(wide.float()), kept.dequantize(torch.float32))
    kept = mx_tensor.MXTensor.to_mx(wide, torch.float4_e2m1fn_x2, 32)
    assert torch.equal(operands.Operand("e2m1", "mx")(wide.float()), kept.dequantize(torch.float32))


def test_nothing_is_said_before_the_floor_is_known():
    assert said({}).verdict == ""
    assert said({"fp32 0": made_run(3.0, 2.9)}).verdict == ""
    outcomes = twin(bf16=0.1)
    del outcomes["null 0"]
    found = said(outcomes)
    assert found.verdict == ""
    assert [row["recipe"] for row in found.rows] == ["fp32", "bf16"]


def test_differences_are_judged_against_the_floor_and_cures_are_told():
    found = said(twin(bf16=2e-5, fp8_flow=0.02, fp8_flow_scaled=1e-5, int8_mixed=-0.01))
    seen = {row["recipe"]: row.get("seen") for row in found.rows}
    assert seen == {
        "fp32": None,
        "bf16": "no difference",
        "int8 mixed": "better",
        "fp8 flow": "worse",
        "fp8 flow scaled": "no difference",
    }
    assert found.verdict == (
        "With lr 0.0003, 6 steps, one seed: bf16 and fp8 flow scaled show no difference to fp32 "
        "that this run can see; worse: fp8 flow by 0.02 (fp8 flow scaled instead); better: int8 "
        "mixed by 0.01."
    )
    alone = said(twin(nvfp4=0.02)).verdict
    assert "worse: nvfp4 by 0.02 (try nvfp4 backward)." in alone
    timed = {row["recipe"]: row["seconds"] for row in found.rows}
    assert timed["fp8 flow"] is None
    assert timed["bf16"] == 0.1


def test_no_cure_is_told_that_diverged_or_comes_no_nearer():
    near, far = (twin(fp8_flow=4e-4, fp8_flow_scaled=d) for d in (1e-5, 6e-4))
    ill = dict(near)
    ill["fp8 flow scaled 0"] = made_run(3.0, float("nan"), diverged=2, first="w", held_after=None)
    drawn = far | {"fp8 flow scaled again 0": twin(it=3e-3)["it 0"]}  # whose floor hides it
    for outcomes, cured in ((near, True), (far, False), (ill, False), (drawn, False)):
        assert ("0.0004 (fp8 flow scaled instead)" in said(outcomes).verdict) == cured


def test_what_the_floor_hides_is_no_difference():
    def seen(outcomes, **given):
        return said(outcomes, **given).rows[1]["seen"]

    outcomes = twin(int8_weights=1e-3)
    assert seen(outcomes) == "worse"
    outcomes["int8 weights again 0"] = twin(it=4e-4)["it 0"]  # it rounds at random
    assert seen(outcomes) == "no difference"
    outcomes = twin()
    exact = outcomes["fp32 0"].losses
    outcomes["bf16 0"] = made_run(*(loss + (-1) ** i * 0.1 for i, loss in enumerate(exact)))
    assert seen(outcomes) == "no difference"
    few = {key: made_run(*run.losses[:3]) for key, run in twin(bf16=0.1).items()}
    assert seen(few, steps=3) == "no difference"


def test_divergence_and_chaos_are_told():
    outcomes = twin()
    outcomes["nvfp4 0"] = made_run(3.0, float("nan"), diverged=2, first="lm_head", held_after=None)
    assert said(outcomes).verdict.endswith("one seed: nvfp4 diverged at step 2: lm_head.")
    outcomes["null 0"] = made_run(*(loss + 0.1 for loss in outcomes["fp32 0"].losses))
    assert said(outcomes).verdict.startswith("These settings are chaotic")
    outcomes["fp32 0"] = made_run(float("nan"), diverged=1, first="w", held_after=None)
    assert said(outcomes).verdict == (
        "Float32 itself diverged before any step (w is not finite), so nothing can be compared; "
        "lower --lr, or look for weights that are not finite."
    )


@pytest.mark.slow
def test_what_trains_as_float32_does_on_prose_and_what_does_not():
    """The claims about integer weights, and the FP8 flow with and without scales. The differences
    are 0.0006, 0.064, 0.0073 and 0.0014."""
    names = ("int8 weights", "int8 weights nearest", "fp8 flow", "fp8 flow scaled")
    with little_held_out():
        _, found = outcomes_of("lowbit", "fp32", *names, recipes=names, steps=14)
    d = {row["recipe"]: row.get("d") for row in found.rows}
    assert abs(d["int8 weights"]) < 0.003
    assert d["int8 weights nearest"] > 0.03
    assert d["fp8 flow"] > 0.005
    assert abs(d["fp8 flow scaled"]) < 0.003
