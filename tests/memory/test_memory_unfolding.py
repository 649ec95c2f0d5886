"""A recording of few layers, unfolded to all layers, equals the recording of all."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from every import in_parts, over
from shorthands import record_peaks, tops

from qtui_core.memory.plan.run_plan import RunPlan, resolve
from qtui_core.memory.replay.folding import Fold, NotPeriodic, fold, peak_levels, unfold
from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FORWARD,
    FREE,
    LAYER,
    OUTSIDE,
    PHASE,
    TURN,
    Event,
    Label,
    rounded,
)
from qtui_core.memory.shape.from_config import shape_from_config
from qtui_core.memory.shape.model_shape import ModelShape
from qtui_core.memory.step.run import read_step, record_all, record_step

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 64,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 300,
    "resid_pdrop": 0.1,
    "torch_dtype": "float32",
}
QWEN = {
    "model_type": "qwen3_5_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "vocab_size": 300,
    "torch_dtype": "bfloat16",
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "sliding_window": 16,
    "torch_dtype": "bfloat16",
}

PLANS = {
    "full": RunPlan(method="full", checkpointing=False),
    "full, checkpoints, tied": RunPlan(method="full", checkpointing=True),
    "full, autocast": RunPlan(method="full", dtype="fp32", autocast=True),
    "full, eager": RunPlan(method="full", attention="eager", padding_mask=True),
    "full, manual": RunPlan(method="full", loop="manual"),
    "lora": RunPlan(method="lora", lora_dropout=0.1),
    "lora, accumulated": RunPlan(method="lora", accumulation=2, checkpointing=True),
    "lora, some targets": RunPlan(method="lora", lora_targets=("q_proj", "c_attn")),
    "qlora": RunPlan(method="qlora", lora_dropout=0.1),
    "qlora, no autocast": RunPlan(method="qlora", autocast=False, checkpointing=False),
    "qlora, int8": RunPlan(method="qlora", quant="int8", optimizer="adamw8bit"),
    "qlora, norms, tiles": RunPlan(method="qlora", kbit_prep="norms", loss="tiled"),
    "inference": RunPlan(method="inference"),
    "generation": RunPlan(method="inference", generate=20, quant="nf4"),
}


def shape_of(config: dict[str, object], layers: int) -> ModelShape:
    key = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
    tied = {"tie_word_embeddings": True} if layers % 2 else {}
    return shape_from_config({**config, key: layers, **tied})


def planned(plan: RunPlan, shape: ModelShape) -> RunPlan:
    return resolve(replace(plan, batch=2, sequence=32), shape.dtype)


def numbered(events: tuple[Event, ...]) -> list[Event]:
    """Events whose ids count in the order of allocation."""
    ids: dict[int, int] = {}
    found: list[Event] = []
    for event in events:
        if event[0] == ALLOCATE:
            ids[event[1]] = len(ids)
            found.append((ALLOCATE, ids[event[1]], *event[2:]))
        elif event[0] == FREE:
            found.append((FREE, ids[event[1]]))
        else:
            found.append(event)
    return found


def freed_alike(events: tuple[Event, ...]) -> list[list[Event]]:
    """Numbered events, each run of frees sorted: their order changes nothing."""
    runs = groupby(numbered(events), lambda event: event[0] == FREE)
    return [sorted(run) if frees else list(run) for frees, run in runs]


def levels(events: tuple[Event, ...]) -> list[tuple[str, int]]:
    """(phase, most bytes alive), one event after the other."""
    found: list[tuple[str, int]] = []
    sizes: dict[int, int] = {}
    live = 0
    for event in events:
        if event[0] == PHASE:
            found.append((str(event[1]), live))
        elif event[0] == ALLOCATE:
            sizes[event[1]] = rounded(event[2])
            live += sizes[event[1]]
            found[-1] = (found[-1][0], max(found[-1][1], live))
        elif event[0] == FREE:
            live -= sizes.pop(event[1])
    return found


# As many as are built; one copy, of a tied model; and several. Of GPT-2, one copy.
@in_parts(3)
@over("layers", [4, 5, 8])
@over("name", PLANS)
def test_an_unfolded_recording_is_that_of_all_layers(name: str, layers: int, parts: int) -> None:
    if (list(PLANS).index(name) + layers) % parts:
        return
    for config in (LLAMA, GPT2) if layers == 5 else (LLAMA,):
        shape = shape_of(config, layers)
        plan = planned(PLANS[name], shape)
        every = record_all(shape, plan).events
        assert numbered(record_step(shape, plan).events) == numbered(every)
        few, row = fold(shape)
        assert row.built + row.added == layers
        assert list(tops(unfold(record_all(few, plan).events, (row,)))) == levels(every)


def test_few_layers_are_built_of_many() -> None:
    few, row = fold(shape_of(LLAMA, 80))
    assert len(few.layers) == 4
    assert row == Fold(start=0, built=4, template=2, period=1, copies=76)


@pytest.mark.parametrize("layers", [15, 17, 20])
def test_layers_of_two_kinds_are_repeated_by_periods(layers: int) -> None:
    """Five layers of Gemma 3 with a window, then one without."""
    shape = shape_of(GEMMA3, layers)
    plan = planned(RunPlan(method="full", checkpointing=True), shape)
    few, row = fold(shape)
    assert row.period == 6
    assert len(few.layers) < layers
    every = record_all(shape, plan).events
    assert numbered(record_step(shape, plan).events) == numbered(every)


@pytest.mark.parametrize("method", ["full", "qlora"])
def test_what_all_layers_share_is_let_go_once(method: str) -> None:
    """Gemma 3 has two tables of rotation, the later of which no layer before the sixth uses."""
    shape = shape_of(GEMMA3, 20)
    plan = planned(replace(RunPlan(), method=method), shape)
    every = record_all(shape, plan).events
    found = record_step(shape, plan).events
    assert len({id(call.program) for call in found.calls}) < len(found.calls)
    assert numbered(found) == numbered(every)
    peaks = dict(record_peaks(shape, plan))
    assert peaks["backward"] == dict(levels(every))["backward"]


@pytest.mark.parametrize(
    ("family", "method"),
    [
        *(("gemma4_text", method) for method in ("full", "qlora", "inference")),
        *(("gemma3n_text", method) for method in ("full", "lora", "inference")),
    ],
)
def test_layers_that_use_keys_of_others_are_built(family: str, method: str) -> None:
    """Gradients of shared keys are added up in one way by the second layer that uses them, in
    another by later ones. Heads are too wide for flash attention."""
    own = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 300}
    kinds = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    shared = {"num_kv_shared_layers": 20, "layer_types": kinds, "use_double_wide_mlp": True}
    wide = {"global_head_dim": 264, "num_key_value_heads": 1, "sliding_window": 64}
    shape = shape_of({**GEMMA3, "model_type": family, **own, **shared, **wide}, 35)
    plan = planned(replace(RunPlan(), method=method), shape)
    assert len(fold(shape)[0].layers) < 35
    every = record_all(shape, plan).events
    assert numbered(record_step(shape, plan).events) == numbered(every)


@pytest.mark.parametrize(
    "name",
    [
        *("full", "full, checkpoints, tied", "full, manual", "lora, accumulated", "qlora"),
        *("lora, some targets", "lora, reentrant", "generation"),
    ],
)
def test_few_chunks_of_a_gated_delta_net_are_built_of_many(name: str) -> None:
    """In a few layers; of one plan also in many, which are folded as well."""
    reentrant = RunPlan(method="lora", checkpointing=True, reentrant=True)
    for layers in (4, 11) if name == "full, manual" else (4,):
        shape = shape_of(QWEN, layers)
        plan = replace(planned(PLANS.get(name, reentrant), shape), sequence=6 * 64 + 10)
        every = record_all(shape, plan).events
        assert TURN in {event[0] for event in record_all(shape, plan, folds=True).events}
        assert freed_alike(record_step(shape, plan).events) == freed_alike(every)
        assert read_step(peak_levels, shape, plan, 2, steady=False) == levels(every)
    plan = replace(plan, sequence=5 * 64)
    assert record_all(shape, plan, folds=True).events == record_all(shape, plan).events


def test_turns_that_free_what_is_not_of_a_turn_are_refused() -> None:
    label = Label("x")
    events: list[Event] = [(PHASE, "forward"), (LAYER, 0, FORWARD), (ALLOCATE, 9, 8, label)]
    for turn in range(5):
        events += [(TURN, turn, 3), (ALLOCATE, turn, 8, label)]
    ended = (TURN, OUTSIDE, 0)
    assert len([e for e in unfold([*events, ended], ()) if e[0] == ALLOCATE]) == 1 + 5 + 3
    third = events.index((TURN, 3, 3))
    for changed in ([*events[:third], (FREE, 9), *events[third:]], [*events, ended, (FREE, 2)]):
        with pytest.raises(NotPeriodic):
            unfold(changed, ())


def test_an_unlike_beginning_and_end_are_built() -> None:
    """Every way to fold builds layers that give the original ones when unfolded."""
    shape = shape_of(LLAMA, 3)
    a, b = shape.layers[0], shape_of({**LLAMA, "intermediate_size": 96}, 3).layers[0]
    for rows in (
        (b, b, *[a] * 9),
        (*[a] * 9, b),
        (b, *[a] * 9, b, a),
        (a, b) * 6,
        (a, b, b) * 5,
        (a,),
        (a, b, a),
    ):
        few, row = fold(replace(shape, layers=rows))
        kept = few.layers
        period = kept[row.template : row.template + row.period]
        end = row.template + row.period
        assert kept[:end] + period * row.copies + kept[end:] == rows
        assert row.built + row.added == len(rows)


def test_peaks_are_those_of_the_second_step() -> None:
    for name, plan in PLANS.items():
        shape = shape_of(LLAMA, 8)
        resolved = planned(plan, shape)
        most: dict[str, int] = {}
        for phase, level in levels(record_step(shape, resolved).events):
            most[phase] = max(most.get(phase, 0), level)
        found: dict[str, int] = {}
        for phase, level in record_peaks(shape, resolved):
            found[phase] = max(found.get(phase, 0), level)
        assert set(found) == set(most), name
        for phase in set(most) - {"load", "prepare"}:
            assert found[phase] == most[phase], (name, phase)


def test_layers_that_allocate_differently_are_refused() -> None:
    label = Label("x")
    events: list[Event] = [(PHASE, "forward")]
    for layer, size in enumerate((8, 8, 9, 8)):
        events += [(LAYER, layer, FORWARD), (ALLOCATE, layer + 1, size, label)]
    folds = (Fold(start=0, built=4, template=2, period=1, copies=3),)
    with pytest.raises(NotPeriodic):
        unfold(events, folds)


def test_what_is_let_go_for_all_layers_outside_of_them_is_let_go_for_the_copies() -> None:
    """Either in the order of the layers, up or down, or by the layer after the one that created
    it."""
    label = Label("x")
    events: list[Event] = [(PHASE, "forward")]
    for layer in range(4):
        events += [(LAYER, layer, FORWARD), (ALLOCATE, 10 + layer, 1024, label)]
        events += [(ALLOCATE, 20 + layer, 512, label)]
        if layer:
            events.append((FREE, 20 + layer - 1))
    events += [(LAYER, OUTSIDE, FORWARD), (PHASE, "backward"), (FREE, 23)]
    for layer in reversed(range(4)):
        events += [(LAYER, layer, BACKWARD), (ALLOCATE, 30 + layer, 2048, label)]
    events += [(LAYER, OUTSIDE, BACKWARD), (PHASE, "optimizer")]
    events += [(FREE, 10 + layer) for layer in range(4)]
    events += [(FREE, 30 + layer) for layer in reversed(range(4))]
    folds = (Fold(start=0, built=4, template=2, period=1, copies=6),)
    found = unfold(events, folds)
    assert levels(found) == list(tops(found))
    assert levels(found)[0] == ("forward", 10 * 1024 + 2 * 512)
    assert levels(found)[1] == ("backward", 10 * 1024 + 10 * 2048)
    alive = {e[1] for e in found if e[0] == ALLOCATE} - {e[1] for e in found if e[0] == FREE}
    assert not alive
