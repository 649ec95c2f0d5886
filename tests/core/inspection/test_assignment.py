"""The least error within a number of bytes, compared with every combination of options."""

from __future__ import annotations

import itertools
import random

import pytest
from every import over

from qtui_core.inspection.sensitivity.assignment import frontier
from qtui_core.inspection.sensitivity.relaxation import GreedyPath, Option


def made(rng: random.Random, tensors: int, options: int, grain: int = 1) -> list[list[Option]]:
    return [
        [
            Option(grain * rng.randint(0, 40), rng.choice([0.0, rng.random()]))
            for _ in range(options)
        ]
        for _ in range(tensors)
    ]


def brute_force(tensors, budget):
    best = None
    for combination in itertools.product(*tensors):
        if sum(o.nbytes for o in combination) <= budget:
            error = sum(o.error for o in combination)
            best = error if best is None else min(best, error)
    return best


@over("seed", range(20))
def test_every_budget_gets_the_error_of_brute_force(seed):
    rng = random.Random(seed)
    tensors = made(rng, rng.randint(1, 5), rng.randint(1, 5))
    found = frontier(tensors)
    assert found.exact
    for budget in range(-1, 41 * len(tensors), 7):
        best, expected = found.best_within(budget), brute_force(tensors, budget)
        if expected is None:
            assert best is None
            continue
        assert best is not None
        assert best.error == pytest.approx(expected, abs=1e-12)
        assert best.bound == best.error
        chosen = [options[i] for options, i in zip(tensors, best.chosen, strict=True)]
        assert best.nbytes == sum(o.nbytes for o in chosen) <= budget
        assert best.error == pytest.approx(sum(o.error for o in chosen), abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_relaxation_is_below_the_best_and_no_more_than_one_tensor_below(seed):
    rng = random.Random(100 + seed)
    tensors = made(rng, 5, 4)
    worst = max(max(o.error for o in options) for options in tensors)
    for budget in range(0, 200, 11):
        expected = brute_force(tensors, budget)
        bound = GreedyPath(tensors).bound(budget)
        if expected is None:
            assert bound == float("inf")
        else:
            assert bound <= expected + 1e-12
            assert expected - bound <= worst + 1e-12


def test_a_thinned_frontier_says_so_and_its_bound_holds():
    rng = random.Random(5)
    sizes = [[rng.randint(10**5, 10**6) for _ in range(4)] for _ in range(8)]
    tensors = [[Option(n, 1e5 / n * (1 + rng.random())) for n in row] for row in sizes]
    exact, thinned = frontier(tensors), frontier(tensors, max_pairs=20)
    assert exact.exact
    assert not thinned.exact
    differs = 0
    for budget in range(10**6, 5 * 10**6, 10**5):
        best, rough = exact.best_within(budget), thinned.best_within(budget)
        if rough is None or best is None:
            continue
        assert rough.nbytes <= budget
        assert rough.bound <= best.error + 1e-12 <= rough.error + 2e-12
        differs += rough.error > best.error
    assert differs  # otherwise no option was dropped in this test


def test_pairs_are_a_frontier():
    found = frontier(made(random.Random(1), 6, 5))
    assert all(a < b for a, b in itertools.pairwise(found.nbytes.tolist()))
    assert all(a > b for a, b in itertools.pairwise(found.error.tolist()))


def test_no_tensors_and_no_options():
    assert frontier([]).best_within(0).chosen == ()
    assert frontier([]).best_within(-1) is None
    with pytest.raises(ValueError, match="at least one option"):
        frontier([[]])


def test_many_tensors_of_one_shape_stay_exact():
    # Eight options at the byte costs of schemes on one shape, 224 tensors of seven shapes.
    rng = random.Random(2)
    tensors = []
    for index in range(224):
        count = (1 + index % 7) << 20
        tensors.append([Option(int(count * bits / 8), rng.random() / bits**4)
                        for bits in (2.5, 3.5, 4.125, 4.5, 6.5, 8.25, 16)])  # fmt: skip
    found = frontier(tensors)
    budget = sum(int(((1 + i % 7) << 20) * 4.5 / 8) for i in range(224))
    best = found.best_within(budget)
    assert best is not None
    assert best.error <= best.bound * 1.01


@pytest.mark.parametrize("seed", range(10))
def test_whole_steps_of_the_relaxation_are_the_best_of_their_bytes(seed):
    tensors = made(random.Random(200 + seed), 5, 4)
    path = GreedyPath(tensors)
    for nbytes, error in zip(path.nbytes.tolist(), path.error.tolist(), strict=True):
        assert error == pytest.approx(brute_force(tensors, nbytes), abs=1e-12)
        assert path.bound(nbytes) == pytest.approx(error, abs=1e-12)
    for budget in range(-1, 200, 7):
        chosen = path.best_within(budget)
        if chosen is None:
            assert brute_force(tensors, budget) is None
            continue
        assert sum(o[i].nbytes for o, i in zip(tensors, chosen, strict=True)) <= budget


def test_thousands_of_tensors_of_any_size_are_close_to_the_best():
    rng = random.Random(9)
    tensors = []
    for _ in range(3000):
        size, harm = rng.randint(10**5, 10**7), rng.lognormvariate(0, 1)
        tensors.append([Option(size * k, harm * 4.0**-k) for k in range(1, 6)])
    found = frontier(tensors)
    assert not found.exact
    for share in (0.05, 0.4, 0.9):
        least, most = int(found.nbytes[0]), int(found.nbytes[-1])
        budget = least + round(share * (most - least))
        best = found.best_within(budget)
        assert best.nbytes <= budget
        assert best.bound <= best.error <= 1.005 * best.bound
