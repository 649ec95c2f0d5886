"""Every option of a plan has its effect in the model, the optimizer or the step on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lazy_imports import LazyImport, lazy_names
from training_runs import configured

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.models import open_model

bitsandbytes = LazyImport("bitsandbytes")
torch = LazyImport("torch")
sdpa_attention = LazyImport("transformers.integrations.sdpa_attention")
build = LazyImport("qtui_core.training.model.build")
make_optimizer = LazyImport("qtui_core.training.model.optimizers", "make_optimizer")
quantize_linears = LazyImport("qtui_core.training.model.quantized", "quantize_linears")
load_weights, settle = lazy_names("qtui_core.training.model.weights", "load_weights", "settle")


pytestmark = pytest.mark.slow  # together, not each


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """The model that a plan trains, made as in a run."""

    def make(**fields: Any) -> tuple[Any, RunPlan]:
        plan = resolve(RunPlan(batch=1, sequence=16, **fields), "bf16")
        with open_model(configured(tmp_path)) as source:
            built = load_weights(source, plan)
        if plan.quant is None:
            settle(built.model, "cpu")
        else:
            quantize_linears(built.model, plan, "cpu")
        build.prepare(built, plan)
        return built.model, plan

    return make


def _adapters(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if ".lora_" in name}


def test_dropout_and_the_type_of_adapters(made):
    for dtype in ("fp32", "bf16", "fp16"):
        model, _ = made(method="qlora", lora_dropout=0.25, adapter_dtype=dtype)
        assert {p.dtype for p in _adapters(model).values()} == {build.DTYPES[dtype]}
        dropped = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
        assert dropped == [0.25] * 14
    model, _ = made(method="qlora")
    assert not any(isinstance(m, torch.nn.Dropout) and m.p for m in model.modules())


def test_k_bit_preparation(made):
    """Of the unquantized parameters all, the norms, or none become float32."""
    for prep, norms, head in (
        ("all", torch.float32, torch.float32),
        ("norms", torch.float32, torch.bfloat16),
        ("none", torch.bfloat16, torch.bfloat16),
    ):
        model, _ = made(method="qlora", quant="nf4", kbit_prep=prep, autocast=True)
        found = {name: p.dtype for name, p in model.named_parameters() if ".lora_" not in name}
        assert {d for name, d in found.items() if "norm" in name} == {norms}
        kept = {d for n, d in found.items() if "lm_head" in n or "embed" in n}
        assert kept == {head}


@pytest.mark.parametrize("quant", ["nf4", "nf4-dq", "fp4", "fp4-dq", "int8"])
def test_how_weights_are_stored(made, quant):
    model, _ = made(method="qlora", quant=quant)
    if quant == "int8":
        layers = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear8bitLt)]
        assert {layer.weight.dtype for layer in layers} == {torch.int8}
    else:
        layers = [m for m in model.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
        states = [layer.weight.quant_state for layer in layers]
        assert {state.quant_type for state in states} == {quant[:3]}
        assert {state.nested for state in states} == {quant.endswith("-dq")}
    assert len(layers) == 14


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(made, reentrant):
    model, _ = made(method="lora", checkpointing=True, reentrant=reentrant)
    layers = model.get_base_model().model.layers
    assert all(layer.gradient_checkpointing for layer in layers)
    for layer in layers:
        assert layer._gradient_checkpointing_func.keywords["use_reentrant"] is reentrant
    plain, _ = made(method="lora", checkpointing=False)
    assert not any(layer.gradient_checkpointing for layer in plain.get_base_model().model.layers)


def test_attention_and_repeated_keys(made):
    for attention in ("sdpa", "eager"):
        model, plan = made(method="full", attention=attention)
        assert model.config._attn_implementation == attention
        with build.kernels_of(plan), _calls() as calls:
            model(input_ids=torch.ones(1, 4, dtype=torch.int64))
        assert len(calls) == (2 if attention == "sdpa" else 0)
    for repeated in (False, True):
        model, plan = made(method="full", repeat_kv=repeated)
        with build.kernels_of(plan), _calls() as calls:
            model(input_ids=torch.ones(1, 4, dtype=torch.int64))
        # Of four heads two have keys.
        assert calls == [4 if repeated else 2] * 2


@contextmanager
def _calls() -> Iterator[list[int]]:
    """The number of key heads in each call of torch's own attention."""
    functional = torch.nn.functional
    plain = functional.scaled_dot_product_attention
    found: list[int] = []

    def called(query: Any, key: Any, *rest: Any, **named: Any) -> Any:
        found.append(key.shape[1])
        return plain(query, key, *rest, **named)

    functional.scaled_dot_product_attention = called
    assert sdpa_attention.torch.nn.functional is functional
    try:
        yield found
    finally:
        functional.scaled_dot_product_attention = plain
