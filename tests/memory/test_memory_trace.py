"""Traces of real classes, compared with another recorder, with torch's profiler, and with
themselves."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lazy_imports import LazyImport, lazy_names
from small_models import CONFIGS, config_of
from tracing import traced, traced_or_refused

from qtui_core.errors import ModelError, UsageError
from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FORWARD,
    FREE,
    LAYER,
    OUTSIDE,
    PHASE,
    Component,
    Phase,
)
from qtui_core.threads import child_environment
from tests.support.recording_difference import first_difference, peaks, standing_bytes

torch = LazyImport("torch")
transformers = LazyImport("transformers")
ProfilerActivity, profile, record_function = lazy_names(
    "torch.profiler", "ProfilerActivity", "profile", "record_function"
)
build = LazyImport("qtui_core.training.model.build")
batch_of = LazyImport("qtui_core.training.step", "batch_of")


pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 4096,
    "n_embd": 512,
    "n_layer": 3,
    "n_head": 8,
    "resid_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "attn_pdrop": 0.1,
}
FULL = {"method": "full", "batch": 2, "sequence": 256, "dtype": "bf16"}
LORA = FULL | {"method": "lora"}

#: Peaks of the same steps, written down by another recorder of live storages (forward with loss,
#: backward, optimizer, between; of the first step and the second), each rounded up to 512 bytes.
#: It told the engine's additions in place by the shapes of tensors, not by their references, and
#: patched the quantized product by hand.
MEASURED = {
    "full, checkpoints": (
        LLAMA,
        FULL | {"checkpointing": True},
        [50816512, 59089920, 130457600, 78276608, 102997504, 111270912, 130457600, 78276608],
    ),
    "full, mixed precision": (
        LLAMA,
        FULL | {"dtype": "fp32", "autocast": True},
        [141391360, 144528384, 260910080, 156548096, 245753344, 248890368, 260910080, 156548096],
    ),
    "LoRA, dropout, checkpoints, autocast": (
        LLAMA,
        LORA | {"lora_dropout": 0.05, "autocast": True, "checkpointing": True},
        [52983296, 55747584, 35065856, 31477760, 56571392, 59335680, 35065856, 31477760],
    ),
    "QLoRA without double quantization": (
        LLAMA,
        LORA
        | {"method": "qlora", "quant": "nf4", "kbit_prep": "none", "autocast": True}
        | {"checkpointing": False},
        [69516288, 73128448, 22358528, 18770432, 73104384, 76716544, 22358528, 18770432],
    ),
    "GPT-2, dropout, mixed precision, checkpoints": (
        GPT2,
        FULL | {"dtype": "fp32", "autocast": True, "checkpointing": True},
        [98435584, 124432384, 241596416, 144959488, 195072512, 221069312, 241596416, 144959488],
    ),
    "memory-efficient attention": (
        LLAMA,
        FULL | {"attention": "efficient"},
        [85481984, 89667584, 130457600, 78276608, 137662976, 141848576, 130457600, 78276608],
    ),
}


@pytest.fixture(scope="module")
def measured():
    cases = [(config, RunPlan(**plan), {}) for config, plan, _ in MEASURED.values()]
    return dict(zip(MEASURED, traced(*cases), strict=True))


@pytest.mark.parametrize("case", MEASURED)
def test_peaks_are_those_of_another_recorder_to_the_byte(measured, case):
    found = peaks(measured[case])
    rows = []
    for step in (1, 2):
        rows.append(max(found[f"{Phase.FORWARD} {step}"], found[f"{Phase.LOSS} {step}"]))
        rows += [found[f"{p} {step}"] for p in (Phase.BACKWARD, Phase.OPTIMIZER, Phase.BETWEEN)]
    assert rows == MEASURED[case][2]


CPU_PLANS = {
    "full": {"method": "full"},
    "full, checkpoints": {"method": "full", "checkpointing": True},
    "LoRA, checkpoints": {"method": "lora", "checkpointing": True},
    "QLoRA": {"method": "qlora", "autocast": False, "checkpointing": False},
}


@pytest.fixture(scope="module")
def on_the_cpu():
    """Of each plan the recording and what the profiler saw, from one process: the profiler sees
    what all of a process does, and other tests are kept out of it."""
    config = LLAMA | {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config |= {"vocab_size": 1000}
    same = {"batch": 2, "sequence": 256, "dtype": "fp32", "attention": "eager"}
    cases = [(config, RunPlan(**(same | plan))) for plan in CPU_PLANS.values()]
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", _PROFILED, str(here), str(here.parent / "support")],
        input=pickle.dumps(cases),
        capture_output=True,
        env=child_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return dict(zip(CPU_PLANS, pickle.loads(done.stdout), strict=True))


@pytest.mark.parametrize("case", CPU_PLANS)
def test_the_recorder_sees_what_the_profiler_of_torch_sees_of_the_same_step_on_the_cpu(
    on_the_cpu, case
):
    recording, profiled = on_the_cpu[case]
    standing = _unrounded_standing(recording)
    of_recorder = _unrounded_peaks(recording)
    for phase, nbytes in profiled.items():
        assert of_recorder[phase] - standing == pytest.approx(nbytes, rel=1e-3), phase


_PROFILED = """
import os, pickle, sys
answer = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
sys.path[:0] = sys.argv[1:]
from test_memory_trace import _profiled
from qtui_core.memory.plan.run_plan import resolve_for
from tracing import stored_as
from qtui_core.training.tracing.trace import record
cases = pickle.load(sys.stdin.buffer)
cases = [(config, resolve_for(stored_as(config), plan)) for config, plan in cases]
pickle.dump([(record(*case, device="cpu", steps=1), _profiled(*case)) for case in cases], answer)
"""


def _unrounded_standing(recording):
    sizes = {}
    for event in recording.events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
        elif event[0] == FREE:
            del sizes[event[1]]
        elif event == (PHASE, Phase.FORWARD):
            return sum(sizes.values())
    raise AssertionError("no forward pass")


def _unrounded_peaks(recording):
    found, sizes, live, phase = {}, {}, 0, ""
    for event in recording.events:
        if event[0] == PHASE:
            phase = "forward" if event[1] == Phase.LOSS else str(event[1])
        elif event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
            live += event[2]
            found[phase] = max(found.get(phase, 0), live)
        elif event[0] == FREE:
            live -= sizes.pop(event[1])
    return found


def _profiled(config, plan):
    """Peak of each phase over what stood before, from the allocator's own events."""
    plan = resolve(plan, None)
    built = build.load(config, plan, "cpu")
    build.prepare(built, plan)
    batch = batch_of(built, plan, "cpu")
    gc.collect()
    gc.disable()
    try:
        with (
            torch.autograd.set_multithreading_enabled(False),
            profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled,
        ):
            with record_function("forward"):
                loss = built.model(**batch).loss
            with record_function("backward"):
                loss.backward()
    finally:
        gc.enable()
    events = profiled.profiler.kineto_results.events()
    spans = {
        e.name(): (e.start_ns(), e.end_ns()) for e in events if e.name() in ("forward", "backward")
    }
    # Changes at the same moment count in the order in which they were reported.
    changes = sorted(
        ((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"),
        key=lambda change: change[0],
    )
    live, found = 0, dict.fromkeys(spans, 0)
    for moment, nbytes in changes:
        live += nbytes
        for name, (start, stop) in spans.items():
            if start <= moment <= stop:
                found[name] = max(found[name], live)
    return found


DEEP = {
    "llama": {"num_hidden_layers": 7},
    "gemma2": {"num_hidden_layers": 9},
    "deepseek_v2": {"num_hidden_layers": 7},
    "gpt2": {"n_layer": 7},
}


@pytest.fixture(scope="module")
def folded():
    plan = RunPlan(method="lora", batch=2, sequence=64, dtype="bf16", checkpointing=True)
    cases = []
    for family, more in DEEP.items():
        config = transformers.AutoConfig.for_model(family, **CONFIGS[family] | more).to_dict()
        cases += [(config, plan, {"whole": whole}) for whole in (False, True)]
    found = traced(*cases)
    return dict(zip(DEEP, zip(found[::2], found[1::2], strict=True), strict=True))


@pytest.mark.parametrize("family", DEEP)
def test_a_trace_of_few_layers_is_that_of_all(folded, family):
    few, whole = folded[family]
    assert first_difference(few, whole) is None
    assert standing_bytes(few) == standing_bytes(whole)
    assert peaks(few) == peaks(whole)


@pytest.fixture(scope="module")
def families():
    """With both methods in turn. Every method of every family, operation by operation, is in
    test_memory_drift.py."""
    plan = RunPlan(batch=2, sequence=32, dtype="bf16", lora_rank=4)
    methods = itertools.cycle(("full", "lora"))
    cases = [
        (config_of(family).to_dict(), replace(plan, method=method), {})
        for family, method in zip(CONFIGS, methods, strict=False)
    ]
    return dict(zip(CONFIGS, traced(*cases), strict=True))


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_can_be_traced(families, family):
    meta = build_parameters(family)
    recording = families[family]
    _check_layers(recording)
    _check_that_nothing_is_left_by_a_step(recording)
    allocated = [event for event in recording.events if event[0] == ALLOCATE]
    weights = [event for event in allocated if event[3].component is Component.WEIGHTS]
    assert sum(event[2] for event in weights) == 2 * meta


def build_parameters(family):
    with torch.device("meta"):
        config = config_of(family)
        cls = getattr(transformers, config.architectures[0])
        return sum(p.numel() for p in cls(config).parameters())


def _check_layers(recording):
    """Each layer is run forwards, in order, and then backwards."""
    begins = recording.events.index((PHASE, Phase.FORWARD))
    ends = recording.events.index((PHASE, Phase.OPTIMIZER))
    marks = [event for event in recording.events[begins:ends] if event[0] == LAYER]
    up = [index for _, index, direction in marks if direction == FORWARD and index != OUTSIDE]
    down = [index for _, index, direction in marks if direction == BACKWARD and index != OUTSIDE]
    assert up == sorted(set(up))
    assert down == up[::-1]
    assert len(up) >= 2


def _check_that_nothing_is_left_by_a_step(recording):
    """What is alive after the second step is what is alive after the first."""
    sizes, after = {}, []
    for event in recording.events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = event[2]
        elif event[0] == FREE:
            del sizes[event[1]]
        elif event == (PHASE, Phase.BETWEEN):
            after.append(sum(sizes.values()))
    assert len(after) == 2
    assert after[0] == after[1]


_TEXT = LLAMA | {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
_TEXT |= {"head_dim": 8, "vocab_size": 200, "dtype": "float32"}
_VISION = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
_VISION |= {"out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [1]}
_ONES = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0}
#: Config -> plan: models of text and images, one with a class of the text alone, and a class whose
#: initial values are drawn until they fit.
WHOLE = {
    "Qwen3VLForConditionalGeneration": {
        "model_type": "qwen3_vl",
        "text_config": _TEXT | {"model_type": "qwen3_vl_text"},
        "vision_config": _VISION | {"model_type": "qwen3_vl"},
    },
    "SmolVLMForConditionalGeneration": {
        "model_type": "smolvlm",
        "text_config": _TEXT,
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 16,
            "model_type": "smolvlm_vision",
        },
    },
    "ModernBertForMaskedLM": _TEXT | _ONES | {"model_type": "modernbert", "sep_token_id": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole():
    plan = RunPlan(method="full", batch=1, sequence=32)
    cases = [(config | {"architectures": [name]}, plan, {}) for name, config in WHOLE.items()]
    return dict(zip(WHOLE, traced(*cases), strict=True))


@pytest.mark.parametrize("name", WHOLE)
def test_the_class_of_the_whole_config_is_traced_in_the_dtype_that_its_text_part_names(whole, name):
    config = transformers.AutoConfig.for_model(**WHOLE[name])
    with torch.device("meta"):
        count = sum(p.numel() for p in getattr(transformers, name)(config).parameters())
    allocated = [event for event in whole[name].events if event[0] == ALLOCATE]
    weights = [event for event in allocated if event[3].component is Component.WEIGHTS]
    assert sum(event[2] for event in weights) == 4 * count
    _check_that_nothing_is_left_by_a_step(whole[name])


REFUSED = {
    "a model of its own code": (
        {"model_type": "mystery", "auto_map": {"AutoModel": "modeling.Mystery"}},
        {},
        ModelError,
        "never run",
    ),
    "no model type": ({"hidden_size": 4}, {}, ModelError, "model_type"),
    "heads that do not divide": (
        LLAMA | {"hidden_size": 500, "num_attention_heads": 7},
        {},
        ModelError,
        "config.json",
    ),
    "a loss that is not installed": (LLAMA, {"loss": "fused"}, UsageError, "--loss fused"),
    "many GPUs": (LLAMA, {"gpus": 2, "zero": 3}, UsageError, "one fake GPU"),
    "adapters nowhere": (LLAMA, {"lora_targets": ("c_attn",)}, UsageError, "prepared"),
}


@pytest.fixture(scope="module")
def refused():
    cases = [(c, RunPlan(**LORA | plan), {}) for c, plan, _, _ in REFUSED.values()]
    return dict(zip(REFUSED, traced_or_refused(*cases), strict=True))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_traced_is_refused_in_a_sentence(refused, case):
    _, _, kind, words = REFUSED[case]
    assert type(refused[case]) is kind
    assert words in str(refused[case])
    assert "\n" not in str(refused[case])


def test_nothing_of_a_published_model_is_downloaded_or_computed():
    """A model of a trillion bytes is traced on any machine, from its config.json."""
    config = json.loads((Path(__file__).parent / "configs" / "deepseek-v3.json").read_text())
    (recording,) = traced((config, RunPlan(method="full", batch=1, sequence=512), {}))
    assert standing_bytes(recording) > 1.3e12
