"""States and temporaries, compared with the installed optimizers."""

from __future__ import annotations

from importlib import import_module
from typing import get_args

import pytest
from every import over
from lazy_imports import LazyImport, lazy_names

from qtui_core.memory.plan.optimizers import Optimizer
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, PHASE, Component, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.weights import StoredTensor
from qtui_core.memory.step.optimizer import (
    passing_temporaries,
    shared_states,
    states_of,
)
from qtui_core.memory.step.run import record_step
from qtui_core.training.limits import RUN_LIMITS

bnb = LazyImport("bitsandbytes")
torch = LazyImport("torch")
Live = LazyImport("dispatch_modes", "Live")
make_optimizer = LazyImport("qtui_core.training.model.optimizers", "make_optimizer")
AutoConfig, AutoModelForCausalLM = lazy_names("transformers", "AutoConfig", "AutoModelForCausalLM")


#: Optimizers that a CPU can run: no row of limits.py refuses them.
RUN_ON_A_CPU = [
    name
    for name in get_args(Optimizer)
    if not any(
        limit.option == "optimizer" and limit.where(RunPlan(optimizer=name)) for limit in RUN_LIMITS
    )
]
TORCH = {"fp32": "float32", "bf16": "bfloat16"}
#: At every border: 4,096 elements, blocks of 128 and 256, 100,000 elements.
SHAPES = [(1,), (5, 7), (4095,), (4096,), (17, 241), (64, 65), (257, 16), (99_999,), (400, 250)]

#: Of few shapes, each of which is compiled anew.
FEW_SHAPES = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def trained(sizes, dtype="fp32", kind="linear"):
    return StoredTensor(
        f"weight{sizes}", sizes, dtype, Component.WEIGHTS, kind, True, loaded=dtype, prepared=dtype
    )


def plan_of(optimizer, loop="trainer"):
    return resolve(RunPlan(method="full", optimizer=optimizer, loop=loop), "bf16")


def parameter(sizes, dtype, device="cpu"):
    ones = torch.ones(sizes, dtype=getattr(torch, TORCH[dtype]), device=device)
    weight = torch.nn.Parameter(ones)
    weight.grad = torch.ones_like(weight)
    return weight


def tensors_in(state, *, steps):
    """(elements, bytes) of the storages of the tensors of a state; `steps` is whether step
    counters are on the device."""
    leaves = []
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or (name == "step" and not steps):
            continue
        inner = getattr(value, "tensor_attrs", None)
        leaves += [getattr(value, part) for part in inner] if inner else [value]
    return sorted(leaf.untyped_storage().nbytes() for leaf in leaves)


def ours(sizes, dtype, plan, kind="linear"):
    return sorted(state.bytes for state in states_of(trained(sizes, dtype, kind), plan))


@over("dtype", TORCH)
@over("sizes", SHAPES)
@over("optimizer", ["adamw", "adamw-fused"])
def test_adamw_of_torch(optimizer, sizes, dtype):
    weight = parameter(sizes, dtype)
    fused = optimizer == "adamw-fused"
    chosen = torch.optim.AdamW([weight], foreach=not fused, fused=fused)
    chosen.step()
    real = tensors_in(chosen.state[weight], steps=fused)
    assert ours(sizes, dtype, plan_of(optimizer)) == real


def test_the_step_counter_is_on_the_device_for_the_fused_kernel_only(monkeypatch):
    """For a device that is not a CPU; "meta" plays that device, once it counts as supported by the
    kernel."""
    check = "_device_dtype_check_for_fused"
    monkeypatch.setattr(import_module("torch.optim.adam"), check, lambda weight: None)
    for fused, device in ((False, "cpu"), (True, "meta")):
        weight = parameter((8, 8), "fp32", "meta")
        group = torch.optim.AdamW([weight]).param_groups[0] | {"fused": fused}
        chosen = torch.optim.AdamW([weight])
        chosen._init_group(group, [], [], [], [], [], [])
        assert chosen.state[weight]["step"].device.type == device


