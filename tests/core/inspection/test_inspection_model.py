"""An inspection of a whole model, compared with sums computed by numpy."""

from __future__ import annotations

import math
import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from every import every
from safetensors.numpy import save_file
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


def test_one_scale_for_the_model_comes_from_its_largest_matrix(tmp_path, random):
    small = random.normal(0, 0.01, (64, 64)).astype(np.float32)
    large = random.normal(0, 1, (64, 64)).astype(np.float32)
    save(tmp_path, small=small, large=large, norm=np.full(64, 100.0, np.float32))
    inspection = inspect(tmp_path, "int8:model", "int8:model:asym")
    scale = np.float32(np.abs(large).max()) / np.float32(127)
    step = np.round(small / scale) * scale
    error = next(t for t in inspection.tensors if t.info.name == "small").errors[0]
    assert error.mse == pytest.approx(((small.astype(np.float64) - step) ** 2).mean(), rel=1e-5)
    # 4 bytes of scale for the model, and one of zero point where there is one.
    assert [s.nbytes for s in inspection.schemes] == [64 * 4 + 2 * 4096 + extra for extra in (4, 5)]


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


def test_progress_rises_to_the_end_inside_a_tensor(tmp_path, random):
    save(tmp_path, w=random.normal(size=(3000, 1024)).astype(np.float32))
    seen: list[tuple[int, int]] = []
    inspect(
        tmp_path, "nf4", full=True, progress=lambda done, total, name: seen.append((done, total))
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {3000 * 1024}
    assert seen[-1][0] == 3000 * 1024
    assert len({done for done, _ in seen}) > 5


class TestConclusions:
    """The last sentence agrees with the data."""

    def test_a_lossless_scheme_is_called_exact(self, tmp_path, random):
        x = random.normal(size=(64, 64)).astype(np.float32)
        save(tmp_path, w=(x.view(np.uint32) & 0xFFFF0000).view(np.float32))
        assert "bf16 keeps every value exactly" in inspect(tmp_path, "bf16").conclusion
        assert "keeps every value exactly" in inspect(tmp_path, "tf32", "bf16").conclusion

    def test_tensors_that_no_scheme_changes(self, tmp_path):
        save(tmp_path, a=np.ones(4, np.float32), b=np.ones(4, np.float32))
        assert "none of its 2 tensors is a" in inspect(tmp_path, "int4").conclusion
        chosen = inspect(tmp_path, "int4", pattern="a").conclusion
        assert "the one chosen tensor is not a floating-point matrix" in chosen

    def test_zeros(self, tmp_path):
        save(tmp_path, w=np.zeros((64, 64), np.float32))
        assert "is zero" in inspect(tmp_path, "nf4").conclusion

    def test_nothing_to_quantize(self, tmp_path):
        save(tmp_path, bias=np.ones(64, np.float32))
        assert "not a floating-point matrix" in inspect(tmp_path, "nf4").conclusion

    def test_a_gaussian_model_is_within_1_db_of_one_and_no_more_is_claimed(self, tmp_path, random):
        save(tmp_path, w=random.normal(size=(256, 256)).astype(np.float32))
        sentence = inspect(tmp_path, "nf4").conclusion
        assert sentence.endswith(
            "no tensor is over 1 dB worse than a Gaussian of its shape would be."
        )

    def test_the_tensor_with_outliers_is_named(self, tmp_path, random):
        bad = random.normal(size=(256, 256)).astype(np.float32)
        bad[:, 3] *= 40
        save(tmp_path, good=random.normal(size=(256, 256)).astype(np.float32), bad=bad)
        sentence = inspect(tmp_path, "int4:row").conclusion
        assert "the tensor to watch is 'bad'" in sentence

    def test_a_tensor_of_few_parameters_is_not_one_to_watch(self, tmp_path, random):
        tiny = random.normal(size=(2, 64)).astype(np.float32)
        tiny[:, 5] = 40
        save(tmp_path, good=random.normal(size=(256, 256)).astype(np.float32) * 9, tiny=tiny)
        sentence = inspect(tmp_path, "int4:row").conclusion
        assert "to watch" not in sentence
        assert "1 tensor is over 1 dB worse" in sentence
        assert "with under 1% of the parameters in all ('tiny' loses most)" in sentence

    def test_the_tensor_to_watch_has_the_largest_part_of_what_is_lost(self, tmp_path, random):
        """`small` has fewer decibels, but `large` has a larger share of the total error."""
        small = random.normal(size=(8, 128)).astype(np.float32)
        small[:, 3] *= 100
        large = random.normal(size=(256, 128)).astype(np.float32)
        large[:, 3] *= 12
        save(tmp_path, small=small, large=large)
        inspection = inspect(tmp_path, "int4:row")
        beyond = {}
        for tensor in inspection.tensors:
            error = tensor.errors[0]
            more = error.relative_mse - error.gaussian_relative_mse
            beyond[tensor.info.name] = more * tensor.info.parameters
        share = math.floor(100 * beyond["large"] / sum(beyond.values()))
        assert (
            f"the tensor to watch is 'large', with 96% of the parameters and {share}% of what all "
            f"lose beyond a Gaussian's error"
        ) in inspection.conclusion

    def test_schemes_that_save_nothing_are_not_recommended(self, tmp_path, random):
        save(tmp_path, w=random.normal(size=(64, 2)).astype(np.float16))
        sentence = inspect(tmp_path, "nf4:block1", "int8:row").conclusion
        assert sentence.endswith("so leave the model as it is stored.")
        cheap = inspect(tmp_path, "int8:row", "int8:tensor").conclusion
        assert cheap.startswith("int8:tensor keeps")

    def test_of_equally_good_schemes_the_smaller_is_named(self, tmp_path, random):
        save(tmp_path, w=random.normal(size=(256, 1024)).astype(np.float32))
        inspection = inspect(tmp_path, "nf4", "nf4:dq")
        plain, double = inspection.schemes
        assert math.isclose(plain.sqnr_db, double.sqnr_db, abs_tol=0.1)
        assert inspection.conclusion.startswith("nf4:block64:dq keeps")

    def test_a_column_that_carries_the_energy_is_not_called_normal(self, tmp_path, random):
        x = random.normal(size=(256, 256)).astype(np.float32)
        x[:, 9] *= 100
        save(tmp_path, w=x)
        sentence = inspect(tmp_path, "nf4").conclusion
        assert "normal" not in sentence
        assert "column 9" in sentence
        carried = (x[:, 9].astype(np.float64) ** 2).sum() / (x.astype(np.float64) ** 2).sum()
        assert carried > 0.9
        assert "flatters" in sentence

    def test_a_scale_of_the_model_that_does_not_fit_is_not_called_normal(self, tmp_path, random):
        small = random.normal(0, 1e-4, (128, 128)).astype(np.float32)
        save(tmp_path, small=small, large=random.normal(0, 1, (128, 128)).astype(np.float32))
        assert "tensor to watch is 'small'" in inspect(tmp_path, "int4:model").conclusion

    def test_subnormals_of_a_cast_are_not_called_normal(self, tmp_path, random):
        save(tmp_path, w=random.normal(0, 1e-7, (128, 128)).astype(np.float32))
        assert "tensor to watch" in inspect(tmp_path, "fp16").conclusion

    def test_a_sample_is_said_to_be_one(self, tmp_path, random):
        save(tmp_path, w=random.normal(size=(3000, 1024)).astype(np.float32))
        assert inspect(tmp_path, "nf4").conclusion.startswith("In a sample of")
        assert inspect(tmp_path, "nf4", full=True).conclusion.startswith("nf4")

    def test_the_sentence_of_every_state(self, tmp_path, random):
        x = random.normal(size=(64, 64)).astype(np.float32)
        spiked, broken = x.copy(), x.copy()
        spiked[3, 4], broken[3, 4] = 1e6, np.nan
        states = {  # tensors -> what is said, what must not be
            "one NaN": ({"a": broken}, "find out where it comes from", "they"),
            "only NaN": ({"a": x * np.nan}, "no value is finite, so nothing", "finite rest"),
            "one outlier": ({"a": spiked}, "1 outlier of 'a' holds 99% of its energy, which "
                            "flatters the decibels: keep it", "them"),
            "a zero tensor": ({"a": x, "b": 0 * x}, "no tensor is over 1 dB worse", "every"),
            "a part": ({"a": np.tile(x, (80, 16))}, "In a sample of 20% of the elements: ", "0.2 "),
            "no tensors": ({}, "has no tensors, so there is nothing to quantize", "0 tensors"),
        }  # fmt: skip

        def check(tensors, said, never):
            save(tmp_path, **tensors)
            found = inspect(tmp_path, "nf4", "int4").conclusion
            assert said in found
            assert never not in found
            assert not faults_of(found), found

        every(states, check)

    def test_what_is_best_is_the_best_of_the_small_ones_that_save(self, tmp_path, random):
        """Whatever the tensors are."""
        kinds = {
            "normal": random.normal(size=(16, 128)), "zeros": np.zeros((16, 128)),
            "one": np.full((1, 1), 0.7), "tails": random.standard_t(2, (16, 128)),
            "constant": np.full((8, 64), 0.3), "tiny": 1e-41 * random.normal(size=(16, 128)),
            "NaN": np.where(np.eye(16, 128) > 0, np.nan, random.normal(size=(16, 128))),
            "huge": 1e37 * random.normal(size=(16, 128)),
        }  # fmt: skip

        def check(names):
            save(tmp_path, **{name: kinds[name].astype(np.float32) for name in names})
            for schemes in (["nf4", "int4", "nf4:dq"], ["fp16", "e5m2"], ["int8", "bf16"]):
                found = inspect(tmp_path, *schemes)
                assert not faults_of(found.conclusion), found.conclusion
                named = re.match(r"(\S+) keeps (?:(\S+) dB|every value exactly)", found.conclusion)
                if named is None:
                    continue
                best = next(t for t in found.schemes if t.scheme == named[1])
                stored = sum(t.info.nbytes for t in found.tensors)
                kept = [t for t in found.schemes if t.relative_mse is not None]
                saving = [t for t in kept if t.nbytes < stored]
                small = [t for t in saving if t.bits_per_parameter <= 5] or saving or [best]
                errors = [t.relative_mse for t in small]
                assert best.relative_mse <= min(errors) * 10**0.01
                if named[2] is None:
                    assert best.relative_mse == 0

        every([(pair,) for pair in combinations(kinds, 2)], check)

    def test_a_scheme_larger_than_what_is_stored_says_so(self, tmp_path, random):
        save(tmp_path, w=random.normal(size=(64, 64)).astype(np.float16))
        assert "times larger than stored" in inspect(tmp_path, "int4:group1").conclusion


def test_the_largest_outliers_of_one_tensor_are_all_listed(tmp_path, random):
    x = random.normal(size=(512, 512)).astype(np.float32)
    places = [(i, 3 * i) for i in range(17)]
    for i, place in enumerate(places):
        x[place] = 60 + i
    save(tmp_path, w=x)
    top = inspect(tmp_path, "nf4").tensors[0].outliers.top
    assert {(o.row, o.column) for o in top} >= set(places)


def test_a_census_says_what_the_headers_hold():
    def said(*dtypes, quantization=None):
        counts = tuple(DtypeCount(name, 1, 4 * size, size) for name, size in dtypes)
        total = sum(each.nbytes for each in counts)
        return conclude_census(
            Census("m", "file", "/m", None, 4 * total, total, counts, quantization)
        )

    cases = (
        ("m is a configuration without weights, so", said()),
        ("No tensor of m has an element, so there is nothing to quantize.", said(("F32", 0))),
        ("100% of m's bytes are BF16, 2 bits per", said(("BF16", 8))),
        ("99% of m's bytes are BF16, 2 bits per", said(("BF16", 999), ("F32", 1))),
        ("60% of m's bytes are U8, and the checkpoint is quantized already; `qtui inspect ORIGINAL",
         said(("U8", 6), ("F32", 4), quantization="NF4.")),
    )  # fmt: skip

    def check(words, sentence):
        assert sentence.startswith(words)
        assert not faults_of(sentence)

    every(cases, check)


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
