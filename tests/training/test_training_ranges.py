"""Where the numbers of a step lie, compared with autograd and direct counts; and the sentence."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazy_imports import LazyImport
from told_truly import faults_of

from qtui.report.train.ranges import kinds_of, ranges_picture, ranges_sentence, ranges_table
from qtui_core.codec import CodecError
from qtui_core.formats.magnitudes import BIAS, FIELDS, Magnitudes, flushed
from qtui_core.live.snapshot import StepRanges, TensorRange

torch = LazyImport("torch")
ranges = LazyImport("qtui_core.training.measuring.ranges")


def counted(x):
    """(power of two -> how many, zeros, largest), by frexp."""
    values = x.detach().double().flatten().tolist()
    powers = Counter(math.frexp(v)[1] - 1 for v in values if v)
    return powers, values.count(0.0), max(map(abs, values), default=0.0)


def test_a_look_sees_what_autograd_gives_and_changes_nothing():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(12, 20, bias=False), torch.nn.Linear(20, 5)
    second.weight.requires_grad_(False)
    x = torch.randn(7, 12) * torch.exp2(torch.randint(-20, 3, (7, 12)).float())
    hidden = first(x)
    y = second(hidden.relu())
    dy = 2 * y / 64
    g_hidden, g_first = torch.autograd.grad((y**2).sum() / 64, (hidden, first.weight))

    model = torch.nn.Sequential(first, torch.nn.ReLU(), second)
    readings = []

    @contextlib.contextmanager
    def aside():
        yield
        readings.append(1)

    with ranges.ranges_of_step(model, scale=1024.0, aside=aside) as seen:
        ((model(x) ** 2).sum() / 64 * 1024.0).backward()
    assert torch.equal(first.weight.grad, g_first * 1024.0)  # a power of two: nothing is rounded
    expected = {
        ("weights", "0"): first.weight,
        ("weights", "2"): second.weight,
        ("activations", "0"): x,
        ("activations", "2"): hidden.relu(),
        ("output gradients", "0"): g_hidden,
        ("output gradients", "2"): dy,
        ("weight gradients", "0"): g_first,
    }
    assert {(each.kind, each.name) for each in seen} == set(expected)
    for each in seen:
        powers, zeros, largest = counted(expected[each.kind, each.name])
        found = {i - BIAS: n for i, n in enumerate(each.found.counts) if n}
        assert (found, each.found.zeros, each.found.largest) == (powers, zeros, largest), each.kind
    assert len(readings) == len(seen)
    before = len(seen)
    model(x).sum().backward()
    assert len(seen) == before  # no hook is left


def test_a_look_is_hidden_from_who_counts_tensors():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    model = torch.nn.Linear(4, 4)

    def step():
        with Count() as count:
            model(torch.ones(2, 4)).sum().backward()
        model.weight.grad = model.bias.grad = None
        return count.calls

    alone = step()
    with ranges.ranges_of_step(model):
        assert step() == alone


def magnitudes_at(powers: dict[int, int], largest: float) -> Magnitudes:
    counts = [0] * FIELDS
    for power, count in powers.items():
        counts[power + BIAS] = count
    return Magnitudes(tuple(counts), 0, largest)


def seen_of(**kinds: Magnitudes) -> StepRanges:
    return StepRanges(
        1.0,
        3,
        1.0,
        tuple(TensorRange(k.replace("_", " "), "a.proj", found) for k, found in kinds.items()),
    )


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (
            # Half of FP16's smallest number, 2^-24, is 2^-25: a quarter lies under it.
            seen_of(output_gradients=magnitudes_at({-30: 25, -10: 75}, 2.0**-10)),
            "FP16 would make 25.00% of the output gradients zero without a loss scale; 2^22 makes "
            "next to none zero and leaves room for gradients 8 times as large. FP8 E4M3 would make "
            "25.00% of the output gradients zero, with a scale of 2^15 25.00%: gradients of 8 bits",
        ),
        (
            seen_of(
                activations=magnitudes_at({17: 1}, 2.0**17),
                output_gradients=magnitudes_at({-2: 10}, 0.25),
            ),
            "Activations reach 1.31e+05 in a.proj, more than FP16 holds (65,504): compute in BF16.",
        ),
        (
            seen_of(
                output_gradients=magnitudes_at({-2: 1}, 0.25),
                weight_gradients=magnitudes_at({-12: 1, -2: 3}, 0.25),
            ),
            "FP8 E4M3 would make 25.00% of the weight gradients zero, with a scale of 2^7 next to",
        ),
        (
            seen_of(output_gradients=magnitudes_at({128: 1, -2: 1}, 0.25)),
            "1 value is infinite or NaN, first in the output gradients of a.proj; the rest of this "
            "is about the others. FP16 would make next to none",
        ),
        (seen_of(output_gradients=magnitudes_at({128: 3}, 0.0)), "3 values are infinite or NaN"),
        (seen_of(weights=magnitudes_at({0: 1}, 1.0)), "No gradient other than zero came"),
        (seen_of(), "No gradient other than zero came"),
    ],
)
def test_the_sentence_is_true_of_what_was_seen(seen, says):
    said = ranges_sentence(seen, kinds_of(seen))
    assert says in said
    assert ("No gradient other" in said) == ("No gradient other" in says)
    assert not faults_of(said)


@given(
    st.dictionaries(st.integers(-60, 16), st.integers(1, 1000), min_size=1, max_size=5),
    st.dictionaries(st.integers(-60, 16), st.integers(1, 1000), max_size=5),
)
def test_what_is_recommended_holds(gradients, activations):
    """The scale of the sentence makes fewer gradients zero, with room above the largest; a format
    that is said to hold them does."""
    found = magnitudes_at(gradients, 2.0 ** max(gradients))
    seen = seen_of(output_gradients=found)
    if activations:
        largest = 2.0 ** max(activations)
        seen = seen_of(output_gradients=found, activations=magnitudes_at(activations, largest))
    said = ranges_sentence(seen, kinds_of(seen))
    assert not faults_of(said.replace("infinite or NaN", ""))
    lost = flushed("fp16", found)
    if scale := re.search(r"; 2\^(\d+) makes", said):
        assert flushed("fp16", found, int(scale[1])) <= lost
        assert 8 * 2.0 ** int(scale[1]) * found.largest <= 65504
    if "so none is needed" in said:
        assert lost < 5e-5
    if "Even FP8" in said:
        assert found.largest <= 448
        assert flushed("e4m3", found) < 5e-5
    largest = max(found.largest, max((2.0**power for power in activations), default=0.0))
    assert ("compute in BF16" in said) == (largest > 65504)


def test_the_table_has_the_kinds_and_the_picture_the_few_below_at_its_left_end():
    seen = seen_of(output_gradients=magnitudes_at({-100: 1, -20: 9_999, -3: 10_000}, 0.125))
    kinds = kinds_of(seen)
    (row,) = ranges_table(kinds).rows
    assert row[0] == "output gradients"
    assert row[2:4] == ("-3.0", "0.01%")
    picture = ranges_picture(seen, kinds)
    assert picture.first == -20
    assert picture.series[0][1][0] == 10_000
    assert kinds_of(seen, "no such layer") == ()
    assert ranges_picture(seen, ()) is None


def test_magnitudes_that_no_tensor_has_are_refused():
    for counts, zeros, largest in (
        ((0,) * 255, 0, 0.0),
        ((-1, *[0] * 255), 0, 0.0),
        ((0,) * 256, -1, 0.0),
        ((0,) * 256, 0, math.inf),
        ((0,) * 256, 0, math.nan),
    ):
        with pytest.raises(CodecError):
            Magnitudes(counts, zeros, largest)
