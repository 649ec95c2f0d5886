"""`--fail-if` and `--baseline` as a script uses them: exit codes, sentences, JSON."""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from every import over
from safetensors.numpy import save_file
from told_truly import faults_of

from qtui_core.errors import UsageError
from qtui_core.gates import FIGURES, GATED, read_gates

SCHEMES = ("--schemes", "nf4,int8", "--tensors", "*layers.[01].*")


#: Arguments -> what the command printed as JSON. Tests may change what is read of it.
_PRINTED: dict[tuple[str, ...], str] = {}


def report_of(qtui, *args):
    if args not in _PRINTED:
        done = qtui(*args, "--json")
        assert done.returncode == 0, done.stderr
        _PRINTED[args] = done.stdout
    return json.loads(_PRINTED[args])


def written(tmp_path, data, name="baseline.json"):
    path = tmp_path / name
    path.write_text(json.dumps(data))
    return str(path)


def test_rows_that_fall_are_those_of_the_json(qtui):
    data = report_of(qtui, "inspect", "demo", *SCHEMES)
    worse = sorted(row["sqnr_db"] for row in data["schemes"])
    middle = sum(worse) / 2
    done = qtui("inspect", "demo", *SCHEMES, "--json", "--fail-if", f"sqnr<{middle}")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    (low,) = [row for row in data["schemes"] if row["sqnr_db"] < middle]
    assert found["gates"] == [
        {
            "expression": f"sqnr<{middle}",
            "row": low["scheme"],
            "value": low["sqnr_db"],
            "limit": middle,
        }
    ]
    assert found == {**data, "gates": found["gates"]}
    sentence = f"qtui: 1 row failed: {low['scheme']} has sqnr_db {low['sqnr_db']:.6g} dB, under the"
    assert done.stderr.startswith(sentence)


def test_a_row_that_falls_twice_is_one_row():
    """And an exact scheme has no decibels, which is more than any."""
    rows = {"schemes": [{"scheme": "fp32", "sqnr_db": None, "relative_mse": 0, "bytes": 8}]}
    gates = read_gates("inspect", ["sqnr>9", "bytes>7B"], None, schema_version=1)
    said = gates.judge(rows).sentence
    assert said.startswith("2 checks failed: fp32 has sqnr_db infinite dB, above the limit 9 dB (")
    assert not faults_of(said)
    none = read_gates("inspect", ["tensors.sqnr<9"], None, schema_version=1).judge(rows)
    assert none.sentence.startswith("1 check failed: the report has no row of tensors for")


def test_every_comparison_is_that_of_python(qtui):
    data = report_of(qtui, "inspect", "demo", *SCHEMES)
    sqnr = data["schemes"][0]["sqnr_db"]
    signs = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
    for sign, compare in signs.items():
        for limit in (sqnr, math.nextafter(sqnr, 0), math.nextafter(sqnr, 99)):
            gates = read_gates("inspect", [f" SQNR {sign} {limit!r} dB "], None, schema_version=1)
            expected = [r["scheme"] for r in data["schemes"] if compare(r["sqnr_db"], limit)]
            assert [row.row for row in gates.judge(data).fallen] == expected


def test_without_gates_nothing_is_in_the_report(qtui):
    assert "gates" not in report_of(qtui, "memory", "demo")
    held = qtui("memory", "demo", "--json", "--fail-if", "peak>22GiB")
    assert held.returncode == 0
    assert json.loads(held.stdout)["gates"] == []


def test_gates_are_in_every_face(qtui, tmp_path):
    for face in ("text", "markdown", "html"):
        args = (
            "memory",
            "demo",
            "--format",
            face,
            "--fail-if",
            "peak>1MiB",
            "--fail-if",
            "live>9TiB",
        )
        done = qtui(*args)
        assert done.returncode == 1
        assert "the run of demo has peak" in done.stdout
        assert "checked on 1 row" in done.stdout
        assert "limit 1,048,576 bytes (1 MiB)" in done.stderr
        assert done.stderr.count("\n") == 1
    target = tmp_path / "report.json"
    assert qtui("memory", "demo", "--fail-if", "peak>1MiB", "-o", str(target)).returncode == 1
    (fallen,) = json.loads(target.read_text())["gates"]
    assert fallen["limit"] == 2**20 < fallen["value"]


