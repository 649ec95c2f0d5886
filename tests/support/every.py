"""One test over a table of cases: all cases run, and all failures are reported together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def collected() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """For cases that share something expensive, such as an app: in `with collected() as case:` each
    case runs in `with case(its name):`. All failures are raised at the end, as one group. An empty
    table fails: it would prove nothing."""
    count = 0
    failed: list[BaseException] = []
    skipped: list[BaseException] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        nonlocal count
        count += 1
        try:
            yield
        except pytest.skip.Exception as error:
            skipped.append(error)
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"in the case {str(name)[:120]}")
            failed.append(error)

    yield case
    assert count, "the table has no cases"
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {count} cases failed", failed)
    if len(skipped) == count:
        raise skipped[0]


def every(cases: Iterable[Any] | Mapping[str, Any], check: Callable[..., object]) -> None:
    """Calls `check(*case)` with each tuple of `cases`, or `check(case)` with each other value, as
    `collected` does. If `cases` is a mapping, its keys are the names."""
    named = cases.items() if isinstance(cases, Mapping) else ((each, each) for each in cases)
    with collected() as case:
        for name, each in named:
            with case(name):
                check(*each) if isinstance(each, tuple) else check(each)


def over(names: str | tuple[str, ...], cases: Iterable[Any], ids: Any = str) -> Any:
    """Like `pytest.mark.parametrize`, but the test remains one test that runs all its cases, as
    `every` does.

    Its other arguments are fixtures, which all cases share, with two exceptions: what a case
    changes with `monkeypatch` is undone before the next, and `tmp_path` is empty for each. Several
    tables on one test give all combinations. `ids` names the cases in a report.
    """
    keys = tuple(each.strip() for each in names.split(",")) if isinstance(names, str) else names
    table = list(cases)

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(test)
        assert set(keys) <= set(signature.parameters), f"{test.__name__} takes no {keys}"
        assert not inspect.iscoroutinefunction(test), "a table of coroutines is not built"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            with collected() as case:
                for at, values in enumerate(table):
                    own = dict(zip(keys, values if len(keys) > 1 else (values,), strict=True))
                    with case(own), pytest.MonkeyPatch.context() as patch:
                        if "monkeypatch" in fixtures:
                            own["monkeypatch"] = patch
                        if "tmp_path" in fixtures:
                            own["tmp_path"] = fixtures["tmp_path"] / str(at)
                            own["tmp_path"].mkdir()
                        test(**{**fixtures, **own})

        rest = [each for name, each in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=rest)
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
