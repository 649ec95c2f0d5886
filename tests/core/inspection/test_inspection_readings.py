"""How tensors of three and more dimensions are read as matrices, the same everywhere."""

import numpy as np
import pytest
from every import over
from packed_models import save_model

from qtui.engine.tensors import OpenTensor
from qtui.report.faces.markdown import to_markdown
from qtui.report.inspection.document import inspection_document
from qtui_core.inspection.comparison.compare import compare_models
from qtui_core.inspection.inspect import inspect_model
from qtui_core.models import open_model
from qtui_core.quant import Scheme
from qtui_core.quant.layout import matrix_shape

STACK, CONVOLUTION = "stacked matrices", "convolution"
#: Name, shape, config, expected reading, expected matrix.
CASES = [
    ("model.encoder.conv1.weight", (96, 64, 3), {}, CONVOLUTION, (96, 192)),  # Whisper
    ("backbone.layers.0.mixer.conv1d.weight", (96, 1, 4), {}, CONVOLUTION, (96, 4)),  # Mamba
    ("encoder.pos_conv_embed.conv.weight_v", (64, 4, 128), {}, CONVOLUTION, (64, 512)),  # wav2vec
    ("ups.0.weight", (64, 32, 16), {}, CONVOLUTION, (64, 512)),  # HiFi-GAN
    ("vision.patch_embedding.weight", (64, 3, 8, 8), {}, CONVOLUTION, (64, 192)),
    ("visual.patch_embed.proj.weight", (64, 3, 2, 4, 4), {}, CONVOLUTION, (64, 96)),
    ("mlp.experts.gate_up_proj", (4, 96, 64), {}, STACK, (384, 64)),
    ("mlp.experts.down_proj", (64, 8, 16), {}, STACK, (512, 16)),  # as narrow as a kernel
    ("blk.0.ffn_gate_exps.weight", (4, 96, 64), {}, STACK, (384, 64)),
    ("block_sparse_moe.input_linear.weight", (40, 8, 16), {"num_local_experts": 40}, STACK,
     (320, 16)),  # Granite
    ("conv1.weight", (4, 8, 3), {"text_config": {"num_experts": 4}}, CONVOLUTION, (4, 24)),
    ("ffn.weight", (40, 8, 16), {"n_shared_experts": 40}, CONVOLUTION, (40, 128)),
    ("position_embeddings", (1, 50, 64), {}, STACK, (50, 64)),
]  # fmt: skip


def relative_error(x: np.ndarray) -> float:
    """Of int8 with a scale for each row."""
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    x, y = x.astype(np.float64), np.round(x / scale) * scale
    return np.square(x - y).sum() / np.square(x).sum()


@over(("name", "shape", "config", "reading", "matrix"), CASES)
def test_names_config_and_shape_decide_and_everyone_reads_alike(
    tmp_path, name, shape, config, reading, matrix
):
    x = np.random.default_rng(3).normal(0, 0.02, shape).astype(np.float32)
    path = save_model(tmp_path / "m", {name: x, "norm": np.ones(4, np.float32)}, **config)
    with open_model(path) as source, open_model(path) as again:
        info = source.tensors[name]
        inspection = inspect_model(source, [Scheme.parse("int8:row"), Scheme.parse("int8:token")])
        (error, token) = next(t for t in inspection.tensors if t.info.name == name).errors
        pair = next(p for p in compare_models(source, again).pairs if p.pair.name == name)
        stored = matrix_shape(OpenTensor(source, info).shape)
        note = to_markdown(inspection_document(inspection, all_tensors=True))
    assert (info.reading, info.matrix) == (reading, matrix)
    assert {error.shape, token.shape, pair.pair.info.matrix, stored} == {matrix}
    assert error.relative_mse == pytest.approx(relative_error(x.reshape(matrix)), rel=1e-4)
    assert {error.bits_per_parameter, token.bits_per_parameter} == {8 + 32 / matrix[1]}
    assert f"as {matrix[0]} x {matrix[1]}" in note
    assert reading[:8] in note
