"""An environment with qtui alone, without any of its extras."""

from __future__ import annotations

import tomllib
import venv
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

import qtui

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
