"""Operations and bytes of a step: products, compared with 6ND and similar formulas; and row-wise
operations, compared with what torch really dispatches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every import over
from lazy_imports import LazyImport, lazy_names

from qtui_core.memory.compute import compute_of
from qtui_core.memory.devices.device import find_device
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.folding import fold
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import parameter_count
from qtui_core.roofline.operation import Operation, Roofs, place
from qtui_core.roofline.step import operations_of

torch = LazyImport("torch")
Traffic = LazyImport("dispatch_modes", "Traffic")
AutoConfig, AutoModelForCausalLM = lazy_names("transformers", "AutoConfig", "AutoModelForCausalLM")
activations = LazyImport("transformers.activations")
ForCausalLMLoss = LazyImport("transformers.loss.loss_utils", "ForCausalLMLoss")


BATCH, SEQUENCE = 2, 64
N = BATCH * SEQUENCE

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "head_dim": 16,
    "max_position_embeddings": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500,
    "n_positions": 128, "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    **LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
    "architectures": ["MixtralForCausalLM"],
}  # fmt: skip


def operations(config: dict[str, Any] = LLAMA, **plan: Any) -> tuple[Operation, ...]:
    shape = shape_from_config(config)
    usual: dict[str, Any] = {"method": "full", "batch": BATCH, "sequence": SEQUENCE}
    return operations_of(shape, resolve(RunPlan(**usual | plan), shape.dtype))


def named(name: str, found: tuple[Operation, ...]) -> Operation:
    return next(each for each in found if each.name == name)


@over("config", [LLAMA, GPT2, MIXTRAL], ids=lambda c: c["model_type"])
@over(
    "plan",
    [
        {"method": "full"},
        {"method": "full", "checkpointing": True, "accumulation": 3},
        {"method": "lora", "lora_targets": ("q_proj", "v_proj", "c_attn")},
        {"method": "qlora", "lora_targets": ("q_proj", "v_proj", "c_attn")},
        {"method": "inference"},
        {"method": "full", "attention": "eager"},
    ],
    ids=str,
)
def test_products_and_attention_are_the_operations_of_a_step(
    config: dict[str, Any], plan: dict[str, Any]
) -> None:
    shape = shape_from_config(config)
    resolved = resolve(RunPlan(batch=BATCH, sequence=SEQUENCE, **plan), shape.dtype)
    counted = sum(
        each.operations * each.times
        for each in operations_of(shape, resolved)
        if each.group in ("products", "attention")
    )
    assert counted == compute_of(shape, resolved).total


CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
PLANS = (
    RunPlan(method="full", batch=2, sequence=512),
    RunPlan(method="qlora", batch=2, sequence=512),
    RunPlan(method="lora", batch=1, sequence=1024, attention="eager"),
    RunPlan(method="inference", quant="int8", batch=1, sequence=256, generate=64),
)


@over("path", CONFIGS, ids=lambda path: path.stem)
def test_so_they_are_for_every_family(path: Path) -> None:
    # Layers that repeat are counted once more in what both sides sum: a few of each kind do.
    shape, _ = fold(shape_from_config(json.loads(path.read_text())))
    roofs = Roofs.of(find_device("A100"))
    for plan in PLANS:
        resolved = resolve(plan, shape.dtype)
        found = operations_of(shape, resolved)
        counted = sum(
            each.operations * each.times
            for each in found
            if each.group in ("products", "attention")
        )
        assert counted == compute_of(shape, resolved).total
        for each in found:
            assert min(each.times, each.operations, each.bytes) > 0
            assert each.l2_bytes >= each.bytes
            assert each.fused_bytes is None or each.fused_bytes <= each.bytes
            assert place(each, roofs).seconds > 0


def traffic(work: Callable[[], Any]) -> int:
    with Traffic() as counted:
        work()
    return counted.bytes


@pytest.fixture(scope="module")
def llama() -> Any:
    config = AutoConfig.for_model(**LLAMA)
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


class TestRowByRow:
    """Bytes that torch's operations move, compared with the formulas."""

    def test_norm(self, llama: Any) -> None:
        x = torch.randn(BATCH, SEQUENCE, 128, dtype=torch.bfloat16)
        with torch.no_grad():
            moved = traffic(lambda: llama.model.norm(x))
        # Means and inverse roots of rows, and the weight, are left out of the formula.
        assert moved == pytest.approx(named("RMSNorm", operations()).bytes, rel=0.04)

    def test_norm_of_a_stream_in_32_bits(self, llama: Any) -> None:
        x = torch.randn(BATCH, SEQUENCE, 128)
        norm = type(llama.model.norm)(128)
        with torch.no_grad():
            moved = traffic(lambda: norm(x))
        found = named("RMSNorm", operations(method="qlora"))
        assert moved == pytest.approx(found.bytes, rel=0.04)

    def test_gated_activation(self) -> None:
        gate, up = (torch.randn(N, 352, dtype=torch.bfloat16) for _ in range(2))
        moved = traffic(lambda: activations.ACT2FN["silu"](gate) * up)
        assert moved == named("gated activation", operations()).bytes

    def test_gelu_new(self) -> None:
        x = torch.randn(N, 256)
        moved = traffic(lambda: activations.ACT2FN["gelu_new"](x))
        found = named("gelu_new", operations(GPT2, dtype="fp32", autocast=False))
        assert moved == found.bytes

    def test_rotation(self) -> None:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        q = torch.randn(BATCH, 8, SEQUENCE, 16, dtype=torch.bfloat16)
        k = torch.randn(BATCH, 2, SEQUENCE, 16, dtype=torch.bfloat16)
        cos = sin = torch.zeros(1, SEQUENCE, 16, dtype=torch.bfloat16)
        moved = traffic(lambda: apply_rotary_pos_emb(q, k, cos, sin))
        tables = 4 * cos.nbytes  # read by each of four products, and not by head
        assert moved - tables == named("rotation", operations()).bytes

    def test_residual_sum(self) -> None:
        x, y = (torch.randn(N, 128, dtype=torch.bfloat16) for _ in range(2))
        assert traffic(lambda: x + y) == named("residual sum", operations()).bytes

    def test_loss(self) -> None:
        logits = torch.randn(BATCH, SEQUENCE, 1000, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.randint(0, 1000, (BATCH, SEQUENCE))

        def work() -> None:
            ForCausalLMLoss(logits, labels, 1000, shift_labels=labels).backward()

        assert traffic(work) == pytest.approx(named("loss", operations()).bytes, rel=0.01)

    def test_adamw(self) -> None:
        shape = shape_from_config(LLAMA)
        parameters = [torch.zeros(parameter_count(shape), dtype=torch.bfloat16, requires_grad=True)]
        optimizer = torch.optim.AdamW(parameters, foreach=True)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # makes the states
        moved = traffic(optimizer.step)
        assert moved == pytest.approx(named("AdamW step", operations()).bytes, rel=1e-3)

    def test_adamw_fused(self) -> None:
        # The kernel reads parameter, gradient and two states, and writes all but the gradient.
        shape = shape_from_config(LLAMA)
        found = named("AdamW step", operations(optimizer="adamw-fused"))
        # Besides a counter for each tensor.
        assert found.bytes == pytest.approx(7 * 2 * parameter_count(shape), rel=1e-4)

    def test_eager_scores(self, llama: Any) -> None:
        from transformers.models.llama.modeling_llama import eager_attention_forward

        q = torch.randn(BATCH, 8, SEQUENCE, 16, dtype=torch.bfloat16)
        k = v = torch.randn(BATCH, 2, SEQUENCE, 16, dtype=torch.bfloat16)
        mask = torch.zeros(BATCH, 1, SEQUENCE, SEQUENCE, dtype=torch.bfloat16)
        module = llama.model.layers[0].self_attn
        moved = traffic(lambda: eager_attention_forward(module, q, k, v, mask, 0.25))
        found = named("attention, eager", operations(attention="eager"))
        # Besides: keys and values are copied for each head of queries and read so, the result is
        # copied in another order, and the mask is read for each sequence.
        copies = 2 * (2 * q.nbytes + q.nbytes - k.nbytes)
        assert moved == found.bytes + copies + 2 * q.nbytes + mask.nbytes

    def test_eager_scores_backward(self) -> None:
        scores = torch.randn(16, 64, 64, dtype=torch.bfloat16, requires_grad=True)
        values = torch.randn(16, 64, 16, dtype=torch.bfloat16)
        queries = torch.randn(16, 64, 16, dtype=torch.bfloat16)
        given = torch.randn(16, 64, 16, dtype=torch.bfloat16)
        probabilities = torch.softmax(scores * 0.25, -1, dtype=torch.float32).to(torch.bfloat16)
        kept = probabilities.detach()

        def work() -> None:
            kept.transpose(1, 2) @ given
            (back,) = torch.autograd.grad(probabilities, scores, given @ values.transpose(1, 2))
            back @ queries
            back.transpose(1, 2) @ queries

        moved = traffic(work)
        found = named("attention backward", operations(attention="eager"))
        assert (found.bytes - 2 * _once()) // scores.numel() == 36
        # Gradients of result, queries, keys and values, and both operands of each product.
        assert moved == 36 * scores.numel() + 8 * queries.nbytes


def _once() -> int:
    """Queries, keys, values and result of a layer."""
    return 2 * N * 16 * (8 + 2 + 2 + 8)


def test_dequantization_reads_what_is_packed() -> None:
    """As bitsandbytes stores it."""
    import bitsandbytes.functional as bnb

    weight = torch.randn(352, 128, dtype=torch.bfloat16)
    packed, state = bnb.quantize_4bit(
        weight, quant_type="nf4", compress_statistics=True, blocksize=64
    )
    stored = packed.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    moved = stored + bnb.dequantize_4bit(packed, state).nbytes
    found = named("dequantize up_proj, gate_proj, down_proj", operations(method="qlora"))
    assert found.bytes == pytest.approx(moved, rel=1e-3)
    # Two layers; forward, again, backward; three modules.
    assert found.times == 2 * 3 * 3


class TestPlacing:
    def test_large_products_compute_and_rows_move(self) -> None:
        big = {**LLAMA, "hidden_size": 4096, "intermediate_size": 11008, "head_dim": 128,
               "num_attention_heads": 32, "num_key_value_heads": 32}  # fmt: skip
        roofs = Roofs.of(find_device("H100"))
        found = operations(big, batch=4, sequence=2048, dtype="bf16")
        product = place(named("q_proj, k_proj, v_proj, o_proj", found), roofs)
        m, k = 4 * 2048, 4096
        assert product.operation.intensity == pytest.approx(
            2 * m * k * k / (2 * (2 * m * k + k * k))
        )
        assert product.presses == "bf16 units"
        assert product.attainable == 989.4e12
        # Two layers, four modules, forward and both gradients, at the highest rate.
        assert product.seconds == pytest.approx(24 * 2 * m * k * k / 989.4e12)
        norm = place(named("RMSNorm", found), roofs)
        assert norm.presses == "memory"
        assert norm.seconds == pytest.approx(norm.operation.bytes * norm.operation.times / 3.35e12)
        # 36 bytes an element become 4.
        assert norm.saves_seconds / norm.seconds == pytest.approx(32 / 36)

    def test_one_token_waits_for_weights(self) -> None:
        found = operations(method="inference", batch=1, generate=16)
        token = named("products of a token", found)
        assert token.times == 16
        assert token.intensity == pytest.approx(1.0)  # 2 operations for each weight of 2 bytes
        eight = named("products of a token", operations(method="inference", batch=8, generate=16))
        assert eight.intensity == pytest.approx(8.0)

    def test_a_type_without_units_is_computed_in_fp32(self) -> None:
        roofs = Roofs.of(find_device("V100"))
        assert roofs.rate_of("bf16") == (15.7e12, "fp32 units, for want of bf16")
        assert roofs.rate_of("fp16") == (125.0e12, "fp16 units")

    def test_l2_limits_what_is_streamed_from_it(self) -> None:
        operation = Operation("x", "products", 1, 10**12, 10**9, 10**11, "bf16", "", "")
        found = place(operation, Roofs({"bf16": 1e15, "fp32": 1e13}, 2e12, 5e12))
        assert found.presses == "L2"
        assert found.seconds == pytest.approx(0.02)


def test_a_quantized_cache_is_read_in_fewer_bytes() -> None:
    asked: dict[str, Any] = {"method": "inference", "generate": 8}
    plain, half = (
        named("attention of a token", operations(**asked, kv_dtype=each))
        for each in ("auto", "fp8")
    )
    assert (half.bytes * 2, half.operations) == (plain.bytes, plain.operations)
