"""Files that the operating system does not allow to be read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from local_models import A, refused, save

from qtui_core.models import open_model


def deny(monkeypatch, function: str, denied: Path) -> None:
    """Makes this call fail for paths in `denied`, as for a user without permission."""
    allowed = getattr(os, function)

    def refuse(path, *args, **options):
        if Path(os.fspath(path)).is_relative_to(denied):
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path, *args, **options)

    monkeypatch.setattr(os, function, refuse)


def test_a_hub_id_that_could_be_a_hidden_path(hub, monkeypatch):
    deny(monkeypatch, "lstat", Path("org"))
    assert open_model("org/one").origin == "hub"
    refused("org/x", "On this machine, 'org/x' cannot be read: permission")


def test_what_the_system_does_not_let_one_look_into(tmp_path):
    """Root may read everything, so a child process drops that right."""
    save(tmp_path / "sub" / "model.safetensors", a=A)
    save(tmp_path / "file.safetensors", a=A)
    (tmp_path / "file.safetensors").chmod(0)
    (tmp_path / "link").symlink_to("sub/model.safetensors")
    (tmp_path / "sub").chmod(0)
    tmp_path.chmod(0o755)
    program = (
        "import os, sys\n"
        "from qtui_core.errors import ModelError\n"
        "from qtui_core.models import open_model\n"
        "os.chdir(sys.argv[1])\n"
        "os.geteuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))\n"
        "for name in ('sub', 'sub/model.safetensors', 'link', 'file.safetensors'):\n"
        "    try:\n"
        "        print(name, open_model(os.path.join('.', name)))\n"
        "    except ModelError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert ["permission denied" in line for line in lines] == [True] * 4
    assert not any("There is no file" in line for line in lines)
    (tmp_path / "sub").chmod(0o700)
