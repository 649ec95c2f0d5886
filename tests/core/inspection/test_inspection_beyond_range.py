"""Wherever decibels are shown, values beyond the largest number of a format are counted."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file
from shorthands import code_occupancy

from qtui.engine.answers.outliers import ErrorByColumn, Granularities, GranularityRow
from qtui.report.faces.html import to_html
from qtui.report.faces.json_face import to_json
from qtui.report.faces.markdown import to_markdown
from qtui.report.inspection.comparison import comparison_document
from qtui.report.inspection.document import inspection_document
from qtui.screen.widgets.heatmap.grid import HeatGrid
from qtui.tui.panels.quantize.maps.picture import MapPicture, MapRequest
from qtui.tui.panels.quantize.maps.sentences import map_sentence
from qtui.tui.panels.quantize.numbers import scheme_rows
from qtui.tui.panels.quantize.outliers.sentences import outlier_sentence
from qtui_core.answers.tensors import ErrorReport
from qtui_core.codec import from_plain, to_plain
from qtui_core.evaluation.sensitivity.options import weigh
from qtui_core.inspection.comparison.compare import compare_models
from qtui_core.inspection.inspect import inspect_model
from qtui_core.models import open_model
from qtui_core.quant import Scheme, measure
from qtui_core.quant.verdicts.contest import Contender, verdict

NORMAL = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)


def tensors() -> dict[str, np.ndarray]:
    """Tensors with values of half a million and more, which are beyond float16, and with NaN and
    infinities of their own."""
    ones, wide, broken = np.ones_like(NORMAL), NORMAL * 3e4, NORMAL.copy()
    ones[3, 7] = 1e6
    broken[1, 1:4] = np.nan, np.inf, -7e5
    return {"ones": ones, "wide": wide.astype(np.float32), "broken": broken, "plain": NORMAL}


def inspected(path, schemes):
    with open_model(str(path)) as source:
        return inspect_model(source, [Scheme.parse(s) for s in schemes])


def lost(x: np.ndarray) -> int:
    """The finite values that numpy's float16 makes infinite."""
    with np.errstate(over="ignore"):
        return int((np.isfinite(x) & np.isinf(x.astype(np.float16))).sum())


def test_every_face_counts_what_was_clipped_and_what_was_lost(tmp_path):
    wrong = []
    for name, x in tensors().items():
        save_file({"fc.weight": x}, tmp_path / f"{name}.safetensors")
        found = inspected(tmp_path / f"{name}.safetensors", ["fp16:nosat", "fp16", "bf16"])
        document = inspection_document(found, all_tensors=True)
        data = json.loads(to_json(document))
        expected = lost(x)
        clipped = int((np.isfinite(x) & (np.abs(x) > 65504)).sum())
        bad = int(x.size - np.isfinite(x).sum())
        counts = [[e[k] for k in ("nonfinite", "saturated", "overflowed")]
                  for e in data["tensors"][0]["errors"]]  # fmt: skip
        if counts != [[bad, clipped - expected, expected], [bad, clipped, 0], [bad, 0, 0]]:
            wrong.append((name, "json", counts))
        if [(s["saturated"], s["overflowed"]) for s in data["schemes"]] != [
            (clipped - expected, expected), (clipped, 0), (0, 0)
        ]:  # fmt: skip
            wrong.append((name, "totals", data["schemes"]))
        for face in (to_markdown(document), to_html(document)):
            told = f"{expected:,} lost" in face and f"{clipped:,} clipped" in face
            if told != bool(expected) or ("Beyond range" in face) != bool(expected):
                wrong.append((name, "face", face))
        said = f"fp16:nosat turned {expected:,} value" in found.conclusion
        if said != bool(expected) or ("NaN or infinite in" in found.conclusion) != bool(bad):
            wrong.append((name, found.conclusion))
    assert not wrong


