"""`every` and `over`: no failure of a case is lost."""

from inspect import signature

import pytest
from every import every, over


def odd(number, word):
    if number > 9:
        pytest.skip("none here")
    assert number % 2, word


def failures(run):
    """What the failed cases said, and of which case."""
    with pytest.raises(BaseExceptionGroup) as group:
        run()
    return group.value.message, [
        (str(e).split("\n")[0], e.__notes__) for e in group.value.exceptions
    ]


def test_every_case_runs_and_each_failure_is_reported():
    found = failures(lambda: every([(1, "a"), (2, "b"), (3, "c"), (4, "d"), (10, "e")], odd))
    assert found == (
        "2 of 5 cases failed",
        [("b", ["in the case (2, 'b')"]), ("d", ["in the case (4, 'd')"])],
    )
    found = failures(lambda: every({"whole": 1, "half": 0}, lambda n: pytest.fail(f"{1 / n}")))
    assert dict(found[1]) == {
        "1.0": ["in the case whole"],
        "division by zero": ["in the case half"],
    }
    assert failures(over("number, word", [(1, "a"), (2, "b")])(odd))[0] == "1 of 2 cases failed"


def test_a_table_that_proves_nothing_fails_or_is_skipped():
    for empty in (lambda: every([], print), over("number", [])(lambda number: None)):
        with pytest.raises(AssertionError, match="no cases"):
            empty()
    with pytest.raises(pytest.skip.Exception):
        every([(10, "a"), (11, "b")], odd)
    with pytest.raises(AssertionError, match="takes no"):
        over("nothing", [1])(odd)


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
