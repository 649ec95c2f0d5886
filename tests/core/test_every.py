"""`every` and related functions: no failure of a case is lost."""

from __future__ import annotations

import re
from inspect import signature

import pytest
from every import REPORTED, every, over


def odd(number, word):
    assert number % 2, word


def test_every_case_runs_and_each_failure_is_reported():
    seen = []

    def check(number, word):
        seen.append(number)
        odd(number, word)

    with pytest.raises(AssertionError) as failure:
        every([(1, "one"), (2, "two"), (3, "three"), (4, "four")], check)
    assert seen == [1, 2, 3, 4]
    text = str(failure.value)
    assert text.startswith("2 of 4 cases failed\n")
    assert re.search(r"^2-two: line \d+: AssertionError: two", text, re.M)
    assert re.search(r"^4-four: line \d+: AssertionError: four", text, re.M)
    assert "two" in str(failure.value.__cause__)


def test_many_failures_are_counted():
    count = REPORTED + 5
    with pytest.raises(AssertionError, match=f"{count} of {count} cases failed") as failure:
        every(range(count), lambda n: pytest.fail(f"number {n}"))
    assert str(failure.value).endswith("and 5 more")


def test_cases_have_names():
    with pytest.raises(AssertionError, match=r"^1 of 2 cases failed\nhalf: .*ZeroDivisionError"):
        every({"whole": (1, 1), "half": (1, 0)}, lambda a, b: a / b)


def test_an_empty_table_fails():
    with pytest.raises(AssertionError, match="no cases"):
        every([], print)
    with pytest.raises(AssertionError, match="no cases"):
        over("number", [])(lambda number: None)()
    every(["a"], str)


def test_a_table_is_skipped_where_all_of_it_is():
    def check(number):
        if number > 1:
            pytest.skip("none here")
        assert number

    every([1, 2, 3], check)
    with pytest.raises(pytest.skip.Exception):
        every([2, 3], check)
    with pytest.raises(AssertionError, match="1 of 3 cases"):
        every([0, 2, 3], check)


def test_a_decorated_test_runs_every_combination(tmp_path, request):
    seen = []

    @over("letter", "ab")
    @over(("number", "word"), [(1, "one"), (2, "two")], ids=["first", "second"])
    def check(letter, number, word, request, monkeypatch, tmp_path):
        assert "left" not in globals()
        monkeypatch.setitem(globals(), "left", True)
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").write_text(word)
        seen.append((letter, number, word, request))

    assert list(signature(check).parameters) == ["request", "monkeypatch", "tmp_path"]
    with pytest.MonkeyPatch.context() as patch:
        check(request=request, monkeypatch=patch, tmp_path=tmp_path)
    combinations = [("a", 1, "one"), ("a", 2, "two"), ("b", 1, "one"), ("b", 2, "two")]
    assert seen == [(*each, request) for each in combinations]


@over("number", [1, 2])
def test_a_decorated_test_is_given_its_fixtures(number, request):
    assert request.node.name == "test_a_decorated_test_is_given_its_fixtures"


def test_a_decorated_test_reports_what_failed():
    with pytest.raises(AssertionError, match=r"1 of 2 cases failed\n2-two: line \d+: Assert.*two"):
        over("number, word", [(1, "one"), (2, "two")])(odd)()
    with pytest.raises(AssertionError, match="takes no"):
        over("nothing", [1])(odd)