def test_sgd_keeps_nothing():
    weight = parameter((8, 8), "fp32")
    chosen = torch.optim.SGD([weight], lr=0.1)
    chosen.step()
    assert not tensors_in(chosen.state[weight], steps=True)
    assert not ours((8, 8), "fp32", plan_of("sgd"))


@over("dtype", TORCH)
@over("sizes", SHAPES)
def test_adamw_in_8_bits_of_bitsandbytes(sizes, dtype):
    weight = parameter(sizes, dtype)
    chosen = bnb.optim.AdamW8bit([weight])
    chosen.init_state(chosen.param_groups[0], weight, 0, 0)
    state = chosen.state[weight]
    tables = [state.pop(name).numel() for name in ("qmap1", "qmap2") if name in state]
    plan = plan_of("adamw8bit")
    assert ours(sizes, dtype, plan) == tensors_in(state, steps=False)
    shared = shared_states([trained(sizes, dtype)], plan)
    assert [table.elements for table in shared] == tables


def test_code_tables_of_8_bits_are_shared_by_all_tensors():
    weights = [parameter((64, 64), "fp32") for _ in range(3)]
    chosen = bnb.optim.AdamW8bit(weights)
    for index, weight in enumerate(weights):
        chosen.init_state(chosen.param_groups[0], weight, 0, index)
    tables = {chosen.state[w][name].data_ptr() for w in weights for name in ("qmap1", "qmap2")}
    assert len(tables) == 2


@over("sizes", SHAPES)
@over(("optimizer", "bits"), [("paged-adamw8bit", 8), ("paged-adamw", 32)])
def test_paged_states_are_those_bitsandbytes_asks_managed_memory_for(
    optimizer, bits, sizes, monkeypatch
):
    """For a device that is not a CPU; "meta" plays that device, and a list plays managed memory."""
    asked = []

    def get_paged(*shape, dtype, device):
        buffer = torch.empty(*shape, dtype=dtype, device=device)
        asked.append(buffer.nbytes)
        return buffer

    monkeypatch.setattr(bnb.functional, "get_paged", get_paged)
    monkeypatch.setattr(bnb.functional, "fill", lambda buffer, value: None)
    weight = parameter(sizes, "bf16", "meta")
    chosen = bnb.optim.AdamW([weight], optim_bits=bits, is_paged=True)
    chosen.init_state(chosen.param_groups[0], weight, 0, 0)
    real = {k: v for k, v in chosen.state[weight].items() if not k.startswith("qmap")}
    plan = plan_of(optimizer)
    states = states_of(trained(sizes, "bf16"), plan)
    assert [state.bytes for state in states if state.paged] == asked
    assert sorted(state.bytes for state in states) == tensors_in(real, steps=False)


