"""Pickles are refused, and the command that the error suggests converts them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from lazy_imports import LazyImport
from local_models import refused

from qtui_core.errors import ModelError
from qtui_core.models import open_model
from qtui_core.models.files.layout import CONVERT_COMMAND, convert_command

torch = LazyImport("torch")


PICKLE = b"\x80\x02."


def advised(text: str | Path) -> list[str]:
    """The arguments of the command at the end of this model's error."""
    with pytest.raises(ModelError) as caught:
        open_model(text)
    return shlex.split(str(caught.value).partition("trust it: ")[2])


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".PT"])
def test_pickles_are_refused_with_the_reason(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    refused(path, "no file or folder")
    path.write_bytes(PICKLE)
    refused(path, "runs code")


def test_a_folder_of_pickles(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(PICKLE)
    refused(tmp_path, "pickles")
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')  # enough to estimate memory
    with pytest.raises(ModelError, match="runs code from the file"):
        open_model(tmp_path).require_weights()


def test_the_command_names_the_files_where_they_are(tmp_path, monkeypatch):
    folder = tmp_path / "my models"
    folder.mkdir()
    for name in ("a.bin", "b.pt"):
        (folder / name).write_bytes(PICKLE)
    paths = [str(folder / "a.bin"), str(folder / "b.pt")]
    assert advised(folder)[3:] == paths
    assert advised(folder / "b.pt")[3:] == paths[1:]
    monkeypatch.setenv("HOME", str(tmp_path))  # a quoted ~ is not expanded by a shell
    assert advised("~/my models")[3:] == paths
    assert advised("~/my models/a.bin")[3:] == paths[:1]


def test_the_state_of_training_is_not_converted(tmp_path):
    for name in ("optimizer.pt", "pytorch_model.bin", "training_args.bin"):
        (tmp_path / name).write_bytes(PICKLE)
    assert advised(tmp_path)[3:] == [str(tmp_path / "pytorch_model.bin")]


def test_many_files_are_one_pattern_and_two_forms_of_one_model_one_file():
    shards = [f"a b/pytorch_model-{i:05}-of-00033.bin" for i in range(1, 34)]
    assert convert_command(shards) == f"{CONVERT_COMMAND} 'a b/pytorch_model-000'*.bin"
    assert convert_command(["m.bin", "m.pt"]) == f"{CONVERT_COMMAND} m.bin"


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_the_command_that_converts_pickles_works(tmp_path, count):
    folder = tmp_path / "my model's"
    folder.mkdir()
    shared = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    for i in range(1, count + 1):
        name = f"pytorch_model-{i:05}-of-{count:05}.bin"
        torch.save({f"a{i}": shared.t(), f"b{i}": shared + i}, folder / name)
    with pytest.raises(ModelError) as caught:
        open_model(folder)
    command = str(caught.value).partition("trust it: ")[2].removeprefix("python")
    subprocess.run(f"{shlex.quote(sys.executable)}{command}", shell=True, check=True, cwd="/")
    with open_model(folder) as source:
        assert len(source.tensors) == 2 * count
        assert source.read_rows(f"a{count}", 0, 4) == raw(shared.t())
        assert source.read_rows(f"b{count}", 0, 3) == raw(shared + count)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()
