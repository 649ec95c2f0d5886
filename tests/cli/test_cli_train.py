"""`qtui train` with children of every kind: what is written where, exit codes, interruption,
recordings. The child is a script that reports a run; test_cli_train_demo.py runs the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from command_line import run_qtui
from processes import is_gone

from qtui.cli import training_run
from qtui_core.live.state import parse_recording, read_recording

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = (sys.executable, str(SUPPORT / "scripted_train.py"))


def start(*args: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "train", *args],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SUPPORT), **env},
    )


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained in this process has the script for its child too."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    command = (sys.executable, str(SUPPORT / "scripted_run.py"))
    run_to_end = partial(training_run.run_to_end, command=command)
    monkeypatch.setattr(training_run, "run_to_end", run_to_end)


def train(*args: str, **env: str) -> tuple[int, str, str]:
    """Runs `qtui train` in this process: its exit code and its output."""
    done = run_qtui("train", *args, env=env)
    return done.returncode, done.stdout, done.stderr


def test_a_run_is_a_report_on_stdout_and_lines_on_stderr():
    code, out, err = train("whole", "--steps", "2")
    assert code == 0
    for title in ("Run", "Estimate and measurement", "By phase", "What the difference is", "Loss"):
        assert f"\n{title}\n" in out
    assert "The loss fell: from 4.9 to 4.8 nats a token." in out.splitlines()[-1]
    assert "the estimate of 90 MiB is 1.10% too low" in out.splitlines()[-1]
    assert err.splitlines()[:2] == [
        "qtui: importing torch and the model's class",
        "qtui: loading the weights",
    ]
    assert "qtui: step 1 of 3, loss 4.9, 2 s, peak 91 MiB" in err


def test_json_and_the_recording_say_the_same(tmp_path):
    record = tmp_path / "run.jsonl"
    code, out, _ = train("whole", "--steps", "3", "--json", "--record", str(record))
    assert code == 0
    data = json.loads(out)
    assert data["schema_version"] == 1
    assert data["measured"]["peak_allocated_bytes"] == 91 << 20
    assert data["measured"]["loss"] == pytest.approx([4.9, 4.8, 4.7])
    assert read_recording(record).complaint == ""
    again = run_qtui("replay", str(record), "--json")
    assert json.loads(again.stdout) == data


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_recording_and_not_the_run():
    code, out, err = train("whole", "--steps", "3", "--json", "--record", "/dev/full")
    assert code == 1  # not all that was requested is there
    assert json.loads(out)["steps_taken"] == 3
    said = "qtui: The recording '/dev/full' is not made (No space left on device); the run goes on."
    assert err.count(said) == 1
    assert "unexpected" not in err


@pytest.mark.slow
def test_a_run_goes_on_while_nobody_reads_what_is_said(tmp_path):
    """If there is no room for all lines, the last ones are kept, and the report on stdout is
    complete."""
    record = tmp_path / "run.jsonl"
    child = start("steady", "--steps", "20", "--json", "--record", str(record))
    end = time.monotonic() + 120
    while not record.exists() or b'"told":"end"' not in record.read_bytes():
        assert time.monotonic() < end, "the run waits for a reader of stderr"
        time.sleep(0.05)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0
    assert json.loads(out)["steps_taken"] == 20
    assert read_recording(record).complaint == ""
    assert "lines before this were left out, as they were not read in time" in err
    assert "step 20 of 20" in err


def test_the_child_is_asked_for_what_was_typed(tmp_path):
    asked = tmp_path / "asked.json"
    code, *_ = train(
        "whole", "--method", "full", "--batch", "3", "--no-checkpointing", "--steps", "4",
        "--data", "text.txt", "--device", "cuda:1", "--prompt", "Once", ASKED=str(asked),
    )  # fmt: skip
    assert code == 0
    request = json.loads(asked.read_text())
    plan = request.pop("plan")
    assert request == {
        "model": "whole", "steps": 4, "data": "text.txt", "device": "cuda:1", "text": "Once",
        "usual": True, "ranges": False, "taking": False,
    }  # fmt: skip
    assert (plan["method"], plan["batch"], plan["checkpointing"]) == ("full", 3, False)
    train("whole", "--seq", "2048", "--prompt", "", ASKED=str(asked))
    request = json.loads(asked.read_text())
    assert (request["usual"], request["text"]) == (False, None)  # an empty prompt counts as none


def test_running_out_of_memory_is_told_with_what_helps():
    code, out, err = train("out_of_memory")
    assert code == 1
    assert "qtui: Memory ran out in the loss phase of step 2." in err
    assert "held then" in out
    assert "would save" in out
    assert "By phase" in out  # the earlier measurements stay
    assert out.splitlines()[-1].startswith(
        "Memory ran out in the loss phase of step 2. `--batch 1` would save 10 MiB."
    )


def test_a_run_that_will_not_fit_is_warned_of_once_and_first():
    code, out, err = train("does_not_fit", "--json")
    assert code == 0
    assert err.splitlines()[0].endswith("The largest batch that fits is 3: --batch 3.")
    assert err.count("--batch 3") == 1
    assert json.loads(out)["warning"] == err.splitlines()[0].removeprefix("qtui: ")


def test_memory_of_others_is_taken_only_where_that_is_agreed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "run.jsonl"
    options = ("takes_from_others", "--steps", "2", "--record", str(record))
    code, out, err = train(*options)  # a script is not asked
    assert (code, out, err) == (1, "", "qtui: This run may not fit. --yes runs it all the same.\n")
    assert not record.exists()
    monkeypatch.setattr("qtui.cli.commands.train._in_terminal", lambda: True)
    for answer, expected in ((False, 1), (True, 0)):
        monkeypatch.setattr("click.confirm", lambda *_, answer=answer, **__: answer)
        assert train(*options)[0] == expected
        assert record.exists() is answer
    record.unlink()
    monkeypatch.setattr("click.confirm", None)  # nothing is asked after --yes
    assert train(*options, "--yes")[0] == 0


def test_a_loss_that_is_no_number_is_null_in_json():
    code, out, _ = train("not_a_number", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["measured"]["loss"][1] is None
    assert data["faults"][0]["kind"] == "not a number"
    assert "The loss became no number" in data["conclusion"]


@pytest.mark.parametrize(
    ("model", "code", "says"),
    [
        ("no_model", 3, "qtui: There is no such model."),
        ("killed", 1, "qtui: The run was killed"),
        ("ended_by_somebody", 1, "qtui: SIGTERM ended the run in step 2, forward."),
        ("stopped_by_itself", 1, ""),
        ("gone_without_a_word", 1, "qtui: The run ended with exit code 5."),
    ],
)
def test_a_child_that_fails_is_a_sentence_and_a_code(model, code, says):
    found, _, err = train(model)
    assert found == code
    assert says in err
    assert "Traceback" not in err


def test_a_recording_that_is_there_stays_until_another_run_begins(tmp_path):
    record = tmp_path / "kept.jsonl"
    record.write_text("precious")
    assert train("no_model", "--record", str(record), "--force")[0] == 3
    assert record.read_text() == "precious"
    code, _, err = train("whole", "--record", str(record))
    assert (code, record.read_text()) == (2, "precious")
    assert "--force" in err
    child = start("until_stopped", "--record", str(record), "--force")
    wait_for_lines(record, 3)
    child.kill()  # the earlier reports are there, under the given name
    child.communicate(timeout=120)
    assert len(read_recording(record).snapshots) >= 2
    assert [path.name for path in tmp_path.iterdir()] == ["kept.jsonl"]


def test_a_recording_on_stdout_beside_a_report_in_a_file(tmp_path):
    report = tmp_path / "report.json"
    code, out, _ = train("whole", "--steps", "2", "--record", "-", "-o", str(report))
    assert code == 0
    assert parse_recording(out.splitlines()).complaint == ""
    assert json.loads(report.read_text())["status"] == "done"


@pytest.mark.parametrize("name", ["no/such/folder/run.jsonl", "."])
def test_a_recording_that_cannot_be_is_refused_before_the_run(tmp_path, name):
    code, _, err = train("whole", "--record", str(tmp_path / name))
    assert code in (1, 2)
    assert "Cannot write" in err
    assert "report" not in err  # that is another file
    assert "Cannot write" in err
    assert "step" not in err


def interrupt(child: subprocess.Popen[str], after: str) -> tuple[str, str]:
    """Sends Ctrl-C once a line on stderr contains a word. Returns all output of both streams."""
    assert child.stderr is not None
    seen = ""
    while after not in seen:
        line = child.stderr.readline()
        assert line, seen
        seen += line
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=120)
    return out, seen + err


def wait_for_lines(path: Path, count: int) -> None:
    end = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_stops_it_and_tells_what_was_measured(tmp_path):
    record = tmp_path / "run.jsonl"
    child = start("until_stopped", "--json", "--record", str(record))
    out, err = interrupt(child, "step 1")
    assert child.returncode == 130
    assert "interrupted" in err
    data = json.loads(out)
    assert data["status"] == "stopped"
    assert data["steps_taken"] >= 1
    assert read_recording(record).snapshots[-1].reason == "stopped"


def test_ctrl_c_ends_what_does_not_listen(tmp_path):
    record = tmp_path / "run.jsonl"
    child = start("deaf", "--record", str(record))
    wait_for_lines(record, 3)  # the last is of the child that it has
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=120)
    assert child.returncode == 130
    recording = read_recording(record)
    assert recording.snapshots[-1].reason == "stopped"
    helper = int(recording.snapshots[-2].text)
    assert is_gone(helper)


def test_a_signal_to_end_ends_the_child_too(tmp_path):
    record = tmp_path / "run.jsonl"
    child = start("deaf", "--record", str(record))
    wait_for_lines(record, 3)
    child.terminate()
    child.communicate(timeout=120)
    assert child.returncode == -signal.SIGTERM
    helper = int(read_recording(record).snapshots[1].text)
    assert is_gone(helper)


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['qtui', '{}', '--help']\n"
        "from qtui.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *({{m.partition('.')[0] for m in sys.modules}}"
        " & {{'torch', 'numpy', 'rich', 'textual', 'asyncio'}}))"
    )
    for command in ("train", "replay"):
        done = subprocess.run(
            [sys.executable, "-c", code.format(command)], capture_output=True, text=True, check=True
        )
        assert "Usage: qtui " + command in done.stdout
        assert done.stdout.splitlines()[-1] == "LOADED"
