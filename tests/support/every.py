"""One test over a table of cases: all cases run, and the failures are reported together."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

#: The most failures that are reported one by one; the others are counted.
REPORTED = 20

FAILURES = (Exception, pytest.fail.Exception)


def every(cases: Iterable[Any] | Mapping[str, Any], check: Callable[..., object]) -> None:
    """Calls `check(*case)` with each tuple of `cases`, or `check(case)` with each other value.

    If `cases` is a mapping, its keys are the names. Every case runs, also after a failure; then the
    test fails once, with the name, the line and the message of each failed case and the traceback
    of the first. An empty table fails: it would prove nothing.
    """
    tally = _Tally()
    for name, case in _named(cases):
        with tally.case(name):
            check(*case) if isinstance(case, tuple) else check(case)
    tally.end()


@contextmanager
def collected() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """For cases that share something expensive, such as an app: in `with collected() as case:` each
    case runs in `with case(its name):`. Failures are reported at the end, as by `every`."""
    tally = _Tally()
    yield lambda name: tally.case(str(name))
    tally.end()


def over(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> Callable[[Any], Any]:
    """Like `pytest.mark.parametrize`, but the test remains one test that runs all its cases, as
    `every` does.

    Its other arguments are fixtures, which all cases share, with two exceptions: what a case
    changes with `monkeypatch` is undone before the next, and `tmp_path` is empty for each. Several
    tables on one test give all combinations. `ids` gives the name of a value, or names all cases,
    if `str` is not suitable.
    """
    keys = tuple(each.strip() for each in names.split(",")) if isinstance(names, str) else names
    if ids is None or callable(ids):
        table = [(_name(case, ids or _shown), case) for case in cases]
    else:
        table = list(zip(ids, cases, strict=True))

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(test)
        missing = set(keys) - set(signature.parameters)
        assert not missing, f"{test.__name__} takes no {missing}"
        assert not inspect.iscoroutinefunction(test), "a table of coroutines is not built"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            tally = _Tally()
            for at, (name, case) in enumerate(table):
                values = case if len(keys) > 1 else (case,)
                with tally.case(name), pytest.MonkeyPatch.context() as patch:
                    own = dict(zip(keys, values, strict=True))
                    if "monkeypatch" in fixtures:
                        own["monkeypatch"] = patch
                    if "tmp_path" in fixtures:
                        own["tmp_path"] = fixtures["tmp_path"] / str(at)
                        own["tmp_path"].mkdir()
                    test(**{**fixtures, **own})
            tally.end()

        rest = [each for name, each in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate


def in_parts(parts: int) -> Any:
    """Passes `parts` to the test. The default suite runs one in `parts` cells of a table, spread
    over all rows and columns (see `left_out`); the slow suite runs all of them, with `parts` 1."""
    return pytest.mark.parametrize(
        "parts", [parts, pytest.param(1, marks=pytest.mark.slow, id="all")]
    )


def left_out(parts: int, *cell: tuple[Any, Iterable[Any]]) -> bool:
    """Whether a cell of a table does not run. `cell` gives for each column the cell's value and all
    values of that column. About one in `parts` cells runs."""
    return sum(list(column).index(value) for value, column in cell) % parts != 0


def drawn(
    examples: int, parts: int, *strategies: Any, also: Iterable[tuple[Any, ...]] = ()
) -> Callable[[Callable[..., object]], Any]:
    """A hypothesis test with values of `strategies`, after `tmp_path` if the test takes it. The
    slow suite draws `examples` times, the default suite one in `parts` of that; the tuples `also`
    run in both."""

    def decorate(test: Callable[..., object]) -> Callable[..., None]:
        placed = "tmp_path" in inspect.signature(test).parameters

        @in_parts(parts)
        def run(parts: int, tmp_path: Path) -> None:
            from hypothesis import example, given, settings
            from hypothesis import strategies as st

            @settings(max_examples=examples // parts)
            @given(st.tuples(*strategies))
            def check(values: tuple[Any, ...]) -> None:
                test(*[tmp_path] * placed, *values)

            for values in also:
                check = example(values)(check)
            check()

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


class _Tally:
    """Which cases of a table failed, and how."""

    def __init__(self) -> None:
        self._count = 0
        self._name = ""
        self._failed: list[tuple[str, BaseException]] = []
        self._skipped: list[BaseException] = []

    def case(self, name: str) -> _Tally:
        self._count += 1
        self._name = name
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, pytest.skip.Exception):
            self._skipped.append(error)
        elif isinstance(error, FAILURES):
            self._failed.append((self._name, error))
        else:
            return False
        return True

    def end(self) -> None:
        """Fails if a case failed; skips if every case was skipped."""
        assert self._count, "the table has no cases"
        if self._failed:
            lines = [f"{name}: {_message(error)}" for name, error in self._failed[:REPORTED]]
            if len(self._failed) > REPORTED:
                lines.append(f"and {len(self._failed) - REPORTED} more")
            text = "\n".join([f"{len(self._failed)} of {self._count} cases failed", *lines])
            raise AssertionError(text) from self._failed[0][1]
        if len(self._skipped) == self._count:
            raise self._skipped[0]


def _named(cases: Iterable[Any] | Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    if isinstance(cases, Mapping):
        return cases.items()
    return ((_name(case, _shown), case) for case in cases)


def _name(case: Any, shown: Callable[[Any], object]) -> str:
    """The name of a case, which distinguishes it from the others in its table."""
    parts = case if isinstance(case, tuple) else (case,)
    return "-".join(str(shown(part)) for part in parts)[:120]


def _shown(value: Any) -> object:
    return getattr(value, "__name__", value)


def _message(error: BaseException) -> str:
    """Where a check failed and its message, as short as possible."""
    frames = traceback.extract_tb(error.__traceback__)
    at = next((f for f in reversed(frames) if "/test_" in f.filename), frames[-1])
    return f"line {at.lineno}: {type(error).__name__}: {error}"
