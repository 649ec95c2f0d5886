"""A candidate of an evaluation of the demo beside the forward pass of the whole model."""

from __future__ import annotations

import numpy as np
import pytest
from lazy_imports import LazyImport
from racing import race

from qtui_core.evaluation.changes import WeightChange, uniform
from qtui_core.models import open_model
from qtui_core.models.demo import DEMO_FOLDER
from qtui_core.schemes.scheme import Scheme

pytestmark = pytest.mark.bench

torch = LazyImport("torch")
transformers = LazyImport("transformers")
streamed = LazyImport("qtui_core.evaluation.streamed")
verb = LazyImport("qtui_core.evaluation.evaluate")

#: A batch of the default evaluation: windows of 256 tokens, 127 of each scored.
BATCH = (16, 256)
SCORED = 127
#: Reading and rounding the weights anew for a batch takes this share of its time at most.
LIMIT = 1.25


def test_reading_weights_layer_by_layer_takes_little_of_a_pass():
    source = open_model("demo")
    ids = np.random.default_rng(0).integers(0, 256, BATCH)
    model = streamed.StreamedModel(source, "cpu")  # sets the threads of both
    whole = transformers.AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32)
    given = torch.from_numpy(ids)

    def plain() -> None:
        with torch.inference_mode():
            whole.eval()(input_ids=given, use_cache=False, logits_to_keep=SCORED + 1)

    original = streamed.ForwardPass(WeightChange("original", source))
    changed = streamed.ForwardPass(uniform(Scheme.parse("nf4"), source))
    seconds = race(
        {
            "transformers": plain,
            "original": lambda: model.logits(ids, SCORED, original),
            "nf4": lambda: model.logits(ids, SCORED, changed),
        },
        rounds=5,
    )
    print()
    for name in ("original", "nf4"):
        ratio = seconds[name] / seconds["transformers"]
        print(f"{name}: {seconds[name]:.2f} s, {ratio:.2f}x the forward pass of transformers")
    assert seconds["nf4"] / seconds["transformers"] <= LIMIT
