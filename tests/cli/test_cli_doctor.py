"""`qtui doctor` as a user runs it. gguf is asked: it is the library that answers fastest."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import run_qtui
from stub_libraries import ABSENT, FRAGILE_GGUF, TAMPERED, stub
from terminals import program

import qtui
from qtui_core.threads import child_environment

pytest.importorskip("gguf")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gguf_report():
    done = run_qtui("doctor", "--library", "gguf", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_machine_is_described(gguf_report):
    data = gguf_report
    assert data["schema_version"] == 1
    assert data["machine"]["python"] == platform.python_version()
    assert data["machine"]["cores"] >= 1
    assert data["terminal"]["columns"] is None
    assert data["libraries"]["numpy"]
    assert data["files"]["config"].endswith("config.toml")
    assert isinstance(data["gpus"], list)
    assert list(data)[-1] == "conclusion"


def test_each_convention_has_its_verdict_and_figures(gguf_report):
    (library,) = gguf_report["conformance"]
    assert (library["library"], library["version"]) == ("gguf", gguf_report["libraries"]["gguf"])
    rows = {row["id"]: row for row in library["conventions"]}
    assert rows["gguf.q4_0"]["verdict"] == "byte-equal"
    assert rows["gguf.q4_0"]["holds"] is True
    assert rows["gguf.q4_0"]["codes_compared"] > 40_000
    differs = rows["gguf.q8_0"]
    assert (differs["verdict"], differs["holds"]) == ("differs", None)
    assert 0 < differs["codes_different"] < differs["codes_compared"]
    assert 0 < differs["largest_relative_difference"] <= 1 / 127
    assert "ties" in differs["why"]
    assert rows["gguf.short-group"]["codes_compared"] is None


def test_text_is_grouped_by_library_and_ends_in_a_sentence(qtui):
    done = qtui("doctor", "--library", "gguf", "--library", "torch")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "qtui doctor"
    titles = ("Terminal", "Machine", "Libraries", "Files", "gguf ", "torch ")
    at = [next(i for i, line in enumerate(lines) if line.startswith(name)) for name in titles]
    assert at == sorted(at)
    assert "Q4_0 divides the extreme element by -8" in done.stdout
    assert lines[-1].endswith("says where and why.")


@pytest.mark.parametrize(("width", "ascii"), [(60, False), (80, True), (120, False)])
def test_no_line_is_wider_than_the_terminal(qtui, width, ascii):
    options = ["--ascii"] if ascii else []
    done = qtui("doctor", "--library", "gguf", *options, env={"COLUMNS": str(width)})
    assert max(map(len, done.stdout.splitlines())) <= width
    assert done.stdout.isascii() or not ascii


def test_a_library_that_is_missing_is_said_to_be(qtui_process, tmp_path):
    env = stub(tmp_path, "gguf", ABSENT)
    done = qtui_process("doctor", "--library", "gguf", env=env)
    assert done.returncode == 0, done.stderr
    assert "Not installed, so not compared" in done.stdout
    assert "`pip install 'qtui[checkpoints]'`" in done.stdout
    assert "byte-equal" not in done.stdout
    data = json.loads(qtui_process("doctor", "--library", "gguf", "--json", env=env).stdout)
    assert {row["verdict"] for row in data["conformance"][0]["conventions"]} == {"not-installed"}


def test_a_library_that_crashes_is_a_verdict_and_no_exit_code(qtui_process, tmp_path):
    done = qtui_process("doctor", "--library", "gguf", env=stub(tmp_path, "gguf", FRAGILE_GGUF))
    assert done.returncode == 0, done.stderr
    assert "its process was ended by SIGABRT" in done.stdout
    assert "could not be checked" in done.stdout.splitlines()[-1]


def test_no_file_of_the_user_is_a_library(tmp_path):
    (tmp_path / "gguf.py").write_text("open('ran', 'w').close()")
    command = [sys.executable, "-m", "qtui", "doctor", "--library", "gguf"]
    env = child_environment()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "byte for byte" in done.stdout
    assert not (tmp_path / "ran").exists()


def test_a_disagreement_is_exit_code_1_and_comes_first_in_the_sentence(qtui_process, tmp_path):
    env = stub(tmp_path, "sitecustomize", TAMPERED)
    done = qtui_process("doctor", "--library", "gguf", env=env)
    assert done.returncode == 1
    assert "differs, not byte-equal" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("qtui disagrees with")
    assert done.stderr == ""
    data = json.loads(qtui_process("doctor", "--library", "gguf", "--json", env=env).stdout)
    rows = {row["id"]: row for row in data["conformance"][0]["conventions"]}
    assert rows["gguf.q4_0"]["holds"] is False


def test_ctrl_c_ends_it_and_the_libraries_it_asked(tmp_path):
    told = tmp_path / "pid"
    text = f"import os, time; open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    doctor = subprocess.Popen(
        [sys.executable, "-m", "qtui", "doctor", "--library", "gguf"],
        env={**os.environ, **stub(tmp_path, "gguf", text)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: told.exists() and told.read_text())
    doctor.send_signal(signal.SIGINT)
    out, err = doctor.communicate(timeout=120)
    assert (doctor.returncode, out) == (130, "")
    assert "Traceback" not in err
    wait_for(lambda: not is_alive(int(told.read_text())))


WAITING_GGUF = """
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.02)
raise ImportError("enough")
"""


@pytest.mark.pty
def test_what_is_known_is_on_the_screen_while_a_library_is_asked(tmp_path):
    go = tmp_path / "go"
    path = stub(tmp_path, "gguf", WAITING_GGUF.format(go=str(go)))["PYTHONPATH"]
    words = ("-m", "qtui", "doctor", "--library", "gguf")
    env = {"PYTHONPATH": f"{path}{os.pathsep}{Path(qtui.__file__).parents[1]}"}
    with program(tmp_path, *words, size=(100, 200), **env) as terminal:
        terminal.wait_for("checking")
        assert "log of the app" in terminal.text
        assert "next to qtui" not in terminal.text
        go.touch()
        assert terminal.exit_code() == 0
        lines = [line.rstrip() for line in terminal.screen.display]
        shown = [line for line in lines if line]
        assert shown[0] == "qtui doctor"
        assert shown.count("Terminal") == shown.count("Files") == 1
        assert "checking" not in terminal.text
        assert shown[-1].endswith(".")


def wait_for(condition):
    for _ in range(2400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within two minutes")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_conformance_no_library_is_asked(qtui):
    data = json.loads(qtui("doctor", "--no-conformance", "--json").stdout)
    assert data["conformance"] is None
    assert "--no-conformance" in data["conclusion"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--library", "bitsnbytes"), "known are bitsandbytes"),
        (("--library", "gguf", "--no-conformance"), "choose one"),
        (("-o", "report.pdf"), ".pdf"),
    ],
)
def test_a_wrong_request_is_a_sentence_and_exit_code_2(qtui, args, said):
    done = qtui("doctor", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["report.html", "report.md", "report.json", "report.txt"])
def test_a_report_is_written_to_a_file(qtui, tmp_path, name):
    done = qtui("doctor", "--no-conformance", "-o", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (0, "")
    assert "Python" in (tmp_path / name).read_text() or name == "report.json"


def test_a_broken_configuration_is_a_warning(qtui, tmp_path):
    broken = tmp_path / "config.toml"
    broken.write_text("themes = 3")
    done = qtui("doctor", "--no-conformance", "--json", env={"QTUI_CONFIG": str(broken)})
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    (warning,) = [w for w in data["warnings"] if w["about"] == "configuration"]
    assert "themes" in warning["says"]
    assert str(broken) in warning["remedy"]


def test_a_hub_variable_that_is_no_number_does_not_stop_it(qtui_process):
    done = qtui_process("doctor", "--no-conformance", env={"HF_HUB_ETAG_TIMEOUT": "soon"})
    assert done.returncode == 0, done.stderr
    assert "N/A" in done.stdout


def test_the_help_tells_what_the_exit_code_means(qtui):
    done = qtui("doctor", "--help")
    assert "Exit code 1 means that qtui and a library differ" in done.stdout
    assert "doctor" in qtui("--help").stdout


@pytest.mark.parametrize("args", [("--no-conformance",), ("--library", "gguf", "--json")])
def test_the_libraries_are_not_imported_here(args):
    code = (
        f"import sys; sys.argv = ['qtui', 'doctor', *{args!r}]\n"
        "from qtui.cli import main\n"
        "try: main()\n"
        "except SystemExit as done: assert not done.code, done.code\n"
        "print('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rsplit("MODULES", 1)[1].split())
    assert loaded.isdisjoint(
        {"torch", "numpy", "textual", "transformers", "gguf", "bitsandbytes", "torchao"}
    )
