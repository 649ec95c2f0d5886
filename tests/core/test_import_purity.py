"""Which modules each command imports, from sys.modules of a fresh interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"textual", "rich", "numpy", "torch", "transformers", "huggingface_hub", "pynvml"}

_PROBE = """
import sys
from qtui.cli import main
for args in {commands!r}:
    sys.argv = ["qtui", *args]
    try:
        main()
    except SystemExit as done:
        assert not done.code, (args, done.code)
print("MODULES", *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
FORMATS = ("text", "json", "markdown", "html")


def modules_of(*commands: tuple[str, ...]) -> set[str]:
    """Top-level modules that are loaded after running all `commands` of qtui in one process: a
    module that is not among them is loaded by none of the commands."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-c", _PROBE.format(commands=commands)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


def test_help_and_formats_load_nothing_heavy():
    asked = (("--help",), ("--version",), ("inspect", "--help"), ("memory", "--help"))
    asked = (*asked, ("formats", "0.1", "--json"))
    assert modules_of(*asked).isdisjoint(HEAVY)


def test_a_header_only_census_loads_no_torch_and_no_numpy(checkpoint):
    asked = ("inspect", str(checkpoint), "--headers", "--format")
    loaded = modules_of(*((*asked, format) for format in FORMATS))
    assert loaded.isdisjoint({"torch", "numpy", "transformers", "textual", "huggingface_hub"})


def test_measuring_weights_needs_numpy_and_no_torch(checkpoint):
    loaded = modules_of(("inspect", str(checkpoint), "--schemes", "nf4,int4,e4m3", "--json"))
    assert "numpy" in loaded
    assert loaded.isdisjoint({"torch", "transformers", "textual", "huggingface_hub"})


def test_an_estimate_of_memory_loads_nothing_heavy(checkpoint):
    config = checkpoint / "config.json"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "vocab_size": 128}
    config.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    asked = ("memory", str(config), "--explain", "--format")
    loaded = modules_of(*((*asked, format) for format in FORMATS))
    assert loaded.isdisjoint(HEAVY - {"rich"})


def test_a_report_in_a_pipe_is_written_without_rich():
    """Nor with what the hub, a report in a file and a page require."""
    loaded = modules_of(("memory", "demo"))
    assert loaded.isdisjoint({"rich", "logging", "concurrent", "tempfile", "shutil", "html"})


@pytest.mark.slow
def test_tests_are_collected_without_the_libraries_that_take_long():
    """Then a single test starts at once, and each process imports only what its tests need."""
    root = Path(__file__).parents[2]
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['--collect-only', '-qq', '-p', 'no:cacheprovider'])\n"
        "print('COLLECTED', int(code), *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    code, *modules = done.stdout.rsplit("COLLECTED", 1)[1].split()
    assert code == "0", done.stdout
    assert {"torch", "transformers", "bitsandbytes", "peft", "torchao"}.isdisjoint(modules)


@pytest.mark.slow
def test_nothing_is_taken_of_a_gpu_before_a_run():
    """Neither a run that is prepared nor the operations of the engine load
    torch, so there is no CUDA context, which would take hundreds of MB of a GPU."""
    code = (
        "import sys\n"
        "from qtui.engine.operations import build_operations\n"
        "from qtui.engine.run.prepared_run import prepare_run\n"
        "from qtui_core.training.run.request import RunRequest\n"
        "from qtui_core.training.run.placement import gpus\n"
        "build_operations(); gpus()\n"
        "prepare_run(RunRequest('demo', device='cpu')).source.close()\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
