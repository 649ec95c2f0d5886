"""Models of transformers on the meta device, with which shapes are compared."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from lazy_imports import LazyImport

from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape, named_parameters, parameter_count

torch = LazyImport("torch")
transformers = LazyImport("transformers")


CONFIGS = Path(__file__).parents[1] / "memory" / "configs"


def published(name: str) -> dict[str, Any]:
    """A config.json under tests/memory/configs, parsed."""
    return json.loads((CONFIGS / f"{name}.json").read_text())


def causal_model(config: dict[str, Any]) -> transformers.PreTrainedModel:
    """The class with a head for the next token, on the meta device; for a multimodal config.json,
    that of its text_config."""
    values = config.get("text_config", config)
    sizes = transformers.AutoConfig.for_model(**values)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(sizes, dtype=torch.float32)


def whole_model(config: dict[str, Any]) -> transformers.PreTrainedModel:
    """The class of a model of text and images, on the meta device."""
    sizes = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        return transformers.AutoModelForImageTextToText.from_config(sizes)


def agreeing_shape(config: dict[str, Any]) -> ModelShape:
    """The shape of the language model, after checking that the class has exactly its parameters and
    buffers."""
    shape = replace(shape_from_config(config), tower=None)
    model = causal_model(config)
    ours = list(named_parameters(shape))
    assert len(ours) == len(dict(ours))
    assert dict(ours) == {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert parameter_count(shape) == sum(p.numel() for p in model.parameters())
    assert Counter(shape.buffers) == Counter(b.nbytes for b in model.buffers())
    assert type(model).__name__ == shape.architecture
    return shape
