"""Formulas that a person can read, and the tape, which were derived independently, agree byte for
byte for models built like Llama.

The formulas follow from what autograd saves for each operation (torch derivatives.yaml; RMSNorm,
MLP and attention of transformers/models/llama; peft/tuners/lora/layer.py). They are sums of
products of these letters:

    N tokens of a micro batch     B sequences     S tokens of each, Z the same rounded up to 32
    h hidden size     I width of the MLP     a heads × their size     k the same of keys and values
    H heads     V vocabulary     L layers     P weights of the linear layers of a layer
    r rank     t adapters in a layer     m sum of their inputs     s sum of inputs and outputs
    n the same as m without the attention's output     u that, what several share counted once
    x sum of the inputs of adapters on q, k and v     D rotated elements of a head
"""

from __future__ import annotations

import random
import re
from math import prod

import pytest
from every import in_parts, left_out, over
from resident import resident_bytes
from shorthands import tops

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, FREE, LAYER, PHASE, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step.run import record_step

FLASH = "4Na + 4Nk + 4NH + 24"  # q, k, v, output; logsumexp; seeds
EFFICIENT = "16Na + 4BHZ + 16"  # in float32, k and v for every head
FROZEN = "8Nh + 8N"  # of two norms the input in float32, and 1 / rms
LORA = f"{FROZEN} + {FLASH} + 6NI"  # and of the MLP gate, its activation, up
PREPARED = f"{FROZEN} + {EFFICIENT} + 12NI"
#: The plan -> what a layer saves; what its adapters save besides, with dropout and without.
VARIANTS = {
    "full, 16 bits": ({"method": "full"}, f"12Nh + 8N + 4Nh + {FLASH} + 8NI", "", ""),
    "full, 32 bits": (
        {"method": "full", "dtype": "fp32"}, f"16Nh + 8N + 8Nh + {EFFICIENT} + 16NI", "", ""),
    "full, autocast": (
        {"method": "full", "dtype": "fp32", "autocast": True},
        f"16Nh + 8N + 10Nh + {FLASH} + 8NI + 2P", "", ""),
    "lora": ({"method": "lora"}, LORA, "4Nm + 4Ntr + Nm", "4Nm + 4Ntr"),
    "lora in 16 bits": (
        {"method": "lora", "adapter_dtype": "bf16"}, LORA, "2Nm + 2Ntr + Nm", "2Nu + 2Ntr"),
    "lora, autocast": (
        {"method": "lora", "autocast": True}, LORA,
        "2Nm + 2Ntr + 2rs + Nm", "2Nm + 2Ntr + 2rs"),
    "qlora, prepared, autocast": (
        {"method": "qlora"}, f"{FROZEN} + {FLASH} + 12NI",
        "2Nm + 2Ntr + 2rs + Nm", "2Nn + 2Ntr + 2rs"),
    "qlora, prepared": (
        {"method": "qlora", "autocast": False}, PREPARED, "4Nm + 4Ntr + Nm", "4Nu + 4Ntr"),
    "qlora": (
        {"method": "qlora", "kbit_prep": "none", "autocast": False}, LORA,
        "4Nm + 4Ntr + Nm", "4Nm + 4Ntr"),
}  # fmt: skip
DROPOUT, LOOPS = [0.0, 0.1], ["trainer", "manual"]
TARGETS = [("all-linear",), ("q_proj", "v_proj"), ("o_proj", "down_proj"), ("k_proj", "up_proj")]


def llama(seed):
    """A Llama whose sizes are all different, so that no two letters are equal."""
    dice = random.Random(seed)
    size = dice.choice([16, 32, 64])
    kv_heads = dice.choice([1, 2, 3])
    heads = kv_heads * dice.choice([1, 2, 4])
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8 * heads * dice.randrange(3, 9),
        "intermediate_size": 8 * dice.randrange(97, 150),
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": size,
        "num_hidden_layers": 3, "vocab_size": 90_000, "tie_word_embeddings": False,
    }  # fmt: skip


def plan_of(seed, **chosen):
    dice = random.Random(seed)
    sizes = {
        "batch": dice.choice([1, 2, 3]),
        "sequence": dice.choice([40, 72, 96, 129]),
        "lora_rank": dice.choice([4, 8, 24]),
        "checkpointing": False,
    }
    return resolve(RunPlan(**(sizes | chosen)), "bf16")


