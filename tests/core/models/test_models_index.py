"""Shard indexes, which are not trusted: they may name any file."""

from __future__ import annotations

import pytest
from local_models import A, B, save, write_index

from qtui_core.errors import ModelError
from qtui_core.models import open_model


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/../../x.safetensors",
        "./../x.safetensors",
        "..\\x.safetensors",
        "C:\\x.safetensors",
        "C:x.safetensors",
        "\\\\host\\x.safetensors",
        "http://host/x.safetensors",
    ],
)
def test_an_index_may_not_name_files_elsewhere(tmp_path, name):
    folder = tmp_path / "model"
    save(tmp_path / "x.safetensors", a=A)
    write_index(folder, {"a": name})
    with pytest.raises(ModelError, match="outside the model's folder") as caught:
        open_model(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("x\n.safetensors", "a file name with control characters"),
        ("\x1b[31m.safetensors", "a file name with control characters"),
        ("a\\x.safetensors", "a file name with a backslash"),
        ("", "names no file for tensor 'a'"),
        (".", "not a safetensors file"),
    ],
)
def test_an_invalid_file_name_is_refused_with_the_reason(tmp_path, name, says):
    write_index(tmp_path, {"a": name})
    with pytest.raises(ModelError, match=says) as caught:
        open_model(tmp_path)
    assert "outside" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["./x.safetensors", "sub//x.safetensors", "sub/./x.safetensors"])
def test_a_file_inside_may_be_named_the_long_way(tmp_path, name):
    save(tmp_path / name, a=A, b=B)
    write_index(tmp_path, {"a": name, "b": name})
    with open_model(tmp_path) as source:
        assert {t.file for t in source.tensors.values()} == {
            name.replace("./", "").replace("//", "/")
        }
        assert source.read_rows("a", 0, 2) == A.tobytes()


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        (None, "names no shards"),
        ({}, "names no shards"),
        ([], "names no shards"),
        ({"a": 3}, "must map text to text"),
        ({"a": "pytorch_model.bin"}, "not a safetensors file"),
        ({"a": "gone.safetensors"}, r"names 1 shard; missing from .*: 'gone.safetensors'\.$"),
        (
            {"a": "x.safetensors", "b": "y.safetensors"},
            r"names 2 shards; missing from .*: 'x.safetensors', 'y.safetensors'\.$",
        ),
    ],
)
def test_an_index_that_is_wrong(tmp_path, weight_map, says):
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=says):
        open_model(tmp_path)


def test_an_index_and_its_shards_must_agree(sharded):
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    for weight_map in ({"a": first, "b": first}, {"a": first, "b": second, "c": second}):
        write_index(sharded, weight_map)
        with pytest.raises(ModelError, match="but it is not"):
            open_model(sharded)
    write_index(sharded, {"a": first})  # shard 2 is not part of this model
    assert list(open_model(sharded).tensors) == ["a"]
    save(sharded / second, a=A, b=B)
    write_index(sharded, {"a": first, "b": second})
    with pytest.raises(ModelError, match="in two shards"):
        open_model(sharded)


def test_a_tensor_named_twice_in_an_index(sharded):
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    with pytest.raises(ModelError, match="'a' twice"):
        open_model(sharded)