def test_tensors_and_the_run_have_gates_of_their_own(qtui):
    data = report_of(qtui, "inspect", "demo", *SCHEMES)
    cells = {f"{t['name']} {e['scheme']}": e for t in data["tensors"] for e in t["errors"]}
    limit = 20.5
    fallen = read_gates("inspect", [f"tensors.sqnr<{limit}"], None, schema_version=1).judge(data)
    assert {row.row for row in fallen.fallen} == {
        name for name, error in cells.items() if error["sqnr_db"] < limit
    }
    done = qtui("inspect", "demo", *SCHEMES, "--fail-if", "peak>1MiB", "--json")
    (row,) = json.loads(done.stdout)["gates"]
    assert (done.returncode, row["row"]) == (1, "memory")
    assert row["value"] == data["memory"]["peak_allocated_bytes"]


def test_a_run_that_does_not_fit_still_fails_without_a_gate_that_fell(qtui):
    small = qtui("memory", "demo", "--vram", "100MiB", "--fail-if", "peak>22GiB")
    assert small.returncode == 1
    assert small.stderr == ""
    negative = qtui("memory", "demo", "--vram", "100MiB", "--fail-if", "fits.headroom<0B")
    assert negative.returncode == 1
    assert "headroom_bytes -" in negative.stderr


@over(
    ("args", "words"),
    [
        (("inspect", "--fail-if", "snr<20"), ("'snr' is no figure", "sqnr_db (sqnr)", "tensors.")),
        (("memory", "--fail-if", "sqnr<20"), ("`qtui memory`", "peak_allocated_bytes (peak)")),
        (("inspect", "--headers", "--fail-if", "sqnr<20"), ("inspect --headers", "(peak)")),
        (("inspect", "--fail-if", "sqnr=20"), ("< <= > >=", "sqnr<20")),
        (("inspect", "--fail-if", "sqnr<nan"), ("is no gate",)),
        (("inspect", "--fail-if", "sqnr<1e999"), ("too large",)),
        (("inspect", "--fail-if", "sqnr<20GiB"), ("the unit GiB", "takes dB")),
        (("memory", "--fail-if", "peak>22"), ("peak_allocated_bytes is in bytes", "GiB")),
        (("memory", "--fail-if", "peak>22GB"), ("GiB is 2^30 bytes",)),
        (("memory", "--baseline", "/nowhere.json"), ("cannot be read", "No such file")),
        (("memory", "--baseline", "a.json", "--baseline", "b.json"), ("takes one file",)),
    ],
)
def test_what_is_no_gate_is_refused_before_the_work(qtui, args, words):
    # A model that is not there would be exit code 3.
    done = qtui(args[0], "no-such-model.safetensors", *args[1:])
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_no_figure_is_a_failure_and_no_error_is_none(qtui, tmp_path):
    path = tmp_path / "model.safetensors"
    half = np.full((8, 64), 0.5, np.float32)
    save_file({"exact": half, "zero": 0 * half}, path)
    common = ("inspect", str(path), "--schemes", "bf16", "--json")
    done = qtui(*common, "--fail-if", "tensors.sqnr<20")
    (fallen,) = json.loads(done.stdout)["gates"]
    assert (fallen["row"], fallen["value"]) == ("zero bf16", None)
    assert "zero bf16 has no sqnr_db" in done.stderr
    assert qtui(*common, "--fail-if", "sqnr<20").returncode == 0  # the whole model has no error
    nothing = qtui(*common, "--tensors", "nothing*", "--fail-if", "sqnr<20")
    assert nothing.returncode != 0
    without = qtui(*common, "--fail-if", "memory.peak>1GiB")  # there is no config.json
    assert without.returncode == 1
    assert "no row of memory" in without.stderr


