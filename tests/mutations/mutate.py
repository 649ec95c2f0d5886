"""How many planted mistakes the tests notice: `python tests/mutations/mutate.py --as NAME`.

Each row of mutations.toml is a mistake: a text of the product, its replacement, and the test files
that should notice. The tree is copied to a temporary folder; one mistake at a time is made in the
copy, those files are run there with -x, and the copy is restored. A mistake is killed if a test
fails that passes after the copy is restored. results.md lists the verdicts of each named run.

Rows find their file by its text, and test files by their name, so that both may move.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGES = ("qtui_core", "qtui")
ROWS = HERE / "mutations.toml"
VERDICTS = HERE / "results.json"
RESULTS = HERE / "results.md"

KILLED, SURVIVED, TIMEOUT, BROKEN = "killed", "survived", "timeout", "broken"
#: The lines in which pytest names a failed test.
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", re.MULTILINE)
#: Seconds that the test files of one mistake may take.
LIMIT = 600
#: Not copied: generated files, and large ones that are not read.
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "screenshots", "dist", "build")


@dataclass(frozen=True)
class Mutation:
    """A mistake.

    Attributes:
        name: short and unique.
        layer: the part of the product that it is in.
        old, new: the text and its replacement. White space in `old` matches any white space.
        tests: names of the test files that should notice.
        wrong: what is then wrong, as a sentence.
        anchor: another text of the same file, if `old` alone is in several files.
        only: a `-k` expression; empty for all tests of the files.
        slow: whether tests marked slow are run too.
    """

    name: str
    layer: str
    old: str
    new: str
    tests: tuple[str, ...]
    wrong: str
    anchor: str = ""
    only: str = ""
    slow: bool = False


def read_rows() -> tuple[Mutation, ...]:
    """All rows, in the order of the file."""
    rows = tomllib.loads(ROWS.read_text("utf-8"))["mutation"]
    return tuple(Mutation(**{**row, "tests": tuple(row["tests"])}) for row in rows)


def sources_of(tree: Path) -> dict[Path, str]:
    """The texts of the product, with white space normalized."""
    files = (path for package in PACKAGES for path in (tree / package).rglob("*.py"))
    return {path: _plain(path.read_text("utf-8")) for path in files}


def test_files_of(tree: Path) -> dict[str, list[Path]]:
    """The test files by name."""
    found: dict[str, list[Path]] = {}
    for path in (tree / "tests").rglob("test_*.py"):
        found.setdefault(path.name, []).append(path)
    return found


def place_of(mutation: Mutation, sources: Mapping[Path, str]) -> Path:
    """The file for a mistake. Raises LookupError if its text does not occur exactly once in the
    files with its anchor."""
    old, anchor = _plain(mutation.old), _plain(mutation.anchor)
    found = [(path, text.count(old)) for path, text in sources.items() if anchor in text]
    found = [(path, times) for path, times in found if times]
    if [times for _, times in found] != [1]:
        where = ", ".join(f"{path.name}: {times}" for path, times in found) or "nowhere"
        raise LookupError(f"{mutation.name}: its text is not in one place ({where}).")
    return found[0][0]


def mutated(source: str, mutation: Mutation) -> str:
    """The text of a file with the mistake in it."""
    pattern = r"\s+".join(map(re.escape, mutation.old.split()))
    text, times = re.subn(pattern, lambda _: mutation.new, source)
    assert times == 1, mutation.name
    compile(text, mutation.name, "exec")  # a mistake that any test would notice does not count
    return text


def _plain(text: str) -> str:
    return " ".join(text.split())


class Copy:
    """A copy of a tree in which mistakes are made."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root = folder / "tree"
        shutil.copytree(tree, self.root, ignore=LEFT_OUT)
        self.sources = sources_of(self.root)
        self.tests = test_files_of(self.root)
        self._edits = 0
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("COV")},
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(folder),
        }

    def noticed(self, mutation: Mutation, known: str) -> str | None:
        """The first test that fails with the mistake, or TIMEOUT; None if none does. `known` is a
        test that noticed it before, and runs first."""
        path = place_of(mutation, self.sources)
        right = path.read_text("utf-8")
        files = [str(each) for name in mutation.tests for each in self.tests[name]]
        self._write(path, mutated(right, mutation))
        try:
            # Its cases may have become one test, and its file may have moved.
            for test in dict.fromkeys((known, known.partition("[")[0])):
                file, _, name = test.partition("::")
                for place in self.tests.get(Path(file).name, ()):
                    told = self._run([f"{place}::{name}"], mutation) or ""
                    if found := FAILED.search(told):
                        return found[1]
            told = self._run(files, mutation)
        finally:
            self._write(path, right)
        return TIMEOUT if told is None else _first_failed(told)

    def failing(self, tests: Sequence[str]) -> set[str]:
        """The given tests that fail without a mistake."""
        told = self._run([*dict.fromkeys(tests)], None) or ""
        return {found[1] for found in FAILED.finditer(told)}

    def _write(self, path: Path, text: str) -> None:
        """Writes a file with a modification time different from all earlier ones: Python recognizes
        a changed source by its second and its size."""
        self._edits += 1
        path.write_text(text, "utf-8")
        os.utime(path, (time.time() + 2 * self._edits,) * 2)

    def _run(self, tests: Sequence[str], mutation: Mutation | None) -> str | None:
        """The output of pytest for some tests, up to the first failure if there is a mistake; None
        if it takes too long."""
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line"]
        command += ["--hypothesis-seed=0", "-rfE"]
        marks = "not bench and not gpu"
        if mutation is not None:
            command.append("-x")
            marks += "" if mutation.slow else " and not slow"
            command += ["-k", mutation.only] if mutation.only else []
        with subprocess.Popen(
            [*command, "-m", marks, *tests],
            cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        ) as child:  # fmt: skip
            try:
                return child.communicate(timeout=LIMIT)[0]
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                return None


