"""A term's formula is why it has its bytes, and so still holds when the run is another."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from qtui_core.memory import ModelShape, RunPlan, estimate
from qtui_core.memory.formulas.terms import Symbols, Term

CONFIGS = Path(__file__).parent / "configs"
FORMULA = re.compile(
    r"(?:(?P<count>\d+) x )?(?P<rounded>r512\()?"
    r"(?P<factor>\d+|\d+/\d+|4/\(64 x 256\))(?P<names>(?: [A-Za-z])+)\)?"
)


def value(formula: str, sizes: dict[str, int]) -> int | None:
    """Bytes of a formula such as `28 x r512(4 N h)`; None of a plain number."""
    match = FORMULA.fullmatch(formula)
    if match is None:
        return None
    over, _, under = match["factor"].replace("(64 x 256)", "16384").partition("/")
    size = prod(sizes[name] for name in match["names"].split())
    nbytes = -(-int(over) * size // int(under or 1))
    if match["rounded"]:
        nbytes = -(-nbytes // 512) * 512
    return int(match["count"] or 1) * nbytes


def once(terms: tuple[Term, ...]) -> dict[tuple[str, str, int], Term]:
    """Terms by what they are, where that is one thing of one size."""
    found = defaultdict(list)
    for term in terms:
        found[term.component, term.name, term.count].append(term)
    return {key: group[0] for key, group in found.items() if len(group) == 1}


@pytest.mark.parametrize(
    "plan",
    [
        RunPlan(),
        RunPlan(method="full"),
        RunPlan(method="lora"),
        RunPlan(method="full", dtype="fp32", autocast=True),
        RunPlan(method="lora", attention="eager", loss="stock-4.48"),
    ],
    ids=lambda plan: f"{plan.method}-{plan.dtype}-{plan.attention}",
)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt2-medium", "gemma-2-9b", "bert-base"])
def test_a_formula_gives_the_bytes_of_another_run_too(name, plan):
    """Of 2,048 tokens of a model 4,096 wide 2 h h is as many as 4 N h, but not of 1,431."""
    shape = ModelShape.from_config(json.loads((CONFIGS / f"{name}.json").read_text()))
    longest = min(2048, shape.max_positions or 2048)
    if name == "bert-base":
        plan = replace(plan, loss="stock")  # the only one that an encoder has
    one = replace(plan, batch=2, sequence=longest)
    other = estimate(shape, replace(plan, batch=3, sequence=longest // 2 - 35), allocator=False)
    sizes, terms = Symbols(shape, other.plan).values, once(other.terms)
    held = 0
    for key, term in once(estimate(shape, one, allocator=False).terms).items():
        told = value(term.formula, sizes)
        if key not in terms or told is None:
            continue
        held += 1
        assert abs(told - terms[key].bytes) <= 512 * term.count, (key, term.formula)
    assert held >= 8