@pytest.mark.slow
def test_a_report_holds_against_itself(qtui, tmp_path):
    for args in (
        ("inspect", "demo", *SCHEMES),
        ("inspect", "demo", *SCHEMES, "--sensitivity", "--objective", "weights", "--no-judge"),
        ("inspect", "demo", "--headers"),
        ("inspect", "demo", "--against", "demo"),
        ("memory", "demo", "--gpu", "RTX 4090"),
    ):
        data = report_of(qtui, *args)
        done = qtui(*args, "--json", "--baseline", written(tmp_path, data))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found == {**data, "gates": [], "baseline": {"missing": [], "new": []}}


def test_what_is_worse_than_the_baseline_falls_by_its_tolerance(qtui, tmp_path):
    data = report_of(qtui, "inspect", "demo", *SCHEMES)
    gates = read_gates("inspect", [], written(tmp_path, data), schema_version=1)
    scheme = data["schemes"][0]
    before = scheme["sqnr_db"], scheme["relative_mse"], scheme["bytes"]
    for change, expected in (
        ((-0.04, 1.009, 0), []),
        ((-0.06, 1.009, 0), ["baseline:schemes.sqnr_db"]),
        ((9, 1.02, -5), ["baseline:schemes.relative_mse"]),
        ((9, 0.5, 1), ["baseline:schemes.bytes"]),
    ):
        sqnr, mse, more = change
        scheme["sqnr_db"] = before[0] + sqnr
        scheme["relative_mse"] = before[1] * mse
        scheme["bytes"] = before[2] + more
        assert [row.expression for row in gates.judge(data).fallen] == expected
    data["schemes"][1]["bytes"] = 10**400  # larger than any float
    assert {row.row for row in gates.judge(data).fallen} == {"nf4:block64", "int8:row"}
    data["schemes"][1]["bytes"] = 0
    scheme["bytes"] = None
    (fallen,) = gates.judge(data).fallen
    assert fallen.value is None
    assert "which the baseline has" in fallen.sentence


def test_a_baseline_of_another_plan_is_told_and_held(qtui, tmp_path):
    baseline = written(tmp_path, report_of(qtui, "memory", "demo"))
    done = qtui("memory", "demo", "--batch", "2", "--baseline", baseline)
    assert done.returncode == 1
    assert "peak_allocated_bytes" in done.stderr
    assert "0.1% is allowed" in done.stderr
    assert "The baseline has another plan." in done.stdout


def test_rows_of_only_one_report_are_told(qtui, tmp_path):
    baseline = written(
        tmp_path, report_of(qtui, "inspect", "demo", "--schemes", "nf4,int4", *SCHEMES[2:])
    )
    done = qtui("inspect", "demo", *SCHEMES, "--baseline", baseline, "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)["baseline"]
    assert "int4:group64" in found["missing"]
    assert "int8:row" in found["new"]
    text = qtui("inspect", "demo", *SCHEMES, "--baseline", baseline).stdout
    assert "of the baseline missing here: 'int4:group64'" in text


@over(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema_version '2', and this qtui writes 1"),
        ({"model": "other"}, "is of the model 'other', and this is 'demo'"),
        ({"plan": ...}, "is no report of `qtui memory`"),
        (None, "is no report of `qtui memory`"),
        ("[1]", "is not a JSON object"),
        ("{", "is not valid JSON"),
    ],
)
def test_another_report_is_refused(qtui, tmp_path, change, words):
    path = tmp_path / "baseline.json"
    if isinstance(change, str):
        path.write_text(change)
    else:
        args = ("memory", "demo") if change else ("inspect", "demo", "--headers")
        data = {**report_of(qtui, *args), **(change or {})}
        path.write_text(json.dumps({k: v for k, v in data.items() if v is not ...}))
    done = qtui("memory", "demo", "--baseline", str(path))
    assert done.returncode == 2
    assert words in done.stderr
    assert (done.stdout == "") == ("is of the model" not in words)  # what was measured is printed


def test_the_baseline_is_not_overwritten(qtui, tmp_path):
    baseline = written(tmp_path, report_of(qtui, "memory", "demo"))
    done = qtui("memory", "demo", "--baseline", baseline, "-o", baseline, "--force")
    assert done.returncode == 2
    assert "this command reads it" in done.stderr


