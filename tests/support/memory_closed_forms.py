"""The memory of a step in formulas that a person can read, for models built like Llama.

The tape computes the same numbers operation by operation. The formulas give bytes of tensors before
the allocator rounds them; the letters are those of `memory_formula`. They follow from what autograd
saves for each operation (torch derivatives.yaml; RMSNorm, MLP and attention of
transformers/models/llama; peft/tuners/lora/layer.py).
"""

from __future__ import annotations

from typing import Final

from memory_formula import Form, evaluate, letters_of

from qtui_core.memory.dtypes import SIZES
from qtui_core.memory.plan.run_plan import RunPlan, adapters_of
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.shape.packings import STORED
from qtui_core.memory.tape.blocks.losses import TILE_TOKENS, TILE_WORDS, fused_chunk


def saved_by_layer(shape: ModelShape, plan: RunPlan) -> tuple[Form, ...] | None:
    """What a layer saves for its backward pass, without checkpointing, part by part; None if these
    formulas do not apply. The first layer may save less: with a frozen embedding its input needs no
    gradient."""
    letters = letters_of(shape, plan)
    if letters is None or plan.kbit_prep == "norms" or plan.kernels != "torch" or plan.repeat_kv:
        return None
    wide = _is_wide(plan)
    parts = {
        ("full", False, False): _full16,
        ("full", True, False): _full32,
        ("full", True, True): _full_autocast,
        ("lora", False, False): _lora,
        ("lora", False, True): _lora_autocast,
        ("qlora", False, False): _lora,
        ("qlora", True, False): _qlora_prepared,
        ("qlora", True, True): _qlora_autocast,
    }.get((plan.method, wide, bool(plan.autocast)))
    if parts is None or (
        plan.method == "qlora" and (plan.quant in ("int8", STORED) or plan.dtype == "fp32")
    ):
        return None
    return tuple(
        Form(name, formula, evaluate(formula, letters), reason)
        for name, formula, reason in parts(plan)
        if formula
    )


def saved_outside_layers(shape: ModelShape, plan: RunPlan) -> tuple[Form, ...] | None:
    """What is saved once: rotary tables, last norm, output layer; less what the first layer does
    not save. None if these formulas do not apply."""
    letters = letters_of(shape, plan)
    if letters is None or saved_by_layer(shape, plan) is None or _outside_adapted(shape, plan):
        return None
    wide = _is_wide(plan)
    size = 4 if wide else 2
    parts = [("cosines and sines", f"{2 * size}SD", "one table for all layers")]
    parts.append(("last norm", "4Nh + 4N", "input in float32, and 1 / rms"))
    if plan.method == "full":
        parts.append(("last norm's weight", f"{size}Nh", "trains, so the normalized input too"))
        inputs = 2 if plan.autocast else size
        parts.append(("output layer", f"{inputs}Nh", "trains, so its input too"))
    if plan.autocast and wide:
        parts.append(("output layer, cast", "2Vh", "a 16-bit copy of its float32 weight"))
    parts.append(("labels", "8N", "moved by one, int64"))
    return tuple(Form(n, f, evaluate(f, letters), why) for n, f, why in parts)


def kept_by_checkpoints(shape: ModelShape, plan: RunPlan) -> Form | None:
    """With checkpointing only the input of each layer is kept, in float32 if the residual stream
    is. None if these formulas do not apply."""
    letters = letters_of(shape, plan)
    if letters is None:
        return None
    size = 4 if plan.dtype == "fp32" or plan.kbit_prep != "none" else 2
    formula = f"{size}NhL"
    return Form(
        "inputs of layers", formula, evaluate(formula, letters), "a checkpoint keeps its input"
    )


def loss_hump(shape: ModelShape, plan: RunPlan) -> Form:
    """What the loss holds at its peak, in its backward pass: for V logits per token, float32
    log-probabilities, their gradient, and that of the logits."""
    letters = {"N": plan.tokens, "V": shape.vocabulary, "h": shape.hidden}
    if plan.loss == "tiled":
        letters["C"] = min(TILE_TOKENS, plan.tokens)
        formula, reason = _tiled(plan), "a tile of logits; sums of gradients in float32, rounded"
    elif plan.loss == "fused":
        letters["C"] = fused_chunk(plan.tokens, shape.vocabulary, shape.hidden)
        size = 4 if _is_wide(plan) and not plan.autocast else 2
        formula = f"{size}CV + {size}Ch + {size}Nh + 4N"
        reason = "logits of C tokens, which become their gradient; that of all hidden states"
    elif plan.loss == "stock-4.48":
        formula = "14NV + 6Nh + 42N"
        reason = "logits in 16 bits, raised to float32, and three more of float32"
    elif plan.loss.startswith("in-place"):
        held = 2 if plan.loss != "in-place" and (plan.autocast or not _is_wide(plan)) else 0
        formula = f"{8 + held}NV"
        reason = "logits in float32, and a copy of them that becomes their gradient"
    else:
        logits = 4 if _is_wide(plan) and not plan.autocast else 2
        held = logits if plan.loop != "trainer" else 0
        formula = f"{12 + held}NV"
        reason = "log-probabilities, their gradient and that of the logits in float32" + (
            "; the logits, which the loop still holds" if held else ""
        )
    return Form("loss", formula, evaluate(formula, letters), reason)


