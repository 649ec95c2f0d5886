"""What panels keep of the engine's answers."""

from __future__ import annotations

import asyncio

import pytest

from qtui.screen.panel.feed import KEPT, Answers, Key


def test_an_answer_is_asked_for_once_until_it_is_outdated_or_pushed_out() -> None:
    asked: list[Key] = []

    async def look(answers: Answers, *key: int) -> int:
        async def ask() -> int:
            asked.append(key)
            return sum(key)

        found: int = await answers.remembered(key, ask)
        return found

    async def run() -> None:
        answers = Answers()
        assert [await look(answers, 1, 2), await look(answers, 1, 2)] == [3, 3]
        assert await look(answers, 5) == 5
        assert asked == [(1, 2), (5,)]
        answers.forget(lambda key: 1 in key)
        await look(answers, 5)
        await look(answers, 1, 2)
        assert asked == [(1, 2), (5,), (1, 2)]
        for number in range(KEPT):
            await look(answers, 100 + number)
        await look(answers, 5)
        assert asked[-1] == (5,)
        answers.clear()
        await look(answers, 5)
        assert asked[-2:] == [(5,), (5,)]

    asyncio.run(run())


def test_a_failure_is_not_remembered() -> None:
    async def run() -> None:
        answers = Answers()

        async def fail() -> int:
            raise OSError("lost")

        async def answer() -> int:
            return 7

        with pytest.raises(OSError, match="lost"):
            await answers.remembered((1,), fail)
        assert await answers.remembered((1,), answer) == 7

    asyncio.run(run())