def bytes_of(formula, config, plan):
    """The value of a sum of products such as "4Nh + 4N"."""
    size, heads, h = config["head_dim"], config["num_attention_heads"], config["hidden_size"]
    a, k, width = heads * size, config["num_key_value_heads"] * size, config["intermediate_size"]
    linears = {
        "q_proj": (h, a), "k_proj": (h, k), "v_proj": (h, k), "o_proj": (a, h),
        "gate_proj": (h, width), "up_proj": (h, width), "down_proj": (width, h),
    }  # fmt: skip
    everywhere = plan.lora_targets == ("all-linear",)
    adapted = {n: io for n, io in linears.items() if everywhere or n in plan.lora_targets}
    qkv = sum(adapted.get(n, (0,))[0] for n in ("q_proj", "k_proj", "v_proj"))
    inputs = sum(i for i, _ in adapted.values())
    letters = {
        "N": plan.batch * plan.sequence, "B": plan.batch, "S": plan.sequence,
        "Z": -(-plan.sequence // 32) * 32, "h": h, "I": width, "a": a, "k": k, "H": heads,
        "V": config["vocab_size"], "L": config["num_hidden_layers"], "D": size,
        "P": sum(map(prod, linears.values())), "r": plan.lora_rank, "t": len(adapted),
        "m": inputs, "s": sum(map(sum, adapted.values())), "x": qkv,
        "n": inputs - adapted.get("o_proj", (0,))[0],
        "u": min(qkv, h) + h * bool({"gate_proj", "up_proj"} & set(adapted))
        + adapted.get("down_proj", (0,))[0],
    }  # fmt: skip
    terms = re.findall(r"(\d*)([A-Za-z]*)(?: \+ |$)", formula)
    return sum(int(n or 1) * prod(letters[x] for x in names) for n, names in terms if n or names)


def saved_by_layer(name, plan):
    _, base, dropped, plain = VARIANTS[name]
    own = dropped if plan.lora_dropout else plain
    return f"{base} + {own}" if own else base


def saved_on_the_tape(config, plan):
    """Bytes that layer 1 has allocated in the forward pass and that are alive after it."""
    alive, phase, layer = {}, "", None
    for event in record_step(shape_from_config(config), plan, steps=1).events:
        if event[0] == PHASE:
            phase = event[1]
            if phase == Phase.LOSS:
                break
        elif event[0] == LAYER:
            layer = event[1]
        elif event[0] == ALLOCATE:
            alive[event[1]] = event[2] * (phase == Phase.FORWARD and layer == 1)
        elif event[0] == FREE:
            del alive[event[1]]
    return sum(alive.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dropout", DROPOUT)
@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_layer_saves(name, dropout, seed):
    config, chosen = llama(seed), VARIANTS[name][0]
    plan = plan_of(seed, lora_dropout=dropout, lora_targets=TARGETS[seed], **chosen)
    expected = bytes_of(saved_by_layer(name, plan), config, plan)
    assert expected == saved_on_the_tape(config, plan)


@in_parts(2)
@over("dropout", DROPOUT)
@over("loop", LOOPS)
@over("checkpointing", [False, True])
@over("name", VARIANTS)
def test_the_peak_in_the_loss(name, checkpointing, loop, dropout, parts):
    """With a vocabulary as large it is the peak of the backward pass. Rounding to 512 bytes, and
    counters of a few bytes, are all that the formulas leave out."""
    again = (checkpointing, [False, True])
    if left_out(parts, (name, VARIANTS), again, (loop, LOOPS), (dropout, DROPOUT)):
        return
    config = llama(7)
    chosen = {"checkpointing": checkpointing, "loop": loop, "lora_dropout": dropout}
    plan = plan_of(7, **(VARIANTS[name][0] | chosen))
    full, trainer = plan.method == "full", loop == "trainer"
    wide = plan.dtype == "fp32" or plan.kbit_prep == "all"  # what flows between layers is float32
    size = 4 if wide else 2
    # Token ids; cosines and sines; the last norm; labels, moved by one.
    formulas = ["8N", f"{2 * size}SD", "4Nh + 4N", "8N"]
    if full:  # the weight of the last norm and the output layer train
        formulas += [f"{size}Nh", f"{2 if plan.autocast else size}Nh"]
    if plan.autocast and wide:
        formulas.append("2Vh")  # a 16-bit copy of the output layer
    if (plan.kbit_prep == "all" or (plan.autocast and wide)) and not trainer and not checkpointing:
        formulas.append("8LNk")  # keys and values in float32, of which attention keeps copies
    # The loss: log-probabilities, their gradient, that of the logits; the logits, if held.
    formulas.append(f"{12 + (0 if trainer else 4 if wide and not plan.autocast else 2)}NV")
    if checkpointing:
        formulas.append(f"{size}NhL")
        layers = 0
    else:
        # With a frozen embedding the input of the first layer needs no gradient.
        first = "4Nh + 4N" + " + Nx" * bool(dropout) + " + 2rx" * bool(plan.autocast)
        layers = 3 * bytes_of(saved_by_layer(name, plan), config, plan)
        layers -= 0 if full else bytes_of(first, config, plan)
    expected = layers + sum(bytes_of(each, config, plan) for each in formulas)
    shape = shape_from_config(config)
    expected += resident_bytes(shape, plan)
    measured = dict(tops(record_step(shape, plan).events))[Phase.BACKWARD]
    assert expected == pytest.approx(measured, rel=3e-4)
