"""Every failure is a sentence on stderr with the right exit code, and nothing on stdout."""

from __future__ import annotations

import io
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import running_models
from command_line import run_in_terminal
from every import over
from safetensors.numpy import save_file

from qtui.cli.progress import progress_on_stderr
from qtui.ending import say


def header_file(path: Path, header: bytes, data: bytes = b"", length: int | None = None) -> Path:
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def entry(**changes: object) -> bytes:
    fields = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}
    return json.dumps({"w": fields}).encode()


SIXTEEN = bytes(16)

LYING_HEADERS = {
    "length past the end": (b"{}", b"", 10_000),
    "gigabytes of header": (b"{}", b"", 5 << 30),
    "not json": (b"{nope", b"", None),
    "not an object": (b"[1]", b"", None),
    "invalid utf-8": (b'{"\xff\xfe": 1}', b"", None),
    "offset out of range": (entry(data_offsets=[0, 400]), SIXTEEN, None),
    "size does not match shape": (entry(shape=[2, 3]), SIXTEEN, None),
    "product of shape overflows": (entry(shape=[2**40, 2**40]), SIXTEEN, None),
    "negative dimension": (entry(shape=[-2, 2]), SIXTEEN, None),
    "backwards offsets": (entry(data_offsets=[16, 0]), SIXTEEN, None),
    "duplicate names": (
        b'{"w":' + entry()[6:-1] + b',"w":' + entry()[6:-1] + b"}", SIXTEEN, None,
    ),
    "overlapping": (
        json.dumps(
            {
                "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
                "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
            }
        ).encode(),
        bytes(24),
        None,
    ),
}  # fmt: skip