def test_the_trainer_keeps_states_of_embeddings_in_32_bits():
    """transformers/trainer.py, create_optimizer: an override for each nn.Embedding."""
    embedding = torch.nn.Embedding(64, 128)
    manager = bnb.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    try:
        manager.register_module_override(embedding, "weight", {"optim_bits": 32})
        embedding.weight.grad = torch.ones_like(embedding.weight)
        chosen = bnb.optim.AdamW8bit(embedding.parameters())
        chosen.check_overrides()
        chosen.init_state(chosen.param_groups[0], embedding.weight, 0, 0)
        real = tensors_in(chosen.state[embedding.weight], steps=False)
    finally:
        manager.initialize()
    assert ours((64, 128), "fp32", plan_of("adamw8bit"), "embedding") == real
    by_hand = ours((64, 128), "fp32", plan_of("adamw8bit", "manual"), "embedding")
    assert by_hand == ours((64, 128), "fp32", plan_of("adamw8bit"))
    assert not shared_states([trained((64, 128), "fp32", "embedding")], plan_of("adamw8bit"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TORCH)
@pytest.mark.parametrize("sizes", SHAPES)
def test_adamw_in_4_bits_of_torchao(sizes, dtype):
    torchao = pytest.importorskip("torchao.optim")
    weight = parameter(sizes, dtype)
    chosen = torchao.AdamW4bit([weight])
    state = {
        "exp_avg": chosen._new_buffer(weight, True),
        "exp_avg_sq": chosen._new_buffer(weight, False),
    }
    assert ours(sizes, dtype, plan_of("adamw4bit")) == tensors_in(state, steps=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((512, 256), "fp32"), ((64, 250), "bf16"), ((3000,), "bf16")],
)
def test_what_a_compiled_step_in_4_bits_allocates_meanwhile(sizes, dtype):
    """Counted by torch's profiler on a CPU."""
    torchao = pytest.importorskip("torchao.optim")
    weight = parameter(sizes, dtype)
    ours = passing_temporaries(trained(sizes, dtype), plan_of("adamw4bit"))
    peak = most_in_a_step(torchao.AdamW4bit([weight]))
    assert peak == pytest.approx(sum(ours.values()), abs=64)
    assert bool(ours) == (sizes != (3000,))


def most_in_a_step(chosen):
    """Bytes that the second step of an optimizer has above what was there before."""
    chosen.step()
    with torch.profiler.profile(profile_memory=True) as profiler:
        chosen.step()
    moves = [
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    live = peak = 0
    for _, nbytes in sorted(moves, key=lambda move: move[0]):
        live += nbytes
        peak = max(peak, live)
    return peak


@pytest.mark.slow
def test_the_step_of_a_model_in_4_bits_has_what_its_largest_tensor_needs():
    """Many tensors are updated one after the other, in the order of the model."""
    torchao = pytest.importorskip("torchao.optim")
    config = AutoConfig.for_model("llama", **FEW_SHAPES)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    real = most_in_a_step(torchao.AdamW4bit(model.parameters()))
    plan = resolve(RunPlan(method="full", optimizer="adamw4bit", dtype="fp32", sequence=8), None)
    events = record_step(shape_from_config(config.to_dict()), plan).events
    start = max(i for i, event in enumerate(events) if event[:2] == (PHASE, Phase.OPTIMIZER))
    live = peak = 0
    sizes = {}
    for event in events[start:]:
        if event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
        live += event[2] if event[0] == ALLOCATE else 0
        peak = max(peak, live)
        live -= sizes.get(event[1], 0) if event[0] == FREE else 0
    assert peak == pytest.approx(real, abs=64)
    assert peak > 13 * 1000 * 64


@over("dtypes", [("fp32", "fp32", "fp32"), ("bf16", "fp32", "bf16"), ("bf16", "bf16", "bf16")])
@over("optimizer", RUN_ON_A_CPU)
def test_what_a_step_keeps_and_allocates_meanwhile(optimizer, dtypes):
    sizes = [(300, 20), (77,), (64, 64)]
    weights = [parameter(s, d) for s, d in zip(sizes, dtypes, strict=True)]
    plan = plan_of(optimizer)
    chosen = make_optimizer(plan, torch.nn.ParameterList(weights))
    chosen.step()
    fused = bool(chosen.param_groups[0].get("fused"))
    for weight, size, dtype in zip(weights, sizes, dtypes, strict=True):
        state = {k: v for k, v in chosen.state[weight].items() if not k.startswith("qmap")}
        assert ours(size, dtype, plan) == tensors_in(state, steps=fused)
    with Live() as live:
        chosen.step()
    tensors = [trained(s, d) for s, d in zip(sizes, dtypes, strict=True)]
    counter = 4  # the number 1 as a tensor, with which foreach counts the steps on the CPU
    expected = sum(each.bytes for each in tensors) if optimizer == "adamw" else 0
    assert live.peak - expected in (0, counter)
    assert live.now == 0