def test_every_gate_of_the_tables_is_a_key_of_the_json(qtui):
    reports = {
        "inspect": ("inspect", "demo", *SCHEMES),
        "inspect --sensitivity": (
            "inspect",
            "demo",
            *SCHEMES,
            "--sensitivity",
            "--objective",
            "weights",
            "--no-judge",
        ),
        "inspect --headers": ("inspect", "demo", "--headers"),
        "inspect --against": ("inspect", "demo", "--against", "demo"),
        "memory": ("memory", "demo", "--gpu", "RTX 4090"),
    }
    for command, args in reports.items():
        data = report_of(qtui, *args)
        assert all(key in data for key in (*GATED[command].marks, *GATED[command].settings))
        for rows in GATED[command].rows:
            if rows.name == "judged":  # takes seconds: test_cli_judged.py
                continue
            found = list(rows.rows_in(data))
            assert found, (command, rows.name)
            for name, row in found:
                assert set(rows.figures) <= set(row), (command, name)
    assert {key for gated in GATED.values() for rows in gated.rows for key in rows.figures} == set(
        FIGURES
    )


def test_the_workflow_of_the_page_works(qtui, tmp_path):
    page = Path(__file__).parents[2].joinpath("docs/ci.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    runs = [shlex.split(run)[1:] for run in re.findall(r"- run: (qtui .*)", block)]
    assert [run[0] for run in runs] == ["inspect", "memory"]
    first = [*runs[1][: runs[1].index("--baseline")], "--json", "-o", "memory.json"]
    for args in (first, *runs):
        done = qtui(*args, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    larger = qtui(*runs[1], "--seq", "8192", cwd=tmp_path)
    assert larger.returncode == 1


@pytest.mark.slow
def test_an_evaluation_has_gates_but_for_the_original(qtui, tmp_path):
    pytest.importorskip("transformers")
    args = ("eval", "demo", "--windows", "2", "--schemes", "nf4,int8")
    data = report_of(qtui, *args)
    (rows,) = GATED["eval"].rows
    found = dict(rows.rows_in(data))
    assert list(found) == ["nf4:block64", "int8:row"]
    for row in found.values():
        assert set(rows.figures) <= set(row)
    middle = sum(row["kl_mean"] for row in found.values()) / 2
    baseline = written(tmp_path, data)
    gates = ("--fail-if", f"kl>{middle}", "--fail-if", "top1<50%", "--fail-if", "bits>15")
    done = qtui(*args, *gates, "--json", "--baseline", baseline)
    assert done.returncode == 1
    assert [row["row"] for row in json.loads(done.stdout)["gates"]] == ["nf4:block64"]
    other = qtui("eval", "demo", "--windows", "3", "--schemes", "int8", "--baseline", baseline)
    assert other.returncode == 2
    assert "another text" in other.stderr


@pytest.mark.slow
def test_exit_codes_of_the_real_program(qtui_process):
    for args, code in ((("--fail-if", "peak>1MiB"), 1), (("--fail-if", "peek>1MiB"), 2), ((), 0)):
        assert qtui_process("memory", "demo", *args).returncode == code


def test_a_figure_of_another_objective_is_not_there():
    """An assignment that is chosen by the model has an error in nats, and no decibels."""
    row = {"sqnr_db": None, "relative_error": None, "kl_sum": 0.25, "weighed_by": "kl"}
    nats = {"model": "demo", "sensitivity": row}
    by_weights = {"sqnr_db": 20.0, "relative_error": 0.01, "kl_sum": None, "weighed_by": "weights"}
    decibels = {"model": "demo", "sensitivity": by_weights}

    def gates(*limits, baseline=None):
        read = read_gates("inspect --sensitivity", limits, None, schema_version=1)
        return replace(read, file="before.json", baseline=baseline)

    assert gates("kl_sum>0.2").judge(nats).sentence.startswith("1 row failed: sensitivity has kl_s")
    assert not gates("kl_sum>0.3").judge(nats).fallen
    for limit, data in (("sqnr<20", nats), ("error>0.1", nats), ("kl_sum>1", decibels)):
        assert "so that" in gates(limit).judge(data).sentence
    with pytest.raises(UsageError, match="has another weighed_by"):
        gates(baseline=decibels).judge(nats)