def unsaved_by_first_layer(shape: ModelShape, plan: RunPlan) -> Form | None:
    """What the first layer saves less than others: if the embedding is frozen and nothing is
    checkpointed, its input needs no gradient. None if these formulas do not apply."""
    letters = letters_of(shape, plan)
    if letters is None:
        return None
    if plan.method == "full" or plan.checkpointing:
        formula = "0"
    else:
        formula = "4Nh + 4N"
        formula += " + Nx" if plan.lora_dropout else ""
        formula += " + 2rx" if plan.autocast else ""
    return Form(
        "first layer", formula, evaluate(formula, letters), "the embedding needs no gradient"
    )


def loss_peak(shape: ModelShape, plan: RunPlan, resident: int) -> tuple[Form, ...] | None:
    """What is alive at the peak of the loss's backward pass, part by part, with `resident` bytes
    that stay. For a large vocabulary it is the peak of the whole step. None if these formulas do
    not apply."""
    letters = letters_of(shape, plan)
    outside = saved_outside_layers(shape, plan)
    layer = saved_by_layer(shape, plan)
    kept = kept_by_checkpoints(shape, plan)
    first = unsaved_by_first_layer(shape, plan)
    if None in (letters, outside, layer, kept, first) or plan.accumulation > 1:
        return None
    assert letters is not None
    assert outside is not None
    assert layer is not None
    assert kept is not None
    assert first is not None
    if plan.checkpointing:
        layers = kept
    else:
        each = sum(form.bytes for form in layer)
        text = " + ".join(form.formula for form in layer)
        layers = Form(
            "saved by layers",
            f"L({text})" + (f" less {first.formula}" if first.bytes else ""),
            each * letters["L"] - first.bytes,
            "what autograd keeps of each",
        )
    stands = Form("what stands", "", resident, "weights, adapters, optimizer states")
    inputs = Form("inputs", "8N", 8 * letters["N"], "token ids")
    parts = (stands, inputs, layers, *outside, loss_hump(shape, plan))
    wide = plan.kbit_prep == "all" or (plan.autocast and _is_wide(plan))
    if plan.loop == "trainer" or plan.checkpointing or not wide:
        return parts
    # Keys and values in float32, of which attention keeps copies; otherwise it keeps these
    # themselves.
    cache = Form("cache", "8LNk", 8 * letters["L"] * letters["N"] * letters["k"], "keys and values")
    return (*parts, cache)


def _tiled(plan: RunPlan) -> str:
    """A buffer of C tokens by TILE_WORDS, and the sums in float32: the gradient of the head's
    input, and that of the head if it trains. Each is then rounded to the dtype of its tensor."""
    narrow = plan.autocast or not _is_wide(plan)
    parts = [f"{(2 if narrow else 4) * TILE_WORDS}C", "4Nh" if _is_wide(plan) else "6Nh"]
    if plan.method == "full":
        parts.append("4Vh" if _is_wide(plan) else "6Vh")
    return " + ".join(parts)


def optimizer_step(trained: int, plan: RunPlan) -> tuple[Form, ...]:
    """What `trained` parameters of one dtype take in AdamW's step: themselves, gradients, two
    moments, and with foreach the roots of the second."""
    size = SIZES[(plan.adapter_dtype if plan.adapts else plan.dtype) or "fp32"]
    parts = [
        ("trained parameters", f"{size}W", "in their type"),
        ("gradients", f"{size}W", "in the type of the parameter"),
    ]
    if plan.optimizer in ("adamw", "adamw-fused"):
        parts.append(("moments", f"{2 * size}W", "two, in the type of the parameter"))
    if plan.optimizer == "adamw":
        parts.append(("roots of second moments", f"{size}W", "foreach makes all at once"))
    return tuple(Form(n, f, evaluate(f, {"W": trained}), why) for n, f, why in parts)


def tied_gradients(shape: ModelShape, plan: RunPlan) -> Form:
    """At the end of the backward pass of a tied embedding that trains: the gradient of the output
    layer waits while that of the embedding is made, and their sum is a new tensor."""
    formula = f"{3 * SIZES[plan.dtype or 'fp32']}Vh"
    letters = {"V": shape.vocabulary, "h": shape.hidden}
    return Form("tied gradients", formula, evaluate(formula, letters), "two terms and their sum")


