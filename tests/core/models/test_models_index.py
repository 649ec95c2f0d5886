"""Shard indexes, which are not trusted: they may name any file."""

import pytest
from local_models import A, B, refused, save, write_index

from qtui_core.errors import ModelError
from qtui_core.models import open_model

OUTSIDE, OTHER = "outside the model's folder", "not a safetensors file"


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        *(({"a": f"{name}x.safetensors"}, OUTSIDE) for name in (
            "../", "/etc/", "a/../../", "./../", "..\\", "C:\\", "C:", "\\\\host\\", "http://host/",
        )),
        *(({"a": name}, OTHER) for name in (
            "x\n.safetensors", "\x1b[31m.safetensors", "a\\x.safetensors", "", ".", "model.bin",
        )),
        *((weight_map, "names no shards") for weight_map in (None, {}, [])),
        ({"a": 3}, "must map text to text"),
        ({"a": "gone.safetensors"}, r"names 1 shard; missing from .*: 'gone.safetensors'\.$"),
        ({"a": "y.safetensors", "b": "z.safetensors"},
         r"names 2 shards; missing from .*: 'y.safetensors', 'z.safetensors'\.$"),
    ],
)  # fmt: skip
def test_an_index_that_is_wrong(tmp_path, weight_map, says):
    folder = tmp_path / "model"
    for place in (tmp_path, folder):
        save(place / "x.safetensors", a=A)
    write_index(folder, weight_map)
    with pytest.raises(ModelError, match=says) as caught:
        open_model(folder)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["./x.safetensors", "sub//x.safetensors", "sub/./x.safetensors"])
def test_a_file_inside_may_be_named_the_long_way(tmp_path, name):
    save(tmp_path / name, a=A, b=B)
    write_index(tmp_path, {"a": name, "b": name})
    with open_model(tmp_path) as source:
        short = name.replace("./", "").replace("//", "/")
        assert {t.file for t in source.tensors.values()} == {short}
        assert source.read_rows("a", 0, 2) == A.tobytes()


def test_an_index_and_its_shards_must_agree(sharded):
    first, second = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    for weight_map in ({"a": first, "b": first}, {"a": first, "b": second, "c": second}):
        write_index(sharded, weight_map)
        refused(sharded, "but it is not")
    write_index(sharded, {"a": first})  # shard 2 is not part of this model
    assert list(open_model(sharded).tensors) == ["a"]
    save(sharded / second, a=A, b=B)
    write_index(sharded, {"a": first, "b": second})
    refused(sharded, "in two files")
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x", "a": "y"}}')
    refused(sharded, "'a' twice")
