"""A class that config.json names is the language model of its family, or has no shape; a trace runs
it or refuses it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from math import prod
from typing import Any

import pytest
from lazy_imports import LazyImport
from small_models import CONFIGS
from tracing import traced_or_refused

from qtui_core.errors import UsageError
from qtui_core.memory.advice.fit import candidates
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, Component, Recording
from qtui_core.memory.shape.from_config import (
    LANGUAGE_MODELS,
    UnknownFamily,
    is_traceable,
    shape_from_config,
)

torch = LazyImport("torch")
transformers = LazyImport("transformers")


#: Language models whose head is built in for tokens that are masked, not for the next one.
DECODING = {"BertLMHeadModel", "RobertaForCausalLM"}


def classes_of(config: dict[str, Any]) -> Iterator[Any]:
    """Every class that transformers has for a configuration."""
    kind = type(transformers.AutoConfig.for_model(**config))
    name = kind.__module__.replace("configuration_", "modeling_")
    module = importlib.import_module(name)
    for found in map(module.__dict__.get, module.__all__):
        if (
            inspect.isclass(found)
            and found.__name__.endswith("PreTrainedModel") is False
            and getattr(found, "config_class", None) is kind
        ):
            yield found


def parameters(kind: Any, config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = kind._from_config(transformers.AutoConfig.for_model(**config), dtype=torch.float32)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


@pytest.mark.slow
def test_only_a_language_model_has_a_shape():
    wrong = []
    for family, sizes in CONFIGS.items():
        config = {"model_type": family, **sizes}
        for kind in classes_of(config):
            name = kind.__name__
            built = name.endswith(LANGUAGE_MODELS) and name not in DECODING
            try:
                shape = shape_from_config(config | {"architectures": [name]})
            except UnknownFamily as error:
                if built or name not in str(error):
                    wrong.append(str(error))
            else:
                if not built or (shape.known, shape.architecture) != ("exact", name):
                    wrong.append(f"{name} is told as {shape.architecture}, {shape.known}")
    assert not wrong, "\n".join(wrong)


def test_a_class_by_another_name_is_never_told_exactly_as_the_language_model():
    wrong = []
    for family in CONFIGS:
        config = {"model_type": family, **CONFIGS[family]}
        for name in ("LLaMAForCausalLM", "XForSequenceClassification", "XModel", "X"):
            try:
                shape = shape_from_config(config | {"architectures": [name]})
            except UnknownFamily as error:
                if name not in str(error):
                    wrong.append(f"{family}, {name}: {error}")
            else:
                if shape.known == "exact" or name not in " ".join(shape.notes):
                    wrong.append(f"{family}, {name}: {shape.known} {shape.notes}")
    assert not wrong, "\n".join(wrong)


def test_losses_of_the_next_token_are_not_of_masked_ones():
    masked = shape_from_config({"model_type": "bert", **CONFIGS["bert"]})
    for loss in ("stock-4.48", "tiled", "fused", "in-place"):
        with pytest.raises(UsageError, match=f"--loss {loss} .*use --loss stock"):
            estimate(masked, RunPlan(method="full", sequence=32, loss=loss))
    plan = resolve(RunPlan(method="full", sequence=32), "fp32")
    assert not [changes for changes, _ in candidates(masked, plan) if "loss" in changes]


@pytest.mark.slow
def test_a_trace_is_of_the_class_that_is_named_or_refused():
    """The 16-bit weights of a trace take two bytes for each parameter of the class."""
    cases, kinds = [], []
    for family in ("bert", "roberta", "llama", "gpt2"):
        config = {"model_type": family, **CONFIGS[family]}
        for kind in classes_of(config):
            named = config | {"architectures": [kind.__name__]}
            plan = RunPlan(method="full", batch=2, sequence=32, dtype="bf16")
            cases.append((named, plan, {"steps": 1}))
            kinds.append((kind, named))
    other = {"model_type": "llama", **CONFIGS["llama"], "architectures": ["LlamaForReward"]}
    cases.append((other, RunPlan(method="full", sequence=32), {}))
    *results, refusal = traced_or_refused(*cases)
    assert "LlamaForReward" in str(refusal)
    wrong = []
    for (kind, named), found in zip(kinds, results, strict=True):
        name = kind.__name__
        if not isinstance(found, Recording):
            bare = name.endswith("Model") and "no head to train on" in str(found)
            if name not in str(found) or (is_traceable(name) and not bare):
                wrong.append(f"{name}: {found}")
            continue
        weights = sum(
            event[2]
            for event in found.events
            if event[0] == ALLOCATE and event[3].component is Component.WEIGHTS
        )
        count = sum(map(prod, parameters(kind, named).values()))
        if not is_traceable(name) or weights != 2 * count:
            wrong.append(f"{name}: {weights} bytes of {count} parameters")
    assert not wrong, "\n".join(wrong)