_Parts = tuple[tuple[str, str, str], ...]
_FLASH: Final = ("attention", "4Na + 4Nk + 4NH + 24", "q, k, v, output; logsumexp; seeds")
_EFFICIENT: Final = (
    "attention",
    "16Na + 4BHZ + 16",
    "q, k, v and output in float32, k and v for every head; logsumexp; seeds",
)
_NORMS_FROZEN: Final = ("norms", "8Nh + 8N", "two inputs in float32, and 1 / rms")


def _full16(plan: RunPlan) -> _Parts:
    return (
        ("norms", "12Nh + 8N", "of two: input in float32, 1 / rms, normalized input"),
        ("inputs of projections", "4Nh", "one for q, k and v, one for gate and up"),
        _FLASH,
        ("MLP", "8NI", "gate, its activation, up, and their product"),
    )


def _full32(plan: RunPlan) -> _Parts:
    return (
        ("norms", "16Nh + 8N", "of two: input, 1 / rms, normalized input"),
        ("inputs of projections", "8Nh", "one for q, k and v, one for gate and up"),
        _EFFICIENT,
        ("MLP", "16NI", "gate, its activation, up, and their product"),
    )


def _full_autocast(plan: RunPlan) -> _Parts:
    return (
        ("norms", "16Nh + 8N", "of two in float32: input, 1 / rms, normalized input"),
        ("inputs of projections", "10Nh", "q, k, v, gate and up each cast their own"),
        _FLASH,
        ("MLP", "8NI", "gate, its activation, up, and their product, in 16 bits"),
        ("cast weights", "2P", "16-bit copies of the linear weights stay saved"),
    )


def _lora(plan: RunPlan) -> _Parts:
    """Frozen 16-bit layers save no inputs; adapters do."""
    if plan.adapter_dtype == "fp32":
        inputs = "4Nm", "each adapter casts its own input to float32"
        middle = "4Ntr"
        masks = "Nm"
    else:
        shared = "what several adapters share is one"
        inputs = ("2Nm", "of each, after its dropout") if plan.lora_dropout else ("2Nu", shared)
        middle = "2Ntr"
        masks = "Nm"
    return (
        _NORMS_FROZEN,
        _FLASH,
        ("MLP", "6NI", "gate, its activation and up"),
        ("inputs of adapters", *inputs),
        ("inside adapters", middle, "rank elements a token and adapter"),
        ("dropout masks", masks if plan.lora_dropout else "", "a byte an element"),
    )


def _lora_autocast(plan: RunPlan) -> _Parts:
    return (
        _NORMS_FROZEN,
        _FLASH,
        ("MLP", "6NI", "gate, its activation and up"),
        ("inputs of adapters", "2Nm", "each adapter casts its own"),
        ("inside adapters", "2Ntr", "rank elements a token and adapter"),
        ("cast adapters", "2rs", "16-bit copies of their weights stay saved"),
        ("dropout masks", "Nm" if plan.lora_dropout else "", "a byte an element"),
    )


def _qlora_prepared(plan: RunPlan) -> _Parts:
    """K-bit preparation casts the norms to float32, and so everything that flows between layers."""
    inputs = "4Nm" if plan.lora_dropout else "4Nu"
    return (
        _NORMS_FROZEN,
        _EFFICIENT,
        ("MLP", "12NI", "gate, its activation and up, in float32"),
        ("inputs of adapters", inputs, "in float32; shared where there is no dropout"),
        ("inside adapters", "4Ntr", "rank elements a token and adapter"),
        ("dropout masks", "Nm" if plan.lora_dropout else "", "a byte an element"),
    )


def _qlora_autocast(plan: RunPlan) -> _Parts:
    return (
        _NORMS_FROZEN,
        _FLASH,
        ("MLP", "12NI", "gate, its activation and up, in float32"),
        (
            "inputs of adapters",
            "2Nm" if plan.lora_dropout else "2Nn",
            "cast to 16 bits, but for the attention's output, which is in 16 bits and saved",
        ),
        ("inside adapters", "2Ntr", "rank elements a token and adapter"),
        ("cast adapters", "2rs", "16-bit copies of their weights stay saved"),
        ("dropout masks", "Nm" if plan.lora_dropout else "", "a byte an element"),
    )


def _is_wide(plan: RunPlan) -> bool:
    """Whether what flows between layers is float32."""
    return plan.dtype == "fp32" or plan.kbit_prep == "all"


def _outside_adapted(shape: ModelShape, plan: RunPlan) -> bool:
    modules = (*shape.embeddings, shape.head)
    return any(m is not None and adapters_of(shape, plan).rank_on(m.name, m) > 0 for m in modules)
