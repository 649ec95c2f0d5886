"""Which plans are impossible for a model. Every refusal names the contradiction and a way out."""

from __future__ import annotations

from qtui_core.errors import UsageError
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.shape.heads import LANGUAGE_MODELS, TRACEABLE
from qtui_core.memory.shape.model_shape import Attention, ModelShape, Moe
from qtui_core.memory.shape.modules import parameter_count
from qtui_core.memory.shape.packings import STORED


def check_against(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError if `plan`, which is possible in itself, is impossible for the model
    `shape`."""
    _check_head(shape, plan)
    _check_packing(shape, plan)
    ways = plan.tensor_parallel
    # Equal layers are one object, and comparing is dear: of these there may be thousands.
    for layer in {id(layer): layer for layer in (*shape.encoder, *shape.layers)}.values():
        attention, mlp = layer.attention, layer.mlp
        _divide(ways, attention.heads, "attention heads")
        if isinstance(attention, Attention):
            _divide(ways, attention.kv_heads, "heads of keys and values")
        _divide(ways, mlp.intermediate if isinstance(mlp, Moe) else mlp.down.inputs, "MLP columns")
    if plan.pipeline_parallel > len(shape.layers):
        raise UsageError(
            f"Pipeline parallelism in {plan.pipeline_parallel} stages needs as many layers, and "
            f"the model has {len(shape.layers)}."
        )
    _check_positions(shape, plan)
    _check_fused(shape, plan)
    _check_encoder_decoder(shape, plan)
    if shape.is_encoder and plan.generate:
        raise UsageError(
            "An encoder does not generate tokens, so there is no cache to hold; leave out the "
            "number of generated tokens."
        )


def _check_packing(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError for what a quantized checkpoint does not allow."""
    packing = shape.packing
    if packing is None:
        return
    stored = f"The checkpoint is stored as {packing.title}"
    ways = ["--method inference" if packing.untrained else "--method qlora"]
    if packing.dequantizes:
        ways.append("--quant none, which unpacks it as it is loaded")
    use = f"use {', or '.join(ways)}"
    if not plan.quantized:
        if packing.dequantizes:
            return
        raise UsageError(
            f"{stored}, and transformers has no way to unpack it as it is loaded; leave out "
            "--quant, or take the checkpoint that it was made from."
        )
    if plan.method == "full":
        raise UsageError(
            f"{stored}, and packed weights cannot be trained themselves; {use}, or train the "
            "checkpoint that it was made from."
        )
    if plan.adapts and packing.untrained:
        raise UsageError(
            f"{stored}, and no adapters are trained over that: {packing.untrained}; use --method "
            "inference, "
            + ("or --method lora with --quant none, which unpacks it as it is loaded."
               if packing.dequantizes else "or train the checkpoint that it was made from.")
        )  # fmt: skip
    if plan.method == "lora":
        raise UsageError(f"{stored}, and LoRA over packed weights is QLoRA; {use}.")
    if plan.quant == STORED and (plan.tensor_parallel > 1 or plan.zero == 3):
        raise UsageError(
            "How GPUs share weights that a checkpoint stores packed is not built in; use "
            "--zero 2 or less without --tensor-parallel, or pipeline parallelism."
        )
    if plan.quant == STORED and plan.kbit_prep != "none" and packing.method in ("gptq", "hqq"):
        raise UsageError(
            f"peft's k-bit preparation leaves all of {packing.title} in its type; use "
            "--kbit-prep none."
        )
    if plan.quant == STORED and plan.kernels == "fused":
        raise UsageError(
            "Fused kernels are made for 4-bit weights of bitsandbytes; use --kernels torch."
        )


def _check_positions(shape: ModelShape, plan: RunPlan) -> None:
    longest = shape.learned_positions
    length = plan.sequence + plan.generate
    if longest is None or length <= longest:
        return
    more, use = "", f"--seq {longest - plan.generate} or less"
    if plan.generate:
        more = f", of which {plan.generate:,} are generated"
        if plan.generate >= longest:
            use = f"--generate {longest - 1} or less"
    raise UsageError(
        f"The model has learned {longest:,} positions, and {length:,} tokens are asked for{more}; "
        f"use {use}."
    )


def not_built_in(shape: ModelShape, plan: RunPlan) -> tuple[str, ...]:
    """Which settings of the plan need a trace: all of it if the head is of another kind than those
    that predict tokens. For models with an encoder and a decoder only the usual step is built
    in."""
    if shape.head is None:
        return ("its head",)
    if not shape.encoder:
        return ()
    unknown = {
        "a padding mask": plan.padding_mask,
        "--attention eager": plan.attention == "eager",
        "--reentrant": plan.reentrant and bool(plan.checkpointing),
        f"--loop {plan.loop}": plan.trains and plan.loop != "trainer" and not plan.checkpointing,
    }
    return tuple(what for what, present in unknown.items() if present)


def _check_head(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError if the step of the class is not built in, or if its head cannot have the
    loss."""
    name = shape.architecture
    if shape.head is None:
        use, why = "; use --trace, which runs the real class", ""
        if not name.endswith(TRACEABLE):
            if not name.endswith("Model"):
                use = "; name another class under architectures in config.json"
            elif plan.trains:
                why = f"{name} has no head to train on. "
                use += ", with --method inference"
        elif plan.adapts and not name.endswith(LANGUAGE_MODELS):
            use += ", with --method full or inference"
        raise UsageError(
            f"{why}What a run of {name} allocates is not built in, and not guessed, though its "
            f"{parameter_count(shape):,} parameters are known{use}."
        )
    if plan.trains and plan.loss != "stock" and (shape.is_encoder or shape.encoder):
        raise UsageError(
            f"--loss {plan.loss} is of models that predict the next token, and {name} does not; "
            "use --loss stock."
        )


def _check_encoder_decoder(shape: ModelShape, plan: RunPlan) -> None:
    if unknown := not_built_in(shape, plan):
        raise UsageError(
            f"What {', '.join(unknown)} allocates in {shape.architecture} is not built in, and not "
            "guessed; leave that out of the plan, or use --trace, which runs the real class."
        )


def _check_fused(shape: ModelShape, plan: RunPlan) -> None:
    styles = {layer.attention.style for layer in shape.layers}
    if plan.kernels == "fused" and styles != {"llama"}:
        raise UsageError(
            f"Fused kernels are made for layers of Llama's kind, and {shape.architecture} has "
            "others; use --kernels torch."
        )


def _divide(ways: int, count: int, what: str) -> None:
    if count % ways:
        allowed = [str(n) for n in range(1, min(count, 64) + 1) if count % n == 0]
        use = f"one of {', '.join(allowed)}" if len(allowed) > 1 else "--tensor-parallel 1"
        raise UsageError(f"Tensor parallelism of {ways} does not divide {count} {what}; use {use}.")
