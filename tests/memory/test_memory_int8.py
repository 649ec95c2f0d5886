"""LLM.int8 as a GPU runs it, operation by operation: the classes of bitsandbytes and peft over fake
tensors, with what its CUDA kernels allocate. On a CPU, training takes another product altogether
(MatMul8bitFp: the weight in the type of the input), so that a live step there shows nothing of
this one but what stands."""

from __future__ import annotations

import pytest
from drift import Agreement, Case, compare
from lazy_imports import LazyImport
from test_memory_drift import MODELS

from qtui_core.memory.shape.weights import packed

bnb = LazyImport("bitsandbytes")
torch = LazyImport("torch")


PLANS = {
    "llama, kept": {"checkpointing": False},
    "llama, checkpoints": {"checkpointing": True},
    "llama, reentrant": {"checkpointing": True, "reentrant": True},
    "llama, not prepared": {"checkpointing": False, "kbit_prep": "none", "dtype": "fp16"},
    "llama, a token": {"method": "inference", "generate": 2},
    "gpt2, kept": {"checkpointing": False},
}
CASES = {
    name: Case(
        name,
        {"model_type": family, "torch_dtype": "bfloat16", **MODELS[family]},
        {"method": "qlora", "quant": "int8", "batch": 2, "sequence": 48, "lora_rank": 8} | plan,
    )
    for name, plan in PLANS.items()
    for family in [name.partition(",")[0]]
}


@pytest.fixture(scope="module")
def agreements() -> dict[str, Agreement]:
    return {case.name: found for case, found in compare(CASES.values())}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_operation_allocates_what_that_of_bitsandbytes_does(agreements, name):
    found = agreements[name]
    assert not found.failed
    assert found.standing[0] == found.standing[1]
    assert found.difference is None, found.difference
    assert found.worst_phase == 0.0


def test_codes_and_scales_are_those_of_a_real_layer():
    layer = bnb.nn.Linear8bitLt(48, 80, bias=False, has_fp16_weights=False)
    layer.weight = bnb.nn.Int8Params(torch.randn(80, 48), requires_grad=False).to("cpu")
    layer(torch.randn(3, 48))
    real = sorted((layer.state.CB.nbytes, layer.state.SCB.nbytes))
    assert sorted(stored.bytes for stored in packed("weight", (80, 48), "int8")) == real


def test_the_input_of_a_product_lives_as_long_as_the_graph():
    """It is not a saved tensor, so the hooks that checkpoints set on saved tensors do not see
    it."""
    seen = []
    weight = bnb.nn.Int8Params(torch.randn(16, 32), requires_grad=False).to("cpu")
    state = bnb.MatmulLtState()
    state.CB, state.SCB, state.has_fp16_weights, state.threshold = weight.CB, weight.SCB, False, 6.0
    x = torch.randn(4, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        product = bnb.autograd._functions.MatMul8bitLt.apply(x, weight, None, None, state)
    assert not [t for t in seen if t is not None and t.numel() == x.numel()]
    assert product.grad_fn.tensors[2].data_ptr() == x.data_ptr()