def test_a_scheme_that_lost_values_is_not_recommended(tmp_path):
    """The ones beside a lost value of a million would have 162.9 dB."""
    save_file({"a": tensors()["ones"], "b": NORMAL}, tmp_path / "m.safetensors")
    found = inspected(tmp_path / "m.safetensors", ["fp16:nosat", "fp16"])
    assert found.conclusion.startswith("fp16 keeps")
    half = NORMAL.astype(np.float16).astype(np.float64)
    signal = float(np.square(NORMAL, dtype=np.float64).sum()) + NORMAL.size - 1
    error = float(np.square(NORMAL - half).sum())
    assert found.schemes[0].relative_mse == pytest.approx(error / signal, rel=1e-4)
    assert found.schemes[0].worst_tensor == "a"
    alone = inspected(tmp_path / "m.safetensors", ["fp16:nosat"]).conclusion
    assert alone.startswith("fp16:nosat turned 1 value in 'a' into infinity or NaN")
    assert "keeps the other values to" in alone
    weighed = weigh(found)
    (a, *_) = (t for t in weighed.tensors if t.name == "a")
    assert a.options[0].error >= a.options[1].error > 0
    save_file({"a": np.full((8, 8), 1e6, np.float32)}, tmp_path / "gone.safetensors")
    gone = inspected(tmp_path / "gone.safetensors", ["fp16:nosat"]).conclusion
    assert "Nothing is left" in gone
    assert "64 values" in gone


def test_a_comparison_says_in_which_of_the_two_values_are_not_finite(tmp_path):
    for name, x in tensors().items():
        with np.errstate(over="ignore"):
            half = x.astype(np.float16)
        save_file({"fc.weight": x}, tmp_path / f"{name}.safetensors")
        save_file({"fc.weight": half}, tmp_path / f"{name}16.safetensors")
        paths = [str(tmp_path / f"{name}{end}.safetensors") for end in ("", "16")]
        with open_model(paths[0]) as a, open_model(paths[1]) as b:
            comparison = compare_models(a, b)
        data = comparison_document(comparison, all_tensors=True).data["against"]["tensors"][0]
        bad = int(x.size - np.isfinite(x).sum())
        assert (data["nonfinite"], data["became_nonfinite"]) == (bad + lost(x), lost(x)), name
        assert (f"where {paths[0]} is finite" in comparison.conclusion) == (lost(x) > 0), name
        face = to_markdown(comparison_document(comparison, all_tensors=True))
        assert (f"{lost(x):,} lost" in face) == (lost(x) > 0), name


def numbers(x: np.ndarray, text: str, **extent: float) -> ErrorReport:
    return measure(x, Scheme.parse(text), **extent)


def test_the_sentences_of_the_app_count_them():
    x = tensors()["ones"]
    errors = {text: numbers(x, text) for text in ("fp16:nosat", "fp16", "bf16")}
    rows = {r.label: r.values for r in scheme_rows(list(errors.values())[:2], 0, brief=True)}
    assert rows["overflowed"] == ("1", "0")
    assert rows["saturated"] == ("0", "1")

    def sentence(kind: str, *schemes: str) -> str:
        request = MapRequest(kind, schemes, "max", None, 1, 2)
        grid = HeatGrid(64, 256, 1, 2, (0.0, 0.0 if kind == "signed" else -2.0))
        return map_sentence(MapPicture(request, grid, (0, 0), (0, 0)), errors)

    assert "fp16:nosat turned 1 element into infinity or NaN" in sentence("signed", "fp16:nosat")
    assert "level of its own" not in sentence("signed", "fp16:nosat")
    assert "fp16 clipped 1 element" in sentence("signed", "fp16")
    assert "over all elements" not in sentence("difference", "fp16:nosat", "bf16")
    assert "over all elements" in sentence("difference", "fp16", "bf16")

    def outliers(text: str) -> str:
        error = to_plain(measure(x, Scheme.parse(text)))
        own = {"scheme": text, "granularity": "", "scales": 0, "overhead_bits": 0.0}
        row = from_plain(GranularityRow, {**error, **own})
        found = Granularities(text, (row,), (), ())
        attribution = ErrorByColumn(text, "sigma", 6.0, row.sqnr_db, 256, (), None, 0, (), ())
        return outlier_sentence(object(), found, attribution)  # type: ignore[arg-type]

    assert "fp16:nosat turns 1 element into infinity or NaN" in outliers("fp16:nosat")
    assert "fp16 clips 1 element to its largest number" in outliers("fp16")
    assert outliers("bf16").startswith("bf16 rounds each element by itself")
    scheme = Scheme.parse("e4m3:model:nosat")
    contender = Contender(
        measure(NORMAL, scheme, model_absmax=1.0), code_occupancy(NORMAL, scheme, model_absmax=1.0)
    )
    count = contender.report.overflowed
    assert 0 < count <= int((np.abs(NORMAL) > 1.0).sum())
    assert f"turns {count:,} elements into infinity or NaN" in verdict([contender])
    assert math.isfinite(contender.db)
