"""What an install of qtui takes: every distribution with its licence and the extras that bring it,
and the bill of materials (CycloneDX 1.6) of them.

pip says what it would install, and installs nothing: what is listed here is right for this platform
on this day.
"""

from __future__ import annotations

import json
import re
import subprocess
import uuid
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trials import EXTRAS

#: Licences as distributions write them -> as SPDX does.
SPDX = {
    "Apache": "Apache-2.0",
    "Apache 2": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "LicenseRef-BSD",
    "BSD License": "LicenseRef-BSD",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Other/Proprietary License": "LicenseRef-Proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
#: Of distributions whose metadata name none, or two: read in the files of the distribution.
READ = {
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",  # empty: it requires NVIDIA's libraries
    "nvidia-nvtx": "Apache-2.0",
    "torchao": "BSD-3-Clause",
}
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python",
    "ISC", "LicenseRef-BSD", "MIT", "PSF-2.0", "Zlib",
}  # fmt: skip
#: With these an install is fine, and whoever passes the libraries on must read them.
REMARKED = re.compile(r"(LGPL|MPL)-\S+|LicenseRef-NVIDIA-Proprietary")
REFUSED = re.compile(r"A?GPL-\S+")


class Part(NamedTuple):
    """A distribution that pip would install."""

    name: str
    version: str
    licence: str
    sha256: str
    extras: tuple[str, ...]  # those of qtui that bring it; none: qtui alone does
    requires: tuple[str, ...]


def asked_of_pip(python: Path | str, source: Path) -> dict[str, Any]:
    """pip's report of an install of qtui from `source` with all EXTRAS where nothing is."""
    words = ["install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run(
        [python, "-m", "pip", *words, f"{source}[{','.join(EXTRAS)}]"],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def parts(report: dict[str, Any]) -> list[Part]:
    """The distributions of a report of pip, by name."""
    rows: dict[str, Any] = {
        canonicalize_name(row["metadata"]["name"]): row for row in report["install"]
    }
    brought, requires = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for extra in ("", *EXTRAS):
        waiting, seen = [("qtui", extra)], set()
        while waiting:
            name, taken = waiting.pop()
            if (name, taken) in seen:
                continue
            seen.add((name, taken))
            brought[name].add(extra)
            for line in rows[name]["metadata"].get("requires_dist", ()):
                need = Requirement(line)
                if need.marker is None or need.marker.evaluate(
                    {**report["environment"], "extra": taken}
                ):
                    child = canonicalize_name(need.name)
                    waiting += [(child, each) for each in ("", *need.extras)]
                    requires[name].add(child)
    return [
        Part(
            name,
            row["metadata"]["version"],
            licence_of(row["metadata"]),
            row["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", ""),
            () if "" in brought[name] else tuple(e for e in EXTRAS if e in brought[name]),
            tuple(sorted(requires[name] - {name})),
        )
        for name, row in sorted(rows.items())
    ]


def licence_of(metadata: dict[str, Any]) -> str:
    """The licence that a distribution's metadata name, as SPDX writes it; "" if they name none.
    Where the field and the classifiers differ, all of them count."""
    if expression := metadata.get("license_expression"):
        return expression
    if read := READ.get(canonicalize_name(metadata["name"])):
        return read
    lines = [line.split(" :: ") for line in metadata.get("classifier", ())]
    named = {line[-1] for line in lines if line[0] == "License"} - {"OSI Approved"}
    text = metadata.get("license", "").strip()
    if text and "\n" not in text:  # otherwise it is the text of the licence
        named.add(text)
    found = {SPDX.get(name, name) for name in named}
    if "LicenseRef-NVIDIA-Proprietary" in found:  # which says more
        found.discard("LicenseRef-Proprietary")
    return " AND ".join(sorted(found))


def rank(licence: str) -> int:
    """0: permissive, 1: worth a remark, 2: refused, 3: unknown."""
    name = licence.split(" WITH ")[0].strip()
    if name in PERMISSIVE:
        return 0
    return 1 if REMARKED.fullmatch(name) else 2 if REFUSED.fullmatch(name) else 3


def deciding(expression: str) -> str:
    """The licence of an SPDX expression that matters: the strictest of those that hold together,
    the mildest of those that one may choose from."""
    while inner := re.search(r"\(([^()]*)\)", expression):
        expression = expression.replace(inner[0], deciding(inner[1]))
    choices = [max(choice.split(" AND "), key=rank) for choice in expression.split(" OR ")]
    return min(choices, key=rank)


def judged(found: Iterable[Part]) -> tuple[list[str], list[str]]:
    """Sentences on licences: those that stop a release, and remarks."""
    faults, remarks = [], []
    for part in found:
        licence = deciding(part.licence)
        what = f"{part.name} {part.version}"
        match rank(licence):
            case 1:
                remarks.append(f"{what} has files under {licence}.")
            case 2:
                faults.append(f"{what} is under {licence}, which qtui cannot depend on.")
            case 3 if not licence:
                faults.append(f"{what} names no licence: read its files, and add it to READ.")
            case 3:
                faults.append(f"{what} is under {licence!r}, which nobody has judged yet.")
    return faults, remarks


def table(found: Iterable[Part]) -> str:
    """The licences in Markdown."""
    rows = [
        f"| {part.name} | {part.version} | {part.licence or '?'} "
        f"| {', '.join(part.extras) or 'qtui'} |\n"
        for part in found
        if part.name != "qtui"
    ]
    head = "| distribution | version | licence | comes with |\n| --- | --- | --- | --- |\n"
    return head + "".join(rows)


def bill(found: Iterable[Part], when: str, sha256: str, platform: str) -> str:
    """The bill of materials as JSON: of the same parts it is the same text.

    Args:
        when: the time of the commit, as ISO 8601 writes it.
        sha256: of qtui's wheel.
        platform: that pip was asked on.
    """
    found = list(found)
    (own,) = (component(part._replace(sha256=sha256)) for part in found if part.name == "qtui")
    others = [component(part) for part in found if part.name != "qtui"]
    addresses = {part.name: purl(part) for part in found}
    body = {
        "metadata": {
            "timestamp": when,
            "component": {**own, "type": "application"},
            "properties": [{"name": "qtui:resolved-on", "value": platform}],
        },
        "components": others,
        "dependencies": [
            {
                "ref": addresses[part.name],
                "dependsOn": sorted(addresses[name] for name in part.requires),
            }
            for part in found
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return json.dumps({**head, **body}, indent=2, sort_keys=True) + "\n"


def component(part: Part) -> dict[str, Any]:
    """A distribution as CycloneDX writes it."""
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(part),
        "name": part.name,
        "version": part.version,
        "purl": purl(part),
    }
    if part.licence:
        made["licenses"] = [{"expression": part.licence}]
    if part.sha256:
        made["hashes"] = [{"alg": "SHA-256", "content": part.sha256}]
    if part.extras:
        made["properties"] = [{"name": "qtui:extra", "value": extra} for extra in part.extras]
    return made


def purl(part: Part) -> str:
    """The address of a distribution among those of PyPI."""
    return f"pkg:pypi/{part.name}@{quote(part.version, safe='')}"
