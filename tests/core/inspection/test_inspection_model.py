"""An inspection of a whole model, compared with sums computed by numpy."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from every import over
from safetensors.numpy import save_file
from shorthands import heard_by
from told_truly import faults_of

from qtui_core.inspection.census import conclude_census
from qtui_core.inspection.inspect import inspect_model
from qtui_core.inspection.report import Census, DtypeCount
from qtui_core.models import open_model
from qtui_core.quant import Scheme
from qtui_core.quant.layout import scale_shape


def inspect(folder: Path, *schemes: str, **options):
    path = folder / "model.safetensors"
    with open_model(path) as source:
        return inspect_model(source, [Scheme.parse(s) for s in schemes], **options)


def save(folder: Path, **tensors: np.ndarray) -> dict[str, np.ndarray]:
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(11)


def int8_rows(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(axis=1, keepdims=True) / 127
    return np.round(x / scale) * scale


def test_totals_are_sums_over_matrices(tmp_path, random):
    weights = save(
        tmp_path,
        a=random.normal(0, 0.02, (96, 128)).astype(np.float32),
        b=random.standard_t(3, (64, 192)).astype(np.float32),
        bias=random.normal(size=192).astype(np.float32),
    )
    total = inspect(tmp_path, "int8:row").schemes[0]
    matrices = [weights["a"].astype(np.float64), weights["b"].astype(np.float64)]
    error = sum(((x - int8_rows(x)) ** 2).sum() for x in matrices)
    signal = sum((x**2).sum() for x in matrices)
    assert total.relative_mse == pytest.approx(error / signal, rel=1e-4)
    assert total.nbytes == 192 * 4 + sum(x.size + 4 * len(x) for x in matrices)
    assert total.worst_tensor == "b"


def test_storage_and_places_of_a_sample_are_those_of_the_tensor(tmp_path, random):
    x = random.normal(size=(5000, 1000)).astype(np.float32)
    x[4999, 7] = 3000.25
    save(tmp_path, w=x)
    inspection = inspect(tmp_path, "int8:column", "int4:tensor")
    tensor = inspection.tensors[0]
    assert tensor.sampled_parameters < x.size
    by_column = tensor.errors[0]
    assert by_column.bits_per_parameter == 8 + 32 * 1000 / x.size
    assert by_column.bits_per_parameter == inspection.schemes[0].bits_per_parameter
    row, column = by_column.max_abs_error_index
    # The outlier makes everything else in its column zero, so the error is the value.
    assert column == 7
    assert by_column.max_abs_error == abs(x[row, column])
    assert (tensor.outliers.top[0].row, tensor.outliers.top[0].column) == (4999, 7)


def test_progress_rises_to_the_end_inside_a_tensor_and_the_whole_is_no_sample(tmp_path, random):
    save(tmp_path, a=np.ones(4, np.float32), w=random.normal(size=(3000, 1024)).astype(np.float32))
    seen: list[float] = []
    whole = inspect(tmp_path, "nf4", full=True, job=heard_by(seen))
    assert whole.conclusion.startswith("nf4")
    assert (seen, seen[-1]) == (sorted(seen), 1)
    assert len(set(seen)) > 5
    chosen = inspect(tmp_path, "int4", pattern="a").conclusion
    assert "of 1 tensor none is a floating-point matrix" in chosen


def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(11).standard_normal((rows, columns))).astype(np.float32)


def with_column(x: np.ndarray, column: int, factor: float) -> np.ndarray:
    return np.where(np.arange(x.shape[1]) == column, np.float32(factor) * x, x)


def with_value(x: np.ndarray, value: float) -> np.ndarray:
    x = x.copy()
    x[3, 4] = value
    return x


X, TINY = normal(64, 64), normal(2, 64)
TINY[:, 5] = 40
#: What is unusual -> tensors, schemes, what is said, what must not be.
STATES = {
    "one NaN": ({"a": with_value(X, np.nan)}, "nf4", "find out where it comes from", "they"),
    "only NaN": ({"a": X * np.nan}, "nf4", "no value is finite, so nothing", "finite rest"),
    "one outlier": ({"a": with_value(X, 1e6)}, "nf4,int4", "1 outlier holds 99% of the energy of "
                    "'a', which flatters the decibels", "them"),
    "a zero tensor": ({"a": X, "b": 0 * X}, "nf4", "no tensor is over 1 dB worse", "every"),
    "zeros": ({"a": 0 * X}, "nf4", "is zero", "dB"),
    "a part": ({"a": np.tile(X, (80, 16))}, "nf4", "In a sample of 20% of the elements: ", "0.2 "),
    "no tensors": ({}, "nf4", "of 0 tensors none is a floating-point matrix", "keeps"),
    "lossless": ({"a": (X.view(np.uint32) & 0xFFFF0000).view(np.float32)}, "tf32,bf16",
                 "keeps every value exactly", "dB"),
    "Gaussian": ({"a": normal(256, 256)}, "nf4",
                 "no tensor is over 1 dB worse than a Gaussian of its shape would be.", "watch"),
    "outliers": ({"good": normal(256, 256), "bad": with_column(normal(256, 256), 3, 40)},
                 "int4:row", "the tensor to watch is 'bad'", "good"),
    "few parameters": ({"good": normal(256, 256, 9), "tiny": TINY}, "int4:row", "1 tensor is over "
                       "1 dB worse than a Gaussian would be, with under 1% of the parameters in "
                       "all ('tiny' loses most)", "to watch"),
    "subnormals": ({"a": normal(128, 128, 1e-7)}, "fp16", "tensor to watch", "no tensor"),
    "nothing is saved": ({"a": normal(64, 2).astype(np.float16)}, "nf4:block1,int8:row",
                         "so leave the model as it is stored.", "Gaussian"),
    "larger": ({"a": X.astype(np.float16)}, "int4:group1", "times larger than stored", "smaller"),
    "equally good": ({"a": normal(256, 1024)}, "nf4,nf4:dq", "nf4:block64:dq keeps", "1.0 times"),
}  # fmt: skip


@over(("tensors", "schemes", "said", "never"), STATES.values(), ids=STATES)
def test_the_sentence_of_every_state(tmp_path, tensors, schemes, said, never):
    save(tmp_path, **tensors)
    found = inspect(tmp_path, *schemes.split(",")).conclusion
    assert said in found
    assert never not in found
    assert not faults_of(found), found


def test_the_tensor_to_watch_has_the_largest_part_of_what_is_lost(tmp_path):
    """`small` has fewer decibels, but `large` has a larger share of the total error."""
    large = with_column(normal(256, 128), 3, 12)
    save(tmp_path, small=with_column(normal(8, 128), 3, 100), large=large)
    assert "the tensor to watch is 'large': " in inspect(tmp_path, "int4:row").conclusion


def test_what_is_best_is_the_best_of_the_small_ones_that_save(tmp_path, random):
    """Whatever the tensors are."""
    kinds = {
        "normal": random.normal(size=(16, 128)), "zeros": np.zeros((16, 128)),
        "one": np.full((1, 1), 0.7), "tails": random.standard_t(2, (16, 128)),
        "constant": np.full((8, 64), 0.3), "tiny": 1e-41 * random.normal(size=(16, 128)),
        "NaN": np.where(np.eye(16, 128) > 0, np.nan, random.normal(size=(16, 128))),
        "huge": 1e37 * random.normal(size=(16, 128)),
    }  # fmt: skip
    for names in combinations(kinds, 2):
        save(tmp_path, **{name: kinds[name].astype(np.float32) for name in names})
        for schemes in (["nf4", "int4", "nf4:dq"], ["fp16", "e5m2"], ["int8", "bf16"]):
            found = inspect(tmp_path, *schemes)
            assert not faults_of(found.conclusion), found.conclusion
            named = re.match(r"(\S+) keeps (?:(\S+) dB|every value exactly)", found.conclusion)
            if named is None:
                continue
            best = next(t for t in found.schemes if t.scheme == named[1])
            stored = sum(t.info.nbytes for t in found.tensors)
            saving = [t for t in found.schemes if t.relative_mse is not None and t.nbytes < stored]
            small = [t for t in saving if t.bits_per_parameter <= 5] or saving or [best]
            assert best.relative_mse <= min(t.relative_mse for t in small) * 10**0.01
            assert named[2] is not None or best.relative_mse == 0


def test_the_largest_outliers_of_one_tensor_are_all_listed(tmp_path, random):
    x = random.normal(size=(512, 512)).astype(np.float32)
    places = [(i, 3 * i) for i in range(17)]
    for i, place in enumerate(places):
        x[place] = 60 + i
    save(tmp_path, w=x)
    top = inspect(tmp_path, "nf4").tensors[0].outliers.top
    assert {(o.row, o.column) for o in top} >= set(places)


QUANTIZED = "60% of m's bytes are U8, and the checkpoint is quantized already; `qtui inspect"


@over(
    ("words", "dtypes", "quantization"),
    [
        ("m is a configuration without weights, so", {}, None),
        ("No tensor of m has an element, so there is nothing to quantize.", {"F32": 0}, None),
        ("100% of m's bytes are BF16, 2 bits per", {"BF16": 8}, None),
        ("99% of m's bytes are BF16, 2 bits per", {"BF16": 999, "F32": 1}, None),
        (QUANTIZED, {"U8": 6, "F32": 4}, "NF4."),
    ],
)
def test_a_census_says_what_the_headers_hold(words, dtypes, quantization):
    counts = tuple(DtypeCount(name, 1, 4 * size, size) for name, size in dtypes.items())
    total = sum(dtypes.values())
    found = conclude_census(Census("m", "file", "/m", None, 4 * total, total, counts, quantization))
    assert found.startswith(words)
    assert not faults_of(found)


def test_what_depends_on_scheme_and_shape_is_found_once_for_many_tensors(
    tmp_path, random, monkeypatch
):
    """A model may have 100,000 small tensors, of few shapes."""
    asked: list[tuple[object, ...]] = []

    def noting(*given):
        asked.append(given)
        return scale_shape(*given)

    monkeypatch.setattr("qtui_core.quant.storage.scale_shape", noting)
    shapes = ((3, 37), (5, 41))  # that no other test measures
    save(tmp_path, **{f"w{n}": random.normal(size=shapes[n % 2]).astype("f") for n in range(20)})
    found = inspect(tmp_path, "int4:row", "nf4:block64")
    assert len(asked) == len(set(asked)) == 4
    for tensor in found.tensors:
        rows, columns = tensor.info.shape
        assert tensor.errors[0].bytes == -(-rows * columns // 2) + 4 * rows
