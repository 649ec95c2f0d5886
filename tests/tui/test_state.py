"""What is kept from one session to the next: the file, and the app that goes on where it was."""

from __future__ import annotations

import json
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from every import every, over
from screens import Running, idle, until

from qtui.tui.config import Settings, load_config
from qtui.tui.state import (
    RECENTS,
    AppState,
    LastSession,
    kept_model,
    read_state,
    recent_models,
    state_file,
    write_state,
)

TOKEN = "hf_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7yZ0xCbV"


def write(path: Path, found: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(found if isinstance(found, bytes) else json.dumps(found).encode())
    return path


def test_the_file_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert state_file({"XDG_STATE_HOME": "/var/x"}) == Path("/var/x/qtui/state.json")
    monkeypatch.setenv("HOME", str(tmp_path))
    for env in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert state_file(env) == tmp_path / ".local" / "state" / "qtui" / "state.json"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "state.json"
    models = "org/name@main", str(tmp_path)
    state = AppState("memory", "nord", "qtui-dark", models[0], models)
    write_state(state, path)
    assert read_state(path) == state
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_state(replace(state, panel="train"), path)
    assert os.listdir(path.parent) == ["state.json"]


@over(
    "model, kept",
    [
        ("demo", "demo"),
        ("org/name", "org/name"),
        ("gpt2", "gpt2"),
        ("org/name@refs/pr/1", "org/name@refs/pr/1"),
        ("/gone/model.gguf", "/gone/model.gguf"),
        ("https://user:secret@host/m", ""),
        ("s3://bucket/model", ""),
        ("host:/models/a", ""),
        ("user@host:models/a", ""),
        ("//server/share/m", ""),
        ("\\\\server\\share", ""),
        ("/run/user/1000/gvfs/sftp:host=a,user=b/m", ""),
        (TOKEN, ""),
        (f"org/{TOKEN}", ""),
        (f"/models/{TOKEN}", ""),
        ("org/name?token=x", ""),
        ("a b", ""),
        ("", ""),
        ("org/na\x1bme", ""),
        ("a" * 5000, ""),
    ],
)
def test_only_local_paths_and_hub_names_are_kept(model: str, kept: str) -> None:
    assert kept_model(model) == kept


def test_a_local_path_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert kept_model("./my models/") == str(tmp_path / "my models")


def test_recents_are_few_once_and_there(tmp_path: Path) -> None:
    state = AppState()
    for number in range(30):
        state = state.opened(f"org/m{number % 25}")
    assert len(state.recents) == RECENTS
    assert state.recents[:3] == ("org/m4", "org/m3", "org/m2")
    state = state.opened("").opened(str(tmp_path)).opened("/gone")
    assert recent_models(state)[:2] == (str(tmp_path), "org/m4")


HOSTILE: dict[str, Any] = {
    "empty": b"",
    "not JSON": b"{",
    "not UTF-8": b'{"version": 1, "panel": "\xff"}',
    "a list": [],
    "no version": {},
    "version true": {"version": True},
    "nested": b"[" * 60_000,
    "nested closed": b"[" * 30_000 + b"]" * 30_000,
    "huge": b'"' + b"a" * (1 << 20) + b'"',
    "a number of many digits": b'{"version": ' + b"9" * 20_000 + b"}",
    "NaN": b'{"version": 1, "plan": {"lora_dropout": NaN}}',
    "panel of a wrong type": {"version": 1, "panel": 3},
    "recents of a wrong type": {"version": 1, "recents": "demo"},
    "a recent of a wrong type": {"version": 1, "recents": [None]},
    "escapes": {"version": 1, "model": "\x1b[2J"},
}


def test_a_file_that_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    def check(name: str) -> None:
        path = write(tmp_path / name / "state.json", HOSTILE[name])
        session = LastSession(path)
        assert session.state == AppState()
        assert session.remark.startswith(f"Where you were is not known: {path} is not used, as it")
        session.opened("org/name")
        session.keep("memory")
        found = read_state(path)
        assert found is not None
        assert found.recents == ("org/name",)

    every(list(HOSTILE), check)


def test_names_that_are_unknown_or_missing_are_no_fault(tmp_path: Path) -> None:
    path = write(tmp_path / "state.json", {"version": 1, "panel": "memory", "later": {"a": [1]}})
    assert read_state(path) == AppState(panel="memory")


def test_a_secret_that_somebody_wrote_into_the_file_is_not_taken(tmp_path: Path) -> None:
    url = "https://user:secret@host/m"
    path = write(tmp_path / "state.json", {"version": 1, "model": url, "recents": [url, TOKEN]})
    assert read_state(path) == AppState()


def test_a_file_of_a_later_version_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "state.json", {"version": 2, "panel": "new"})
    session = LastSession(path)
    assert "a later version of qtui wrote it" in session.remark
    session.opened("org/name")
    session.keep("memory")
    assert json.loads(path.read_text()) == {"version": 2, "panel": "new"}