def assert_sentence(done: subprocess.CompletedProcess, code: int) -> None:
    assert done.returncode == code, (done.returncode, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert 20 < len(done.stderr.strip()) < 700
    assert done.stderr.isprintable() or "\n" in done.stderr


@over("lie", LYING_HEADERS)
def test_lying_headers(qtui, tmp_path, lie):
    path = header_file(tmp_path / "model.safetensors", *LYING_HEADERS[lie])
    assert_sentence(qtui("inspect", str(path)), 3)


@pytest.mark.parametrize("content", [b"", b"abc", bytes(8)])
def test_truncated_files(qtui, tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert_sentence(qtui("inspect", str(path)), 3)


def test_missing_model(qtui, tmp_path):
    assert_sentence(qtui("inspect", str(tmp_path / "nowhere")), 3)


def test_folder_without_weights(qtui, tmp_path):
    assert_sentence(qtui("inspect", str(tmp_path)), 3)


def test_index_outside_the_folder(qtui, tmp_path):
    index = {"weight_map": {"w": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_sentence(qtui("inspect", str(tmp_path)), 3)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt"])
def test_a_pickle_is_refused_with_the_reason_and_the_cure(qtui, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x80\x02}q\x00.")
    done = qtui("inspect", str(path))
    assert_sentence(done, 3)
    assert "pickle" in done.stderr
    assert "safetensors" in done.stderr


def test_a_bare_config_has_nothing_to_measure(qtui, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    done = qtui("inspect", str(path))
    assert done.returncode == 0
    assert "LlamaForCausalLM" in done.stdout
    assert "without weights" in done.stdout


@pytest.mark.parametrize("scheme", ["int9", "nf4:row", "", "e4m3:group0", "wat", "bf16:dq", ","])
def test_schemes_that_do_not_parse(qtui, checkpoint, scheme):
    assert_sentence(qtui("inspect", str(checkpoint), "--schemes", scheme), 2)


def test_no_network(qtui_process):
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}
    assert_sentence(qtui_process("inspect", "nobody/nothing", env=env), 3)


def test_report_that_cannot_be_written(qtui, checkpoint, tmp_path):
    done = qtui("inspect", str(checkpoint), "-o", str(tmp_path / "no" / "folder" / "r.json"))
    assert_sentence(done, 1)


def test_a_report_that_cannot_be_written_is_refused_before_the_work(qtui, tmp_path):
    # The model is missing too, so the complaint about the file shows that the file is checked
    # first.
    done = qtui("inspect", str(tmp_path / "nowhere"), "-o", str(tmp_path / "no" / "r.json"))
    assert_sentence(done, 1)
    assert "no folder" in done.stderr


def test_writing_keeps_links_permissions_and_devices(qtui, tmp_path):
    target, link, pipe = tmp_path / "t.md", tmp_path / "link.md", tmp_path / "pipe"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    refused = qtui("formats", "1", "-o", str(link))
    assert_sentence(refused, 2)
    assert "--force" in refused.stderr
    assert target.read_text() == "old"
    assert qtui("formats", "1", "--force", "-o", str(link)).returncode == 0
    assert link.is_symlink()
    assert target.read_text().startswith("# 1 in every format")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    assert qtui("formats", "1", "--json", "-o", str(pipe)).returncode == 0
    assert json.loads(reader.communicate(timeout=120)[0])["schema_version"] == 1
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert json.loads(qtui("formats", "1", "--json", "-o", "-").stdout)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
@pytest.mark.parametrize("target", ["/dev/stdout", ">(cat)"])
def test_writing_to_pipes_by_their_paths(tmp_path, target):
    log = tmp_path / "log"
    log.write_text("before\n")
    subprocess.run(
        ["bash", "-c", f"exec >> {log}; {sys.executable} -m qtui formats 1 -o {target}"], check=True
    )
    wait_for(lambda: "nothing is lost on this value" in log.read_text())
    assert log.read_text().startswith("before\n1 in every format")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirect", "code"),
    [(">/dev/full", 1), (">&-", 0), ("| true", 0), ("--bogus 2>&-", 2), ("--bogus 2>/dev/full", 2)],
)
def test_streams_that_cannot_be_written(redirect, code):
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m qtui formats 1 {redirect}"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


def test_a_slip_in_a_command_is_no_model(qtui):
    done = qtui("inspct", "demo")
    assert_sentence(done, 2)
    assert "qtui inspect demo" in done.stderr


def test_help_of_the_app_and_options_before_a_command(qtui, checkpoint):
    assert "--color" in qtui("demo", "--help").stdout
    assert "Commands" in qtui("--help").stdout
    done = qtui("--ascii", "--color", "none", "inspect", str(checkpoint), "--headers")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    "args",
    [
        ("inspect", "demo", "--headers", "--schemes", "bogus"),
        ("inspect", "demo", "--headers", "--full"),
        ("formats", "1", "--random-bits", "0x80"),
        ("formats", "1", "--only", ""),
        ("inspect", "demo", "-o", ""),
    ],
)
def test_options_that_would_be_ignored_are_refused(qtui, args):
    assert_sentence(qtui(*args), 2)


def test_very_long_names_are_no_trouble(qtui, tmp_path):
    header = json.dumps(
        {"n" * 200_000: {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    ).encode()
    path = header_file(tmp_path / "model.safetensors", header, SIXTEEN)
    # Shortening a name used to take quadratic time: this test would take minutes.
    code, _ = run_in_terminal("inspect", str(path), "--headers", env={"TERM": "xterm"})
    assert code == 0


def test_a_failed_report_leaves_no_file(qtui, tmp_path):
    target = tmp_path / "r.json"
    path = header_file(tmp_path / "model.safetensors", b"{nope")
    qtui("inspect", str(path), "-o", str(target))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors"]


def test_names_with_escape_codes_do_not_reach_the_terminal(qtui, tmp_path):
    header = json.dumps(
        {"evil\x1b[2Jname\n": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    ).encode()
    path = header_file(tmp_path / "model.safetensors", header, SIXTEEN)
    done = qtui("inspect", str(path))
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    wrong = qtui("inspect", str(path), "--tensors", "no\x1b[2J")
    assert wrong.returncode == 2
    assert "\x1b" not in wrong.stderr


def test_a_sentence_shows_what_a_name_would_have_the_terminal_do(capsys):
    say("no\x1b[2Jsuch")
    assert capsys.readouterr().err == "no\\x1b[2Jsuch\n"


def test_the_app_without_a_terminal_names_inspect(qtui):
    done = qtui("demo")
    assert_sentence(done, 2)
    assert "qtui inspect demo" in done.stderr


@pytest.mark.pty
@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_is_refused_without_escape_codes(term):
    code, written = run_in_terminal("demo", env={"TERM": term})
    assert code == 2
    assert "qtui inspect demo" in written
    assert "\x1b" not in written


@pytest.mark.pty
def test_inspect_in_a_terminal_is_coloured_unless_no_color(checkpoint):
    folder = str(checkpoint)
    _, coloured = run_in_terminal("inspect", folder, env={"TERM": "xterm-256color"})
    assert "\x1b[" in coloured
    _, plain = run_in_terminal(
        "inspect", folder, "--color", "none", env={"TERM": "xterm-256color", "NO_COLOR": "1"}
    )
    assert "\x1b[3" not in plain.split("Schemes, whole model")[1]


def big_checkpoint(folder: Path, tensors: int) -> Path:
    """Tensors of 1024 x 1024 zeros, so many that reading all of them takes seconds."""
    size = 4 << 20
    header = {
        f"w{i}": {
            "dtype": "F32", "shape": [1024, 1024], "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(tensors)
    }  # fmt: skip
    path = header_file(folder / "big.safetensors", json.dumps(header).encode())
    os.truncate(path, path.stat().st_size + tensors * size)
    return path


@pytest.mark.pty
def test_progress_shows_names_without_obeying_them(tmp_path, monkeypatch):

    monkeypatch.setattr("qtui.cli.progress.PATIENCE_SECONDS", 0.0)
    path = tmp_path / "esc.safetensors"
    block = np.ones((64, 64), np.float32)
    save_file({f"w{i}\x1b]0;OWNED\x07\x1b[2J": block for i in range(3)}, path)
    _, written = run_in_terminal(
        "inspect", str(path), "--schemes", "nf4", "--full", env={"TERM": "xterm-256color"}
    )
    assert "reading" in written
    assert "OWNED" in written
    assert "\x1b]0;" not in written
    assert "\x1b[2J" not in written


@pytest.mark.pty
@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (1e9, False)])
def test_only_a_long_inspection_shows_progress(checkpoint, monkeypatch, patience, shown):
    monkeypatch.setattr("qtui.cli.progress.PATIENCE_SECONDS", patience)
    _, written = run_in_terminal("inspect", str(checkpoint), env={"TERM": "xterm-256color"})
    assert ("reading" in written) is shown


@pytest.mark.parametrize(("total", "shown"), [(0, False), (4, True)])
def test_only_counted_work_has_a_share(monkeypatch, total, shown):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", Terminal())
    with progress_on_stderr("Tracing", patience=0.0) as job:
        job.at(0, total)
    written = sys.stderr.getvalue()
    assert "Tracing" in written
    assert " 0 s" in written
    assert ("%" in written) is shown


def test_interrupt_is_130(tmp_path):
    path = big_checkpoint(tmp_path, 400)  # far more than it reads before it is interrupted
    process = subprocess.Popen(
        [sys.executable, "-m", "qtui", "inspect", str(path), "--full", "-o", "out.json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    maps = Path(f"/proc/{process.pid}/maps")
    if maps.exists():
        wait_for(lambda: "big.safetensors" in maps.read_text())  # it reads the weights
    else:
        time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["big.safetensors"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_obeyed_by_children_too(tmp_path, signum):
    """No child goes on computing, and the exit code shows that the signal ended the program."""
    package = tmp_path / "gguf"
    package.mkdir()
    pid_file = tmp_path / "pid"
    (package / "__init__.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "qtui", "doctor", "--library", "gguf"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    wait_for(pid_file.exists)
    wait_for(pid_file.read_text)
    process.send_signal(signum)
    _, err = process.communicate(timeout=120)
    assert process.returncode == -signum
    assert err == ""
    wait_for(lambda: not is_alive(int(pid_file.read_text())))


def test_a_signal_to_end_whose_exception_is_lost_ends_the_program_all_the_same():
    """Python discards exceptions that are raised in a destructor, and so may any library."""
    stubborn = (
        "import click, time\n"
        "from qtui import ending\n"
        "from qtui.cli.exits import run_and_exit\n"
        "ending.WAY_OUT = 0.3\n"
        "@click.command()\n"
        "def command():\n"
        "    while True:\n"
        "        try:\n"
        "            print('here', flush=True)\n"
        "            time.sleep(60)\n"
        "        except BaseException:\n"
        "            pass\n"
        "run_and_exit(command)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.terminate()
    try:
        assert process.wait(120) == -signal.SIGTERM
    finally:
        process.kill()


def wait_for(condition, seconds=120.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_user_without_a_home_folder():
    """As in a container that runs as any number: no HOME, and no entry in the list of users."""
    code = (
        "import pwd, sys\n"
        "from qtui.cli import main\n"
        "pwd.getpwuid = lambda number: {}[number]\n"
        "sys.argv = ['qtui', 'doctor', '--no-conformance']\n"
        "main()\n"
    )
    without = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=without)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_a_class_is_made_is_an_interruption():
    """Python 3.11 wraps it in a RuntimeError."""
    code = (
        "import click\n"
        "from qtui.cli.exits import run_and_exit\n"
        "class Interrupts:\n"
        "    def __set_name__(self, owner, name):\n"
        "        raise KeyboardInterrupt\n"
        "@click.command()\n"
        "def command():\n"
        "    type('Made', (), {'x': Interrupts()})\n"
        "run_and_exit(command)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "qtui: interrupted.\n")


def test_a_reader_that_leaves_early_is_no_failure(checkpoint):
    done = subprocess.run(
        f"{sys.executable} -m qtui inspect {checkpoint} --json | head -1",
        shell=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "{\n"
    assert done.stderr == ""


def test_a_folder_in_place_of_the_output_file(qtui, checkpoint):
    assert_sentence(qtui("inspect", str(checkpoint), "-o", str(checkpoint)), 2)


def test_no_command_writes_over_what_it_reads(qtui, checkpoint, tmp_path):
    """Not even with --force, and not by another path to the same file."""
    texts = tmp_path / "texts.txt"
    texts.write_text("to learn from")
    recording = Path(__file__).parents[1] / "live" / "recordings" / "demo_qlora_cpu.jsonl"
    played = tmp_path / "run.jsonl"
    played.write_bytes(recording.read_bytes())
    hard = tmp_path / "hard.json"
    os.link(checkpoint / "config.json", hard)
    model, config = str(checkpoint), str(checkpoint / "config.json")
    weights = str(next(checkpoint.glob("*.safetensors")))
    before = {path: path.read_bytes() for path in (*checkpoint.iterdir(), texts, played)}
    wrong = []
    for command in (
        ("inspect", model, "--headers", "-o", config),
        ("inspect", model, "--headers", "-o", str(hard)),
        ("inspect", "demo", "--against", model, "-o", str(hard)),
        ("memory", config, "-o", config),
        ("inspect", model, "--sensitivity", "--text", str(texts), "-o", str(texts)),
        ("train", model, "--record", weights),
        ("train", model, "--data", str(texts), "--record", str(texts)),
        ("train", model, "--record", "-"),
        ("train", model, "--record", str(tmp_path / "x.txt"), "-o", str(tmp_path / "x.txt")),
        ("replay", str(played), "--format", "text", "-o", str(played)),
    ):
        done = qtui(*command, "--force")
        if done.returncode != 2 or done.stdout or "Traceback" in done.stderr:
            wrong.append((command, done.returncode, done.stderr))
    assert not wrong
    assert {path: path.read_bytes() for path in before} == before
    assert not (tmp_path / "x.txt").exists()


@pytest.mark.slow
def test_a_hostile_tokenizer_is_a_sentence_of_every_command_that_reads_text(qtui_process, tmp_path):
    model, text = running_models.llama(tmp_path / "m"), tmp_path / "text.txt"
    running_models.write_tokenizer(model)
    text.write_text("a" * 3000 + running_models.text(2000))
    commands = (
        ("eval", str(model), "--text", str(text), "--windows", "2"),
        ("train", str(model), "--data", str(text), "--steps", "1", "--seq", "32"),
        ("inspect", str(model), "--sensitivity", "--text", str(text)),
    )
    running_models.split_tokenizer(model, running_models.PANICKING)
    for given in commands:
        done = qtui_process(*given)
        assert done.returncode == 3, (given, done.stderr)
        assert "qtui: The tokenizer of the model failed" in done.stderr


def test_an_unforeseen_failure_is_a_sentence_and_debug_shows_the_traceback(qtui, monkeypatch):
    # No known input causes this, so a command is broken on purpose.
    monkeypatch.setattr("qtui.cli.commands.formats.parse_input", lambda *_: 1 / 0)
    for extra, shows in ((), False), (("--debug",), True):
        done = qtui("formats", "0.1", *extra)
        assert done.returncode == 1
        assert "ZeroDivisionError" in done.stderr
        assert ("Traceback" in done.stderr) is shows
