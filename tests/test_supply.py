"""The scripts of `.ci`: floors, licences, the bill of materials, and what stops a release."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
from every import every
from supply import Part, bill, deciding, judged, licence_of, parts, purl, rank, table
from trials import EXTRAS, PROJECT, ROOT

ENVIRONMENT = {"python_version": "3.11", "sys_platform": "linux", "platform_system": "Linux"}


@pytest.fixture(scope="module")
def release():
    return runpy.run_path(str(ROOT / ".ci" / "release"))


def row(name: str, *requires: str, version: str = "1.0", **metadata) -> dict:
    """A distribution in a report of pip."""
    return {
        "metadata": {"name": name, "version": version, "requires_dist": [*requires], **metadata},
        "download_info": {"archive_info": {"hashes": {"sha256": f"{len(name):064x}"}}},
    }


def report(*rows: dict) -> dict:
    return {"environment": ENVIRONMENT, "install": [*rows]}


QTUI = row(
    "qtui",
    "Plain",
    "qtui[hub]; extra == 'lab'",
    "hub_lib[fast]; extra == 'hub'",
    "lab-lib; extra == 'lab'",
    "other; extra == 'lab' and sys_platform == 'win32'",
    license_expression="Apache-2.0",
)
PLAIN = row("plain", license="MIT")
HUB = row("Hub.Lib", "quick; extra == 'fast'", "slow; extra == 'slow'", license="Apache 2.0")
QUICK = row("quick", "plain", version="2.0+cpu", license_expression="MPL-2.0 AND MIT")
LAB = row("lab-lib", "hub-lib", classifier=["License :: OSI Approved :: BSD License"])


def test_every_extra_has_a_floor_and_a_ceiling():
    lowest = runpy.run_path(str(ROOT / ".ci" / "floors"))["floors"]()
    named = {
        line.partition(">=")[0]
        for lines in (PROJECT["dependencies"], *map(PROJECT["optional-dependencies"].get, EXTRAS))
        for line in lines
        if not line.startswith("qtui[")
    }
    assert set(lowest) == named
    assert {"torchao", "textual-serve"} < named


def test_each_distribution_has_the_extras_that_bring_it():
    found = {part.name: part for part in parts(report(LAB, QUICK, QTUI, HUB, PLAIN))}
    assert {name: part.extras for name, part in found.items()} == {
        "qtui": (),
        "plain": (),
        "hub-lib": ("hub", "lab"),
        "quick": ("hub", "lab"),
        "lab-lib": ("lab",),
    }
    assert found["quick"] == Part(
        "quick", "2.0+cpu", "MPL-2.0 AND MIT", f"{5:064x}", ("hub", "lab"), ("plain",)
    )
    assert found["qtui"].requires == ("hub-lib", "lab-lib", "plain")
    assert "| quick | 2.0+cpu | MPL-2.0 AND MIT | hub, lab |\n" in table(found.values())
    assert "| plain | 1.0 | MIT | qtui |\n" in table(found.values())


def test_licences_are_read_as_they_are_written():
    def check(metadata: dict, expected: str) -> None:
        assert licence_of({"name": "some", **metadata}) == expected

    every(
        [
            ({}, ""),
            ({"license": "MIT", "license_expression": "ISC"}, "ISC"),
            ({"license": "Apache 2.0 License"}, "Apache-2.0"),
            ({"license": "MIT License\n\nCopyright (c) ..."}, ""),
            ({"license": "Own Words"}, "Own Words"),
            ({"classifier": ["License :: OSI Approved"]}, ""),
            ({"classifier": ["License :: OSI Approved :: BSD License"]}, "LicenseRef-BSD"),
            (
                {"license": "MIT", "classifier": ["License :: Other/Proprietary License"]},
                "LicenseRef-Proprietary AND MIT",
            ),
            (
                {
                    "license": "LicenseRef-NVIDIA-Proprietary",
                    "classifier": ["License :: Other/Proprietary License"],
                },
                "LicenseRef-NVIDIA-Proprietary",
            ),
            ({"name": "TorchAO"}, "BSD-3-Clause"),
        ],
        check,
    )


def test_the_licence_that_decides_an_expression():
    def check(expression: str, expected: str, ranked: int) -> None:
        assert (deciding(expression), rank(deciding(expression))) == (expected, ranked)

    every(
        [
            ("MIT", "MIT", 0),
            ("Apache-2.0 WITH LLVM-exception AND MIT", "Apache-2.0 WITH LLVM-exception", 0),
            ("GPL-3.0-only OR MIT", "MIT", 0),
            ("MIT AND MPL-2.0", "MPL-2.0", 1),
            ("LGPL-2.1-or-later", "LGPL-2.1-or-later", 1),
            ("(MIT OR GPL-2.0-only) AND (ISC OR (AGPL-3.0-only AND MIT))", "MIT", 0),
            ("MIT AND GPL-2.0-only OR AGPL-3.0-only", "GPL-2.0-only", 2),
            ("GPL-2.0-only WITH Classpath-exception-2.0",) * 2 + (2,),
            ("MIT AND Own", "Own", 3),
            ("", "", 3),
        ],
        check,
    )


def test_a_licence_that_nobody_may_depend_on_or_knows_stops_a_release():
    licences = ("MIT", "MPL-2.0", "LGPL-3.0-only", "AGPL-3.0-only", "LicenseRef-Proprietary", "")
    found = [Part(f"p{i}", "1", name, "", (), ()) for i, name in enumerate(licences)]
    assert judged(found) == (
        [
            "p3 1 is under AGPL-3.0-only, which qtui cannot depend on.",
            "p4 1 is under 'LicenseRef-Proprietary', which nobody has judged yet.",
            "p5 1 names no licence: read its files, and add it to READ.",
        ],
        ["p1 1 has files under MPL-2.0.", "p2 1 has files under LGPL-3.0-only."],
    )


def test_the_bill_of_the_same_parts_is_the_same_text():
    rows = (QTUI, PLAIN, HUB, QUICK, LAB)
    made = [
        bill(parts(report(*order)), "2026-01-02T03:04:05+00:00", "ab" * 32, "Linux")
        for order in (rows, rows[::-1])
    ]
    assert made[0] == made[1]
    told = json.loads(made[0])
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    own = told["metadata"]["component"]
    assert (own["type"], own["purl"]) == ("application", "pkg:pypi/qtui@1.0")
    assert own["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert [each["name"] for each in told["components"]] == ["hub-lib", "lab-lib", "plain", "quick"]
    quick = told["components"][3]
    assert quick["purl"] == quick["bom-ref"] == "pkg:pypi/quick@2.0%2Bcpu"
    assert quick["licenses"] == [{"expression": "MPL-2.0 AND MIT"}]
    refs = {own["bom-ref"], *(each["bom-ref"] for each in told["components"])}
    assert {each["ref"] for each in told["dependencies"]} == refs
    assert {ref for each in told["dependencies"] for ref in each["dependsOn"]} < refs
    bare = Part("bare", "1", "", "", (), ())
    assert purl(bare) == "pkg:pypi/bare@1"


def test_the_version_is_that_of_the_changelog(release):
    assert not [
        told
        for told in release["against_changelog"](
            release["version"](), (ROOT / "CHANGELOG.md").read_text()
        )
        if "no date" not in told
    ]
    changelog = "# Changelog\n\n## {} ({})\n\n### Added\n- A word.\n\n## 0.9 (2020-01-01)\n- Old.\n"
    assert release["newest"](changelog.format("1.0", "2026-11-26")) == (
        "1.0", "2026-11-26", "### Added\n- A word.",
    )  # fmt: skip

    def check(changelog: str, *expected: str) -> None:
        assert release["against_changelog"]("1.0", changelog) == [*expected]

    every(
        [
            (changelog.format("1.0", "2026-11-26"),),
            (
                changelog.format("1.0", "unreleased"),
                "1.0 has no date in CHANGELOG.md, but 'unreleased'.",
            ),
            (
                changelog.format("1.1", "2026-11-26"),
                "qtui has version 1.0, and CHANGELOG.md begins with '1.1'.",
            ),
            ("## 1.0 (2026-11-26)\n\n## 0.9 (2020-01-01)\n- Old.\n",
             "CHANGELOG.md says nothing of 1.0."),
        ],
        check,
    )  # fmt: skip


def test_a_wheel_has_what_git_tracks_and_nothing_else(release):
    bare = [f"qtui-1.0.dist-info/{name}" for name in sorted(release["BARE"])]
    tracked = ["qtui/a.py", "qtui_core/b.json", "tests/c.py", "README.md"]
    packed = ["qtui/a.py", "qtui_core/b.json", *bare]
    against = release["against_tree"]
    assert against(packed, tracked, "1.0") == []
    assert against([*packed, "tests/c.py"], tracked, "1.0") == [
        "In the wheel, and not tracked: tests/c.py."
    ]
    assert against(packed[1:], tracked, "1.0") == ["Tracked, and not in the wheel: qtui/a.py."]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="there is no ssh-keygen")
def test_only_a_person_with_a_key_signs(release, tmp_path):
    """A repository of its own, and a key that is made here."""
    root, key = tmp_path / "repository", tmp_path / "key"

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout

    root.mkdir()
    git("init", "-q", "-b", "work")
    for name, value in (("user.name", "A Person"), ("user.email", "a@example.org")):
        git("config", name, value)
    (root / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "1", "--no-gpg-sign")
    (root / "stray").touch()
    against = release["against_repository"]
    git("config", "user.signingkey", "")
    assert against("1.0", root) == [
        "Some files differ from the commit.",
        "This is the branch 'work', and releases are made on main.",
        "git has no key to sign with: set user.signingkey.",
    ]
    (root / "stray").unlink()
    git("branch", "-m", "main")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    git("config", "user.signingkey", f"{key}.pub")
    git("config", "gpg.format", "ssh")
    assert against("1.0", root) == []
    release["sign"]("1.0", root)
    assert against("1.0", root) == ["There is a tag v1.0 already."]
    tag = git("cat-file", "tag", "v1.0")
    assert "Signed-off-by: A Person <a@example.org>" in tag
    assert "BEGIN SSH SIGNATURE" in tag


def test_the_notes_say_what_is_new_what_it_takes_and_the_sums(release, tmp_path):
    file = Path(tmp_path, "qtui-1.0.tar.gz")
    file.write_bytes(b"")
    found = parts(report(QTUI, PLAIN, HUB, QUICK, LAB))
    text = release["notes"]("0.1.0", found, [file])
    assert f"{release['digest'](file)}  qtui-1.0.tar.gz\n" in text
    assert "- `qtui formats VALUE`" in text
    assert table(found) in text
    assert text.endswith("- quick 2.0+cpu has files under MPL-2.0.\n")
