"""Which plans cannot be. Every refusal says what contradicts what, and a way out."""

from __future__ import annotations

from qtui_core.errors import UsageError
from qtui_core.memory.plan.choices import QUANTS, UNPACKED
from qtui_core.memory.plan.option import options_of
from qtui_core.memory.plan.options import RunPlan
from qtui_core.memory.shape.heads import LANGUAGE_MODELS, TRACEABLE
from qtui_core.memory.shape.model_shape import Attention, ModelShape, Moe
from qtui_core.memory.shape.packings import STORED


def check(plan: RunPlan, packed_as: str | None = None) -> None:
    """Raises UsageError for a plan, with nothing left open, that cannot be on any model whose
    checkpoint is quantized as `packed_as` says."""
    for option in options_of(type(plan)):
        option.check(plan)
    if plan.tokens > 1 << 31:
        raise UsageError(
            f"A batch of {plan.batch:,} sequences of {plan.sequence:,} tokens is "
            f"{plan.tokens:,} tokens a step, more than the indices of any kernel reach."
        )
    _check_storage(plan, packed_as)
    _check_parallel(plan)


def check_against(shape: ModelShape, plan: RunPlan) -> None:
    """Raises UsageError where `plan`, possible in itself, is impossible for the model `shape`."""
    _check_head(shape, plan)
    _check_packing(shape, plan)
    ways = plan.tensor_parallel
    for layer in dict.fromkeys((*shape.encoder, *shape.layers)):
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


def check_storage(quant: str | None, packed_as: str | None) -> None:
    """Raises UsageError where a checkpoint that is quantized, or is not, cannot be stored so."""
    if packed_as is None and quant == STORED:
        raise UsageError(
            f"--quant {STORED} is of a checkpoint that is quantized, and this one is not; choose "
            f"{' or '.join(QUANTS[:2])}, or leave out --quant."
        )
    if packed_as is not None and quant not in (packed_as, UNPACKED):
        raise UsageError(
            f"The checkpoint is quantized already, and transformers does not quantize it again: "
            f"--quant {quant} is for one that is not; leave out --quant."
        )


def _check_packing(shape: ModelShape, plan: RunPlan) -> None:
    """What a checkpoint that is quantized does not allow."""
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


def _check_storage(plan: RunPlan, packed_as: str | None) -> None:
    if plan.method == "qlora" and not plan.quantized:
        choose = f"choose --quant {' or '.join(QUANTS[:2])}"
        raise UsageError(
            "QLoRA trains adapters over quantized weights, and the plan quantizes none; "
            f"{choose if packed_as is None else 'leave out --quant'}, or say --method lora."
        )
    # What a quantized checkpoint allows is its own to say: check_against.
    if plan.method == "lora" and plan.quantized and packed_as is None:
        raise UsageError(
            f"LoRA over weights stored as {plan.quant} is QLoRA; say --method qlora, or leave out "
            "--quant."
        )
    if plan.method == "full" and plan.quantized and packed_as is None:
        raise UsageError(
            f"Weights stored as {plan.quant} cannot be trained themselves, only adapters over "
            "them; use --method qlora, or leave out --quant."
        )
    if plan.method == "full" and plan.kbit_prep != "none":
        raise UsageError(
            "K-bit preparation freezes the weights, so nothing would be left to train fully; use "
            "--kbit-prep none, or --method lora or qlora."
        )


def _check_parallel(plan: RunPlan) -> None:
    ways = plan.tensor_parallel * plan.pipeline_parallel
    if plan.gpus % ways:
        raise UsageError(
            f"Tensor parallelism of {plan.tensor_parallel} and pipeline parallelism of "
            f"{plan.pipeline_parallel} take {ways} GPUs for one copy of the model, and "
            f"{plan.gpus} is no multiple of that; use --gpus {-(-plan.gpus // ways) * ways}."
        )
    if plan.zero and plan.data_parallel == 1:
        raise UsageError(
            f"ZeRO-{plan.zero} shards over GPUs that hold the same, and there is only one such "
            f"GPU; use --gpus {2 * ways} or more, or --zero 0."
        )
    if plan.zero in (1, 2) and not plan.trains:
        raise UsageError(
            f"ZeRO-{plan.zero} shards what training needs, which an inference has not; use "
            "--zero 3 for the weights, or --zero 0."
        )
    if plan.quantized and plan.quant != STORED and plan.tensor_parallel > 1:
        raise UsageError(
            f"Weights stored as {plan.quant} are one packed row without rows and columns, which "
            "tensor parallelism cannot cut; use --zero or pipeline parallelism, or no --quant."
        )
    if plan.quant == "int8" and plan.zero == 3:
        raise UsageError(
            "ZeRO-3 cannot shard weights of LLM.int8, whose row scales are not parameters; use "
            "--zero 2 or a 4-bit --quant."
        )


def learned_positions(shape: ModelShape) -> int | None:
    """The longest sequence of a model whose positions are a table; None of others, which go on."""
    learned = any(
        isinstance(layer.attention, Attention) and layer.attention.positions == "learned"
        for layer in shape.layers[:1]
    )
    return shape.max_positions if learned else None


def _check_positions(shape: ModelShape, plan: RunPlan) -> None:
    longest = learned_positions(shape)
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
    """What of a plan only a trace shows: all of it where the head is of another kind than those
    that predict tokens; of models with an encoder and a decoder their usual step is built in."""
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
    """That a step of the class is built in, and that the loss is one that its head can have."""
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
            f"{shape.parameters:,} parameters are known{use}."
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
