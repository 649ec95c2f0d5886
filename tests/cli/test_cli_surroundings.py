"""What is read about the terminal, and which warnings follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from every import every
from told_truly import faults_of

from qtui.cli.surroundings import installed_versions, read_terminal
from qtui.report.doctor import Surroundings, doctor_document, find_warnings
from qtui.report.surroundings import Files, Terminal
from qtui.screen.depth import Depth
from qtui_core.conformance.convention import (
    Convention,
    Library,
    LibraryReport,
    Outcome,
    Verdict,
)
from qtui_core.telemetry.machine import Machine
from qtui_core.telemetry.readings import DeviceReading, Driver

TERMINAL = Terminal(120, 40, "xterm-256color", "", False, Depth.C256, True, "utf-8", None, False)
MACHINE = Machine(
    "Debian 12", "Linux 6.1", "x86_64", "3.12.1", "/usr/bin/python", "EPYC", ("avx2",), 8,
    64 << 30, 32 << 30, None,
)  # fmt: skip
FILES = Files(Path("/c.toml"), False, None, Path("/q.log"), Path("/hub"), 3, False, "https://hub")
VERSIONS = {"qtui": "0.1.0", "torch": "2.13.0+cu130", "gguf": None}


def around(terminal=TERMINAL, machine=MACHINE, driver=None, devices=(), versions=VERSIONS,
           files=FILES):  # fmt: skip
    return Surroundings(terminal, machine, driver, devices, versions, files)


@pytest.mark.parametrize(
    ("environment", "field", "expected"),
    [
        ({"TERM": "xterm-256color"}, "depth", Depth.C256),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, "depth", Depth.TRUECOLOR),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, "depth", Depth.NONE),
        ({"TERM": "xterm", "TMUX": "/tmp/x,1,0"}, "multiplexer", "tmux"),
        ({"TERM": "screen-256color"}, "multiplexer", "screen"),
        ({"TERM": "xterm", "ZELLIJ": "0"}, "multiplexer", "Zellij"),
        ({"TERM": "xterm"}, "multiplexer", None),
        ({"SSH_CONNECTION": "1.2.3.4 5 6.7.8.9 22"}, "ssh", True),
        ({}, "ssh", False),
    ],
)
def test_the_terminal_is_read_from_its_variables(environment, field, expected):
    assert getattr(read_terminal(environment), field) == expected


def test_options_are_obeyed():
    terminal = read_terminal({"TERM": "xterm"}, color="truecolor", ascii=True)
    assert (terminal.depth, terminal.unicode) == (Depth.TRUECOLOR, False)


def test_versions_come_without_an_import():
    versions = installed_versions()
    assert versions["numpy"]
    assert list(versions)[:2] == ["qtui", "torch"]


def test_a_healthy_machine_has_no_warnings():
    assert find_warnings(around()) == []


def test_each_trouble_has_its_warning():
    def about(**given):
        (warning,) = find_warnings(around(**given))
        assert warning.consequence
        assert warning.remedy
        return warning.about, warning.says

    assert about(terminal=replace(TERMINAL, columns=50)) == (
        "terminal", "50 x 40 cells is less than 60 x 16")  # fmt: skip
    assert about(terminal=replace(TERMINAL, term="dumb"))[0] == "terminal"
    assert "latin-1" in about(terminal=replace(TERMINAL, unicode=False, encoding="latin-1"))[1]
    no_rgb = replace(TERMINAL, multiplexer="tmux", depth_why="tmux names no RGB for it")
    assert about(terminal=no_rgb)[0] == "tmux"
    gpu = DeviceReading("0", "L4", 1 << 30, memory_total=24 << 30)
    found = about(devices=(gpu,), versions={"torch": "2.13.0+cpu"})
    assert found == ("torch", "2.13.0+cpu is a build for the CPU, and this machine has 1 GPU")
    assert about(files=replace(FILES, config_error="It is wrong."))[1] == "It is wrong"


def test_the_sentence_says_whether_the_app_starts():
    """And the cache that cannot be read has no count of models."""
    broken = replace(FILES, config_error="It is wrong.", models=None)
    cases = (
        ("qtui will draw in", {}),
        ("Stdout is no terminal, so the app does not start here;", {
            "terminal": replace(TERMINAL, columns=None)}),
        ("The app does not start, because TERM is 'dumb': set TERM to", {
            "terminal": replace(TERMINAL, term="dumb")}),
        ("The app does not start, because It is wrong: correct", {"files": broken}),
    )  # fmt: skip

    def check(words, state):
        document = doctor_document(around(**state), None, details=False)
        assert document.conclusion.startswith(words)
        assert "this machine has 8 cores and no GPU" in document.conclusion
        assert not faults_of(document.conclusion)

    every(cases, check)
    row = Convention("lib.a", "a", Verdict.BYTE_EQUAL, "int4", "a()", "It does a")
    missing = {row.id: Outcome(row.id, Verdict.NOT_INSTALLED)}
    absent = LibraryReport(Library("lib", "lib", "1.0", (row,)), None, missing)
    document = doctor_document(around(files=broken), [absent], details=False)
    assert document.conclusion.endswith("correct /c.toml, or remove it.")
    assert "(cannot be read)" in dict(document.sections[3].blocks[0].pairs)["cache of the hub"]


def test_unknown_values_are_shown_as_such():
    machine = Machine("X", "Y", "Z", "3.12", "/p", None, (), 1, None, None, None)
    document = doctor_document(
        around(machine=machine, driver=Driver(None, None), devices=(DeviceReading("0"),)),
        None,
        details=False,
    )
    facts = dict(document.sections[1].blocks[0].pairs)
    assert facts["memory"] == "N/A free of N/A"
    assert facts["driver"] == "N/A, CUDA up to N/A"
    assert facts["GPU 0"].startswith("does not answer: it was lost, or this user may not ask")
    assert document.data["gpus"] == [
        {"index": 0, "name": None, "memory_used_bytes": None, "memory_total_bytes": None}
    ]


def test_the_driver_and_gpus_are_shown():
    gpu = DeviceReading("0", "NVIDIA H200", 2 << 30, memory_total=140 << 30)
    document = doctor_document(
        around(driver=Driver("580.65", (13, 0)), devices=(gpu,)), None, details=False
    )
    facts = dict(document.sections[1].blocks[0].pairs)
    assert facts["driver"] == "580.65, CUDA up to 13.0"
    assert facts["GPU 0"] == "NVIDIA H200, 2 GiB used of 140 GiB"
    assert "8 cores and 1 GPU" in document.conclusion
