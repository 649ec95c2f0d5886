"""Damaged files: they are read, or raise ModelError with one sentence, and nothing else."""

from __future__ import annotations

import json
import struct

import pytest
from every import drawn
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from qtui_core.errors import ModelError
from qtui_core.models import open_model, rows_of

EXAMPLES, PARTS = 400, 4

HEADER = {
    "__metadata__": {"format": "pt"},
    "m.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
    "m.bias": {"dtype": "F32", "shape": [3], "data_offsets": [12, 24]},
    "m.weight_scale": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [24, 25]},
}
WHOLE = json.dumps(HEADER).encode()
FILE = struct.pack("<Q", len(WHOLE)) + WHOLE + bytes(25)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["F32", "BF16", "F4", "weight", "gptq", "bitsandbytes", 0, 1, 4, 2**63]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def reads_or_says(path) -> bool:
    """True if the file opens and every row can be read; False after a sentence."""
    try:
        with open_model(path) as source:
            for info in source.tensors.values():
                if info.readable:
                    assert source.read_rows(info.name, 0, rows_of(info)).nbytes == info.nbytes
            assert source.parameters >= 0
            assert source.architecture is None or source.architecture.isprintable()
    except ModelError as error:
        check_sentence(str(error))
        return False
    return True


def check_sentence(message: str) -> None:
    assert message.isprintable()
    assert message.endswith((".", "?"))
    assert len(message) < 1000


@drawn(
    EXAMPLES,
    PARTS,
    st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(FILE) + 40),
)
def test_flipped_bytes_and_other_lengths(tmp_path, flips, length):
    content = bytearray(FILE)
    for position, value in flips:
        content[position] = value
    content = (content + bytes(40))[:length]
    path = tmp_path / "f.safetensors"
    path.write_bytes(content)
    if reads_or_says(path):
        # Files that are accepted here are accepted by the library, too, except for dtypes that it
        # does not know.
        try:
            deserialize(bytes(content))
        except SafetensorError as error:
            unknown_dtype = "unknown variant" in str(error)
            assert unknown_dtype


@drawn(
    EXAMPLES,
    PARTS,
    st.sampled_from(["__metadata__", "m.weight", "m.bias", "new"]),
    st.sampled_from([None, "dtype", "shape", "data_offsets", "extra"]),
    json_values,
)
def test_other_values_in_a_header(tmp_path, tensor, field, value):
    header = json.loads(WHOLE)
    if field is None:
        header[tensor] = value
    else:
        header.setdefault(tensor, {})[field] = value
    raw = json.dumps(header).encode()
    path = tmp_path / "f.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(25))
    reads_or_says(path)


@drawn(EXAMPLES, PARTS, st.binary(max_size=200))
def test_bytes_of_any_kind(tmp_path, content):
    for name in ("f.safetensors", "config.json", "model.safetensors.index.json"):
        path = tmp_path / name
        path.write_bytes(content)
        reads_or_says(path)
        reads_or_says(tmp_path)
        path.unlink()


@drawn(EXAMPLES, PARTS, json_values, json_values)
def test_any_json_as_index_and_config(tmp_path, index, config):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    reads_or_says(tmp_path)
    reads_or_says(tmp_path / "config.json")


setting_names = st.sampled_from(
    [
        "quant_method",
        "bits",
        "w_bit",
        "group_size",
        "q_group_size",
        "load_in_4bit",
        "load_in_8bit",
        "format",
        "config_groups",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "weight_block_size",
        "weights",
        "num_bits",
    ]
)


@drawn(
    EXAMPLES,
    PARTS,
    st.dictionaries(setting_names, json_values, max_size=6),
    st.lists(
        st.sampled_from(
            [
                "weight",
                "qweight",
                "qzeros",
                "scales",
                "g_idx",
                "weight.absmax",
                "weight.quant_map",
                "SCB",
                "weight_packed",
                "weight_scale",
                "weight_scale_inv",
                "weight_scale_2",
                "x_blocks",
                "x_scales",
                "weight_shape",
                "weight.quant_state.bitsandbytes__nf4",
                "weight.quant_state.bitsandbytes__x",
            ]
        ),
        unique=True,
    ),
    st.lists(st.sampled_from(["U8", "I8", "I32", "F16", "F8_E4M3"]), min_size=18, max_size=18),
    st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=18, max_size=18),
    st.sampled_from(["", "layer.", "a.b."]),
)
def test_any_settings_with_any_names_are_recognised_or_not(
    tmp_path, chosen, names, dtypes, shapes, stem
):
    sizes = {"U8": 1, "I8": 1, "I32": 4, "F16": 2, "F8_E4M3": 1}
    header, position = {}, 0
    for name, dtype, shape in zip(names, dtypes, shapes, strict=False):
        size = sizes[dtype]
        for dimension in shape:
            size *= dimension
        header[stem + name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + size],
        }
        position += size
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(raw)) + raw + bytes(position)
    )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": chosen}))
    with open_model(tmp_path) as source:
        found = source.quantization
        if found is not None:
            assert found.detail.isprintable()
            assert found.method
            assert not set(found.tensors) & found.scales
        assert sum(source.dtypes.values()) == source.parameters


@pytest.mark.parametrize(
    "text",
    ["\0", "", "  ", "a" * 5000, "/" + "a" * 300, "\udcff", "x@", "@x", "a/b/c/d", "http://x/y"],
)
def test_odd_texts_name_no_model(text):
    with pytest.raises(ModelError) as caught:
        open_model(text)
    assert str(caught.value).isprintable()
