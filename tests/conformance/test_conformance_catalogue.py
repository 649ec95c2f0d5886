"""The conventions as data: complete, unique, and each with something that checks it."""

import subprocess
import sys
from importlib import import_module
from types import FunctionType

import pytest
from every import over

from qtui_core.conformance.catalogue import LIBRARIES, find_library
from qtui_core.conformance.convention import Convention, Verdict
from qtui_core.errors import UsageError

CONVENTIONS = [convention for library in LIBRARIES for convention in library.conventions]


def test_ids_are_unique_and_belong_to_their_library():
    for library in LIBRARIES:
        assert all(row.id.startswith(f"{library.name}.") for row in library.conventions)
    assert len({row.id for row in CONVENTIONS}) == len(CONVENTIONS)


@over("convention", CONVENTIONS, ids=lambda c: c.id)
def test_what_is_not_byte_equal_says_why(convention):
    assert convention.expected in (Verdict.BYTE_EQUAL, Verdict.VALUE_EQUAL, Verdict.DIFFERS)
    assert bool(convention.why) == (convention.expected is not Verdict.BYTE_EQUAL)
    assert not convention.says.endswith(".")
    assert not convention.why.endswith(".")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_each_convention_has_its_check(library):
    pytest.importorskip(library.module)
    from qtui_core.conformance.data import numbers

    checks = import_module(f"qtui_core.conformance.checks.{library.name.replace('-', '_')}")
    public = {
        name
        for name, value in vars(checks).items()
        if isinstance(value, FunctionType) and not name.startswith("_")
        and value.__module__ == checks.__name__
    }  # fmt: skip
    assert public == {convention.check for convention in library.conventions}
    assert all(set(c.numbers) <= numbers().keys() for c in library.conventions)


def test_a_library_is_found_however_it_is_written_or_refused_with_those_there_are():
    for name in ("compressed-tensors", "compressed_tensors", " Compressed-Tensors "):
        assert find_library(name).name == "compressed-tensors"
    with pytest.raises(UsageError, match="bitsandbytes, torchao"):
        find_library("bitsnbytes")


def test_a_convention_may_begin_with_a_version():
    convention = Convention("torch.x", "", Verdict.BYTE_EQUAL, "", "", "", since="2.12")
    versions = ("2.11.0", "2.12.0", "2.12", "2.13.0+cpu", "3.0")
    assert [*map(convention.applies_to, versions)] == [False, True, True, True, True]


def test_the_catalogue_and_the_runner_need_nothing_but_the_standard_library():
    code = (
        "import sys, qtui_core.conformance.run, qtui_core.conformance.findings; "
        "print(*{m.partition('.')[0] for m in sys.modules} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = {name for name in done.stdout.split() if not name.startswith("_")}
    assert extra <= {"qtui_core", "sitecustomize", "usercustomize"}
