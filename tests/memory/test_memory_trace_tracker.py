"""The recorder on real CPU tensors: what it sees, and what the engine does without it."""

from __future__ import annotations

import gc

import pytest
from lazy_imports import LazyImport, lazy_names

from qtui_core.memory.replay.record import (
    ALLOCATE,
    BACKWARD,
    FORWARD,
    FREE,
    LAYER,
    OUTSIDE,
    Component,
    Phase,
    rounded,
)

torch = LazyImport("torch")
ProfilerActivity, profile = lazy_names("torch.profiler", "ProfilerActivity", "profile")
Layer, two_layers = lazy_names("small_layers", "Layer", "two_layers")
layer_kinds, place_in, stacks_of = lazy_names(
    "qtui_core.training.model.stacks", "layer_kinds", "place_in", "stacks_of"
)
watch_layers = LazyImport("qtui_core.training.tracing.tracker", "watch_layers")
Tracker = LazyImport("qtui_core.training.tracing.tracker", "Tracker")


def beside(x):
    h = x.sin()
    return (h.cos() * h.exp()).sum()


def residual(x):
    h = x.sin()
    return (h + h.cos()).exp().sum()


def parallel(x):
    h = x.sin()
    n = h.tanh()
    return (n.cos() + n.exp() + h).sigmoid().sum()


def shared(x):
    """The first gradient of h also belongs to another tensor when the second arrives."""
    h = x.sin()
    return (h.cos() + (h.exp() + h)).sigmoid().sum()


def projected(x):
    """Gradients of three-dimensional inputs of a matrix product are views."""
    h = x.sin()
    weight = torch.ones(8, 8)
    return ((h[None] @ weight) * (h[None] @ weight)).sum()


@pytest.mark.parametrize("function", [beside, residual, parallel, shared, projected])
def test_gradients_are_added_in_place_where_the_engine_alone_adds_them_in_place(function):
    x = torch.randn(8, 8, requires_grad=True)
    loss = function(x)
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU]) as profiled,
    ):
        loss.backward()
    anew = sum(event.name == "aten::add" for event in profiled.events())

    x = torch.randn(8, 8, requires_grad=True)
    loss = function(x)
    tracker = Tracker("cpu")
    with torch.autograd.set_multithreading_enabled(False), tracker:
        tracker.calibrate()
        loss.backward()
    made = [event[3].what for event in tracker.events() if event[0] == ALLOCATE]
    assert made.count("add") == anew


def test_calibrating_leaves_no_trace():
    tracker = Tracker("cpu")
    with tracker:
        tracker.calibrate()
    assert tracker.events() == ()
    assert tracker.live == 0


def test_every_storage_is_recorded_once_and_freed_with_the_last_tensor_over_it():
    tracker = Tracker("cpu")
    gc.disable()
    try:
        with tracker:
            x = torch.zeros(100)
            view = x[10:].view(9, 10)
            y = view * 2
            del x
            assert tracker.live == 512 + 512
            del view
            assert tracker.live == 512
            del y
    finally:
        gc.enable()
    events = [event for event in tracker.events() if event[0] in (ALLOCATE, FREE)]
    assert [event[:3] for event in events] == [
        (ALLOCATE, 1, 400),
        (ALLOCATE, 2, 360),
        (FREE, 1),
        (FREE, 2),
    ]


def test_what_stood_before_is_named_and_told_apart_by_layer():
    model = two_layers()
    tracker = Tracker("cpu")
    tracker.places.stacks = stacks_of(model)
    tracker.phase(Phase.LOAD)
    tracker.track(model.named_parameters(), Component.WEIGHTS)
    events = tracker.events()
    marks = [event[1] for event in events if event[0] == LAYER]
    names = [event[3].what for event in events if event[0] == ALLOCATE]
    assert marks == [0, 1]
    assert names == ["linear.weight", "linear.bias"] * 2
    assert tracker.live == sum(rounded(p.numel() * 4) for p in model.parameters())


def test_layers_are_announced_forwards_and_backwards():
    model = two_layers()
    tracker = Tracker("cpu")
    tracker.places.stacks = stacks_of(model)
    tracker.places.watch(model)
    watch_layers(tracker.places.stacks[0], tracker.layer)
    with torch.autograd.set_multithreading_enabled(False), tracker:
        tracker.phase(Phase.FORWARD)
        loss = model(torch.ones(3, 4))
        tracker.phase(Phase.BACKWARD)
        loss.backward()
    marks = [event[1:] for event in tracker.events() if event[0] == LAYER]
    assert marks == [
        (0, FORWARD),
        (1, FORWARD),
        (OUTSIDE, FORWARD),
        (1, BACKWARD),
        (0, BACKWARD),
    ]


def test_operations_of_the_backward_pass_belong_to_the_module_of_their_forward():
    model = two_layers()
    tracker = Tracker("cpu")
    tracker.places.stacks = stacks_of(model)
    tracker.places.watch(model)
    with torch.autograd.set_multithreading_enabled(False), tracker:
        loss = model(torch.ones(3, 4))
        tracker.phase(Phase.BACKWARD)
        loss.backward()
    events = tracker.events()
    begins = next(i for i, event in enumerate(events) if event[0] == 2)
    modules = {event[2] for event in events[begins:] if event[0] == 4 and event[1] == "mm"}
    assert modules == {"linear"}


def test_names_in_a_row_are_relative_to_their_layer():
    stacks = stacks_of(torch.nn.ModuleDict({"model": two_layers()}))
    assert place_in(stacks, "model.layers.1.linear.weight") == (1, "linear.weight")
    wrapped = "base_model.model.model.layers.0.linear.lora_A.default.weight"
    assert place_in(stacks, wrapped) == (0, "linear.lora_A.default.weight")
    assert place_in(stacks, "lm_head.weight") == (OUTSIDE, "lm_head.weight")


def test_layers_of_other_sizes_or_settings_are_of_another_kind_and_positions_are_no_setting():
    layers = [Layer(), Layer(), Layer(6), Layer()]
    for index, layer in enumerate(layers):
        layer.layer_idx = index
        layer.window = 8 if index == 1 else None
    assert layer_kinds(layers) == [0, 1, 2, 0]
