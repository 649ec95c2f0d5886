"""Engines for the tests of what they answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from qtui.engine.client import EngineClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[EngineClient]:
    """One engine for all tests of a file, which share its event loop, too. Each request names its
    model, as in the app, where an engine lives as long as the app."""
    client = EngineClient()
    yield client
    await client.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_engine() -> AsyncIterator[EngineClient]:
    """An engine for a test that ends it."""
    client = EngineClient()
    yield client
    await client.close()
