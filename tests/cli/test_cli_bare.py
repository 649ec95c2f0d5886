"""qtui without its extras: which commands work, and which name the extra that they lack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from every import every, in_parts
from packaging.requirements import Requirement
from terminals import Terminal

import qtui
from qtui_core.extras import EXTRAS, MissingLibrary, importing, install_command, require

ROOT = Path(qtui.__file__).parents[1]


def project() -> dict:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def linked_environment(folder: Path) -> Path:
    """The Python of a new environment in `folder`. It contains this source tree and links to those
    installed packages that `qtui` needs without extras, and nothing else."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "qtui.pth").write_text(f"{ROOT}\n")
    for package in _taken(project()["dependencies"]):
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            (site / top).symlink_to(package.locate_file(top))
    return folder / "bin" / "python"


def _taken(requirements: list[str]) -> list[metadata.Distribution]:
    """The packages for `requirements`, with everything that they require themselves."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        package = metadata.distribution(requirement.name)
        found[package.name] = package
        for line in package.requires or ():
            each = Requirement(line)
            if each.marker is None or any(
                each.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            ):
                waiting.append(each)
    return list(found.values())


RECORDING = ROOT / "tests" / "live" / "recordings" / "demo_qlora_cpu.jsonl"
TEXT = ROOT / "README.md"
TORCH = "'qtui[torch]'."
HERE = "no file or folder of that name either."
WORKS = {
    "--version": "qtui, version",
    "formats 0.1": "E4M3",
    "memory demo --gpu A100": "At the peak",
    "inspect demo --headers": "LlamaForCausalLM",
    "inspect demo --tensors *.0.mlp.up* --sensitivity": "nf4:block64:dq",
    "inspect demo --tensors *.0.mlp.up* --against demo": "identical",
    f"replay {RECORDING} --json": '"measured"',
    "lab": "Does the update reach the weight?",
    "doctor --library torch": "not installed: pip install 'qtui[torch]'",
}
#: Command -> its exit code, what it lacks, how its only line on stderr ends.
LACKS = {
    "train demo": (2, "A run takes torch, ", TORCH),
    "memory demo --trace": (2, "A trace takes torch, ", TORCH),
    "lab survive": (2, "An experiment takes torch", TORCH),
    "serve": (2, "The app in a browser takes textual-serve", "'qtui[web]'."),
    "calibrate": (2, "A calibration takes torch, ", TORCH),
    f"inspect demo --sensitivity --text {TEXT}": (2, "--text takes torch", TORCH),
    "inspect demo --sensitivity --objective kl": (2, "--objective kl takes torch", TORCH),
    "inspect org/name": (3, "Asking the hub takes huggingface_hub", HERE),
    "memory tests": (3, "pip install 'qtui[hub]'. On this machine", HERE),
}
MEBIBYTES = 124  # which are 130 MB


def run(python: Path, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-P", "-m", "qtui", *command.split()],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def check_commands(python: Path, folder: Path, parts: int = 1) -> None:
    """Fails if a command of WORKS or LACKS, or one in `parts` of them, does not do what is written
    there."""

    def works(command: str) -> None:
        done = run(python, command, folder)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert WORKS[command] in done.stdout

    def lacks(command: str) -> None:
        code, lacking, ending = LACKS[command]
        done = run(python, command, folder)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert lacking in done.stderr
        assert done.stderr.endswith(f" {ending}\n")
        assert done.stderr.count("\n") == 1

    checks = dict.fromkeys(WORKS, works) | dict.fromkeys(LACKS, lacks)
    every(list(checks.items())[::parts], lambda command, check: check(command))


@pytest.mark.slow
@in_parts(2)
def test_without_extras_what_needs_none_works_and_the_rest_names_its_extra(tmp_path, parts):
    python = linked_environment(tmp_path / "environment")
    absent = [name for names in EXTRAS.values() for name in names]
    code = f"import importlib.util as u; print([n for n in {absent} if u.find_spec(n)])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr
    check_commands(python, tmp_path, parts)


def test_the_table_of_extras_is_that_of_the_package():
    extras = project()["optional-dependencies"]
    for name, libraries in EXTRAS.items():
        required = [Requirement(line).name for line in extras[name]]
        assert tuple(each for each in required if each != "qtui") == libraries
    assert set(extras) - set(EXTRAS) == {"test"}


def test_a_missing_library_is_one_sentence_with_the_extra_that_brings_it(monkeypatch):
    require("A test", "numpy", "click")
    with pytest.raises(MissingLibrary) as told:
        require("A test", "no_such_library", "numpy")
    assert str(told.value) == (
        "A test takes no_such_library, which is not installed: pip install no_such_library."
    )
    for name in ("torch", "peft", "compressed_tensors"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibrary) as told:
        require("A test", "torch", "peft", "numpy", "compressed-tensors")
    assert str(told.value) == (
        "A test takes torch, peft and compressed-tensors, which are not installed: "
        "pip install 'qtui[torch,checkpoints]'."
    )
    assert told.value.exit_code == 2
    assert install_command("gfloat", "gguf") == "pip install 'qtui[checkpoints]' gfloat"


def test_a_library_without_what_is_imported_of_it_is_told_too():
    with (
        pytest.raises(MissingLibrary, match=r"of which a part is missing or too old \(cannot"),
        importing("A test", "click"),
    ):
        from click import no_such_name  # noqa: F401


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Python of an environment into which pip has installed qtui, without extras."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment", with_pip=True, symlinks=True)
    python = folder / "environment" / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    asked = subprocess.run(
        [*pip, "download", "--no-deps", "--retries", "0", "-d", folder, "hatchling"],
        capture_output=True,
        text=True,
    )
    if asked.returncode:
        pytest.skip(f"pip reaches no index: {asked.stderr.strip().splitlines()[-1]}")
    done = subprocess.run([*pip, "install", ROOT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.slow
def test_installed_without_extras_it_is_small_and_its_commands_work(installed, tmp_path):
    (site,) = installed.parents[1].glob("lib/python*/site-packages")
    sizes = {
        each.name: sum(file.stat().st_blocks * 512 for file in (each, *each.rglob("*")))
        for each in site.iterdir()
        if not re.match("pip|setuptools|pkg_resources|_distutils_hack|distutils", each.name)
    }
    largest = dict(sorted(sizes.items(), key=lambda pair: -pair[1])[:8])
    assert sum(sizes.values()) < MEBIBYTES << 20, largest
    check_commands(installed, tmp_path)


@pytest.mark.slow
@pytest.mark.pty
def test_installed_without_extras_the_app_opens_and_its_panels_name_the_extra(installed, tmp_path):
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }  # fmt: skip
    terminal = Terminal([str(installed), "-m", "qtui"], environment, (160, 40))
    waits = (
        ("", "0.1015625"),
        ("2", "SQNR"),
        ("vv", "not captured yet"),
        ("r", "Letting a model read a text takes torch and transformers"),
        ("4", "what would save most"),
        ("r", "A trace takes torch"),
        ("5", "r runs"),
        ("r", "A run takes torch"),
        ("7", "No GPU is here"),
        ("vv", "op/byte"),
        ("r", "Measuring rates takes torch"),
    )
    try:
        for keys, shown in waits:
            terminal.send(keys)
            terminal.wait_for(shown, 60)
            if " takes " in shown:
                terminal.wait_for("qtui[torch]")
        terminal.send("q")
        assert terminal.exit_code() == 0
    finally:
        if terminal.fd >= 0:
            terminal.hang_up()
