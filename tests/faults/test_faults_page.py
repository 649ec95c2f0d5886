"""docs/faults.md names a test for each fault."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/faults.md"


def test_every_row_is_held_by_tests_that_exist():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    held = [re.findall(r"`(test_\w+)`", row.split("|")[-2]) for row in rows]
    assert all(names or row.startswith("| fault |") for names, row in zip(held, rows, strict=True))
    there = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    assert {name for names in held for name in names if f"def {name}(" not in there} == set()
