"""Writing files: which names are allowed, and what remains after a failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from disks import room_for

from qtui_core.errors import QtuiError, UsageError
from qtui_core.files import Draft, target_of


def test_what_may_be_written(tmp_path, monkeypatch):
    """Each name with whether it may be written without and with --force. Refused files do not
    change."""
    monkeypatch.chdir(tmp_path)
    for folder in ("model", "hub/models--org--name/blobs", "hub/models--org--name/snapshots/abc"):
        (tmp_path / folder).mkdir(parents=True)
    blob = Path("hub/models--org--name/blobs/0123abcd")
    for name in ("there.txt", "model/config.json", "model/w.safetensors", "model/notes.txt", blob):
        Path(name).write_text("precious")
    Path("to_there").symlink_to("there.txt")
    Path("to_nothing").symlink_to("nothing.txt")
    Path("to_config.txt").symlink_to("model/config.json")
    Path("cached.txt").symlink_to(blob)
    os.link("model/w.safetensors", "hard.txt")
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    # A report beside a model is not part of the model.
    yes = "new.txt", "./new.txt", "to_nothing", "model/report.txt", "pipe", "/dev/null", "-"
    forced = (
        "there.txt", str(tmp_path / "there.txt"), "model/../there.txt", "to_there",
        "model/notes.txt",
    )  # fmt: skip
    # The last: what is missing and would be part of the model; links to its weights; a hub cache.
    no = (
        "", "new\0.txt", ".", "model", "new/", "nowhere/new.txt", "there.txt/new.txt",
        "model/config.json", "to_config.txt", "MODEL.GGUF",
        "model/generation_config.json", "model/w2.safetensors", "hard.txt",
        "cached.txt", str(blob), "hub/models--org--name/snapshots/abc/new.txt",
    )  # fmt: skip
    for names, allowed in ((yes, (True, True)), (forced, (False, True)), (no, (False, False))):
        found = {name: (_may(name, False), _may(name, True)) for name in names}
        assert found == dict.fromkeys(names, allowed)
    assert {p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == {"precious"}
    assert not os.path.exists("nothing.txt")
    os.close(reader)


def _may(name: str, force: bool) -> bool:
    try:
        target_of(name, force=force, inputs=("model", "org/name", None, "new\0.txt", "nowhere"))
    except QtuiError:
        return False
    return True


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_and_files_that_are_protected(tmp_path):
    (tmp_path / "there.txt").write_text("precious")
    (tmp_path / "there.txt").chmod(0o400)
    with pytest.raises(QtuiError, match="permission denied"):
        target_of(str(tmp_path / "there.txt"), force=True)
    (tmp_path / "there.txt").chmod(0o600)
    tmp_path.chmod(0o500)
    for name in ("there.txt", "new.txt"):
        with pytest.raises(QtuiError, match="permission denied"):
            target_of(str(tmp_path / name), force=True)
    tmp_path.chmod(0o700)


def test_a_disk_that_can_only_be_read_and_a_folder_that_is_gone_are_named(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
        with pytest.raises(QtuiError, match="its disk can only be read"):
            target_of(str(tmp_path / "new.txt"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(QtuiError, match="the folder in which qtui was started is gone; give"):
        target_of("new.txt")


def test_a_file_is_whole_or_is_not_there(tmp_path):
    new, old, link, other = (tmp_path / name for name in ("new", "old", "link", "other"))
    old.write_text("precious")
    old.chmod(0o640)
    link.symlink_to(old)
    os.link(old, other)
    for name in (new, link):
        with room_for(4), pytest.raises(QtuiError, match="File too large"):
            target_of(str(name), force=True).write("much text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old", "other"]
    assert old.read_text() == "precious"
    target_of(str(new)).write("much text")
    target_of(str(link), force=True).write("much text")
    assert (new.read_text(), old.read_text(), link.is_symlink()) == ("much text",) * 2 + (True,)
    mask = os.umask(0)
    os.umask(mask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (new, old)]
    assert modes == [0o666 & ~mask, 0o640]
    assert other.read_text() == "precious"  # the link's target does not change
    assert len(list(tmp_path.iterdir())) == 4


def test_a_name_that_is_taken_meanwhile_is_left_alone(tmp_path):
    target = target_of(str(tmp_path / "r.txt"))
    (tmp_path / "r.txt").write_text("of somebody else")
    with pytest.raises(UsageError, match="there already"):
        target.write("mine")
    assert (tmp_path / "r.txt").read_text() == "of somebody else"
    assert len(list(tmp_path.iterdir())) == 1


def test_data_added_after_renaming_is_written_completely(tmp_path):
    with Draft(target_of(str(tmp_path / "run"))) as draft:
        draft.write(b"first\n")
        assert not (tmp_path / "run").exists()
        draft.keep()
        assert (tmp_path / "run").read_bytes() == b"first\n"
        with room_for(10), pytest.raises(OSError, match="File too large"):
            draft.write(b"second\n")
        assert (tmp_path / "run").read_bytes() == b"first\n"
        draft.write(b"third\n")
    assert (tmp_path / "run").read_bytes() == b"first\nthird\n"
