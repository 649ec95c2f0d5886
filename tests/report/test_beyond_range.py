"""Wherever decibels are shown, values beyond the largest number of a format are counted."""

import json

import numpy as np
from safetensors.numpy import save_file

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
from qtui_core.codec import from_plain, to_plain
from qtui_core.inspection.comparison.compare import compare_models
from qtui_core.inspection.inspect import inspect_model
from qtui_core.models import open_model
from qtui_core.quant import Scheme, measure

NORMAL = np.random.default_rng(5).standard_normal((64, 256)).astype(np.float32)


def tensors() -> dict[str, np.ndarray]:
    """Tensors with values of half a million and more, which are beyond float16, and with NaN and
    infinities of their own."""
    ones, broken = np.ones_like(NORMAL), NORMAL.copy()
    ones[3, 7] = 1e6
    broken[1, 1:4] = np.nan, np.inf, -7e5
    return {"ones": ones, "wide": NORMAL * np.float32(3e4), "broken": broken, "plain": NORMAL}


def lost(x: np.ndarray) -> int:
    """The finite values that numpy's float16 makes infinite."""
    with np.errstate(over="ignore"):
        return int((np.isfinite(x) & np.isinf(x.astype(np.float16))).sum())


def test_every_face_counts_what_was_clipped(tmp_path):
    for name, x in tensors().items():
        save_file({"fc.weight": x}, tmp_path / f"{name}.safetensors")
        with open_model(str(tmp_path / f"{name}.safetensors")) as source:
            found = inspect_model(source, [Scheme("fp16"), Scheme("bf16")])
        document = inspection_document(found, all_tensors=True)
        data = json.loads(to_json(document))
        clipped = int((np.isfinite(x) & (np.abs(x) > 65504)).sum())
        bad = int(x.size - np.isfinite(x).sum())
        errors = data["tensors"][0]["errors"]
        assert [(e["nonfinite"], e["saturated"]) for e in errors] == [(bad, clipped), (bad, 0)]
        assert [s["saturated"] for s in data["schemes"]] == [clipped, 0], name
        for face in (to_markdown(document), to_html(document)):
            assert (f"{clipped:,} clipped" in face) == ("Beyond range" in face) == bool(clipped)
        assert ("NaN or infinite in" in found.conclusion) == bool(bad), name


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


def test_the_sentences_of_the_app_count_them():
    x = tensors()["ones"]
    errors = {text: measure(x, Scheme.parse(text)) for text in ("fp16", "bf16")}
    rows = {r.label: r.values for r in scheme_rows(list(errors.values()), 0, brief=True)}
    assert rows["saturated"] == ("1", "0")

    def sentence(kind: str, *schemes: str) -> str:
        request = MapRequest(kind, schemes, "max", None, 1, 2)
        grid = HeatGrid(64, 256, 1, 2, (0.0, 0.0 if kind == "signed" else -2.0))
        return map_sentence(MapPicture(request, grid, (0, 0), (0, 0)), errors)

    assert "fp16 clipped 1 element" in sentence("signed", "fp16")
    assert "over all elements" in sentence("difference", "fp16", "bf16")

    def outliers(text: str) -> str:
        error = to_plain(measure(x, Scheme.parse(text)))
        own = {"scheme": text, "granularity": "", "scales": 0, "overhead_bits": 0.0}
        row = from_plain(GranularityRow, {**error, **own})
        found = Granularities(text, (row,), (), ())
        attribution = ErrorByColumn(text, "sigma", 6.0, row.sqnr_db, 256, (), None, 0, (), ())
        return outlier_sentence(object(), found, attribution)  # type: ignore[arg-type]

    assert "fp16 clips 1 element to its largest number" in outliers("fp16")
    assert outliers("bf16").startswith("bf16 rounds each element by itself")
