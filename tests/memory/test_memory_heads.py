"""Classes that config.json names have the parameters of transformers, or have no shape."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
from lazy_imports import LazyImport
from small_models import CONFIGS
from tracing import traced_or_refused

from qtui_core.errors import UsageError
from qtui_core.memory.advice.changes import candidates
from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import ALLOCATE, Component, Recording
from qtui_core.memory.shape.from_config import UnknownFamily, shape_from_config
from qtui_core.memory.shape.heads import is_traceable
from qtui_core.memory.shape.modules import named_parameters

torch = LazyImport("torch")
transformers = LazyImport("transformers")


PUBLISHED = [
    Path(__file__).parent / "configs" / f"{name}.json"
    for name in ("bert-large", "roberta-large", "gpt2-medium", "llama-3.2-1b")
]
LABELS: tuple[dict[str, Any], ...] = (
    {},
    {"num_labels": 3},
    {"id2label": {str(i): f"label {i}" for i in range(5)}},
)
#: Classes whose shape is not built in.
NOT_BUILT_IN = {
    "GPT2DoubleHeadsModel",
    "Gemma3TextForSequenceClassification",
    "Gemma3TextModel",
    "Llama4TextModel",
    "T5EncoderModel",
    "T5ForQuestionAnswering",
    "T5ForSequenceClassification",
    "T5ForTokenClassification",
    "T5Model",
}


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
def test_what_is_known_exactly_are_the_parameters_of_the_class_that_is_named():
    wrong, refused = [], set()
    cases = [
        {"model_type": family, **CONFIGS[family], "tie_word_embeddings": tied, **labels}
        for family in CONFIGS
        for tied, labels in zip((True, False, True), LABELS, strict=True)
    ]
    cases += [json.loads(path.read_text()) for path in PUBLISHED]
    for config in cases:
        for kind in classes_of(config):
            named = config | {"architectures": [kind.__name__]}
            try:
                shape = shape_from_config(named)
            except UnknownFamily as error:
                refused.add(kind.__name__)
                if ("--trace" in str(error)) != is_traceable(kind.__name__):
                    wrong.append(str(error))
                continue
            theirs = parameters(kind, named)
            if shape.known != "exact" or shape.architecture != kind.__name__:
                wrong.append(f"{kind.__name__} is told as {shape.architecture}, {shape.known}")
            elif dict(named_parameters(shape)) != theirs:
                odd = set(dict(named_parameters(shape)).items()) ^ set(theirs.items())
                wrong.append(f"{kind.__name__} differs in {sorted(odd)}")
    assert not wrong, "\n".join(wrong)
    assert refused == NOT_BUILT_IN


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


def test_what_a_step_of_another_head_allocates_is_not_told():
    config = {"model_type": "bert", **CONFIGS["bert"]}
    sorts = shape_from_config(config | {"architectures": ["BertForSequenceClassification"]})
    for method in ("full", "inference"):
        with pytest.raises(UsageError, match=r"BertForSequenceClassification .*--trace"):
            estimate(sorts, RunPlan(method=method, sequence=32))
    masked = shape_from_config(config)
    for loss in ("stock-4.48", "tiled", "chunked:64", "fused", "in-place"):
        with pytest.raises(UsageError, match=f"--loss {loss} .*use --loss stock"):
            estimate(masked, RunPlan(method="full", sequence=32, loss=loss))
    plan = resolve(RunPlan(method="full", sequence=32), "fp32")
    assert not [changes for changes, _ in candidates(masked, plan) if "loss" in changes]


@pytest.mark.slow
def test_a_trace_is_of_the_class_that_is_named_or_refused():
    """The 16-bit weights of a trace take two bytes for each parameter of the class."""
    cases, kinds = [], []
    for family in ("bert", "roberta", "llama", "gpt2", "t5"):
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
