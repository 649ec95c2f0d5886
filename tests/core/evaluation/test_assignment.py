"""The least error within a number of bytes, compared with every combination of options."""

import itertools
import random

import pytest
from every import over

from qtui_core.evaluation.sensitivity.assign import Frontier, Option


def made(rng: random.Random, tensors: int, options: int) -> list[list[Option]]:
    return [
        [Option(rng.randint(0, 40), rng.choice([0.0, rng.random()])) for _ in range(options)]
        for _ in range(tensors)
    ]


def brute_force(tensors, budget):
    return min(
        (
            sum(o.error for o in combination)
            for combination in itertools.product(*tensors)
            if sum(o.nbytes for o in combination) <= budget
        ),
        default=None,
    )


@over("seed", range(12))
def test_the_best_lies_between_the_bound_and_what_is_found(seed):
    """The bound is no more than one step of one tensor below; of one or two tensors the best is
    found."""
    rng = random.Random(seed)
    tensors = made(rng, rng.randint(1, 5), rng.randint(1, 5))
    frontier = Frontier(tensors)
    worst = max(o.error for options in tensors for o in options)
    for budget in range(-1, 41 * len(tensors), 7):
        found, expected = frontier.best_within(budget), brute_force(tensors, budget)
        if expected is None:
            assert found is None
            continue
        assert found.bound <= expected + 1e-12
        assert expected <= found.error + 1e-12
        assert found.error <= found.bound + worst + 1e-12
        assert len(tensors) > 1 or found.error == expected
        chosen = [options[i] for options, i in zip(tensors, found.chosen, strict=True)]
        assert found.nbytes == sum(o.nbytes for o in chosen) <= budget
        assert found.error == pytest.approx(sum(o.error for o in chosen), abs=1e-12)


@over("seed", range(10))
def test_whole_steps_of_the_relaxation_are_the_best_of_their_bytes(seed):
    tensors = made(random.Random(200 + seed), 5, 4)
    frontier = Frontier(tensors)
    for nbytes, error in zip(frontier.nbytes.tolist(), frontier.error.tolist(), strict=True):
        assert error == pytest.approx(brute_force(tensors, nbytes), abs=1e-12)
        best = frontier.best_within(nbytes)
        assert (best.error, best.bound) == (pytest.approx(error, abs=1e-12), best.error)


def test_the_bound_counts_a_part_of_the_next_step():
    frontier = Frontier([[Option(0, 1.0), Option(10, 0.0)]])
    bounds = [frontier.best_within(n).bound for n in (0, 4, 10, 99)]
    assert bounds == pytest.approx([1, 0.6, 0, 0])


def test_no_tensors_and_no_options():
    assert Frontier([]).best_within(0).chosen == ()
    assert Frontier([]).best_within(-1) is None
    with pytest.raises(ValueError, match="at least one option"):
        Frontier([[]])


def test_thousands_of_tensors_of_any_size_are_close_to_the_best():
    rng = random.Random(9)
    tensors = []
    for _ in range(3000):
        size, harm = rng.randint(10**5, 10**7), rng.lognormvariate(0, 1)
        tensors.append([Option(size * k, harm * 4.0**-k) for k in range(1, 6)])
    frontier = Frontier(tensors)
    for share in (0.05, 0.4, 0.9):
        least, most = int(frontier.nbytes[0]), int(frontier.nbytes[-1])
        budget = least + round(share * (most - least))
        best = frontier.best_within(budget)
        assert best.nbytes <= budget
        assert best.bound <= best.error <= 1.001 * best.bound