def _first_failed(told: str) -> str | None:
    """The first failed test in pytest's output. Raises LookupError if no test ran."""
    found = FAILED.search(told)
    if found is None and " passed" not in told:
        raise LookupError(told.strip().rpartition("\n")[2])
    return found and found[1]


def run_rows(
    tree: Path, rows: Sequence[Mutation], known: Mapping[str, str]
) -> Iterator[tuple[str, str, str]]:
    """(name, verdict, test that noticed it) of each mistake, and again for those whose verdict
    changes at the end. `known` are tests that noticed a mistake before."""
    by: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Copy(tree, Path(folder))
        for row in rows:
            try:
                test = copy.noticed(row, known.get(row.name, ""))
            except (LookupError, KeyError) as error:
                yield row.name, BROKEN, str(error)
                continue
            if test is None or test == TIMEOUT:
                yield row.name, test or SURVIVED, ""
            else:
                by[row.name] = test
                yield row.name, KILLED, test
        # A test that also fails without the mistake has noticed nothing.
        failing = copy.failing([*by.values()])
        yield from (
            (name, BROKEN, f"{test} fails anyway") for name, test in by.items() if test in failing
        )


def table_of(rows: Sequence[Mutation], runs: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """All named runs side by side, as Markdown."""
    lines = ["# Planted mistakes, and whether the tests notice", ""]
    lines += ["Written by `python tests/mutations/mutate.py --as NAME`, which says more.", ""]
    for run, verdicts in runs.items():
        known = [verdicts[row.name][0] for row in rows if row.name in verdicts]
        share = f"{known.count(KILLED)} of {len(known)} killed"
        if known:
            share += f", {known.count(KILLED) / len(known):.0%}"
        others = [f"{known.count(v)} {v}" for v in (SURVIVED, TIMEOUT, BROKEN) if v in known]
        lines.append(f"- **{run}**: {'; '.join([share, *others])}")
    lines += ["", f"| layer | mistake | {' | '.join(runs)} | noticed by |"]
    lines.append("|---" * (len(runs) + 3) + "|")
    for row in rows:
        found = [verdicts.get(row.name, ("", "")) for verdicts in runs.values()]
        by = next((by for _, by in reversed(found) if by), "").partition("[")[0].rpartition("/")[2]
        cells = [row.layer, row.wrong, *(verdict for verdict, _ in found), by and f"`{by}`"]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--as", dest="run", default="", help="keep the verdicts under this name")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout than this one")
    parser.add_argument("names", nargs="*", help="some mistakes only, by name")
    asked = parser.parse_args()
    rows = read_rows()
    runs = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
    chosen = [row for row in rows if not asked.names or row.name in asked.names]
    known = {name: by for run in runs.values() for name, (_, by) in run.items() if "::" in by}
    for name, verdict, by in run_rows(asked.tree.resolve(), chosen, known):
        print(f"{time.strftime('%H:%M:%S')} {verdict:9} {name}  {by}", flush=True)
        if asked.run:
            runs.setdefault(asked.run, {})[name] = (verdict, by)
            VERDICTS.write_text(json.dumps(runs, indent=1) + "\n", "utf-8")
            RESULTS.write_text(table_of(rows, runs), "utf-8")


if __name__ == "__main__":
    main()