def test_what_is_no_file_is_neither_waited_for_nor_replaced(tmp_path: Path) -> None:
    pipe, folder, loop = tmp_path / "pipe", tmp_path / "folder", tmp_path / "loop"
    os.mkfifo(pipe)
    folder.mkdir()
    loop.symlink_to(loop)
    for path in (pipe, folder, loop):
        session = LastSession(path)
        assert session.remark
        session.opened("org/name")
        session.keep("memory")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert folder.is_dir()
    assert loop.is_symlink()


def test_a_folder_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    write(tmp_path / "file", b"")
    session = LastSession(tmp_path / "file" / "qtui" / "state.json")  # so also for root
    session.opened("org/name")
    session.keep("memory")
    session.keep("memory")
    assert (session.remark, session.state.recents) == ("", ("org/name",))


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.symlink_to(tmp_path / "dotfiles.json")
    write_state(AppState(panel="memory"), path)
    assert path.is_symlink()
    assert read_state(tmp_path / "dotfiles.json") == AppState(panel="memory")


def test_apps_that_write_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    def app(number: int) -> None:
        for step in range(30):
            write_state(AppState(panel=f"panel{number}", recents=(f"org/a{number}-{step}",)), path)

    threads = [threading.Thread(target=app, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        read_state(path)  # raises where the file is half written
    found = read_state(path)
    assert found is not None
    assert len(found.recents) == RECENTS
    assert os.listdir(tmp_path) == ["state.json"]


def test_another_app_keeps_its_models(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    one, other = LastSession(path), LastSession(path)
    one.opened("org/one")
    one.keep("memory")
    other.opened("org/other")
    other.keep("memory")
    assert LastSession(path).state.recents == ("org/other", "org/one")


def test_one_setting_or_variable_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write(tmp_path / "qtui" / "state.json", {"version": 1, "model": "org/name"})
    assert LastSession.of(Settings()).model("") == "org/name"
    assert LastSession.of(Settings(state=False)).model("") == "demo"
    assert not load_config({"QTUI_STATE": "0", "HOME": str(tmp_path)}).state


def test_what_is_named_wins(tmp_path: Path) -> None:
    path = write(
        tmp_path / "state.json",
        {"version": 1, "panel": "memory", "model": "/gone/m", "theme": "nord",
         "configured": "auto"},
    )  # fmt: skip
    session = LastSession(path)
    assert session.model("org/other") == "org/other"
    assert session.remark == ""
    assert session.model("") == "demo"
    assert session.remark == "/gone/m, which was open last, is gone. This is the demo."
    assert session.panel(Settings()) == "memory"
    assert session.panel(Settings(start_panel="train")) == "train"
    assert session.panel(Settings(), Path("run.jsonl")) == "train"
    assert session.theme(Settings()) == "nord"
    assert session.theme(Settings(theme="qtui-light")) == "qtui-light"


async def test_the_app_goes_on_where_it_was(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "state.json"
    async with running(session=LastSession(path)) as pilot:
        await pilot.press("4")
        await idle(pilot)
        pilot.app.theme_choice.choose("qtui-light")
        await pilot.press("q")
        await until(pilot, lambda: path.exists())
    assert read_state(path) == AppState("memory", "qtui-light", "auto")
    async with running(session=LastSession(path)) as pilot:
        assert (pilot.app.panel.PANEL_ID, pilot.app.theme) == ("memory", "qtui-light")


@pytest.mark.slow
async def test_a_last_model_that_does_not_open_leaves_the_demo(
    running: Running, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    file = {"version": 1, "panel": "quantize", "model": str(tmp_path / "model")}
    session = LastSession(write(tmp_path / "kept" / "state.json", file))
    async with running(session=session, model=session.model("")) as pilot:
        await until(pilot, lambda: pilot.app.model == "demo")
        await until(pilot, lambda: not pilot.app.panel.busy)
        assert pilot.app.panel.phase == "ready"
        assert not pilot.app.model_failure
