"""How tensors of three and more dimensions are read as matrices, the same everywhere."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

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


@pytest.fixture
def folder(tmp_path):
    def make(name, tensors, config):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        return str(tmp_path / name)

    return make


def int8_rows(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    return np.round(x / scale) * scale


def test_names_config_and_shape_decide_and_everyone_reads_alike(folder):
    random, wrong = np.random.default_rng(3), []
    for number, (name, shape, config, reading, matrix) in enumerate(CASES):
        x = random.normal(0, 0.02, shape).astype(np.float32)
        path = folder(str(number), {name: x, "norm": np.ones(4, np.float32)}, config)
        with open_model(path) as source, open_model(path) as again:
            info = source.tensors[name]
            inspection = inspect_model(
                source, [Scheme.parse("int8:row"), Scheme.parse("int8:token")]
            )
            (error, token) = next(t for t in inspection.tensors if t.info.name == name).errors
            pair = next(p for p in compare_models(source, again).pairs if p.pair.name == name)
            stored = matrix_shape(OpenTensor(source, info).shape)
            note = to_markdown(inspection_document(inspection, all_tensors=True))
        rows = x.reshape(matrix)
        expected = (
            np.square(rows.astype(np.float64) - int8_rows(rows)).sum()
            / np.square(rows.astype(np.float64)).sum()
        )
        if (info.reading, info.matrix) != (reading, matrix):
            wrong.append((name, info.reading, info.matrix))
        if {error.shape, token.shape, pair.pair.info.matrix, stored} != {matrix}:
            wrong.append((name, error.shape, pair.pair.info.matrix, stored))
        if error.relative_mse != pytest.approx(expected, rel=1e-4):
            wrong.append((name, error.relative_mse, expected))
        if {error.bits_per_parameter, token.bits_per_parameter} != {8 + 32 / matrix[1]}:
            wrong.append((name, error.bits_per_parameter, token.bits_per_parameter))
        if f"as {matrix[0]} x {matrix[1]}" not in note or reading[:8] not in note:
            wrong.append((name, note))
    assert not wrong
