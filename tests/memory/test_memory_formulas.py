"""A formula explains the bytes of a term: it gives exactly these bytes, and also those of another
run."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from every import in_parts, left_out, over
from formula_value import value_of
from lazy_imports import LazyImport

from qtui_core.codec import to_plain
from qtui_core.errors import UsageError
from qtui_core.memory import Estimate, ModelShape, RunPlan, estimate
from qtui_core.memory.formulas.size import (
    MEANINGS,
    Size,
    expression_of,
    factors_of,
    letter,
    plain,
    product_of,
)
from qtui_core.memory.formulas.terms import SLACK, Term
from qtui_core.memory.replay.record import Component
from qtui_core.memory.shape.from_config import shape_from_config

Dimensions = LazyImport("qtui_core.training.tracing.tracker", "Dimensions")

CONFIGS = Path(__file__).parent / "configs"
SIZES = {"batch": 2, "sequence": 203, "lora_rank": 8}
#: Plans that a model is given in turn, one of each method.
FULL = cycle(
    RunPlan(method="full", **SIZES, **options)
    for options in (
        {},
        {"checkpointing": True, "optimizer": "adamw8bit"},
        {"dtype": "fp32", "autocast": True, "optimizer": "adamw-fused"},
        {"gpus": 3, "zero": 3, "checkpointing": True},
        {"attention": "eager", "optimizer": "adamw4bit"},
        {"gpus": 2, "zero": 2, "optimizer": "sgd", "loop": "manual"},
        {"gpus": 2, "tensor_parallel": 2, "optimizer": "paged-adamw8bit"},
        {"gpus": 2, "pipeline_parallel": 2},
        {"loss": "tiled", "padding_mask": True},
    )
)
LORA = cycle(
    RunPlan(method="lora", **SIZES, **options)
    for options in (
        {},
        {"lora_dropout": 0.1, "adapter_dtype": "bf16", "loss": "tiled"},
        {"checkpointing": True, "kernels": "liger", "loss": "fused"},
        {"attention": "efficient", "autocast": True, "accumulation": 4, "loop": "manual"},
        {"gpus": 3, "zero": 3, "loss": "in-place"},
        {"kernels": "fused", "checkpointing": True, "reentrant": True},
    )
)
QLORA = cycle(
    RunPlan(**SIZES, **options)
    for options in (
        {},
        {"checkpointing": False, "quant": "fp4", "optimizer": "adamw8bit"},
        {"quant": "int8", "kbit_prep": "norms"},
        {"gpus": 3, "zero": 3, "quant_storage": "bf16"},
        {"autocast": False, "lora_dropout": 0.1, "loss": "stock-4.48"},
    )
)
INFERENCE = cycle(
    RunPlan(method="inference", batch=2, sequence=203, **options)
    for options in ({}, {"generate": 30}, {"quant": "nf4", "padding_mask": True})
)
#: Larger than any test shape, where a wrong product could not hide in the rounding.
LARGE = RunPlan(batch=3, sequence=4001, checkpointing=False, lora_rank=64, gpus=8, zero=3)


def read(name: str) -> ModelShape:
    return shape_from_config(json.loads((CONFIGS / f"{name}.json").read_text()))


def faults(found: Estimate) -> list[str]:
    """What is wrong with the formulas of an estimate: those that do not give their bytes, and the
    share without letters if it is more than a thousandth."""
    letters, wrong = found.alive.letters, []
    bare = 0
    for term in found.terms:
        if term.name == SLACK:
            assert value_of(term.numbers, {}) == term.bytes
            continue
        told = value_of(term.formula, letters), value_of(term.numbers, {})
        if told != (term.bytes, term.bytes):
            wrong.append(f"{term.name}: {term.formula} is {told}, not {term.bytes:,}")
        if not re.search(r"\b[A-Za-z]\b", term.formula.replace("L*", "")):
            bare += term.bytes if term.component != Component.WORKSPACES.value else 0
    alive = sum(term.bytes for term in found.terms if term.name != SLACK)
    if bare > alive / 1000:
        wrong.append(f"{bare:,} of {alive:,} bytes have no formula")
    for term in found.components:
        if term.name == SLACK:
            continue
        left = re.search(r"([\d,]+) in smaller terms", term.formula)
        rest = int(left[1].replace(",", "")) if left else 0
        if value_of(term.formula, letters) != term.bytes or (
            rest > max(term.bytes / 1000, 512 * term.count)
        ):
            wrong.append(f"{term.name}: {term.formula} leaves {rest:,} of {term.bytes:,}")
    rows = found.alive.by_expression
    if sum(row.bytes for row in rows) != alive or any(
        value_of(row.formula, letters) != row.bytes for row in rows
    ):
        wrong.append("rows of equal form do not sum to the peak")
    if unknown := set(letters) - set(MEANINGS):
        wrong.append(f"no meaning for {unknown}")
    return wrong


@in_parts(4)
def test_formulas_of_all_families_and_methods_give_exactly_their_bytes(parts):
    shapes = {shape.family: shape for shape in map(read, sorted(p.stem for p in CONFIGS.iterdir()))}
    wrong: dict[str, list[str]] = {}
    tried: Counter[str] = Counter()
    for at, shape in enumerate(shapes.values()):
        plans = (next(FULL), next(LORA), next(QLORA), next(INFERENCE))
        for plan in (*plans[at % 4 :], *plans[: at % 4]):
            if tried[shape.family] == len(plans) // parts:
                break
            try:
                # The sizes of an encoder of images have no letters.
                found = estimate(replace(shape, tower=None), plan, allocator=False)
            except UsageError:  # a plan that this model cannot have
                continue
            tried[shape.family] += 1
            if problems := faults(found):
                wrong[f"{shape.family}: {plan}"] = problems
    assert not wrong
    assert set(tried) == set(shapes)
    assert sum(tried.values()) > 3 * len(shapes) // parts


def test_formulas_of_a_large_run_with_its_allocator_give_exactly_their_bytes():
    assert not faults(estimate(read("llama-2-70b"), LARGE))


def once(terms: tuple[Term, ...]) -> dict[tuple[str, str, int], Term]:
    """The terms by name, for names that stand for one thing of one size."""
    found = defaultdict(list)
    for term in terms:
        found[term.component, term.name, term.count].append(term)
    return {key: group[0] for key, group in found.items() if len(group) == 1}


FIVE = (
    RunPlan(),
    RunPlan(method="full"),
    RunPlan(method="lora"),
    RunPlan(method="full", dtype="fp32", autocast=True),
    RunPlan(method="lora", attention="eager", loss="stock-4.48"),
)
FOUR = ("llama-3.1-8b", "gpt2-medium", "gemma-2-9b", "bert-base")


@in_parts(2)
@over("plan", FIVE, ids=lambda plan: f"{plan.method}-{plan.dtype}-{plan.attention}")
@over("name", FOUR)
def test_a_formula_gives_the_bytes_of_another_run_too(name, plan, parts):
    """With 2,048 tokens and a model of width 4,096, 2 h h equals 4 N h; with 1,431 tokens it does
    not."""
    if left_out(parts, (plan, FIVE), (name, FOUR)):
        return
    shape = read(name)
    longest = min(2048, shape.max_positions or 2048)
    if name == "bert-base":
        plan = replace(plan, loss="stock")  # the only one that an encoder has
    one = replace(plan, batch=2, sequence=longest)
    other = estimate(shape, replace(plan, batch=3, sequence=longest // 2 - 35), allocator=False)
    letters, terms = other.alive.letters, once(other.terms)
    held = 0
    for key, term in once(estimate(shape, one, allocator=False).terms).items():
        if key not in terms:
            continue
        held += 1
        told = value_of(term.formula, letters)
        assert abs(told - terms[key].bytes) <= 512 * term.count, (key, term.formula)
    assert held >= 8


def test_a_size_is_the_number_and_remembers_the_product():
    h, n, heads = letter("h", 4096), letter("I", 14336), letter("H", 32)
    dims, vocabulary, odd = letter("D", 128), letter("V", 128_257), letter("S", 203)
    for size, number, text in (
        (odd * h * 4, 203 * 4096 * 4, "S*h*4"),
        (2 * h * h, 2 * 4096 * 4096, "h*h*2"),
        (h * n // 64, 4096 * 14336 // 64, "h*I/64"),
        (-(-odd // 128) * 128, 256, "ceil(S/128)*128"),
        (odd // 2, 101, "floor(S/2)"),
        (-(-(odd * h + 1) // 1000), 832, "ceil((S*h + 1)/1,000)"),
        (odd * heads * dims // h, 203, "S*H*D/h"),
        (odd * (h + 2 * n) // (h + 2 * n), 203, "S"),
        (3 * h + 1 - odd, 12_086, "h*3 - S + 1"),
        (sum([h, h, n]), 22_528, "I + h*2"),
        (-(-vocabulary // 7) * h, 18_323 * 4096, "h*ceil(V/7)"),
        (7 - odd, -196, "-S + 7"),
        (1000 // odd, 4, "floor(1,000/S)"),
    ):
        assert (size, hash(size), f"{size:,}") == (number, hash(number), f"{number:,}")
        assert expression_of(size).text == text
        letters = {"h": 4096, "I": 14336, "H": 32, "D": 128, "V": 128_257, "S": 203}
        assert value_of(text, letters) == number
    assert expression_of(12).text == "12"
    assert h * 0.5 == 2048.0
    assert type(max(h, 5000)) is int


def test_a_plain_shape_is_equal_and_has_no_letters():
    shape = read("qwen3-30b-a3b")
    bare = plain(shape)
    assert bare == shape
    assert type(bare.hidden) is int
    assert isinstance(shape.hidden, Size)
    assert len({id(layer) for layer in bare.layers}) == len({id(layer) for layer in shape.layers})


def test_sides_of_a_traced_tensor_are_letters_also_in_another_process():
    config = {"hidden_size": 512, "num_attention_heads": 8, "vocab_size": 1000}
    dimensions = Dimensions(config, RunPlan(batch=2, sequence=203))
    for dims, text in (
        ((2, 203, 512), "B*S*h*4"),
        ((2, 8, 203, 64), "B*S*H*D*4"),
        ((406, 1000), "B*S*V*4"),
        ((2, 512), "h*8"),
        ((7, 11), "308"),
    ):
        size = dimensions.bytes_of(dims, 4)
        assert expression_of(size).text == text
        factors = factors_of(size)
        again = product_of(json.loads(json.dumps(factors))) if factors else size
        assert (int(again), expression_of(again).text) == (int(size), text)
    assert to_plain((letter("h", 512),)) == [512]
    assert type(to_plain(letter("h", 512))) is int
