"""Engines for the tests of what they answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from qtui.engine.client import EngineClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    """One engine for all questions of a file, which share its event loop too. Each question names
    its model, as on the screen, where an engine lives as long as the app."""
    client = EngineClient()
    yield client
    await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_engine() -> AsyncIterator[EngineClient]:
    """For a test that ends it."""
    client = EngineClient()
    yield client
    await client.close()
