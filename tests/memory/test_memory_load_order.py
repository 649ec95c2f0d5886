"""The order in which quantized weights are loaded: threads that read ahead, simulated with a clock,
and the resulting state of the allocator."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from lazy_imports import LazyImport

from qtui_core.memory.estimate import estimate
from qtui_core.memory.plan.run_plan import RunPlan
from qtui_core.memory.replay.record import ALLOCATE, EMPTY_CACHE, FREE, PHASE, Event, Phase
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.step import device_events
from qtui_core.memory.step.device_events import for_allocator, read_ahead
from qtui_core.memory.tape.blocks.weights import SOURCE

torch = LazyImport("torch")
transformers = LazyImport("transformers")
CpuTracker = LazyImport("qtui_core.training.tracing.tracker", "CpuTracker")

SHAPE = shape_from_config(
    {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
)
PLAN = RunPlan(method="qlora", sequence=128, torch="2.13")


def load_of(events: list[Event]) -> list[Event]:
    """Allocations and frees of the first phase, without the marks of layers."""
    ends = next(i for i, event in enumerate(events) if i and event[0] == PHASE)
    return [event for event in events[1:ends] if event[0] in (ALLOCATE, FREE)]


def sources_at_once(events: list[Event]) -> int:
    """The most unquantized weights that are on the GPU at once."""
    alive: set[object] = set()
    most = 0
    for event in events:
        if event[0] == ALLOCATE and event[3] == SOURCE:
            alive.add(event[1])
        elif event[0] == FREE:
            alive.discard(event[1])
        most = max(most, len(alive))
    return most


def ticking(sizes: list[int], converts: int) -> tuple[list[int], list[int]]:
    """When each tensor is begun and done by four threads, a unit of time at a time: a thread takes
    the next tensor, converts it, waits till no other copies and those before it have, copies."""
    began, ended = [0] * len(sizes), [0] * len(sizes)
    threads: list[list[int] | None] = [None] * 4  # tensor, units of conversion left
    line: list[int] = []
    copying: list[int] | None = None
    queue = list(range(len(sizes)))
    now = 0
    while len(line) or copying or queue or any(threads):
        if copying is not None and copying[1] == 0:
            ended[copying[0]] = now
            threads[[t[0] if t else None for t in threads].index(copying[0])] = None
            copying = None
        for number, thread in enumerate(threads):
            if thread is None and queue:
                tensor = queue.pop(0)
                began[tensor] = now
                threads[number] = [tensor, converts * sizes[tensor]]
        for thread in sorted((t for t in threads if t), key=lambda t: t[0]):
            if thread[1] == 0 and thread[0] not in line and (copying or [None])[0] != thread[0]:
                line.append(thread[0])
        if copying is None and line:
            first = line.pop(0)
            copying = [first, sizes[first]]
        for thread in threads:
            if thread and thread[1]:
                thread[1] -= 1
        if copying is not None:
            copying[1] -= 1
        now += 1
    return began, ended


def test_threads_against_a_clock_that_ticks():
    random = Random(0)
    for _ in range(50):
        sizes = random.sample(range(1, 400), random.randrange(1, 12))
        assert device_events._times(sizes) == ticking(sizes, device_events._CONVERTED)


def test_a_load_that_reads_ahead_has_the_events_of_one_that_does_not():
    events = load_of(list(estimate(SHAPE, PLAN, allocator=False).events))
    ahead = read_ahead(events)
    assert Counter(map(repr, ahead)) == Counter(map(repr, events))
    alive: set[object] = set()
    for event in ahead:
        if event[0] == ALLOCATE:
            alive.add(event[1])
        else:
            alive.remove(event[1])
    # One at a time, except for their maxima, which are quantized, too, less their mean; with
    # threads that read ahead, at least one per thread.
    assert sources_at_once(events) == 3
    assert sources_at_once(ahead) >= 4


@pytest.mark.parametrize(
    ("torch", "ahead", "emptied"),
    [
        ("2.4", False, False),
        ("2.9.1", False, False),
        ("2.10.0+cu128", True, False),
        ("2.11", False, True),
        ("2.12", False, True),
        ("2.13", False, True),
        ("2.14", False, True),
    ],
)
def test_a_load_is_that_of_the_libraries_that_were_current(torch, ahead, emptied):
    """Which versions of transformers read ahead, and which of peft empty the cache."""
    plan = RunPlan(method="qlora", sequence=128, torch=torch, kbit_prep="all")
    found = estimate(SHAPE, plan, allocator=False)
    events = list(for_allocator(found.events, found.plan))
    assert (sources_at_once(load_of(events)) >= 4) == ahead
    assert any(event[0] == EMPTY_CACHE for event in events) == emptied


def test_the_allocator_is_told_of_the_load_as_it_was():
    plan = RunPlan(method="qlora", sequence=128, torch="2.10", kbit_prep="all")
    found = estimate(SHAPE, plan, allocator=False)
    events = list(for_allocator(found.events, found.plan))
    assert sources_at_once(load_of(events)) >= 4
    assert not any(event[0] == EMPTY_CACHE for event in events)
    now = estimate(SHAPE, PLAN, allocator=False)
    assert sum(event[0] == EMPTY_CACHE for event in for_allocator(now.events, now.plan)) == 1
    lora = estimate(SHAPE, RunPlan(method="lora", torch="2.10"), allocator=False)
    assert for_allocator(lora.events, lora.plan) is lora.events


GPT2 = {"model_type": "gpt2", "n_embd": 256, "n_layer": 3, "n_head": 4, "n_positions": 512}
LOADED = {
    "Conv1D, and embeddings after the layers": GPT2 | {"vocab_size": 1000},
    "embeddings larger than any copy": GPT2 | {"vocab_size": 4000, "n_embd": 128},
    "nn.Linear": {
        "model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 3, "num_attention_heads": 4, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", LOADED)
def test_a_load_holds_what_from_pretrained_holds(tmp_path, case):
    """On a CPU, where the same code of transformers and bitsandbytes quantizes."""
    config = transformers.AutoConfig.for_model(**LOADED[case])
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    made.save_pretrained(tmp_path)
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    with CpuTracker() as tracker:
        tracker.phase(Phase.LOAD)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, quantization_config=settings, device_map="cpu", dtype=torch.bfloat16
        )
        events = tracker.events()
    del loaded
    plan = RunPlan(method="inference", quant="nf4", batch=1, sequence=64, dtype="bf16")
    found = estimate(shape_from_config(made.config.to_dict()), plan, allocator=False)
    assert most_at_once(load_of(list(found.events))) == pytest.approx(
        most_at_once(events), rel=2e-3
    )


def most_at_once(events) -> int:
    """The most bytes that are allocated at once, in blocks of 512."""
    sizes: dict[object, int] = {}
    level = most = 0
    for event in events:
        if event[0] == ALLOCATE:
            sizes[event[1]] = -(-event[2] // 512) * 512
            level += sizes[event[1]]
            most = max(most, level)
        elif event[0] == FREE:
            level -= sizes.pop(event[1])
    return most
