"""The rows of a sample."""

from hypothesis import given
from hypothesis import strategies as st

from qtui_core.inspection.sample import (
    LEAST_LIMIT,
    LOCAL_LIMIT,
    LOCAL_TOTAL,
    REMOTE_LIMIT,
    REMOTE_TOTAL,
    limit_of,
    sample_rows,
)
from qtui_core.models import TensorInfo

sizes, origins = st.integers(1, 200_000), st.sampled_from(["hub", ""])


@given(sizes, sizes, st.integers(1, 1 << 20), origins)
def test_a_sample_is_ordered_disjoint_inside_and_bounded(rows, columns, limit, origin):
    sample = sample_rows(rows, columns, limit, origin)
    flat = [edge for strip in sample.strips for edge in strip]
    assert flat == sorted(flat)
    assert all(start < stop for start, stop in sample.strips)
    assert all(a[1] <= b[0] for a, b in zip(sample.strips, sample.strips[1:], strict=False))
    assert flat[0] == 0 or len(sample.strips) == 1
    assert flat[-1] <= rows
    assert sample.count == 1 or sample.count * columns <= limit
    assert 1 <= sample.count <= rows
    # Rounding the strips to equal heights loses at most one row a strip.
    assert sample.count >= min(rows, limit // columns) - (4 if origin else 16) + 1


@given(st.integers(1, 5000), st.integers(1, 500), st.integers(1, 100_000))
def test_positions_map_back_to_the_rows_taken(rows, columns, limit):
    whole = sample_rows(rows, columns, None)
    assert (whole.is_whole, whole.strips) == (True, ((0, rows),))
    sample = sample_rows(rows, columns, limit)
    taken = [row for start, stop in sample.strips for row in range(start, stop)]
    assert [sample.original_row(i) for i in range(sample.count)] == taken


def test_the_sample_of_a_model_is_bounded_however_many_tensors_it_has():
    def tensors(count, *shape):
        return [TensorInfo("w", "BF16", shape, 1, 2, "f", 0, 2, True)] * count

    limits = {"local": (LOCAL_LIMIT, LOCAL_TOTAL), "hub": (REMOTE_LIMIT, REMOTE_TOTAL)}
    experts = tensors(45_000, 2048, 7168)
    for origin, (most, total) in limits.items():
        # The largest dense models, and very many small tensors, are read as before.
        for infos in (tensors(884, 16384, 53248), tensors(100_000, 16, 16)):
            assert limit_of(origin, infos, full=False) == most
        limit = limit_of(origin, experts, full=False)
        assert LEAST_LIMIT <= limit < most
        assert total / 2 < limit * len(experts) <= max(total, LEAST_LIMIT * len(experts))
        assert limit_of(origin, experts, full=True) is None
