"""`qtui inspect --sensitivity` as a user runs it."""

from __future__ import annotations

import json

import pytest


def test_json_assigns_within_the_budget(qtui):
    args = ("inspect", "demo", "--sensitivity", "--schemes", "nf4:dq,int8,int3", "--budget", "4.5")
    done = qtui(*args, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    found = data["sensitivity"]
    assert found["exact"] in (True, False)
    assert found["bytes"] <= found["budget_bytes"] == int(4.5 * data["model"]["parameters"] / 8)
    assert found["relative_error_bound"] <= found["relative_error"]
    kept = sum(t["bytes"] for t in data["tensors"] if not t["errors"])
    assert found["bytes"] == kept + sum(a["bytes"] for a in found["assignment"])
    assert {a["scheme"] for a in found["assignment"]} <= {
        "nf4:block64:dq", "int8:row", "int3:group64", None,
    }  # fmt: skip
    errors = {(t["name"], e["scheme"]): e for t in data["tensors"] for e in t["errors"]}
    for entry in found["assignment"]:
        if entry["scheme"] is not None:
            relative = errors[entry["tensor"], entry["scheme"]]["relative_mse"]
            assert 0 < entry["relative_error"] < relative
    assert data["conclusion"].startswith("At 4.")


def test_html_draws_the_frontier(qtui, tmp_path):
    target = tmp_path / "report.html"
    done = qtui("inspect", "demo", "--sensitivity", "--schemes", "nf4,int8", "-o", str(target))
    assert done.returncode == 0, done.stderr
    page = target.read_text()
    assert page.count("<svg") == page.count("</svg>") == 1
    assert "polyline" in page
    assert "int8:row</title>" in page


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--budget", "4"), "--sensitivity"),
        (("--sensitivity", "--headers"), "--headers"),
        (("--sensitivity", "--budget", "1MB"), "cannot be met"),
        (("--sensitivity", "--schemes", "int4:model"), "int4:tensor"),
        (("--sensitivity", "--tensors", "*norm*"), "nothing to assign"),
    ],
)
def test_what_cannot_be_is_refused_in_words(qtui, args, words):
    done = qtui("inspect", "demo", *args)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
